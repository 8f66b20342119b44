# What other compiled modules may reach into; the meaning of each attribute: engine/job.py.

cdef class Delivery:
    cdef public object peer, owner, started_at, heartbeat_at, expires_at, ttl_ms
    cdef public object timer  # list or None
    cdef public int renewals
    cdef public bint is_suspect


cdef class Job


cdef struct Block


cdef class Ring:
    cdef Block* first
    cdef Block* last
    cdef Py_ssize_t begin, end, size  # of the first block, of the last one, in all
    cpdef append(self, Job job)
    cdef Job head(self)
    cpdef Job popleft(self)
    cdef list listed(self)


cdef class GateFields:
    cdef public bint is_open, is_paused
    cdef public object rate, concurrency


cdef class LaneFields:
    cdef public Ring fifo
    cdef public list late, lifo
    cdef public object last_run_at
    cdef public long long last_seq


cdef class RunSetFields:
    cdef public dict lanes
    cdef public list order, delayed
    cdef public long long ready, ready_high, not_due, stale
    cdef public object groups


cdef class QueueFields:
    cdef public object name, shard
    cdef public RunSetFields run_set
    cdef public GateFields gate
    cdef public dict admitted, parked, active, completed, failed, waiters, keys
    cdef public object stall, dlq
    cdef public long long completed_total, failed_total, events_total
    cdef public object completed_at, failed_at, recount_at, used_at, wake_timer
    cdef public bint is_stored, is_disordered


cdef class Totals:
    cdef public long long pushed, pulled, completed, failed, expired
    cdef public long long failed_sweeps, worker_processed, worker_failed


cdef class EngineFields:
    cdef public object storage, core
    cdef public long long seq
    cdef public bint is_draining


cdef class Job:
    # Texts may be of a subclass of str: embedded, they are what the program gave.
    cdef public object id, name, token
    cdef public long long seq
    cdef public object queue  # QueueFields, where the engine has made it
    cdef public bytes data
    cdef public object options
    cdef public str place
    cdef public long long priority
    # Moments are Python integers: one object for all that happens in a turn, and no bounds.
    cdef public object created_at, run_at, started_at, finished_at
    cdef public bint is_ripe
    cdef public int attempts, stall_count, stamp, dirty
    cdef public object delivery  # Delivery or None
    cdef public bytes result
    cdef public object extra


cdef object NO_EXTRA  # learned from the engine
cdef Job new_job(str id, long long seq, QueueFields queue, object name, bytes data, object options,
                 object now, str place)


cdef class Ids:
    cdef object _random_bytes
    cdef long long _last_ms
    cdef int _counter
    cdef bytes _prefix
    cdef bytes _block
    cdef int _left
    cpdef str new(self, long long now)
    cdef _start(self, long long ms)


cdef class Notes:
    cdef public int answer_waits
    cdef public bint is_refusing
    cdef public list _dirty
    cdef public list _ops
    cdef public long long _size_bytes, _rows_mark, _bytes_mark
    cdef public bint _is_durable, _is_soon, _has_thens
    cdef public object _in_flight
    cpdef added(self, Job job)
    cpdef changed(self, Job job)
    cpdef removed(self, Job job)
    cpdef claimed(self)
    cdef int wait_for(self, object undo, tuple args, object then, bint durable) except -1
