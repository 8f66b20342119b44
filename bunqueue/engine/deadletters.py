"""The dead-letter queue: jobs that have given up, why, and how they come back (engine.md 4.6).

A dead letter is the job itself, in the place ``failed``; entry and job can never disagree.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine import keys
from bunqueue.engine.dependencies import weight
from bunqueue.engine.job import DeadLetter, Job, note
from bunqueue.engine.places import forget, stop_ttl, take_out
from bunqueue.engine.queue import Queue
from bunqueue.engine.slices import Work, consumed, parts, weighed
from bunqueue.engine.states import FAILED, move
from bunqueue.engine.undo import light_memory, put_all_back, put_back, remember
from bunqueue.protocol.options import is_truthy

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

REASONS = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "unknown",
)


# How many are done between two looks at what was spent, and what one costs:
# loadtests/hub.py retry-dlq, purge-dlq, bound-dlq, dlq-stats.
LOOKED_AT_PER_STEP: Final = 500
LOOKED_AT_US: Final = 2
MOVED_PER_STEP: Final = 50
MOVED_US: Final = 30
REMOVED_US: Final = 15


def bury(engine: "Engine", job: Job, event: str, reason: str, error: str | None, now: int) -> None:
    """Move the job to the dead letters along ``event``; its key is free."""
    queue = job.queue
    take_out(engine, job)
    move(job, event)
    job.finished_at = now
    job.token = None
    keys.release(job)
    extra = job.own_extra()
    stop_ttl(engine, job)
    dead = extra.retry
    config = queue.dlq
    if dead is None:
        dead = DeadLetter(now, reason, error)
        dead.expires_at = None if config.max_age is None else now + config.max_age
    dead.reason = reason
    dead.error = error
    dead.next_retry_at = None
    if config.auto_retry and (not dead.retry_count or dead.retry_count < config.max_auto_retries):
        wait_ms = config.auto_retry_interval * 2 ** max(0, dead.retry_count - 1)
        dead.next_retry_at = now + wait_ms
    extra.retry = None
    extra.dead = dead
    queue.failed[job.id] = job
    engine.storage.changed(job)
    if extra.parent_id is not None:
        engine.child_failed(job, error, now)
    if job.id in engine.waits:
        engine.end_waits(job)
    evict(engine, queue)


def evict(engine: "Engine", queue: Queue) -> None:
    """Drop the oldest entries beyond the queue's ``maxEntries``, but not more than a few."""
    most = queue.dlq.max_entries
    if len(queue.failed) > most:
        queue.straighten()
        _drop_beyond(engine, queue, most, list(islice(queue.failed.values(), MOVED_PER_STEP)))


def evict_all(engine: "Engine", queue: Queue, most: int) -> Work[None]:
    """Drop the oldest entries of a queue beyond so many."""
    excess = len(queue.failed) - most
    if excess <= 0:
        return
    queue.straighten()
    oldest = consumed(list(islice(queue.failed.values(), excess)))
    for jobs in parts(oldest, MOVED_PER_STEP):
        with queue.shard.lock:
            _drop_beyond(engine, queue, most, [job for job in jobs if job.place == FAILED])
        yield len(jobs) * REMOVED_US


def _drop_beyond(engine: "Engine", queue: Queue, most: int, oldest: list[Job]) -> None:
    """Drop as many of the oldest as there are beyond ``most``."""
    memories = []
    for job in oldest[: max(0, len(queue.failed) - most)]:
        memories.append(light_memory(job))
        forget(engine, job)
    if memories:
        engine.storage.sync(put_all_back, (engine, memories, engine.last_now))


def revive(engine: "Engine", job: Job, now: int, is_automatic: bool = False) -> bool:
    """Send a dead letter back to waiting, with all attempts before it.

    Returns:
        False if another live job owns its key; the job stays where it is.
    """
    if not keys.reclaim(job, now):
        return False
    extra = job.own_extra()
    dead = extra.dead
    take_out(engine, job)
    move(job, "rerun")
    extra.dead = None
    extra.losses = 0
    if is_automatic and dead is not None:
        dead.retry_count += 1
        dead.last_retry_at = now
        extra.retry = dead
    else:
        extra.retry = None
        extra.history = []
    note(job, "waiting", now)
    job.attempts = 0
    job.stall_count = 0
    job.finished_at = 0
    job.started_at = 0
    job.run_at = now
    job.stamp += 1
    job.queue.run_set.enter(job, now)
    engine.live_again(job, now)
    engine.storage.changed(job)
    if job.queue.waiters:
        engine.serve(job.queue, now)
    return True


def select(
    queue: Queue, filter: Mapping[str, Any] | None, count: int | None, now: int
) -> Work[list[Job]]:
    """Return the dead letters that a filter lets through, in order of entry.

    Args:
        filter: ``{reason, olderThan, newerThan, retriable, expired, limit, offset}``, all optional;
            false in the two flags is as good as absent.
        count: At most so many.
    """
    chosen = filter or {}
    skip = max(0, int(chosen.get("offset") or 0))
    limit = chosen.get("limit")
    if limit is not None:
        count = int(limit) if count is None else min(count, int(limit))
    end = None if count is None else skip + max(0, count)
    queue.straighten()
    found: list[Job] = []
    for jobs in parts(list(queue.failed.values()), LOOKED_AT_PER_STEP):
        found += [job for job in jobs if _matches(job, chosen, now)]
        if end is not None and len(found) >= end:
            break
        yield len(jobs) * LOOKED_AT_US
    return found[skip:end]


