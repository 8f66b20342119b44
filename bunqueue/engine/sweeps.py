"""What time brings: timeouts of runs, expiry, silent workers, housekeeping.

Exact deadlines (job timeout, TTL, end of a long poll) stand in the heap of ``timers``; periodic
work is a row of ``TIMED``. ``tick`` does all that is due, a bounded amount of it, and says when
to be called next. A sweep that throws is logged, counted and run again next time; it never stops
the others.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bunqueue.engine import deadletters, workers
from bunqueue.engine.dependencies import settle
from bunqueue.engine.events import emit
from bunqueue.engine.job import Delivery, Job, keep_timeline
from bunqueue.engine.metrics import count_failure
from bunqueue.engine.outcomes import CRON_KEY_PREFIX, charge
from bunqueue.engine.places import forget, requeue
from bunqueue.engine.ports import NO_WAIT
from bunqueue.engine.queue import Queue
from bunqueue.engine.states import ACTIVE, QUEUED

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

TIMERS_PER_TICK = 1000
QUEUE_IDLE_MS = 10_000  # an empty queue name without settings is forgotten after this
RETENTION_ROWS_MAX = 1000  # completed jobs dropped per pass, engine.md 12


@dataclass(frozen=True, slots=True)
class Timed:
    """One row of periodic work.

    Attributes:
        name: For logs.
        every_ms: Period.
        run: ``run(engine, now, per_tick)``.
        per_tick: Most items of one kind per call.
        skips_when_late: If it comes more than a period late, heartbeats that wait get in first: one
            round is skipped.
    """

    name: str
    every_ms: int
    run: Callable[["Engine", int, int], None]
    per_tick: int
    skips_when_late: bool = False


def tick(engine: "Engine", now: int) -> int:
    """Do what is due.

    Returns:
        The epoch ms at which to be called next.
    """
    engine.last_now = now
    _count_no_silence(engine, now)
    fired = engine.timers.run(now, TIMERS_PER_TICK)
    next_at = now if fired == TIMERS_PER_TICK else engine.timers.next_at
    for row in TIMED:
        due_at = engine.timed_at.get(row.name)
        if due_at is None:
            due_at = engine.timed_at[row.name] = now + row.every_ms
        if due_at <= now:
            engine.timed_at[row.name] = now + row.every_ms
            if not (row.skips_when_late and now - due_at > row.every_ms):
                _run(engine, row, now)
        next_at = min(next_at, engine.timed_at[row.name])
    if engine.graph.due:
        settle(engine, now)
        next_at = min(next_at, engine.timers.next_at)
    engine.storage.answer_waits = NO_WAIT  # nobody has asked for what was done here
    return int(next_at)


def _count_no_silence(engine: "Engine", now: int) -> None:
    """While the disk hangs, no heartbeat is read: that time counts against nobody."""
    if not engine.storage.is_hanging:
        engine.deaf_at = None
        return
    if engine.deaf_at is not None and now > engine.deaf_at:
        shift_silences(engine, now - engine.deaf_at)
    engine.deaf_at = now


def shift_silences(engine: "Engine", delta_ms: int) -> None:
    """Move along whatever ends when its worker is silent for long."""
    for worker in engine.workers.values():
        worker.seen_at += delta_ms
    for queue in engine.queues.values():
        for job in queue.active.values():
            delivery = job.delivery
            if delivery is not None:
                delivery.started_at += delta_ms
                delivery.heartbeat_at += delta_ms
                delivery.expires_at += delta_ms


def _run(engine: "Engine", row: Timed, now: int) -> None:
    try:
        row.run(engine, now, row.per_tick)
    except Exception:
        engine.totals.failed_sweeps += 1
        log.exception("sweep failed name=%s", row.name)


# -- exact deadlines ------------------------------------------------------------------------------


def run_out(engine: "Engine", job: Job, delivery: Delivery, now: int) -> None:
    """End a run that outlived the job's ``timeout``: a failed attempt, its token retired."""
    with job.queue.shard.lock:
        if job.place != ACTIVE or job.delivery is not delivery:
            return
        engine.retired.add(job.id, job.token)
        job.token = None
        charge(engine, job, now, reason="timeout", error="Job timeout exceeded")


