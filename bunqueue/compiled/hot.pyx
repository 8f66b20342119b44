# cython: language_level=3, binding=False, boundscheck=False, wraparound=False
"""PUSH, PULL, ACK and their batches in the ordinary case: the engine's part, and the frames.

Five twins of engine functions come first: ``admit`` (``admission.admit_plain``), ``claim_plain``
(the loop of ``claiming.claim``), ``complete`` (``outcomes._complete``), ``forget_plain``
(``places.forget``) and the packing of an active job (``job_wire.pack_job``). Each looks first
whether the case is ordinary, before it changes
anything, and says so if it is not; the Python function goes on from there.

``Runner`` then runs frames for a connection. It never decodes a payload: ``copied`` walks over the
bytes and writes them again as msgpack would pack the decoded value (shortest headers, float64), so
what is stored is the same as without this module, byte for byte. What the walk does not like (an
extension, a key that is no string or stands twice, ill-formed UTF-8, more than 16 levels) makes the
frame one for Python, untouched. So does every key that a command does not know, every value of
another type than usual, and every state of queue or engine in which more happens than the ordinary.

Options are interned by their raw bytes: the first push with a certain set of bytes has them checked
by the Python tables, the next finds the shared options under these bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from functools import partial

from bunqueue.compiled.records cimport (
    NO_EXTRA,
    Delivery,
    EngineFields,
    Ids,
    Job,
    LaneFields,
    Notes,
    QueueFields,
    Ring,
    RunSetFields,
    Totals,
    new_job,
)


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef enum:
    KEYS_MAX = 32  # of a map, here
    LEVELS_MAX = 16
    RAW_OPTIONS_BYTES_MAX = 512
    PUSHB_MAX = 1000  # commands/core.py PLAIN_AT_ONCE_MAX
    PUSHB_OPTIONED_MAX = 250  # commands/core.py OPTIONED_AT_ONCE_MAX
    PULLB_MAX = 1000  # commands/core.py PULL_COUNT_MAX
    ACKB_MAX = 1000  # commands/core.py ACKED_AT_ONCE_MAX
    SHORT_BYTES_MAX = 4096  # server/connection.py
    LARGE_FRAME_BYTES = 131072  # server/connection.py
    TURN_BYTES_MAX = 1048576  # server/connection.py
    FRAME_BYTES_MAX = 67108864  # protocol/frames.py
    CLAIM_BYTES_MAX = 16777216  # engine/claiming.py
    ACTIVE_BYTES_MAX = 1024  # of an active job, besides its id, names, data and options
    QUEUE_NAME_CHARS_MAX = 256  # protocol/fields.py
    ROOM_KEPT_MAX = 65536  # of a buffer, between two reads of its connection
    NAMES_MAX = 10000
    OPTION_SETS_MAX = 2000
    EMPTY_LANES_TOLERATED = 16  # engine/lanes.py
    MUST_COMMIT = 1
    SHOULD_COMMIT = 2
    COMMANDS_WAITING_MAX = 50  # server/connection.py
    LOOKED_AT_BYTES = 4096  # of frames, between two looks at the clock

cdef str ADMITTED, QUEUED, ACTIVE, COMPLETED, GONE
cdef object DEFAULT_OPTIONS, _claim, _uncomplete, _complete_rest, _recount, _emit, _narrowed
cdef object _publish, _withdraw, _park, _pulled, _pulled_many, _hold_waiters, _serve_held
cdef object _names_part, _numbers_part, _pack_job, _options_of, _text_of
cdef dict _names_parts
cdef int64_t LEASE_MS_DEFAULT, PULL_WAIT_MS_MAX, LOCK_TTL_MS_MAX
cdef int NAME_CHARS_MAX
cdef bytes ID_HEADER, CREATED, RUN, STARTED, COMPLETED_NIL, NO_EXTRA_PART, TIMELINE
cdef bytes RUNNING, FIRST_WAITING, FIRST_PRIORITIZED, FIRST_DELAYED
cdef bytes PUSHED, PUSHED_MANY, NO_JOB, NO_JOB_LEASED, JOB, JOB_LEASED, JOBS, JOBS_LEASED
cdef bytes TOKEN, TOKENS, OK, REQ_ID
cdef tuple NO_OPTIONS
cdef bint _is_ready = False


cdef learn():
    """Take the constants and functions of the Python that this stands beside; at first use."""
    global NO_OPTIONS
    global ADMITTED, QUEUED, ACTIVE, COMPLETED, GONE, DEFAULT_OPTIONS, _claim, _uncomplete
    global _complete_rest, _publish, _withdraw, _park, _pulled, _pulled_many, _recount, _emit
    global _narrowed, _hold_waiters, _serve_held
    global _names_part, _names_parts, _numbers_part, _pack_job, _options_of, _text_of
    global LEASE_MS_DEFAULT, PULL_WAIT_MS_MAX, LOCK_TTL_MS_MAX, NAME_CHARS_MAX
    global ID_HEADER, CREATED, RUN, STARTED, COMPLETED_NIL, NO_EXTRA_PART, TIMELINE
    global RUNNING, FIRST_WAITING, FIRST_PRIORITIZED, FIRST_DELAYED, _is_ready
    global PUSHED, PUSHED_MANY, NO_JOB, NO_JOB_LEASED, JOB, JOB_LEASED, JOBS, JOBS_LEASED
    global TOKEN, TOKENS, OK, REQ_ID
    from bunqueue.commands import core, job_wire, registry
    from bunqueue.engine import claiming, metrics, outcomes, settings, states, visibility
    from bunqueue.engine.events import emit
    from bunqueue.protocol import codec, fields, options, replies

    ADMITTED, QUEUED = states.ADMITTED, states.QUEUED
    ACTIVE, COMPLETED, GONE = states.ACTIVE, states.COMPLETED, states.GONE
    _publish, _withdraw = visibility.publish, visibility.withdraw
    _hold_waiters, _serve_held = claiming.hold_waiters, claiming.serve_held
    _park, _pulled, _pulled_many = claiming.park, core._pulled, core._pulled_many
    DEFAULT_OPTIONS = options.DEFAULT_OPTIONS
    NO_OPTIONS = (DEFAULT_OPTIONS, 0)
    _options_of = options.ordinary_options
    _claim, _uncomplete, _complete_rest = claiming.claim, outcomes._uncomplete, outcomes._complete
    _recount, _emit, _narrowed = metrics.recount, emit, codec.narrowed
    _names_part, _names_parts = job_wire._names_part, job_wire._names
    _numbers_part = job_wire._numbers_part
    _pack_job, _text_of = job_wire.pack_job, registry.failure_text
    LEASE_MS_DEFAULT = settings.LEASE_MS_DEFAULT
    PULL_WAIT_MS_MAX, LOCK_TTL_MS_MAX = core.PULL_WAIT_MS_MAX, core.LOCK_TTL_MS_MAX
    NAME_CHARS_MAX = fields.JOB_NAME_CHARS_MAX
    ID_HEADER, CREATED, RUN, STARTED = (
        job_wire._HEADER, job_wire._CREATED, job_wire._RUN, job_wire._STARTED
    )
    COMPLETED_NIL = job_wire._COMPLETED + job_wire._NIL
    NO_EXTRA_PART, TIMELINE = job_wire._NO_EXTRA_PART, job_wire._TIMELINE
    RUNNING = job_wire._RUNNING
    FIRST_WAITING = job_wire._FIRST["waiting"]
    FIRST_PRIORITIZED = job_wire._FIRST["prioritized"]
    FIRST_DELAYED = job_wire._FIRST["delayed"]
    PUSHED, PUSHED_MANY = core._PUSHED, core._PUSHED_MANY
    OK, REQ_ID = replies.OK, replies.REQ_ID_KEY
    NO_JOB, NO_JOB_LEASED, JOB, JOB_LEASED = (
        core._NO_JOB, core._NO_JOB_LEASED, core._JOB, core._JOB_LEASED
    )
    JOBS, JOBS_LEASED, TOKEN, TOKENS = (
        core._JOBS, core._JOBS_LEASED, core._TOKEN, core._TOKENS
    )
    _is_ready = True


# -- the engine's part ---------------------------------------------------------------------------


cdef class Core:
    """An engine's parts, found once."""

    cdef EngineFields engine
    cdef object storage
    cdef Totals totals
    cdef Notes notes  # None: the storage is asked by its methods
    cdef bint notes_itself  # the notes have no other methods below: 0.1 us a call less
    cdef bint is_memory
    cdef list pieces  # of the index
    cdef list listeners
    cdef dict queues, waits, consumers
    cdef object due  # what follows from an end elsewhere and is not done yet
    cdef object retained
    cdef bint keeps_names  # in data
    cdef Py_ssize_t retained_max
    cdef object ids
    cdef Ids own_ids
    # Seen last: options that need nothing at a claim, and such that need nothing at the end either.
    cdef object claimed_options, plain_options

    def __init__(self, engine):
        if not _is_ready:
            learn()
        from bunqueue.storage.memory import MemoryStorage

        self.engine = engine
        self.storage = engine.storage
        self.is_memory = type(engine.storage) is MemoryStorage
        self.notes = engine.storage if isinstance(engine.storage, Notes) else None
        self.notes_itself = all(
            getattr(type(engine.storage), name, None) is getattr(Notes, name)
            for name in ("added", "changed", "removed", "claimed")
        )
        self.totals = engine.totals
        self.pieces = engine.index._pieces
        self.listeners = engine.listeners
        self.queues = engine.queues
        self.waits = engine.waits
        self.consumers = engine.graph.consumers
        self.due = engine.graph.due
        self.retained = engine.retained
        self.keeps_names = engine.settings.keeps_names_in_data
        self.retained_max = engine.settings.max_completed_jobs
        self.ids = engine.ids
        self.own_ids = engine.ids if isinstance(engine.ids, Ids) else None

    cdef Job find(self, object job_id):
        return (<dict> self.pieces[hash(job_id) >> 32 & 255]).get(job_id)

    cdef object new_id(self, object now):
        return self.own_ids.new(now) if self.own_ids is not None else self.ids.new(now)

    cdef bint is_refusing(self) except -1:
        return self.notes.is_refusing if self.notes is not None else self.storage.is_refusing

    cdef int answer_waits(self) except -1:
        """Say what the answer of the operation that has just run waits for, and forget it."""
        cdef int waits = 0
        if self.notes is not None:
            waits = self.notes.answer_waits
            self.notes.answer_waits = 0
        elif not self.is_memory:
            waits = self.storage.answer_waits
            self.storage.answer_waits = 0
        return waits

    cdef Job admit(self, QueueFields queue, name, bytes data, options, int priority, object now):
        """Put a job into the run set that is due now; the caller counts it and serves waiters."""
        cdef Job job = self.made(queue, name, data, options, priority, now, QUEUED)
        self.enter(queue, job, now)
        self.note(job)
        return job

    cdef Job admit_durably(
        self, QueueFields queue, name, bytes data, options, int priority, object now
    ):
        """Admit a job that nobody sees before it is on disk, and have it shown then."""
        cdef Job job = self.made(queue, name, data, options, priority, now, ADMITTED)
        queue.admitted[job.id] = job
        cdef tuple args = (self.engine, job, (), None, None, now)
        if self.notes is not None:  # first, or the note begins to wait for more to write
            self.notes.wait_for(_withdraw, args, publish_plain, True)
        else:
            self.storage.sync(_withdraw, args, publish_plain, durable=True)
        self.note(job)
        return job

    cdef int after_commit(self, then) except -1:
        """Have ``then(engine)`` called with what is shown by the commit to come."""
        if self.notes is not None:
            self.notes.wait_for(None, (self.engine,), then, False)
        else:
            self.storage.sync(None, (self.engine,), then)
        return 0

    cdef Job made(
        self, QueueFields queue, name, bytes data, options, int priority, object now, str place
    ):
        """Make a job and put it into the index."""
        cdef long long seq = self.engine.seq + 1
        cdef Job job
        self.engine.seq = seq
        job = new_job(self.new_id(now), seq, queue, name, data, options, now, place)
        job.priority = priority
        (<dict> self.pieces[hash(job.id) >> 32 & 255])[job.id] = job
        return job

    cdef int note(self, Job job) except -1:
        """Note that a job is new."""
        if self.notes_itself:
            Notes.added(self.notes, job)
        elif not self.is_memory:
            self.storage.added(job)
        return 0

    cdef int note_change(self, Job job) except -1:
        """Note a change of the job's state."""
        if self.notes_itself:
            Notes.changed(self.notes, job)
        elif not self.is_memory:
            self.storage.changed(job)
        return 0

    cdef int enter(self, QueueFields queue, Job job, object now) except -1:
        """Put a queued job without a group that is due into its lane."""
        cdef RunSetFields run_set = queue.run_set
        cdef long long priority = job.priority
        cdef LaneFields lane = run_set.lanes.get(priority)
        if lane is None:
            (<object> run_set).enter(job, now)
            return 0
        job.is_ripe = True
        if (
            (job.options is DEFAULT_OPTIONS or not job.options.lifo)
            and (lane.last_run_at is now or <long long> lane.last_run_at <= <long long> now)
            and job.seq > lane.last_seq
        ):
            lane.last_run_at = now
            lane.last_seq = job.seq
            lane.fifo.append(job)
        else:
            (<object> lane).add(job)
        run_set.ready += 1
        if priority > 0:
            run_set.ready_high += 1
        return 0

    cdef list claim(self, QueueFields queue, peer, int count, owner, object ttl_ms, object now):
        """Hand out ordinary jobs from the heads of the lanes; stops before one that is not."""
        cdef RunSetFields run_set = queue.run_set
        cdef list jobs = []
        cdef Job job
        cdef Delivery delivery
        cdef LaneFields lane
        cdef Ring fifo
        cdef dict active = queue.active
        cdef dict held = peer.held
        cdef long long room_bytes = CLAIM_BYTES_MAX
        cdef int high = 0
        cdef object expires_at = now + ttl_ms
        if self.listeners or not queue.gate.is_open or run_set.groups is not None:
            return jobs
        if len(run_set.order) > EMPTY_LANES_TOLERATED:  # Python drops those that are dry
            return jobs
        if run_set.delayed and run_set.delayed[0][0] <= now:
            return jobs
        for priority in run_set.order:
            lane = run_set.lanes[priority]
            if lane.lifo or lane.late:
                break
            fifo = lane.fifo
            while fifo.size and len(jobs) < count and room_bytes > 0:
                job = fifo.head()
                if job.place is not QUEUED or job.stamp or job.extra is not NO_EXTRA:
                    break
                options = job.options
                if options is not self.plain_options and options is not self.claimed_options:
                    if options.ttl is not None or options.timeout:
                        break
                    self.claimed_options = options
                    if options.repeat is None and not options.remove_on_complete:
                        self.plain_options = options
                fifo.popleft()
                if job.priority > 0:
                    high += 1
                job.place = ACTIVE
                job.started_at = now
                delivery = Delivery.__new__(Delivery)
                delivery.peer = peer
                delivery.owner = owner
                delivery.started_at = delivery.heartbeat_at = now
                delivery.expires_at = expires_at
                delivery.ttl_ms = ttl_ms
                job.delivery = delivery
                job.token = None if owner is None else self.new_id(now)
                active[job.id] = job
                held[job] = delivery
                self.note_change(job)
                jobs.append(job)
                room_bytes -= PyBytes_GET_SIZE(job.data)
            if fifo.size:  # enough, or the next is not ordinary
                break
        if jobs:
            run_set.ready -= len(jobs)
            if high:
                run_set.ready_high -= high
            queue.events_total += len(jobs)
            self.totals.pulled += len(jobs)
        return jobs

    cdef bint is_ordinary_run(self, Job job):
        """Say whether the end of this run concerns nobody but the job and its queue."""
        return (
            job.place is ACTIVE
            and job.extra is NO_EXTRA
            and not self.listeners
            and (job.options is self.plain_options or job.options.repeat is None)
            and not (self.waits and job.id in self.waits)
            and not (self.consumers and job.id in self.consumers)
        )

    cdef complete(self, Job job, bytes result, object now):
        """End an ordinary run with success; the job is kept, and the caller serves waiters."""
        cdef QueueFields queue = job.queue
        cdef Delivery delivery = job.delivery
        cdef object token = job.token
        del queue.active[job.id]
        if delivery is not None:
            job.delivery = None
            if delivery.peer is not None:
                (<dict> delivery.peer.held).pop(job, None)
            if delivery.timer is not None:
                self.timers().cancel(delivery.timer)
        job.finished_at = now
        job.result = result
        job.token = None
        if now >= queue.recount_at:
            _recount(self.engine, queue, now)
        queue.completed_total += 1
        queue.completed_at = now
        self.totals.completed += 1
        job.place = COMPLETED
        queue.completed[job.id] = job
        if <Py_ssize_t> self.retained.add(job) > self.retained_max:
            (<object> self.engine).evict_soon()
        cdef tuple args = (self.engine, job, ACTIVE, delivery, token, now)
        self.note_change(job)
        if self.notes is not None:
            self.notes.wait_for(_uncomplete, args, None, False)
        elif not self.is_memory:
            self.storage.sync(_uncomplete, args)
        queue.events_total += 1

    cdef object timers(self):
        return (<object> self.engine).timers


