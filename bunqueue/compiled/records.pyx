# cython: language_level=3, binding=False, boundscheck=False, wraparound=False
"""What is made, noted or counted for every job, as C structures.

The job and its run (``engine/job.py``), ids (``engine/ids.py``), the notes of what has changed
(``storage/notes.py``). Of queues, run sets, lanes, gates and the engine only the attributes: the
classes that have the operations are Python, and these are what they are made of.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy


cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    void* PyUnicode_DATA(object o)


CONTRACT = 13  # as in ``__init__.py``

# The stand-in for the rare fields of an ordinary job, and the class of a job's own: the engine
# hands them over, since it is the engine that knows what is rare.
cdef object NO_EXTRA = None
cdef object _Extra = None


def take_extra(object no_extra, object extra_class):
    """Learn the shared ``NO_EXTRA`` and the class ``Extra``."""
    global NO_EXTRA, _Extra
    NO_EXTRA = no_extra
    _Extra = extra_class


# The collector does not look at jobs and their runs, or a million of them would cost it a pause
# each time it looks at all of memory. Whatever refers back to a job (its queue, timers, the peer that
# holds it) lets go of it when it goes: tests/unit/engine/test_no_cycles.py.


@cython.no_gc
@cython.freelist(256)
cdef class Delivery:
    """One run of a job."""

    def __init__(self, peer, owner, now, ttl_ms):
        self.peer = peer
        self.owner = owner
        self.started_at = now
        self.heartbeat_at = now
        self.expires_at = now + ttl_ms
        self.ttl_ms = ttl_ms
        self.renewals = 0
        self.is_suspect = False
        self.timer = None


cdef class GateFields:
    """Attributes of ``engine/limits.py`` ``Gate``."""


cdef class LaneFields:
    """Attributes of ``engine/lanes.py`` ``Lane``."""


cdef class RunSetFields:
    """Attributes of ``engine/lanes.py`` ``RunSet``."""


cdef class QueueFields:
    """Attributes of ``engine/queue.py`` ``Queue``."""


cdef class Totals:
    """Counts since the start."""


cdef class EngineFields:
    """Attributes of ``engine/engine.py`` ``Engine``, but for most."""


@cython.no_gc
@cython.freelist(1024)
cdef class Job:
    """One unit of work."""

    __slots__ = (
        "id", "seq", "queue", "name", "data", "options", "place", "priority", "created_at",
        "run_at", "started_at", "finished_at", "is_ripe", "attempts", "stall_count", "stamp",
        "delivery", "token", "result", "extra", "dirty",
    )

    def __init__(self, id, long long seq, queue, name, bytes data, options,
                 long long priority, created_at, run_at, str place):
        self.id = id
        self.seq = seq
        self.queue = queue
        self.name = name
        self.data = data
        self.options = options
        self.place = place
        self.priority = priority
        self.created_at = created_at
        self.run_at = run_at
        self.started_at = 0
        self.finished_at = 0
        self.extra = NO_EXTRA

    def own_extra(self):
        """Return this job's own rare fields, made now if it had none."""
        if self.extra is NO_EXTRA:
            self.extra = _Extra()
        return self.extra

    @property
    def ttl_ends_at(self):
        """The last moment, epoch ms, at which a job with a ttl may be claimed."""
        return (self.extra.lives_from or self.created_at) + int(self.options.ttl)

    def __repr__(self):
        return f"<Job {self.id} {self.place}>"


cdef Job new_job(str id, long long seq, QueueFields queue, object name, bytes data, object options,
                 object now, str place):
    """Make an ordinary job that is due at once."""
    cdef Job job = Job.__new__(Job)
    job.id = id
    job.seq = seq
    job.queue = queue
    job.name = name
    job.data = data
    job.options = options
    job.place = place
    job.created_at = now
    job.run_at = now
    job.started_at = 0
    job.finished_at = 0
    job.extra = NO_EXTRA
    return job


cdef enum:
    # Jobs of the first block and of the largest: with their heads 256 bytes and 8 KiB. Most lines
    # are short, and there may be 10,000 of them.
    BLOCK_ROOM_MIN = 30
    BLOCK_ROOM_MAX = 1022