def arm_ttl(engine: "Engine", job: Job) -> None:
    """Have the job looked at when its time to live is over."""
    extra = job.own_extra()
    if extra.ttl_timer is not None:
        engine.timers.cancel(extra.ttl_timer)
    extra.ttl_timer = engine.timers.add(job.ttl_ends_at + 1, _ttl_over, engine, job)


def live_again(engine: "Engine", job: Job, now: int) -> None:
    """Give a job that comes back after its end a fresh time to live, or it would vanish at once."""
    if job.options.ttl is not None:
        job.own_extra().lives_from = now
        arm_ttl(engine, job)


def _ttl_over(engine: "Engine", job: Job, now: int) -> None:
    with job.queue.shard.lock:
        job.own_extra().ttl_timer = None
        if job.place == QUEUED:
            expire_ttl(engine, job, now)


def expire_ttl(engine: "Engine", job: Job, now: int, is_taken: bool = False) -> None:
    """End a queued job whose time to live is over.

    A job that never ran vanishes; one that has failed before goes to the dead letters.

    Args:
        is_taken: Its entry has been taken out of the run set already.
    """
    queue = job.queue
    if is_taken:
        queue.run_set.ready += 1
        if job.priority > 0:
            queue.run_set.ready_high += 1
    engine.totals.expired += 1
    if job.attempts > 0:
        count_failure(engine, queue, now)
        deadletters.bury(engine, job, "expire", "ttl_expired", "Job expired", now)
        return
    forget(engine, job)
    emit(engine, "removed", queue.name, job.id, now, prev="waiting")


# -- silent workers -------------------------------------------------------------------------------


def sweep_leases(engine: "Engine", now: int, at_most: int) -> None:
    """Take back the jobs whose lease has run out, at their old place in line."""
    for queue in list(engine.queues.values()):
        if not queue.active:
            continue
        with queue.shard.lock:
            over = [
                job
                for job in queue.active.values()
                if job.delivery is not None
                and job.delivery.owner is not None
                and job.delivery.expires_at <= now
            ]
            for job in over[:at_most]:
                _lease_over(engine, queue, job, now)


def _lease_over(engine: "Engine", queue: Queue, job: Job, now: int) -> None:
    if drops_cron_job(engine, job):
        return
    delivery = job.delivery
    renewals = 0 if delivery is None else delivery.renewals
    charge(
        engine,
        job,
        now,
        reason="stalled",
        error="Lock expired",
        is_stall=True,
        with_backoff=False,
        at_max="max_attempts_exceeded",
        texts=(
            f"Lock expired at max attempts ({job.options.attempts})",
            f"Lock expired after {renewals} renewals",
        ),
    )
    log.info("lease expired queue=%s job_id=%s", queue.name, job.id)


def sweep_stalls(engine: "Engine", now: int, at_most: int) -> None:
    """Act on jobs that were silent in this round and in the one before."""
    for queue in list(engine.queues.values()):
        if not queue.active or not queue.stall.enabled:
            continue
        with queue.shard.lock:
            stalled: list[Job] = []
            for job in queue.active.values():
                delivery = job.delivery
                if delivery is None:
                    continue
                if not _is_silent(queue, job, delivery, now):
                    delivery.is_suspect = False
                elif delivery.is_suspect:
                    stalled.append(job)
                else:
                    delivery.is_suspect = True
            for job in stalled[:at_most]:
                _stalled(engine, job, now)


def _is_silent(queue: Queue, job: Job, delivery: Delivery, now: int) -> bool:
    own = job.options.stall_timeout
    limit = own if own else queue.stall.stall_interval
    return (
        now - delivery.started_at >= queue.stall.grace_period
        and now - delivery.heartbeat_at > limit
    )