cdef Core core_of(EngineFields engine):
    cdef Core core = engine.core
    if core is None or core.storage is not engine.storage:
        core = Core(engine)
        engine.core = core
    return core


def admit_plain(engine, QueueFields queue, name, bytes data, options, now):
    """Put a job without any option of its own into the run set."""
    cdef Core core = core_of(engine)
    cdef Job job = core.admit(queue, name, data, options, 0, now)
    core.totals.pushed += 1
    if core.listeners:
        _emit(engine, "pushed", queue.name, job.id, now, data)
    else:
        queue.events_total += 1
    if queue.waiters:
        engine.serve(queue, now)
    return job


def publish_plain(engine, Job job, tuple ended, robbed, had_until, now):
    """Show after its commit a job that stands for itself and is due at once."""
    cdef QueueFields queue = job.queue
    if job.place is not ADMITTED or job.extra is not NO_EXTRA:
        _publish(engine, job, ended, robbed, had_until, now)
        return
    cdef Core core = core_of(engine)
    del queue.admitted[job.id]
    job.place = QUEUED
    core.enter(queue, job, now)
    core.totals.pushed += 1
    if core.listeners:
        _emit(engine, "pushed", queue.name, job.id, now, job.data)
    else:
        queue.events_total += 1
    if queue.waiters:
        engine.serve(queue, engine.time_after(now))


