"""The job record: hot fields in slots, shared options by reference, rare fields on demand.

A million queued jobs are a million of these, so an ordinary waiting job is one object of fixed
slots: its options are an interned object, what belongs to a run is a ``Delivery`` that exists
only while a worker has it, and everything rare (keys, edges, history, texts) is an ``Extra`` made
when first needed. ``NO_EXTRA`` stands in for it and is never written.

Where the compiled core runs, ``Job`` and ``Delivery`` are its records with the same attributes.
"""

from typing import TYPE_CHECKING, Any

from bunqueue import compiled
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.dependencies import Ties
    from bunqueue.engine.ports import Peer
    from bunqueue.engine.queue import Queue

TIMELINE_MAX = 20  # entries kept per job, engine.md 12
TIMELINE_FIRST_KEPT = 5
OLD_ERROR_CHARS_MAX = 1_000  # of the texts of all failures but the newest: a job may have 1,000


class Job:
    """One unit of work; its queue's shard lock guards it.

    Attributes:
        id: Generated UUIDv7, or the caller's own id.
        seq: Admission number, unique in the broker's life and on disk; breaks ties of order.
        queue: The queue that owns it.
        data: The payload, packed msgpack.
        options: Shared, immutable.
        place: One of ``states``.
        created_at, run_at, started_at, finished_at: Epoch ms; 0 for "not yet" in the last two.
        attempts: Runs that ended badly.
        is_ripe: It is queued and its time has come: it stands in a lane, not in the delayed heap.
        stamp: Counts leaving the run set out of turn; entries of an older stamp are stale.
        delivery: The present run, or None.
        token: Lock token of the last delivery, kept after a stall so that its late ACK counts; None
            when an outcome, a move or the end of its connection has settled it.
        result: Packed result, or None when there is none (a null result is packed nil).
        dirty: What the storage has still to write, bits of ``ports.Storage``.
    """

    __slots__ = (
        "id",
        "seq",
        "queue",
        "name",
        "data",
        "options",
        "place",
        "priority",
        "created_at",
        "run_at",
        "started_at",
        "finished_at",
        "is_ripe",
        "attempts",
        "stall_count",
        "stamp",
        "delivery",
        "token",
        "result",
        "extra",
        "dirty",
    )

    def __init__(
        self,
        id: str,
        seq: int,
        queue: "Queue",
        name: str,
        data: bytes,
        options: JobOptions,
        priority: int,
        created_at: int,
        run_at: int,
        place: str,
    ) -> None:
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
        self.is_ripe = False
        self.attempts = 0
        self.stall_count = 0
        self.stamp = 0
        self.delivery: Delivery | None = None
        self.token: str | None = None
        self.result: bytes | None = None
        self.extra: Extra = NO_EXTRA
        self.dirty = 0

    def own_extra(self) -> "Extra":
        """Return this job's own rare fields, made now if it had none."""
        extra = self.extra
        if extra is NO_EXTRA:
            extra = self.extra = Extra()
        return extra

    @property
    def ttl_ends_at(self) -> int:
        """The last moment, epoch ms, at which a job with a ttl may be claimed."""
        assert self.options.ttl is not None
        return (self.extra.lives_from or self.created_at) + int(self.options.ttl)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.place}>"


class Delivery:
    """One run of a job: who has it, since when, and the lease if an owner was named.

    Attributes:
        peer: The connection that pulled it, or None once it has gone or asked to be detached.
        owner: Name of the worker; None means no lease, anyone may settle the job.
        started_at, heartbeat_at, expires_at: Epoch ms of the broker's steady clock.
        ttl_ms: Span of the lease.
        renewals: How often the lease was renewed.
        is_suspect: The last stall sweep found it silent.
        timer: The entry of the job's ``timeout``, or None.
    """

    __slots__ = (
        "peer",
        "owner",
        "started_at",
        "heartbeat_at",
        "expires_at",
        "ttl_ms",
        "renewals",
        "is_suspect",
        "timer",
    )

    def __init__(self, peer: "Peer | None", owner: str | None, now: int, ttl_ms: int) -> None:
        self.peer = peer
        self.owner = owner
        self.started_at = now
        self.heartbeat_at = now
        self.expires_at = now + ttl_ms
        self.ttl_ms = ttl_ms
        self.renewals = 0
        self.is_suspect = False
        self.timer: list[Any] | None = None


