"""Dedup keys: who owns a key, and what happens to a twin (engine.md 3.3).

An owner keeps its key until it is final or removed: through retries, stalls and releases. Live
keys are never trimmed. A key may have an end of its own; after that it is free although its owner
lives.
"""

from typing import TYPE_CHECKING

from bunqueue.engine.dependencies import has_live_consumer
from bunqueue.engine.queue import KeyOwner, Queue
from bunqueue.engine.states import ACTIVE, ADMITTED, PARKED, QUEUED
from bunqueue.errors import Refused
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.job import Job

LIVE = frozenset((ADMITTED, QUEUED, PARKED, ACTIVE))
LOST = 0  # ``unique_until`` of a job whose key was taken away: expired since ever
EXTENDED = "Duplicate unique_key (extended TTL)"


def owner_of(queue: Queue, key: str, now: int) -> "Job | None":
    """Return the live job that holds the key now, or None."""
    entry = queue.keys.get(key)
    if entry is None:
        return None
    if entry.job.place not in LIVE or (entry.until is not None and entry.until <= now):
        del queue.keys[key]
        return None
    return entry.job


def refusal(engine: "Engine", queue: Queue, key: str, options: JobOptions, now: int) -> str | None:
    """Return why a push with this key must be refused outright, or None."""
    owner = owner_of(queue, key, now)
    if owner is None:
        return None
    policy = strategy(options)
    if policy == "replace" and owner.place != ACTIVE and has_live_consumer(engine, owner.id):
        return irreplaceable(owner.id)
    return EXTENDED if policy == "extend" and owner.place in (ACTIVE, PARKED) else None


def irreplaceable(owner_id: str) -> str:
    """Build the refusal of a push that would replace a job which others wait for."""
    return f"Cannot replace deduplicated job {owner_id} because live jobs depend on it"


def meet(
    engine: "Engine",
    queue: Queue,
    owner: "Job",
    key: str,
    options: JobOptions,
    now: int,
    is_of_batch: bool = False,
) -> bool:
    """Apply the newcomer's policy to the live owner of its key.

    Args:
        is_of_batch: ``refusal`` was asked before: an owner that has begun or waits for others
            since then came with the same call, which is not refused for it.

    Returns:
        True if the newcomer replaces the owner, False if the owner stays and answers for it.

    Raises:
        Refused: The key's life was extended, but the owner is running or parked; or live jobs
            depend on an owner that would be replaced.
    """
    policy = strategy(options)
    if policy == "replace":
        if owner.place != ACTIVE and has_live_consumer(engine, owner.id):
            raise Refused(irreplaceable(owner.id))
        return True
    if policy == "extend":
        until = now + int((options.deduplication or {})["ttl"])
        queue.keys[key].until = until
        owner.own_extra().unique_until = until
        engine.storage.rewritten(owner)
        if owner.place in (ACTIVE, PARKED) and not is_of_batch:
            raise Refused(EXTENDED)
    return False


def unextend(engine: "Engine", owner: "Job", key: str, until: int | None) -> None:
    """Undo an extension: the owner has its key until ``until`` again."""
    if owner.place not in LIVE:
        return
    owner.own_extra().unique_until = until
    entry = owner.queue.keys.get(key)
    if entry is not None and entry.job is owner:
        entry.until = until
    engine.storage.rewritten(owner)


def strategy(options: JobOptions) -> str:
    """Return what a newcomer does to the owner of its key: reject, extend or replace."""
    policy = options.deduplication or {}
    if policy.get("replace"):
        return "replace"
    return "extend" if policy.get("extend") and policy.get("ttl") else "reject"


def take(queue: Queue, job: "Job", key: str, until: int | None) -> None:
    """Make the job the owner of the key."""
    extra = job.own_extra()
    extra.unique_key = key
    extra.unique_until = until
    queue.keys[key] = KeyOwner(job, until)


def lose(job: "Job") -> int | None:
    """Let a running job go on without its key, for good; return until when it had it."""
    extra = job.own_extra()
    until = extra.unique_until
    extra.unique_until = LOST
    return until


def release(job: "Job") -> None:
    """Free the job's key, if it still owns it."""
    key = job.extra.unique_key
    if key is None:
        return
    entry = job.queue.keys.get(key)
    if entry is not None and entry.job is job:
        del job.queue.keys[key]


def reclaim(job: "Job", now: int) -> bool:
    """Register the key of a job that comes back; False if another live job owns it."""
    key = job.extra.unique_key
    if key is None:
        return True
    owner = owner_of(job.queue, key, now)
    if owner is not None and owner is not job:
        return False
    until = job.extra.unique_until
    if until is None or until > now:
        job.queue.keys[key] = KeyOwner(job, until)
    return True