def claim_plain(engine, QueueFields queue, peer, int count, owner, ttl_ms, now):
    """Hand out what is ordinary at the heads of the lanes; the rest is the caller's."""
    return core_of(engine).claim(queue, peer, count, owner, ttl_ms, now)


def complete_plain(engine, Job job, bytes result, now):
    """Complete the job if its run is an ordinary one; else change nothing and return False."""
    cdef Core core = core_of(engine)
    if not core.is_ordinary_run(job):
        return False
    core.complete(job, result, now)
    if (<QueueFields?> job.queue).waiters:
        engine.serve(job.queue, now)
    return True


def forget_plain(engine, Job job):
    """Remove a completed job that concerns nobody; else change nothing and return False."""
    cdef Core core = core_of(engine)
    cdef QueueFields queue = job.queue
    cdef dict piece
    if (
        job.place is not COMPLETED
        or job.extra is not NO_EXTRA
        or (core.waits and job.id in core.waits)
        or (core.consumers and job.id in core.consumers)
    ):
        return False
    del queue.completed[job.id]
    core.retained.discard(job)
    job.place = GONE
    piece = core.pieces[hash(job.id) >> 32 & 255]
    if piece.get(job.id) is job:
        del piece[job.id]
    if core.notes_itself:
        Notes.removed(core.notes, job)
    elif not core.is_memory:
        core.storage.removed(job)
    return True


# -- bytes -----------------------------------------------------------------------------------------


cdef struct Span:
    const uint8_t* p
    Py_ssize_t n