cdef struct Block:
    Block* following
    Py_ssize_t room
    PyObject* items[1]  # as many as there is room for


@cython.no_gc
cdef class Ring:
    """A line of jobs: what ``deque`` does for ``engine/lanes.py``, unseen by the collector.

    A deque that takes a million jobs while it is young is looked at whole, twice: 25 ms each.
    """

    def __cinit__(self, jobs=()):
        for job in jobs:
            self.append(job)

    def __dealloc__(self):
        while self.size:
            self.popleft()
        PyMem_Free(self.first)

    def __len__(self):
        return self.size

    def __getitem__(self, Py_ssize_t index):
        """Return the first job; there is no other index."""
        if index or not self.size:
            raise IndexError("a ring shows its first job only")
        return self.head()

    def __iter__(self):
        """Iterate over the jobs that are there now."""
        return iter(self.listed())

    cpdef append(self, Job job):
        """Put a job at the end."""
        cdef Block* block
        cdef Py_ssize_t room
        if self.last == NULL or self.end == self.last.room:
            room = BLOCK_ROOM_MIN if self.last == NULL else min(4 * self.last.room, BLOCK_ROOM_MAX)
            block = <Block*> PyMem_Malloc(sizeof(Block) + (room - 1) * sizeof(PyObject*))
            if block == NULL:
                raise MemoryError
            block.following = NULL
            block.room = room
            if self.last == NULL:
                self.first = block
                self.begin = 0
            else:
                self.last.following = block
            self.last = block
            self.end = 0
        Py_INCREF(job)
        self.last.items[self.end] = <PyObject*> job
        self.end += 1
        self.size += 1

    def extend(self, jobs):
        """Put jobs at the end, in order."""
        for job in jobs:
            self.append(job)

    cdef Job head(self):
        """Return the first job; there is one."""
        return <Job> self.first.items[self.begin]

    cpdef Job popleft(self):
        """Remove and return the first job."""
        cdef Block* block = self.first
        cdef Job job
        if not self.size:
            raise IndexError("the ring is empty")
        job = <Job> block.items[self.begin]
        Py_DECREF(job)  # the ring's own
        self.begin += 1
        self.size -= 1
        if not self.size:
            self.begin = self.end = 0
            if block.room > BLOCK_ROOM_MIN:
                PyMem_Free(block)
                self.first = self.last = NULL
        elif self.begin == block.room:
            self.first = block.following
            self.begin = 0
            PyMem_Free(block)
        return job

    cdef list listed(self):
        """Return the jobs in order."""
        cdef list jobs = []
        cdef Block* block = self.first
        cdef Py_ssize_t at = self.begin, left = self.size
        while left:
            if at == block.room:
                block = block.following
                at = 0
            jobs.append(<Job> block.items[at])
            at += 1
            left -= 1
        return jobs


cdef int _BLOCK = 1024  # as ids.py, so that the same chance makes the same ids
cdef const char* _DIGITS = b"0123456789abcdef"


cdef class Ids:
    """Makes ids and tokens; see ``engine/ids.py``."""

    def __init__(self, random_bytes):
        self._random_bytes = random_bytes
        self._last_ms = 0
        self._counter = 0
        self._prefix = b""
        self._left = 0

    cpdef str new(self, long long now):
        """Return an id that is greater than every one before."""
        if now > self._last_ms:
            self._start(now)
        elif self._counter == 4096:
            self._start(self._last_ms + 1)
        cdef int counter = self._counter
        self._counter = counter + 1
        if not self._left:
            self._block = self._random_bytes(8 * _BLOCK)
            self._left = _BLOCK
        self._left -= 1
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._prefix)
        cdef str made = PyUnicode_New(size + 21, 127)
        cdef unsigned char* to = <unsigned char*> PyUnicode_DATA(made)
        cdef const unsigned char* chance = (
            <const unsigned char*> PyBytes_AS_STRING(self._block) + 8 * self._left
        )
        memcpy(to, PyBytes_AS_STRING(self._prefix), size)
        to += size
        to[0] = _DIGITS[counter >> 8]
        to[1] = _DIGITS[(counter >> 4) & 15]
        to[2] = _DIGITS[counter & 15]
        to[3] = b"-"
        to[4] = b"89ab"[(chance[0] >> 4) & 3]
        to[5] = _DIGITS[chance[0] & 15]
        to[6] = _DIGITS[chance[1] >> 4]
        to[7] = _DIGITS[chance[1] & 15]
        to[8] = b"-"
        cdef int i
        for i in range(6):
            to[9 + 2 * i] = _DIGITS[chance[2 + i] >> 4]
            to[10 + 2 * i] = _DIGITS[chance[2 + i] & 15]
        return made

    cdef _start(self, long long ms):
        cdef char[15] text
        cdef int at
        self._last_ms = ms
        self._counter = 0
        for at in range(12):
            text[at + (at >= 8)] = _DIGITS[ms >> 4 * (11 - at) & 15]
        text[8] = text[13] = b"-"
        text[14] = b"7"
        self._prefix = PyBytes_FromStringAndSize(text, 15)