def _stalled(engine: "Engine", job: Job, now: int) -> None:
    if drops_cron_job(engine, job):
        return
    charge(
        engine,
        job,
        now,
        reason="stalled",
        error="stalled",
        is_stall=True,
        at_max="max_attempts_exceeded",
        texts=(
            f"Job stalled at max attempts ({job.options.attempts})",
            f"Job stalled {job.stall_count + 1} times",
        ),
    )
    log.info("job stalled queue=%s job_id=%s", job.queue.name, job.id)


def drops_cron_job(engine: "Engine", job: Job) -> bool:
    """Drop a scheduler's job that lost its worker: the next slot makes a new one (T12)."""
    key = job.extra.unique_key
    if key is None or not key.startswith(CRON_KEY_PREFIX):
        return False
    engine.retired.add(job.id, job.token)
    forget(engine, job)
    if job.queue.waiters:
        engine.serve(job.queue, engine.last_now)
    return True


def release(engine: "Engine", job: Job, now: int) -> None:
    """Hand an active job back uncharged, at its old place in line (T14)."""
    if drops_cron_job(engine, job):
        return
    keep_timeline(job)
    job.started_at = 0
    requeue(engine, job, "release", now)
    engine.storage.changed(job)


# -- housekeeping ---------------------------------------------------------------------------------


def cleanup(engine: "Engine", now: int, at_most: int) -> None:
    """Drop old completed jobs, stale entries, and queue names of which no trace is left."""
    retention_ms = engine.settings.completed_retention_ms
    if retention_ms is not None:
        with engine.completed_lock:
            for _ in range(at_most):
                job = engine.oldest_completed()
                if job is None or job.finished_at > now - retention_ms:
                    break
                engine.drop_oldest_completed()
    if engine.index.shrink() and engine.on_shrunk is not None:
        engine.on_shrunk()
    for queue in list(engine.queues.values()):
        with queue.shard.lock:
            queue.run_set.tidy()
            if queue.run_set.groups is not None:
                queue.run_set.groups.tidy(now)
            expired = [
                key
                for key, entry in queue.keys.items()
                if entry.until is not None and entry.until <= now
            ]
            for key in expired:
                del queue.keys[key]
            if _is_traceless(queue, now):
                engine.close_queue(queue)


def _is_traceless(queue: Queue, now: int) -> bool:
    return (
        not queue.size()
        and not queue.admitted
        and not queue.waiters
        and not queue.is_stored
        and not (queue.run_set.groups is not None and queue.run_set.groups.by_id)
        and now - queue.used_at > QUEUE_IDLE_MS
    )


def sample_rates(engine: "Engine", now: int, at_most: int) -> None:  # noqa: ARG001  # a row
    """Bring moving averages and the highest number of jobs up to date."""
    engine.index.sample()
    engine.rates.sample(engine.totals, now)
    engine.latencies.settle()


def sweep_dead_letters(engine: "Engine", now: int, at_most: int) -> None:
    """Retry and expire dead letters."""
    deadletters.maintain(engine, now, at_most)


def sweep_workers(engine: "Engine", now: int, at_most: int) -> None:  # noqa: ARG001  # a row
    """Forget workers that have been silent for three times their limit."""
    workers.forget_silent(engine, now)


TIMED: tuple[Timed, ...] = (
    Timed("leases", 1_000, sweep_leases, 1_000, skips_when_late=True),
    Timed("rates", 1_000, sample_rates, 1),
    Timed("stalls", 5_000, sweep_stalls, 1_000, skips_when_late=True),
    Timed("cleanup", 10_000, cleanup, RETENTION_ROWS_MAX),
    Timed("dead letters", 60_000, sweep_dead_letters, 1_000),
    Timed("workers", 60_000, sweep_workers, 1_000),
)