cdef class Out:
    """Bytes that grow."""

    cdef char* p
    cdef size_t n, room

    def __dealloc__(self):
        PyMem_Free(self.p)

    cdef int need(self, size_t more) except -1:
        cdef size_t room
        cdef char* p
        if self.n + more > self.room:
            room = max(2 * self.room, self.n + more, <size_t> 1024)
            p = <char*> PyMem_Realloc(self.p, room)
            if p == NULL:
                raise MemoryError
            self.p, self.room = p, room
        return 0

    cdef int put(self, const void* data, size_t size) except -1:
        self.need(size)
        memcpy(self.p + self.n, data, size)
        self.n += size
        return 0

    cdef int byte(self, uint8_t value) except -1:
        self.need(1)
        self.p[self.n] = <char> value
        self.n += 1
        return 0

    cdef int whole(self, bytes data) except -1:
        return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int number(self, uint64_t value, int size) except -1:
        """Put a big-endian number of so many bytes."""
        self.need(size)
        cdef int i
        for i in range(size - 1, -1, -1):
            self.p[self.n + i] = <char> (value & 255)
            value >>= 8
        self.n += size
        return 0

    cdef int float64(self, double value) except -1:
        cdef uint64_t bits
        memcpy(&bits, &value, 8)
        return self.number(bits, 8)

    cdef inline void bare(self, bytes data) noexcept:
        """Put bytes that there is room for."""
        memcpy(self.p + self.n, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.n += PyBytes_GET_SIZE(data)

    cdef inline void bare_float64(self, double value) noexcept:
        cdef uint64_t bits
        cdef int i
        memcpy(&bits, &value, 8)
        for i in range(8):
            self.p[self.n + i] = <char> (bits >> (56 - 8 * i) & 255)
        self.n += 8

    cdef int text(self, const void* data, size_t size) except -1:
        """Put a packed string."""
        if size < 32:
            self.byte(0xA0 | <uint8_t> size)
        elif size < 256:
            self.byte(0xD9)
            self.byte(<uint8_t> size)
        elif size < 65536:
            self.byte(0xDA)
            self.number(size, 2)
        else:
            self.byte(0xDB)
            self.number(size, 4)
        return self.put(data, size)

    cdef int string(self, object text) except -1:
        cdef Py_ssize_t size
        cdef const char* data = PyUnicode_AsUTF8AndSize(text, &size)
        return self.text(data, size)

    cdef int header(self, uint8_t fix, uint8_t wide, uint64_t count) except -1:
        """Put the header of a list or a map."""
        if count < 16:
            return self.byte(fix | <uint8_t> count)
        if count < 65536:
            self.byte(wide)
            return self.number(count, 2)
        self.byte(wide + 1)
        return self.number(count, 4)

    cdef int integer(self, uint64_t value) except -1:
        """Put an integer that is not negative."""
        if value < 128:
            return self.byte(<uint8_t> value)
        if value < 256:
            self.byte(0xCC)
            return self.number(value, 1)
        if value < 65536:
            self.byte(0xCD)
            return self.number(value, 2)
        if value < 4294967296:
            self.byte(0xCE)
            return self.number(value, 4)
        self.byte(0xCF)
        return self.number(value, 8)

    cdef int negative(self, int64_t value) except -1:
        if value >= -32:
            return self.byte(<uint8_t> (value & 255))
        if value >= -128:
            self.byte(0xD0)
            return self.number(<uint64_t> value, 1)
        if value >= -32768:
            self.byte(0xD1)
            return self.number(<uint64_t> value, 2)
        if value >= -2147483648:
            self.byte(0xD2)
            return self.number(<uint64_t> value, 4)
        self.byte(0xD3)
        return self.number(<uint64_t> value, 8)

    cdef bytes taken(self):
        """Return what there is and begin anew."""
        cdef bytes made = PyBytes_FromStringAndSize(self.p, self.n)
        self.begin_anew()
        return made

    cdef void begin_anew(self) noexcept:
        """Be empty; a large room is given back."""
        self.n = 0
        if self.room > ROOM_KEPT_MAX:
            PyMem_Free(self.p)
            self.p, self.room = NULL, 0


cdef inline uint64_t big(const uint8_t* p, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | p[i]
    return value


cdef const uint8_t* head(
    const uint8_t* p, const uint8_t* end, Py_ssize_t* size, Py_ssize_t* inside
) noexcept nogil:
    """Read a value's head: how many bytes of its own follow, and how many values stand inside.

    Returns behind the head; NULL if it is cut off or of an extension type.
    """
    cdef uint8_t c
    cdef int width
    if p >= end:
        return NULL
    c = p[0]
    size[0] = inside[0] = 0
    p += 1
    if c < 0x80 or c >= 0xE0 or c == 0xC0 or c == 0xC2 or c == 0xC3:
        return p
    if c < 0x90:
        inside[0] = 2 * (c & 15)
        return p
    if c < 0xA0:
        inside[0] = c & 15
        return p
    if c < 0xC0:
        size[0] = c & 31
    elif c in (0xCC, 0xD0):
        size[0] = 1
    elif c in (0xCD, 0xD1):
        size[0] = 2
    elif c in (0xCA, 0xCE, 0xD2):
        size[0] = 4
    elif c in (0xCB, 0xCF, 0xD3):
        size[0] = 8
    else:
        if c == 0xC4 or c == 0xD9:
            width = 1
        elif c in (0xC5, 0xDA, 0xDC, 0xDE):
            width = 2
        elif c in (0xC6, 0xDB, 0xDD, 0xDF):
            width = 4
        else:
            return NULL
        if end - p < width:
            return NULL
        size[0] = <Py_ssize_t> big(p, width)
        p += width
        if c >= 0xDC:
            inside[0] = size[0] * (2 if c >= 0xDE else 1)
            size[0] = 0
    if end - p < size[0] or end - p < inside[0]:
        return NULL
    return p


cdef const uint8_t* skipped(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return where the value at ``p`` ends, NULL if it is not whole."""
    cdef Py_ssize_t left = 1, size, inside
    while left:
        p = head(p, end, &size, &inside)
        if p == NULL:
            return NULL
        p += size
        left += inside - 1
        if left > end - p:  # every value has a byte at least
            return NULL
    return p


cdef const uint8_t* string_at(const uint8_t* p, const uint8_t* end, Span* found) noexcept nogil:
    """Read a string without looking at its text; NULL if there is none."""
    cdef Py_ssize_t inside
    if p >= end or not (0xA0 <= p[0] < 0xC0 or 0xD9 <= p[0] <= 0xDB):
        return NULL
    p = head(p, end, &found.n, &inside)
    if p == NULL:
        return NULL
    found.p = p
    return p + found.n


cdef bint is_ascii(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef uint64_t word
    while n >= 8:
        memcpy(&word, p, 8)
        if word & <uint64_t> 0x8080808080808080:
            return False
        p += 8
        n -= 8
    while n:
        if p[0] & 0x80:
            return False
        p += 1
        n -= 1
    return True


cdef bint is_text(const uint8_t* p, Py_ssize_t n):
    """Say whether the bytes are well-formed UTF-8, as Python sees it."""
    if is_ascii(p, n):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*> p, n, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint eq(const Span* span, const char* text, Py_ssize_t n) noexcept nogil:
    return span.n == n and memcmp(span.p, text, n) == 0


cdef const uint8_t* copied(
    const uint8_t* p, const uint8_t* end, Out out, Span* name
) except? NULL:
    """Write the value at ``p`` again as it would be packed; return its end, NULL if it is odd.

    Args:
        name: Not NULL: a string that the map at ``p`` has under ``name`` is left out and put here.
    """
    cdef Py_ssize_t[LEVELS_MAX] left
    cdef Py_ssize_t[LEVELS_MAX] seen
    cdef Span[LEVELS_MAX][KEYS_MAX] keys
    cdef bint[LEVELS_MAX] is_map
    cdef int level = -1
    cdef Py_ssize_t size, inside, i, count
    cdef const uint8_t* at
    cdef uint8_t c
    cdef float single
    cdef uint32_t bits
    cdef Span text
    cdef Span* mine
    while True:
        if level >= 0 and is_map[level] and not left[level] & 1:  # a key
            at = p
            p = string_at(p, end, &text)
            if p == NULL or not is_text(text.p, text.n):
                return NULL
            mine = keys[level]
            for i in range(seen[level]):
                if mine[i].n == text.n and memcmp(mine[i].p, text.p, text.n) == 0:
                    return NULL
            mine[seen[level]] = text
            seen[level] += 1
            left[level] -= 1
            if level == 0 and name != NULL and eq(&text, b"name", 4):
                at = string_at(p, end, name)
                if at != NULL:
                    if not is_text(name.p, name.n):
                        return NULL
                    p = at
                    left[level] -= 1
                    if not left[0]:
                        return p
                    continue
            out.text(text.p, text.n)
            continue
        if p >= end:
            return NULL
        c = p[0]
        at = p
        p = head(p, end, &size, &inside)
        if p == NULL:
            return NULL
        if c < 0x80 or c >= 0xE0 or c == 0xC0 or c == 0xC2 or c == 0xC3:
            out.byte(c)
        elif 0xA0 <= c < 0xC0 or 0xD9 <= c <= 0xDB:
            if not is_text(p, size):
                return NULL
            out.text(p, size)
        elif c <= 0x9F or c >= 0xDC:
            if level + 1 >= LEVELS_MAX:
                return NULL
            if 0x90 <= c <= 0x9F or c == 0xDC or c == 0xDD:
                out.header(0x90, 0xDC, inside)
                count = 0
            else:
                count = inside // 2
                if count > KEYS_MAX:
                    return NULL
                if level < 0 and name != NULL and has_name(p, end, count):
                    out.header(0x80, 0xDE, count - 1)
                else:
                    out.header(0x80, 0xDE, count)
                count = 1
            if inside:
                if level >= 0:
                    left[level] -= 1
                level += 1
                left[level] = inside
                seen[level] = 0
                is_map[level] = count
                continue
        elif c == 0xCA:
            bits = <uint32_t> big(p, 4)
            memcpy(&single, &bits, 4)
            out.byte(0xCB)
            out.float64(single)
        elif c == 0xCB:
            out.put(at, 9)
        elif 0xCC <= c <= 0xCF:
            out.integer(big(p, <int> size))
        elif 0xD0 <= c <= 0xD3:
            i = <Py_ssize_t> signed(p, <int> size)
            if i < 0:
                out.negative(i)
            else:
                out.integer(i)
        elif size < 256:  # bytes
            out.byte(0xC4)
            out.number(size, 1)
            out.put(p, size)
        elif size < 65536:
            out.byte(0xC5)
            out.number(size, 2)
            out.put(p, size)
        else:
            out.byte(0xC6)
            out.number(size, 4)
            out.put(p, size)
        p += size
        if level < 0:
            return p
        left[level] -= 1
        while level >= 0 and not left[level]:
            level -= 1
        if level < 0:
            return p


cdef int64_t signed(const uint8_t* p, int size) noexcept nogil:
    cdef uint64_t value = big(p, size)
    if size == 8:
        return <int64_t> value
    cdef uint64_t sign = <uint64_t> 1 << (8 * size - 1)
    return <int64_t> (value ^ sign) - <int64_t> sign


cdef bint has_name(const uint8_t* p, const uint8_t* end, Py_ssize_t count) noexcept nogil:
    """Say whether one of the pairs of a map is a string under ``name``."""
    cdef Span key, text
    while count:
        count -= 1
        p = string_at(p, end, &key)
        if p == NULL:
            return False
        if eq(&key, b"name", 4) and string_at(p, end, &text) != NULL:
            return True
        p = skipped(p, end)
        if p == NULL:
            return False
    return False


cpdef bytes narrowed(bytes packed):
    """Return ``packed`` with every integer beyond 32 bits as a float64; see protocol/codec.py.

    Either takes nine bytes, so that none of the others move. What the walk does not like (an
    extension, a wide integer that need not be one) is for Python.
    """
    cdef Py_ssize_t size, inside, whole = PyBytes_GET_SIZE(packed)
    cdef const uint8_t* begin = <const uint8_t*> PyBytes_AS_STRING(packed)
    cdef const uint8_t* end = begin + whole
    cdef const uint8_t* p = begin
    cdef const uint8_t* at
    cdef char* to
    cdef bytes made = packed
    cdef uint64_t bits
    cdef double value
    cdef int i
    if memchr(begin, 0xCF, whole) == NULL and memchr(begin, 0xD3, whole) == NULL:
        return packed
    if not _is_ready:
        learn()
    while p < end:
        at = p
        p = head(p, end, &size, &inside)
        if p == NULL:
            return _narrowed(packed)
        if at[0] == 0xCF or at[0] == 0xD3:
            bits = big(p, 8)
            if at[0] == 0xCF:
                value = <double> bits
            else:
                value = <double> <int64_t> bits
            if -2147483648.0 <= value <= 4294967295.0:
                return _narrowed(packed)
            if made is packed:
                made = PyBytes_FromStringAndSize(<const char*> begin, whole)
            to = PyBytes_AS_STRING(made) + (at - begin)
            memcpy(&bits, &value, 8)
            to[0] = <char> 0xCB
            for i in range(8):
                to[1 + i] = <char> (bits >> (56 - 8 * i) & 255)
        p += size
    return made


cdef int pack_active(Out out, Job job, bint int64, bytes names, bytes numbers) except -1:
    """Put an ordinary active job, as ``job_wire.pack_job`` packs it.

    Args:
        names: Queue and name, packed.
        numbers: What depends on the options and on three small numbers, packed.
    """
    cdef double created = job.created_at
    cdef double started = job.started_at
    cdef bytes data = job.data
    out.whole(ID_HEADER)
    out.string(job.id)
    out.whole(names)
    out.whole(data if int64 else narrowed(data))
    out.need(ACTIVE_BYTES_MAX + PyBytes_GET_SIZE(numbers))
    out.bare(CREATED)
    out.bare_float64(created)
    out.bare(RUN)
    out.bare_float64(created if job.run_at is job.created_at else <double> job.run_at)
    out.bare(STARTED)
    out.p[out.n] = <char> 0xCB
    out.n += 1
    out.bare_float64(started)
    out.bare(COMPLETED_NIL)
    out.bare(numbers)
    out.bare_float64(started)
    out.bare(NO_EXTRA_PART)
    out.bare(TIMELINE)
    out.p[out.n] = <char> 0x92
    out.n += 1
    if job.run_at is not job.created_at and job.run_at > job.created_at:
        out.bare(FIRST_DELAYED)
    else:
        out.bare(FIRST_PRIORITIZED if job.priority > 0 else FIRST_WAITING)
    out.bare_float64(created)
    out.bare(RUNNING)
    out.bare_float64(started)
    return 0


def packed_active(Job job, bint int64):
    """Return an active job packed, or None if it is for Python."""
    if job.place is not ACTIVE or job.extra is not NO_EXTRA or job.delivery is None:
        return None
    if (<Delivery?> job.delivery).heartbeat_at is not job.started_at:
        return None
    cdef Out out = Out()
    pack_active(out, job, int64, _names_part(job.queue.name, job.name), _numbers_part(job))
    return out.taken()


# -- frames ----------------------------------------------------------------------------------------


cdef dict _names = {}  # bytes of a job's name -> the string, one for all jobs that have it
cdef dict _option_sets = {}  # raw bytes of keys and values -> (options, priority), None: for Python


cdef class Runner:
    """Runs the frames of one connection, as long as they are ordinary.

    It takes none of the engine's locks: no operation switches while it holds one, so none is held
    while this runs.
    """

    cdef object connection
    # What is packed of names and options, of those seen last.
    cdef object parts_queue, parts_name
    cdef bytes names_part
    cdef object numbers_options  # None: of no others
    cdef bytes numbers_part
    cdef object last_queue_name
    cdef bytes last_queue_bytes
    cdef Core core
    cdef list earlier  # takes the answers that leave before those of others
    cdef object wait_for
    cdef object steady  # None: no run ends by time
    cdef Out out  # answers that may leave
    cdef Out scratch
    cdef Out held  # answers that wait for a commit
    cdef Out kinds  # and what each of them waits for
    cdef Out about  # and the ids that its request was about, packed, if the answer has none
    cdef size_t mark  # where the answer to this frame begins
    cdef bint int64, is_open  # of the connection
    cdef size_t long_bytes
    cdef size_t answer_at  # where the answer begins that is being made
    # The frame: its keys and where their values begin and end.
    cdef int count
    cdef Span[KEYS_MAX] keys
    cdef Span[KEYS_MAX] values
    cdef Span cmd, req
    cdef object last_name_text
    cdef bytes last_name_bytes

    def __init__(self, connection, engine, list earlier=None, wait_for=None, steady=None):
        """Prepare.

        Args:
            connection: Who asks.
            earlier: Gets what was answered before others are served, if the order matters.
            wait_for: ``wait_for(later, packed reqId or None)`` sends what a long poll ends with;
                without it none is begun here.
            steady: The monotonic clock, in seconds, for runs that are to end in time.
        """
        self.connection = connection
        self.core = core_of(engine)
        self.earlier = earlier
        self.wait_for = wait_for
        self.steady = steady
        self.out = Out()
        self.scratch = Out()
        self.held = Out()
        self.kinds = Out()
        self.about = Out()

    def run(self, bytes data, Py_ssize_t begin, long long now, double until_s=INFINITY):
        """Run frames from ``begin`` on, up to one that is for Python, or until the time is over.

        Args:
            until_s: When that is, of the steady clock.

        Returns:
            ``(where that one begins, packed answers, bytes of the long ones, held answers)``; the
            held ones as ``(frames, a byte for each: what it waits for, a packed value for each:
            the ids that it is about and does not name, or nil)``, or None.
        """
        cdef const uint8_t* base = <const uint8_t*> PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t length
        cdef object moment = now
        cdef tuple held = None
        cdef Py_ssize_t looked_at = begin
        # An interrupt may have left half an answer.
        self.out.n = self.held.n = self.kinds.n = self.about.n = 0
        self.long_bytes = 0
        self.int64 = self.connection.int64
        self.is_open = self.connection.is_open
        if not self.core.listeners:
            while size - begin >= 4:
                length = <Py_ssize_t> big(base + begin, 4)
                if length > LARGE_FRAME_BYTES or length > size - begin - 4:
                    break
                self.mark = self.out.n
                try:
                    if not self.frame(base + begin + 4, base + begin + 4 + length, moment):
                        self.out.n = self.mark
                        break
                except Exception as error:
                    self.out.n = self.mark
                    self.core.answer_waits()
                    self.refuse(_text_of(error, PyBytes_FromStringAndSize(
                        <const char*> self.cmd.p, self.cmd.n
                    ).decode()))
                begin += 4 + length
                if begin - looked_at >= LOOKED_AT_BYTES and self.steady is not None:
                    looked_at = begin
                    if <double> self.steady() >= until_s:
                        break
                if self.out.n - self.mark >= SHORT_BYTES_MAX:
                    self.long_bytes += self.out.n - self.mark
                    if self.long_bytes >= TURN_BYTES_MAX:
                        break
        if self.kinds.n:
            held = (self.held.taken(), self.kinds.taken(), self.about.taken())
        self.scratch.begin_anew()
        return begin, self.out.taken(), self.long_bytes, held

    cdef bint frame(self, const uint8_t* p, const uint8_t* end, object now) except -1:
        cdef Py_ssize_t size, inside
        cdef int i
        cdef const uint8_t* at
        if p >= end or not (0x80 <= p[0] < 0x90 or p[0] == 0xDE):
            return False
        p = head(p, end, &size, &inside)
        if p == NULL or inside > 2 * KEYS_MAX:
            return False
        self.count = <int> (inside // 2)
        self.cmd.p = self.req.p = NULL
        for i in range(self.count):
            p = string_at(p, end, &self.keys[i])
            if p == NULL:
                return False
            at = p
            p = skipped(p, end)
            if p == NULL:
                return False
            self.values[i].p = at
            self.values[i].n = p - at
            if eq(&self.keys[i], b"cmd", 3):
                if self.cmd.p != NULL or string_at(at, end, &self.cmd) == NULL:
                    return False
            elif eq(&self.keys[i], b"reqId", 5):
                if self.req.p != NULL or not self.is_plain_req_id(at, end):
                    return False
                self.req = self.values[i]
        if p != end or self.cmd.p == NULL:
            return False
        if eq(&self.cmd, b"PUSH", 4):
            return self.push(end, now)
        if eq(&self.cmd, b"PULL", 4):
            return self.pull(end, now, False)
        if eq(&self.cmd, b"ACK", 3):
            return self.ack(end, now)
        if eq(&self.cmd, b"PULLB", 5):
            return self.pull(end, now, True)
        if eq(&self.cmd, b"ACKB", 4):
            return self.ack_batch(end, now)
        if eq(&self.cmd, b"PUSHB", 5):
            return self.push_batch(end, now)
        return False

    cdef bint is_plain_req_id(self, const uint8_t* p, const uint8_t* end) except -1:
        """Say whether its bytes are those that it would be packed to, and echoed as they are."""
        cdef Span text
        if p[0] < 0x80:
            return True
        if p[0] == 0xCC:
            return p[1] >= 128
        if p[0] == 0xCD:
            return big(p + 1, 2) >= 256
        if p[0] == 0xCE:
            return big(p + 1, 4) >= 65536
        if 0xA0 <= p[0] < 0xC0 or p[0] == 0xD9:
            string_at(p, end, &text)
            return (p[0] < 0xC0 or text.n >= 32) and is_text(text.p, text.n)
        return False

    cdef QueueFields queue_of(self, const Span* value):
        """Return the queue of that name if there is one."""
        cdef Span text
        if string_at(value.p, value.p + value.n, &text) == NULL or text.n > QUEUE_NAME_CHARS_MAX:
            return None
        if not is_same(self.last_queue_bytes, &text):
            if not is_ascii(text.p, text.n):
                return None
            self.last_queue_bytes = PyBytes_FromStringAndSize(<const char*> text.p, text.n)
            self.last_queue_name = PyUnicode_DecodeUTF8(<const char*> text.p, text.n, NULL)
        return self.core.queues.get(self.last_queue_name)

    cdef int serve(self, QueueFields queue, object now) except -1:
        """Let the waiters have what there is."""
        self.go_first()
        (<object> self.core.engine).serve(queue, now)
        return 0

    cdef int go_first(self) except -1:
        """Let what was answered so far leave before what others are about to be told."""
        if self.earlier is not None and self.out.n:
            self.earlier.append(self.out.taken())
            self.mark = 0
        return 0

    cdef object name_of(self, const Span* text):
        """Return the job's name if it may be one."""
        if is_same(self.last_name_bytes, text):
            return self.last_name_text
        cdef bytes raw = PyBytes_FromStringAndSize(<const char*> text.p, text.n)
        name = _names.get(raw)
        if name is None:
            if not is_text(text.p, text.n):
                return None
            name = raw.decode()
            if not 0 < len(name) <= NAME_CHARS_MAX:
                return None
            if len(_names) >= NAMES_MAX:
                _names.clear()
            _names[raw] = name
        self.last_name_bytes = raw
        self.last_name_text = name
        return name

    cdef tuple payload_of(self, const Span* name, const Span* data, const uint8_t* end):
        """Return name and data of a push, None if they are not ordinary; see commands/core.py."""
        cdef Span lifted
        cdef object text
        lifted.p = NULL
        self.scratch.n = 0
        if data.p == NULL:
            self.scratch.byte(0xC0)
        elif copied(
            data.p,
            end,
            self.scratch,
            NULL if name.p != NULL or self.core.keeps_names else &lifted,
        ) == NULL:
            return None
        if name.p != NULL:
            text = self.name_of(name)
        elif lifted.p != NULL:
            text = self.name_of(&lifted)
        elif data.p != NULL and self.core.keeps_names:
            return None
        else:
            text = "default"
        if text is None:
            return None
        return text, PyBytes_FromStringAndSize(self.scratch.p, self.scratch.n)

    cdef tuple options_in(self, Out raw, int count):
        """Return shared options and priority of keys and values, None if they are not ordinary."""
        if raw.n > RAW_OPTIONS_BYTES_MAX:
            return None
        cdef bytes key = PyBytes_FromStringAndSize(raw.p, raw.n)
        found = _option_sets.get(key, _option_sets)
        if found is _option_sets:
            found = _options_of((b"\xde" + count.to_bytes(2, "big")) + key)
            if len(_option_sets) >= OPTION_SETS_MAX:
                _option_sets.clear()
            _option_sets[key] = found
        return found

    cdef bint push(self, const uint8_t* end, object now) except -1:
        cdef Span queue_name, name, data
        cdef Span* key
        cdef int i, extra = 0
        cdef Out raw = self.scratch
        cdef tuple payload, given = NO_OPTIONS
        cdef Core core = self.core
        cdef Job job
        queue_name.p = name.p = data.p = NULL
        raw.n = 0
        if core.is_refusing():
            return False
        for i in range(self.count):
            key = &self.keys[i]
            if eq(key, b"queue", 5):
                if queue_name.p != NULL:
                    return False
                queue_name = self.values[i]
            elif eq(key, b"name", 4):
                if name.p != NULL or string_at(self.values[i].p, end, &name) == NULL:
                    return False
            elif eq(key, b"data", 4):
                if data.p != NULL:
                    return False
                data = self.values[i]
            elif not (eq(key, b"cmd", 3) or eq(key, b"reqId", 5)):
                raw.text(key.p, key.n)
                raw.put(self.values[i].p, self.values[i].n)
                extra += 1
        if queue_name.p == NULL:
            return False
        if extra:
            given = self.options_in(raw, extra)
            if given is None:
                return False
        cdef QueueFields queue = self.queue_of(&queue_name)
        if queue is None:
            return False
        payload = self.payload_of(&name, &data, end)
        if payload is None:
            return False
        cdef bint is_durable = given[0] is not DEFAULT_OPTIONS and given[0].durable
        if is_durable and core.notes is None and queue.waiters:
            return False  # such a storage commits at once: they would be served before this answer
        if is_durable and not core.is_memory:
            job = core.admit_durably(queue, payload[0], payload[1], given[0], given[1], now)
        else:
            job = core.admit(queue, payload[0], payload[1], given[0], given[1], now)
            core.totals.pushed += 1
            queue.events_total += 1
            if queue.waiters:
                self.serve(queue, now)
        self.begin(PUSHED)
        self.out.string(job.id)
        self.end_answer(core.answer_waits() if is_durable else 0)
        return True

    cdef bint push_batch(self, const uint8_t* end, object now) except -1:
        cdef Span queue_name, jobs, key, value, name, data
        cdef int i, extra
        cdef Py_ssize_t size, inside, pairs, n, k
        cdef const uint8_t* p
        cdef const uint8_t* at
        cdef Out raw = self.scratch
        cdef Core core = self.core
        cdef list entries = [], ids = []
        cdef tuple payload, given
        cdef bint has_options = False, is_durable = False
        cdef Job job
        queue_name.p = jobs.p = NULL
        for i in range(self.count):
            if eq(&self.keys[i], b"queue", 5) and queue_name.p == NULL:
                queue_name = self.values[i]
            elif eq(&self.keys[i], b"jobs", 4) and jobs.p == NULL:
                jobs = self.values[i]
            elif not (eq(&self.keys[i], b"cmd", 3) or eq(&self.keys[i], b"reqId", 5)):
                return False
        if queue_name.p == NULL or jobs.p == NULL or not is_list(jobs.p) or core.is_refusing():
            return False
        cdef QueueFields queue = self.queue_of(&queue_name)
        if queue is None:
            return False
        p = head(jobs.p, end, &size, &n)
        if n > PUSHB_MAX:
            return False
        for k in range(n):
            if not is_map(p):
                return False
            p = head(p, end, &size, &inside)
            pairs = inside // 2
            name.p = data.p = NULL
            raw.n = 0
            extra = 0
            while pairs:
                pairs -= 1
                p = string_at(p, end, &key)
                if p == NULL:
                    return False
                value.p = p
                p = skipped(p, end)
                if p == NULL:
                    return False
                value.n = p - value.p
                if eq(&key, b"name", 4):
                    if name.p != NULL or string_at(value.p, end, &name) == NULL:
                        return False
                elif eq(&key, b"data", 4):
                    if data.p != NULL:
                        return False
                    data = value
                else:
                    raw.text(key.p, key.n)
                    raw.put(value.p, value.n)
                    extra += 1
            given = NO_OPTIONS
            if extra:
                given = self.options_in(raw, extra)
                if given is None:
                    return False
                if given[0] is not DEFAULT_OPTIONS or given[1]:
                    has_options = True
                    is_durable = is_durable or given[0].durable
            payload = self.payload_of(&name, &data, end)
            if payload is None:
                return False
            entries.append((payload, given))
        if has_options and n > PUSHB_OPTIONED_MAX:  # done in slices
            return False
        is_durable = is_durable and not core.is_memory
        if is_durable and core.notes is None and queue.waiters:
            return False  # as in `push`
        if is_durable:
            core.after_commit(_hold_waiters)
        for payload, given in entries:
            if is_durable:  # all of them become visible together
                job = core.admit_durably(queue, payload[0], payload[1], given[0], given[1], now)
            else:
                job = core.admit(queue, payload[0], payload[1], given[0], given[1], now)
                core.totals.pushed += 1
                queue.events_total += 1
            ids.append(job.id)
        if is_durable:
            core.after_commit(_serve_held)
        elif queue.waiters:
            self.serve(queue, now)
        self.begin(PUSHED_MANY)
        self.out.header(0x90, 0xDC, n)
        for job_id in ids:
            self.out.string(job_id)
        self.end_answer(core.answer_waits() if is_durable else 0)
        return True

    cdef bint pull(self, const uint8_t* end, object now, bint is_many) except -1:
        cdef Span queue_name, owner
        cdef int i
        cdef int64_t count = 1, timeout = 0, ttl = LEASE_MS_DEFAULT
        cdef Core core = self.core
        cdef list jobs
        cdef Job job
        queue_name.p = owner.p = NULL
        for i in range(self.count):
            if eq(&self.keys[i], b"queue", 5) and queue_name.p == NULL:
                queue_name = self.values[i]
            elif eq(&self.keys[i], b"owner", 5):
                if owner.p != NULL or string_at(self.values[i].p, end, &owner) == NULL:
                    return False
                if not is_text(owner.p, owner.n):
                    return False
            elif eq(&self.keys[i], b"count", 5) and is_many:
                if not small(&self.values[i], &count) or not 1 <= count <= PULLB_MAX:
                    return False
            elif eq(&self.keys[i], b"timeout", 7):
                if not small(&self.values[i], &timeout) or timeout > PULL_WAIT_MS_MAX:
                    return False
            elif eq(&self.keys[i], b"lockTtl", 7):
                if not small(&self.values[i], &ttl) or ttl > LOCK_TTL_MS_MAX:
                    return False
            elif not (eq(&self.keys[i], b"cmd", 3) or eq(&self.keys[i], b"reqId", 5)):
                return False
        if queue_name.p == NULL or core.engine.is_draining or not self.is_open:
            return False
        cdef QueueFields queue = self.queue_of(&queue_name)
        if queue is None:
            return False
        cdef object owner_text = None
        if owner.p != NULL and owner.n:
            owner_text = self.owner_of(&owner)
        cdef bint is_leased = owner_text is not None
        cdef object ttl_ms = ttl
        cdef RunSetFields run_set = queue.run_set
        cdef bint has_some = run_set.ready or (run_set.delayed and run_set.delayed[0][0] <= now)
        if has_some and queue.waiters:
            return False  # these have their turn before
        jobs = core.claim(queue, self.connection, <int> count, owner_text, ttl_ms, now)
        if has_some and len(jobs) < count:
            jobs += self.claim_rest(queue, jobs, <int> count, owner_text, ttl_ms, now)
        if not jobs and timeout:
            if self.wait_for is None or len(self.connection.parked) >= COMMANDS_WAITING_MAX - 1:
                return False  # nothing has happened yet
            later = _park(
                core.engine, queue, self.connection, count, timeout, owner_text, ttl_ms, False,
                None, now,
            )
            later.shape = partial(_pulled_many if is_many else _pulled, self.int64, is_leased)
            self.wait_for(later, self.req_id())
            return True
        if jobs:
            if core.notes_itself:
                Notes.claimed(core.notes)
            elif not core.is_memory:
                core.storage.claimed()
        if not is_many:
            if not jobs:
                self.begin(NO_JOB_LEASED if is_leased else NO_JOB)
            else:
                self.begin(JOB_LEASED if is_leased else JOB)
                job = jobs[0]
                self.put_job(job)
                if is_leased:
                    self.out.whole(TOKEN)
                    self.out.string(job.token)
        else:
            self.begin(JOBS_LEASED if is_leased else JOBS)
            self.out.header(0x90, 0xDC, len(jobs))
            for job in jobs:
                self.put_job(job)
            if is_leased:
                self.out.whole(TOKENS)
                self.out.header(0x90, 0xDC, len(jobs))
                for job in jobs:
                    self.out.string(job.token)
        self.end_answer(SHOULD_COMMIT if core.answer_waits() and jobs else 0)
        return True

    cdef list claim_rest(self, QueueFields queue, list jobs, int count, owner, ttl_ms, now):
        """Claim as Python does what stands behind the ordinary jobs."""
        cdef Job job
        cdef long long bytes_taken = 0
        for job in jobs:
            bytes_taken += PyBytes_GET_SIZE(job.data)
        if bytes_taken >= CLAIM_BYTES_MAX:
            return []
        return _claim(
            self.core.engine, queue, self.connection, count - len(jobs), owner, ttl_ms, False,
            None, now,
        )

    cdef object owner_of(self, const Span* text):
        cdef bytes raw = PyBytes_FromStringAndSize(<const char*> text.p, text.n)
        owner = _names.get(raw)
        if owner is None:
            owner = raw.decode()
            if len(_names) >= NAMES_MAX:
                _names.clear()
            if len(owner) <= NAME_CHARS_MAX:
                _names[raw] = owner
        return owner

    cdef int put_job(self, Job job) except -1:
        if job.extra is not NO_EXTRA or job.place is not ACTIVE:
            return self.out.whole(_pack_job(job, self.int64))
        cdef object queue_name = job.queue.name
        if queue_name is not self.parts_queue or job.name is not self.parts_name:
            self.names_part = _names_parts.get((queue_name, job.name))
            if self.names_part is None:
                self.names_part = _names_part(queue_name, job.name)
            self.parts_queue, self.parts_name = queue_name, job.name
        if job.options is not self.numbers_options or job.attempts or job.priority or job.stall_count:
            self.numbers_options = None
            self.numbers_part = _numbers_part(job)
            if not (job.attempts or job.priority or job.stall_count):
                self.numbers_options = job.options
        return pack_active(self.out, job, self.int64, self.names_part, self.numbers_part)

    cdef bint ack(self, const uint8_t* end, object now) except -1:
        cdef Span job_id, token, result, named
        cdef int i
        cdef Core core = self.core
        cdef Job job
        cdef bytes packed = None
        job_id.p = token.p = result.p = NULL
        for i in range(self.count):
            if eq(&self.keys[i], b"id", 2):
                if job_id.p != NULL or string_at(self.values[i].p, end, &job_id) == NULL:
                    return False
                named = self.values[i]
            elif eq(&self.keys[i], b"token", 5):
                if token.p != NULL or string_at(self.values[i].p, end, &token) == NULL:
                    return False
            elif eq(&self.keys[i], b"result", 6) and result.p == NULL:
                result = self.values[i]
            elif not (eq(&self.keys[i], b"cmd", 3) or eq(&self.keys[i], b"reqId", 5)):
                return False
        if job_id.p == NULL:
            return False
        job = self.running(&job_id, &token)
        if job is None:
            return False
        if result.p != NULL:
            packed = self.result_at(result.p, end)
            if packed is None:
                return False
        self.finish(job, packed, now)
        self.begin(OK)
        self.end_answer(core.answer_waits(), &named)
        return True

    cdef bint ack_batch(self, const uint8_t* end, object now) except -1:
        cdef Span ids, tokens, results, job_id, token
        cdef int i
        cdef Py_ssize_t size, n, m, k
        cdef const uint8_t* p
        cdef const uint8_t* t
        cdef const uint8_t* r
        cdef Core core = self.core
        cdef list jobs = [], packed = []
        cdef Job job
        cdef bytes result
        ids.p = tokens.p = results.p = NULL
        for i in range(self.count):
            if eq(&self.keys[i], b"ids", 3) and ids.p == NULL:
                ids = self.values[i]
            elif eq(&self.keys[i], b"tokens", 6) and tokens.p == NULL:
                tokens = self.values[i]
            elif eq(&self.keys[i], b"results", 7) and results.p == NULL:
                results = self.values[i]
            elif not (eq(&self.keys[i], b"cmd", 3) or eq(&self.keys[i], b"reqId", 5)):
                return False
        if ids.p == NULL or not is_list(ids.p):
            return False
        p = head(ids.p, end, &size, &n)
        if n > ACKB_MAX:
            return False
        t = r = NULL
        if tokens.p != NULL:
            if not is_list(tokens.p):
                return False
            t = head(tokens.p, end, &size, &m)
            if m != n:
                return False
        if results.p != NULL:
            if not is_list(results.p):
                return False
            r = head(results.p, end, &size, &m)
            if m != n:
                return False
        for k in range(n):
            p = string_at(p, end, &job_id)
            if p == NULL:
                return False
            token.p = NULL
            if t != NULL:
                if t[0] == 0xC0:
                    t += 1
                else:
                    t = string_at(t, end, &token)
                    if t == NULL:
                        return False
            job = self.running(&job_id, &token)
            if job is None:
                return False
            jobs.append(job)
            if r != NULL:
                result = self.result_at(r, end)
                if result is None:
                    return False
                packed.append(result)
                r = skipped(r, end)
        if len(set(jobs)) < n:
            return False
        for k in range(n):
            job = jobs[k]
            self.finish(job, packed[k] if r != NULL else None, now)
        self.begin(OK)
        self.end_answer(core.answer_waits(), &ids)
        return True

    cdef int finish(self, Job job, bytes result, object now) except -1:
        cdef QueueFields queue = job.queue
        if job.options is not self.core.plain_options and job.options.remove_on_complete:
            if queue.waiters:
                self.go_first()
            _complete_rest(self.core.engine, job, result, True, now)
            return 0
        self.core.complete(job, result, now)
        if queue.waiters:
            self.serve(queue, now)
        return 0

    cdef Job running(self, const Span* job_id, const Span* token):
        """Return the job if it is running, the token is its own and its end is ordinary."""
        cdef Job job
        cdef Py_ssize_t size
        cdef const char* own
        if not is_ascii(job_id.p, job_id.n):
            return None
        job = self.core.find(PyUnicode_DecodeUTF8(<const char*> job_id.p, job_id.n, NULL))
        if job is None or not self.core.is_ordinary_run(job) or self.core.due:
            return None
        if token.p == NULL:
            return job if job.token is None else None
        if job.token is None:
            return None
        own = PyUnicode_AsUTF8AndSize(job.token, &size)
        return job if size == token.n and memcmp(own, token.p, size) == 0 else None

    cdef bytes result_at(self, const uint8_t* p, const uint8_t* end):
        self.scratch.n = 0
        if copied(p, end, self.scratch, NULL) == NULL:
            return None
        return PyBytes_FromStringAndSize(self.scratch.p, self.scratch.n)

    # -- answers --

    cdef bytes req_id(self):
        """Return the packed ``reqId``, or None."""
        if self.req.p == NULL:
            return None
        return PyBytes_FromStringAndSize(<const char*> self.req.p, self.req.n)

    cdef int begin(self, bytes reply) except -1:
        """Begin an answer with its first bytes, which begin with the header of a small map."""
        self.answer_at = self.out.n
        self.out.number(0, 4)
        self.out.whole(reply)
        if self.req.p != NULL:
            self.out.p[self.answer_at + 4] += 1
        return 0

    cdef int refuse(self, str text) except -1:
        self.begin(b"\x82\xa2ok\xc2\xa5error")
        self.out.string(text)
        return self.end_answer(0)

    cdef int end_answer(self, int waits, const Span* about=NULL) except -1:
        """End it with the ``reqId``, and keep it back if it waits for a commit.

        Args:
            about: The ids that the request is about, packed; NULL if the answer names them.
        """
        cdef size_t length
        cdef char* p
        cdef int i
        if self.req.p != NULL:
            self.out.whole(REQ_ID)
            self.out.put(self.req.p, self.req.n)
        length = self.out.n - self.answer_at - 4
        p = self.out.p + self.answer_at
        for i in range(4):
            p[i] = <char> (length >> (8 * (3 - i)) & 255)
        if waits:
            self.held.put(p, length + 4)
            self.kinds.byte(<uint8_t> waits)
            if about == NULL:
                self.about.byte(0xC0)
            else:
                self.about.put(about.p, about.n)
            self.out.n = self.answer_at
        return 0


cdef bint is_same(bytes kept, const Span* text):
    return (
        kept is not None
        and PyBytes_GET_SIZE(kept) == text.n
        and memcmp(PyBytes_AS_STRING(kept), text.p, text.n) == 0
    )


cdef bint is_list(const uint8_t* p) noexcept nogil:
    return 0x90 <= p[0] <= 0x9F or p[0] == 0xDC or p[0] == 0xDD


cdef bint is_map(const uint8_t* p) noexcept nogil:
    return 0x80 <= p[0] <= 0x8F or p[0] == 0xDE or p[0] == 0xDF


cdef bint small(const Span* value, int64_t* number) noexcept nogil:
    """Read an integer that is not negative."""
    cdef uint8_t c = value.p[0]
    if c < 0x80:
        number[0] = c
    elif 0xCC <= c <= 0xCE:
        number[0] = <int64_t> big(value.p + 1, 1 << (c - 0xCC))
    else:
        return False
    return True
