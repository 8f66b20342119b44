"""A queue and the shard that guards it."""

from typing import TYPE_CHECKING, Any

from bunqueue import compiled
from bunqueue.engine.groups import GroupTerms
from bunqueue.engine.lanes import RunSet
from bunqueue.engine.limits import Gate
from bunqueue.engine.locks import Lock
from bunqueue.engine.settings import DlqConfig, StallConfig

if TYPE_CHECKING:
    from bunqueue.engine.job import Job
    from bunqueue.engine.later import Later
    from bunqueue.engine.ports import Peer
    from bunqueue.engine.timers import Timer


class Shard:
    """Some of the queues, under one lock."""

    __slots__ = ("number", "lock", "queues")

    def __init__(self, number: int, lock: Lock) -> None:
        self.number = number
        self.lock = lock
        self.queues: dict[str, Queue] = {}


class QueueFields:
    """What ``Queue`` is made of; the compiled core's own where it runs."""

    __slots__ = (
        "name",
        "shard",
        "run_set",
        "admitted",
        "parked",
        "active",
        "completed",
        "failed",
        "gate",
        "waiters",
        "keys",
        "stall",
        "dlq",
        "completed_total",
        "failed_total",
        "completed_at",
        "failed_at",
        "recount_at",
        "events_total",
        "wake_timer",
        "used_at",
        "is_stored",
        "is_disordered",
    )


if not TYPE_CHECKING and compiled.IS_COMPILED:
    QueueFields = compiled.part("records").QueueFields


class Queue(QueueFields):
    """A named line of jobs, in all its places.

    Attributes:
        run_set: Pending jobs.
        admitted, parked, active, completed, failed: id -> job, by order of arrival there.
        gate: Pause, rate, concurrency.
        waiters: Long polls in order of arrival (a dict for its order).
        keys: dedup key -> owner.
        stall, dlq: Configuration.
        completed_total, failed_total: Jobs that have ended so, ever.
        completed_at, failed_at: Epoch ms of the newest of them, 0 for none.
        recount_at: From when on the next of them is counted with ``metrics.recount`` first.
        events_total: Length of the journal, not cut yet; see ``metrics.trim_events``.
        wake_timer: The pending look at the queue for its waiters, or None.
        used_at: Epoch ms of the last admission or setting; keeps an empty name for a while.
        is_disordered: ``completed`` or ``failed`` may be out of order; see ``straighten``.
    """

    __slots__ = ()

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self.shard = shard
        self.run_set = RunSet()
        self.admitted: dict[str, Job] = {}
        self.parked: dict[str, Job] = {}
        self.active: dict[str, Job] = {}
        self.completed: dict[str, Job] = {}
        self.failed: dict[str, Job] = {}
        self.gate = Gate()
        self.waiters: dict[Waiter, None] = {}
        self.keys: dict[str, KeyOwner] = {}
        self.stall = StallConfig()
        self.dlq = DlqConfig()
        self.completed_total = 0
        self.failed_total = 0
        self.completed_at = 0
        self.failed_at = 0
        self.recount_at = 0
        self.events_total = 0
        self.wake_timer: Timer | None = None
        self.used_at = 0
        self.is_stored = False
        self.is_disordered = False

    def straighten(self) -> None:
        """Bring ended jobs back into the order of their ends, if an undo has disturbed it."""
        if not self.is_disordered:
            return
        self.is_disordered = False
        self.completed = _by_end(self.completed)
        self.failed = _by_end(self.failed)

    def absorb(self, other: "Queue", now: int) -> None:
        """Take over the jobs and keys of another queue object of this name; nothing stays there."""
        for job in list(other.run_set.jobs()):
            other.run_set.leave(job)
            job.queue = self
            job.stamp += 1
            self.run_set.enter(job, now)
        other.run_set.clear()
        for job in other.active.values():
            if job.extra.group_id is not None:
                other.run_set.open_group(job.extra.group_id).active -= 1
                self.run_set.open_group(job.extra.group_id).active += 1
        for place in ("admitted", "parked", "active", "completed", "failed"):
            jobs = getattr(other, place)
            for job in jobs.values():
                job.queue = self
            getattr(self, place).update(jobs)
            jobs.clear()
        self.keys.update(other.keys)
        other.keys.clear()
        self.completed_total += other.completed_total
        self.failed_total += other.failed_total
        self.is_disordered = True

    def clear(self) -> None:
        """Forget every job, key and long poll."""
        self.run_set.clear()
        for job in self.active.values():
            if job.delivery is not None:
                job.delivery.peer = job.delivery.timer = None  # the peer holds the run
        for place in (self.admitted, self.parked, self.active, self.completed, self.failed):
            place.clear()
        self.keys.clear()
        self.waiters.clear()
        self.wake_timer = None

    def size(self) -> int:
        """Count every job of the queue, in all places."""
        return (
            len(self.run_set)
            + len(self.parked)
            + len(self.active)
            + len(self.completed)
            + len(self.failed)
        )


def _by_end(jobs: "dict[str, Job]") -> "dict[str, Job]":
    return {job.id: job for job in sorted(jobs.values(), key=_ended_at)}


def _ended_at(job: "Job") -> tuple[int, int]:
    dead = job.extra.dead
    return (job.finished_at if dead is None else dead.entered_at), job.seq


class KeyOwner:
    """Who holds a dedup key, and until when (epoch ms, None for as long as it lives)."""

    __slots__ = ("job", "until")

    def __init__(self, job: "Job", until: int | None) -> None:
        self.job = job
        self.until = until


class Waiter:
    """A long poll: a pull that waits for a job."""

    __slots__ = (
        "later",
        "peer",
        "queue",
        "count",
        "owner",
        "ttl_ms",
        "is_detached",
        "terms",
        "timer",
    )

    def __init__(
        self,
        later: "Later",
        peer: "Peer",
        queue: Queue,
        count: int,
        owner: str | None,
        ttl_ms: int,
        is_detached: bool,
        terms: GroupTerms | None,
    ) -> None:
        self.later = later
        self.peer = peer
        self.queue = queue
        self.count = count
        self.owner = owner
        self.ttl_ms = ttl_ms
        self.is_detached = is_detached
        self.terms = terms
        self.timer: list[Any] | None = None
