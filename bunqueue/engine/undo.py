"""Putting memory back when a commit fails.

Outcomes and control changes act in memory first and answer after their commit. If that fails, the
peer reads an error and the job must be as it was, lease included (engine.md 1.4 B): ``remember``
takes a picture of it beforehand, ``put_back`` restores it. The storage calls back newest first.
"""

from typing import TYPE_CHECKING, Any

from bunqueue.engine import keys
from bunqueue.engine.job import NO_EXTRA, Extra, Job
from bunqueue.engine.places import put_in, take_out

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

_FIELDS = (
    "data",
    "options",
    "place",
    "priority",
    "run_at",
    "started_at",
    "finished_at",
    "attempts",
    "stall_count",
    "delivery",
    "token",
    "result",
)
Memory = tuple[tuple[Any, ...], Extra, bool]


def remember(job: Job) -> Memory:
    """Take a picture of everything about the job that an operation may change."""
    key = job.extra.unique_key
    owns_key = (
        key is not None and (entry := job.queue.keys.get(key)) is not None and (entry.job is job)
    )
    return tuple(getattr(job, name) for name in _FIELDS), _copy(job.extra), owns_key


def _copy(extra: Extra) -> Extra:
    if extra is NO_EXTRA:
        return NO_EXTRA
    copy = Extra()
    for name in Extra.__slots__:
        value = getattr(extra, name)
        setattr(copy, name, list(value) if isinstance(value, list) else value)
    return copy


def put_back(engine: "Engine", job: Job, memory: Memory, now: int) -> None:
    """Restore the job to the picture, in memory and for the next batch."""
    values, extra, owns_key = memory
    take_out(engine, job)
    for name, value in zip(_FIELDS, values, strict=True):
        setattr(job, name, value)
    job.extra = extra
    put_in(engine, job, now)
    if owns_key:
        keys.reclaim(job, now)
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    engine.storage.added(job)