class Extra:
    """What only few jobs have.

    Attributes:
        is_custom_id: The id was chosen by the caller.
        unique_key, unique_until: Its dedup key and that key's expiry (epoch ms or None).
        parent_id, group_id: As pushed.
        depends_on, children_ids: As pushed; dicts for their order, since one may leave many.
        timeline: ``[state, timestamp, error or None, attempt or None]`` lists, or None while it can
            be derived from the job's own moments.
        last_error: Newest failure text; ``failedReason``.
        stacktrace: Lines of the newest failure that had any.
        history: Charged attempts: ``[attempt, started_at, failed_at, reason, error]`` lists.
        progress, progress_message: As reported by the worker.
        logs: ``[timestamp, level, message]`` lists; memory only.
        dead: The dead-letter entry while the job has failed, else None.
        retry: Dead-letter state that rides along while the job is retried automatically.
        flow: What it waits for; only while it refers to other jobs.
        lives_from: Epoch ms from which the ttl of a job counts that was sent back to waiting after
            it had ended; 0 for its creation.
        losses: Runs in a row that ended with their worker's connection; memory only.
    """

    __slots__ = (
        "is_custom_id",
        "unique_key",
        "unique_until",
        "parent_id",
        "depends_on",
        "children_ids",
        "group_id",
        "timeline",
        "last_error",
        "stacktrace",
        "history",
        "progress",
        "progress_message",
        "logs",
        "dead",
        "retry",
        "flow",
        "lives_from",
        "ttl_timer",
        "losses",
    )

    def __init__(self) -> None:
        self.is_custom_id = False
        self.unique_key: str | None = None
        self.unique_until: int | None = None
        self.parent_id: str | None = None
        self.depends_on: dict[str, None] = {}
        self.children_ids: dict[str, None] = {}
        self.group_id: str | None = None
        self.timeline: list[list[Any]] | None = None
        self.last_error: str | None = None
        self.stacktrace: list[str] | None = None
        self.history: list[list[Any]] = []
        self.progress: float = 0
        self.progress_message: str | None = None
        self.logs: list[list[Any]] | None = None
        self.dead: DeadLetter | None = None
        self.retry: DeadLetter | None = None
        self.flow: Ties | None = None
        self.lives_from = 0
        self.ttl_timer: list[Any] | None = None
        self.losses = 0


class DeadLetter:
    """Why and since when a job rests in the dead-letter queue; moments in epoch ms or None."""

    __slots__ = (
        "entered_at",
        "reason",
        "error",
        "retry_count",
        "last_retry_at",
        "next_retry_at",
        "expires_at",
    )

    def __init__(self, entered_at: int, reason: str, error: str | None) -> None:
        self.entered_at = entered_at
        self.reason = reason
        self.error = error
        self.retry_count = 0
        self.last_retry_at: int | None = None
        self.next_retry_at: int | None = None
        self.expires_at: int | None = None


NO_EXTRA = Extra()

if not TYPE_CHECKING and compiled.IS_COMPILED:
    _records = compiled.part("records")
    _records.take_extra(NO_EXTRA, Extra)
    Job, Delivery = _records.Job, _records.Delivery


def timeline_of(job: Job) -> list[list[Any]]:
    """Return the job's history as ``[state, timestamp, error, attempt]`` lists, oldest first."""
    if job.extra.timeline is not None:
        return job.extra.timeline
    first = "delayed" if job.run_at > job.created_at else "waiting"
    if first == "waiting" and job.priority > 0:
        first = "prioritized"
    entries: list[list[Any]] = [[first, job.created_at, None, None]]
    if job.started_at:
        entries.append(["active", job.started_at, None, None])
    if job.finished_at:
        entries.append(["completed", job.finished_at, None, None])
    return entries


def keep_timeline(job: Job) -> list[list[Any]]:
    """Write the timeline down, before the moments change from which it was derived; return it."""
    extra = job.own_extra()
    if extra.timeline is None:
        extra.timeline = timeline_of(job)
    return extra.timeline


def note(
    job: Job, state: str, now: int, error: str | None = None, attempt: int | None = None
) -> None:
    """Write one line of the job's timeline; the middle gives way when it is full.

    A plain life (pushed, pulled, acknowledged) is derived from the job's moments and never noted.
    """
    timeline = keep_timeline(job)
    if len(timeline) >= TIMELINE_MAX:
        del timeline[TIMELINE_FIRST_KEPT]
    if error is not None:
        shorten_errors(timeline, 2)
    timeline.append([state, now, error, attempt])


def shorten_errors(lines: list[list[Any]], place: int) -> None:
    """Cut the newest long text at that place of the lines, for a newer one is to come.

    The line is replaced, not changed: an undo may hold the list that it stood in.
    """
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if line[place] is not None:
            if len(line[place]) > OLD_ERROR_CHARS_MAX:
                lines[number] = [*line]
                lines[number][place] = line[place][:OLD_ERROR_CHARS_MAX]
            return