def _matches(job: Job, chosen: Mapping[str, Any], now: int) -> bool:
    dead = job.extra.dead
    if dead is None:
        return False
    reason, older, newer = (chosen.get(key) for key in ("reason", "olderThan", "newerThan"))
    if reason is not None and dead.reason != reason:
        return False
    if older is not None and dead.entered_at > older:
        return False
    if newer is not None and dead.entered_at < newer:
        return False
    if is_truthy(chosen.get("retriable")) and not _is_due(job, now):
        return False
    return not is_truthy(chosen.get("expired")) or _is_expired(job, now)


def list_dead(
    engine: "Engine",
    queue_name: str,
    filter: Mapping[str, Any] | None,
    count: int | None,
    now: int,
) -> Work[list[Job]]:
    """Return the dead letters of a queue, in order of entry; arguments as ``select``."""
    queue = engine.queues.get(queue_name)
    return [] if queue is None else (yield from select(queue, filter, count, now))


def dlq_stats(engine: "Engine", queue_name: str, now: int) -> Work[dict[str, Any]]:
    """Return ``{total, byReason, byQueue, pendingRetry, expired, oldestEntry, newestEntry}``.

    What was due when automatic retries were switched off goes on being counted as pending.
    """
    by_reason = dict.fromkeys(REASONS, 0)
    queue = engine.queues.get(queue_name)
    total = due = expired = 0
    moments: list[int] = []
    for jobs in parts([] if queue is None else list(queue.failed.values()), LOOKED_AT_PER_STEP):
        letters = [job.extra.dead for job in jobs if job.extra.dead is not None]
        for letter in letters:
            by_reason[letter.reason] = by_reason.get(letter.reason, 0) + 1
        total += len(letters)
        due += sum(_is_pending(job, now) for job in jobs)
        expired += sum(_is_expired(job, now) for job in jobs)
        entered = [*moments, *(letter.entered_at for letter in letters)]
        moments = [min(entered), max(entered)] if entered else []
        yield len(jobs) * LOOKED_AT_US
    return {
        "total": total,
        "byReason": by_reason,
        "byQueue": {queue_name: total},
        "pendingRetry": due,
        "expired": expired,
        "oldestEntry": moments[0] if moments else None,
        "newestEntry": moments[1] if moments else None,
    }


def retry_dlq(
    engine: "Engine",
    queue_name: str,
    job_id: str | None,
    filter: Mapping[str, Any] | None,
    count: int | None,
    now: int,
) -> Work[int]:
    """Send dead letters back to waiting: those that a filter lets through, or one by id, or all.

    Returns:
        How many moved; those whose key another live job owns stay.
    """
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    if job_id is not None and filter is None:
        job = queue.failed.get(job_id)
        chosen = [] if job is None else [job]
    else:
        chosen = yield from select(queue, filter, count, now)
    moved = 0
    for jobs in parts(chosen, MOVED_PER_STEP):
        with queue.shard.lock, engine.served_after():
            moved += sum(_revive_for_good(engine, job, now) for job in jobs)
        now = yield len(jobs) * MOVED_US
    return moved


def _revive_for_good(engine: "Engine", job: Job, now: int) -> bool:
    """Revive a job that is still dead, or undo it if that cannot be written."""
    if job.place != FAILED:
        return False
    memory = remember(job)
    if not revive(engine, job, now):
        return False
    engine.storage.sync(put_back, (engine, job, memory, now))
    return True


def purge_dlq(engine: "Engine", queue_name: str, now: int) -> Work[int]:
    """Remove every dead letter of the queue; return how many there were."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    count = 0
    dead = consumed(list(queue.failed.values()))
    for jobs, weighs in weighed(dead, MOVED_PER_STEP, weight):
        with queue.shard.lock:
            for job in jobs:
                if job.place == FAILED:
                    _remove(engine, job, now)
                    count += 1
        now = yield weighs * REMOVED_US
    return count


def remove_dlq_job(engine: "Engine", queue_name: str, job_id: str, now: int) -> bool:
    """Remove one dead letter; False if it is not there."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return False
    with queue.shard.lock:
        job = queue.failed.get(job_id)
        if job is None:
            return False
        _remove(engine, job, now)
        return True


def _remove(engine: "Engine", job: Job, now: int) -> None:
    memory = remember(job)
    forget(engine, job)
    engine.storage.sync(put_back, (engine, job, memory, now))


def maintain(engine: "Engine", now: int) -> Work[None]:
    """Retry the dead letters that are due for it, and drop those that have expired."""
    for queue in list(engine.queues.values()):
        for jobs in parts(list(queue.failed.values()), LOOKED_AT_PER_STEP):
            for job in [job for job in jobs if _is_due(job, now) or _is_expired(job, now)]:
                with queue.shard.lock:
                    if job.place != FAILED:
                        continue
                    is_back = _is_due(job, now) and revive(engine, job, now, is_automatic=True)
                    if not is_back and _is_expired(job, now):
                        forget(engine, job)
                now = yield MOVED_US
            now = yield len(jobs) * LOOKED_AT_US


def retry_at(job: Job) -> int | None:
    """Return when a dead letter is retried by itself, as its queue is set now; None for never."""
    return _pending_at(job) if job.queue.dlq.auto_retry else None


def _is_due(job: Job, now: int) -> bool:
    return job.queue.dlq.auto_retry and _is_pending(job, now)


def _is_pending(job: Job, now: int) -> bool:
    at = _pending_at(job)
    return at is not None and at <= now


def _pending_at(job: Job) -> int | None:
    """Return when a dead letter may be retried, whether or not its queue does so by itself."""
    dead = job.extra.dead
    if dead is None or dead.retry_count >= job.queue.dlq.max_auto_retries:
        return None
    return dead.next_retry_at


def _is_expired(job: Job, now: int) -> bool:
    dead = job.extra.dead
    return (
        job.place == FAILED
        and dead is not None
        and dead.expires_at is not None
        and dead.expires_at <= now
    )