def bits_of(list jobs):
    """Return the dirty bits of jobs."""
    cdef Job job
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, len(jobs))
    cdef char* to = PyBytes_AS_STRING(bits)
    for job in jobs:
        to[0] = <char> job.dirty
        to += 1
    return bits


def clear_bits(list jobs):
    """Note jobs as written."""
    cdef Job job
    for job in jobs:
        job.dirty = 0


cdef enum:
    NEW = 1
    STATE = 2
    BODY = 4
    REMOVED = 8


cdef class Notes:
    """What a mutation log is told of jobs; see ``storage/notes.py``."""

    def __init__(self, long long rows_mark, long long bytes_mark):
        self._dirty = []
        self._ops = []
        self._rows_mark = rows_mark
        self._bytes_mark = bytes_mark

    cpdef added(self, Job job):
        """Note a job that was never written before."""
        if not job.dirty:
            job.dirty = NEW
            self._dirty.append(job)
        elif job.dirty & NEW:
            job.dirty &= ~REMOVED
        else:
            job.dirty = job.dirty & ~REMOVED | BODY | STATE
        self._size_bytes += PyBytes_GET_SIZE(job.data)
        if len(self._dirty) >= self._rows_mark or self._size_bytes >= self._bytes_mark:
            self._reached()

    cpdef changed(self, Job job):
        """Note a change of the job's state row."""
        if not job.dirty:
            job.dirty = STATE
            self._dirty.append(job)
            if len(self._dirty) >= self._rows_mark:
                self._reached()
        else:
            job.dirty = job.dirty & ~REMOVED | STATE

    cpdef removed(self, Job job):
        """Note that the job is gone from the file."""
        cdef bint is_fresh = not job.dirty
        job.dirty |= REMOVED
        if is_fresh:
            self._dirty.append(job)
            if len(self._dirty) >= self._rows_mark:
                self._reached()

    def sync(self, undo=None, tuple args=(), then=None, bint durable=False):
        """Let the running operation's answer wait for the commit of what was logged until now."""
        self.wait_for(undo, args, then, durable)

    cdef int wait_for(self, object undo, tuple args, object then, bint durable) except -1:
        """What ``sync`` does, for other compiled modules."""
        self.answer_waits = 1
        if undo is not None or then is not None:
            self._ops.append((undo, args, then))
            if then is not None:
                self._has_thens = True
        if durable:
            self._is_durable = True
        if not self._is_soon and self._in_flight is None:
            self._wake()
        return 0

    def taken(self):
        """Return what has been noted until now, and begin anew."""
        cdef tuple taken = (
            self._dirty[:], self._ops, self._has_thens, self._is_durable, self._size_bytes
        )
        self._dirty.clear()
        self._ops = []
        self._has_thens = self._is_durable = False
        self._size_bytes = 0
        return taken

    cpdef claimed(self):
        """Let the running operation's answer wait for the commit, but leave even if that fails."""
        if not self.answer_waits:
            self.answer_waits = 2
        if not self._is_soon and self._in_flight is None:
            self._wake()
