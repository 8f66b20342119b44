# cython: language_level=3, binding=False
"""The job record and the record of a run, as C structures; see ``engine/job.py``."""

cimport cython

# The stand-in for the rare fields of an ordinary job, and the class of a job's own: the engine
# hands them over, since it is the engine that knows what is rare.
cdef object NO_EXTRA = None
cdef object _Extra = None


def take_extra(object no_extra, object extra_class):
    """Learn the shared ``NO_EXTRA`` and the class ``Extra``."""
    global NO_EXTRA, _Extra
    NO_EXTRA = no_extra
    _Extra = extra_class


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


cdef Job new_job(str id, long long seq, object queue, object name, bytes data, object options,
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
