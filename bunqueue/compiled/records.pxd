# What other compiled modules may reach into; the meaning of each attribute: engine/job.py.

cdef class Delivery:
    cdef public object peer, owner, started_at, heartbeat_at, expires_at, ttl_ms
    cdef public object timer  # list or None
    cdef public int renewals
    cdef public bint is_suspect


cdef class Job:
    # Texts may be of a subclass of str: embedded, they are what the program gave.
    cdef public object id, name, token
    cdef public long long seq
    cdef public object queue
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


cdef object NO_EXTRA
cdef Job new_job(str id, long long seq, object queue, object name, bytes data, object options,
                 object now, str place)
