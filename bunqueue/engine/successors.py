"""The next generation of a job that repeats, made when the present one completes.

It stands in the same commit as the completion: if that fails, both are undone.
"""

from typing import TYPE_CHECKING, Final

from bunqueue.engine import keys
from bunqueue.engine.events import retract
from bunqueue.engine.job import Job
from bunqueue.engine.places import forget
from bunqueue.engine.repeats import following
from bunqueue.engine.states import GONE, QUEUED
from bunqueue.engine.visibility import enter

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

LINKS_MAX: Final = 10_000  # who follows whom; the oldest go, engine.md 12


def succeed(engine: "Engine", job: Job, now: int) -> None:
    """Make the successor of a job that has just completed, unless its repeating is over.

    The lock of its queue's shard is held.
    """
    old = engine.successors.get(job.id)
    if old is not None and engine.index.get(old) is not None:
        return  # it has run again; its chain goes on elsewhere
    assert job.options.repeat is not None
    repeat = following(job.options.repeat, now)
    if repeat is None:
        return
    queue = job.queue
    key = job.extra.unique_key
    if key is not None and keys.owner_of(queue, key, now) is not None:
        return  # a job that took its key has taken its turn too
    seq = engine.seq = engine.seq + 1
    options = engine.options_with(job.options, "repeat", repeat)
    run_at = max(now, int(repeat["prevMillis"]))
    successor = Job(
        engine.ids.new(now), seq, queue, job.name, job.data, options, job.priority, now, run_at,
        QUEUED,
    )  # fmt: skip
    if job.extra.group_id is not None:
        successor.own_extra().group_id = job.extra.group_id
    if key is not None:
        ttl = (options.deduplication or {}).get("ttl")
        keys.take(queue, successor, key, now + int(ttl) if ttl else None)
    engine.successors[job.id] = successor.id
    if len(engine.successors) > LINKS_MAX:
        del engine.successors[next(iter(engine.successors))]
    engine.index.put(successor)
    engine.storage.added(successor)
    engine.storage.sync(_unsucceed, (engine, job.id, successor))
    enter(engine, successor, now)


def _unsucceed(engine: "Engine", job_id: str, successor: Job) -> None:
    """Undo a successor whose commit failed."""
    engine.successors.pop(job_id, None)
    retract(engine, successor.queue.name, successor.id, 0)
    if successor.place != GONE:
        forget(engine, successor)


def heir(engine: "Engine", job_id: str) -> str:
    """Return whom an edit of that job's payload is about: its pending successor, or itself."""
    link = engine.successors.get(job_id)
    if link is None:
        return job_id
    job = engine.index.get(job_id)
    successor = engine.index.get(link)
    if (job is not None and job.place in keys.LIVE) or successor is None:
        return job_id
    return link if successor.place == QUEUED else job_id
