"""What time brings: timeouts of runs, expiry, silent workers, housekeeping.

Exact deadlines (job timeout, TTL, end of a long poll) stand in the heap of ``timers``; periodic
work is a row of ``TIMED``. ``tick`` does all that is due, a bounded amount of it, and says when
to be called next. A sweep is a work (``slices``): what one slice does not hold comes in the ticks
after that. One that throws is logged, counted and run again next time; it never stops the others.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from bunqueue.engine import control, deadletters, workers
from bunqueue.engine.backoff import retry_delay_ms
from bunqueue.engine.dependencies import settle
from bunqueue.engine.events import emit
from bunqueue.engine.job import Delivery, Job, keep_timeline
from bunqueue.engine.later import Later
from bunqueue.engine.metrics import count_failure
from bunqueue.engine.outcomes import CRON_KEY_PREFIX, charge
from bunqueue.engine.places import forget, requeue
from bunqueue.engine.ports import NO_WAIT
from bunqueue.engine.queue import Queue
from bunqueue.engine.sizes import Census
from bunqueue.engine.slices import COMMITTED, Work, parts
from bunqueue.engine.states import ACTIVE, QUEUED

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

TIMERS_PER_TICK = 200  # some ms if each of them ends a run
QUEUE_IDLE_MS = 10_000  # an empty queue name without settings is forgotten after this

# How much sweeps do between two looks at what was spent, and what it costs: loadtests/hub.py
# sweeps, leases-over.
LOOKED_AT_PER_STEP: Final = 500
LOOKED_AT_US: Final = 1
CHARGED_US: Final = 40
DROPPED_US: Final = 8
SHRUNK_US: Final = 200
QUEUE_US: Final = 5
NOTES_PER_SLICE: Final = 2_000  # of how long commands took: 1 ms
NOTE_SLICES_MAX: Final = 20  # of a round; if there are too many notes for it, a slice takes more


@dataclass(frozen=True, slots=True)
class Timed:
    """One row of periodic work.

    Attributes:
        name: For logs.
        every_ms: Period.
        run: ``run(engine, now)`` returns the work of one round.
        skips_when_late: If it comes more than a period late, heartbeats that wait get in first: one
            round is skipped.
    """

    name: str
    every_ms: int
    run: Callable[["Engine", int], Work[None]]
    skips_when_late: bool = False


def tick(engine: "Engine", now: int) -> int:
    """Do what is due.

    Returns:
        The epoch ms at which to be called next.
    """
    engine.last_now = now
    _count_no_silence(engine, now)
    next_at = float("inf")
    engine.works.turn(engine, now)  # first: what a timer begins has its slice there already
    for timers in (engine.timers, engine.moments):
        fired = timers.run(now, TIMERS_PER_TICK)
        next_at = min(next_at, now if fired == TIMERS_PER_TICK else timers.next_at)
    for row in TIMED:
        due_at = engine.timed_at.get(row.name)
        if due_at is None:
            due_at = engine.timed_at[row.name] = now + row.every_ms
        if due_at <= now:
            engine.timed_at[row.name] = now + row.every_ms
            is_late = row.skips_when_late and now - due_at > row.every_ms
            if not is_late and row.name not in engine.sweeping:
                _run(engine, row, now)
                if row.name in engine.sweeping:  # a slice is enough for one tick
                    next_at = now
                    break
        next_at = min(next_at, engine.timed_at[row.name])
    if engine.graph.due:
        settle(engine, now)
        next_at = min(next_at, engine.timers.next_at)
    engine.storage.answer_waits = NO_WAIT  # nobody has asked for what was done here
    return now if engine.works.ring else int(next_at)


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
    engine.sweeping.add(row.name)
    answer: object
    try:
        answer = engine.run(row.run(engine, now), now)
    except Exception as error:
        answer = error
    if isinstance(answer, Later):
        answer.then(partial(_swept, engine, row))
    else:
        _swept(engine, row, answer, NO_WAIT)


def _swept(engine: "Engine", row: Timed, answer: object, _commits: int) -> None:
    """Let the next round of a sweep come."""
    engine.sweeping.discard(row.name)
    if isinstance(answer, Exception):
        engine.totals.failed_sweeps += 1
        log.error("sweep failed name=%s", row.name, exc_info=answer)


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
        engine.moments.cancel(extra.ttl_timer)
    extra.ttl_timer = engine.moments.add(job.ttl_ends_at + 1, _ttl_over, engine, job)


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
        queue.run_set.count_in(job)
    engine.totals.expired += 1
    if job.attempts > 0:
        count_failure(engine, queue, now)
        deadletters.bury(engine, job, "expire", "ttl_expired", "Job expired", now)
        return
    forget(engine, job)
    emit(engine, "removed", queue.name, job.id, now, prev="waiting")


# -- silent workers -------------------------------------------------------------------------------


def sweep_leases(engine: "Engine", now: int) -> Work[None]:
    """Take back the jobs whose lease has run out, at their old place in line."""
    for jobs in parts(_active_jobs(engine), LOOKED_AT_PER_STEP):
        for job in [job for job in jobs if _has_outlived_lease(job, now)]:
            with job.queue.shard.lock:
                if _has_outlived_lease(job, now):  # still
                    _lease_over(engine, job.queue, job, now)
            now = yield CHARGED_US
        now = yield len(jobs) * LOOKED_AT_US


def _active_jobs(engine: "Engine") -> Iterator[Job]:
    for queue in list(engine.queues.values()):
        if queue.active:
            yield from list(queue.active.values())


def _has_outlived_lease(job: Job, now: int) -> bool:
    delivery = job.delivery
    return delivery is not None and delivery.owner is not None and delivery.expires_at <= now


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


def sweep_stalls(engine: "Engine", now: int) -> Work[None]:
    """Act on jobs that were silent in this round and in the one before."""
    for jobs in parts(_active_jobs(engine), LOOKED_AT_PER_STEP):
        for job in [job for job in jobs if _is_twice_silent(job, now)]:
            with job.queue.shard.lock:
                if job.delivery is not None and job.delivery.is_suspect:  # still
                    _stalled(engine, job, now)
            now = yield CHARGED_US
        now = yield len(jobs) * LOOKED_AT_US


def _is_twice_silent(job: Job, now: int) -> bool:
    """Say whether a job has stalled; one that is silent for the first time is a suspect."""
    delivery, queue = job.delivery, job.queue
    if delivery is None or not queue.stall.enabled:
        return False
    was_suspect = delivery.is_suspect
    delivery.is_suspect = _is_silent(queue, job, delivery, now)
    return was_suspect and delivery.is_suspect


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


def worker_lost(engine: "Engine", job: Job, delivery: Delivery, now: int) -> None:
    """Take back a job whose connection closed before its lease was renewed; see ``suspects``."""
    stall = job.queue.stall
    if delivery.owner is None or not stall.enabled or stall.max_stalls <= 0:
        release(engine, job, now)
        return
    if drops_cron_job(engine, job):
        return
    extra = job.own_extra()
    extra.losses += 1
    losses = extra.losses
    if losses < stall.max_stalls:
        if losses > 1:
            job.run_at = now + retry_delay_ms(losses, job.options, engine.rng)
        release(engine, job, now)
        return
    error = f"Worker lost {losses} times"
    charge(engine, job, now, reason="stalled", error=error, is_final=True, is_stall=True)
    log.warning(
        "job given up, its worker was lost %d times queue=%s job_id=%s",
        *(losses, job.queue.name, job.id),
    )


# -- housekeeping ---------------------------------------------------------------------------------


def cleanup(engine: "Engine", now: int) -> Work[None]:
    """Drop old completed jobs, stale entries, and queue names of which no trace is left."""
    retention_ms = engine.settings.completed_retention_ms
    if retention_ms is not None:
        while (job := engine.oldest_completed()) is not None and (
            job.finished_at <= now - retention_ms
        ):
            with engine.completed_lock:
                engine.drop_oldest_completed()
            now = yield DROPPED_US
    for pieces in engine.index.shrinking():
        yield pieces * SHRUNK_US
    has_shrunk = engine.index.has_shrunk()
    if engine.on_tidy is not None:
        engine.on_tidy(has_shrunk)
    census = Census()
    for queue in list(engine.queues.values()):
        with queue.shard.lock:
            queue.run_set.tidy()
            control.tidy(engine, queue, now)
        for some in parts(list(queue.keys), LOOKED_AT_PER_STEP):
            for key in some:
                entry = queue.keys.get(key)
                if entry is not None and entry.until is not None and entry.until <= now:
                    del queue.keys[key]
            now = yield len(some) * LOOKED_AT_US
        if queue.run_set.groups is not None:
            for groups in parts(list(queue.run_set.groups.by_id.values()), LOOKED_AT_PER_STEP):
                queue.run_set.groups.tidy(groups, now)
                now = yield len(groups) * LOOKED_AT_US
        if engine.queues.get(queue.name) is queue and _is_traceless(queue, now):
            engine.close_queue(queue)
        else:
            census.add(queue)
        now = yield QUEUE_US
    engine.census = census


def _is_traceless(queue: Queue, now: int) -> bool:
    return (
        not queue.size()
        and not queue.admitted
        and not queue.waiters
        and not queue.is_stored
        and not (queue.run_set.groups is not None and queue.run_set.groups.by_id)
        and now - queue.used_at > QUEUE_IDLE_MS
    )


def sample_rates(engine: "Engine", now: int) -> Work[None]:
    """Bring moving averages and the highest number of jobs up to date."""
    engine.index.sample()
    engine.rates.sample(engine.totals, now)
    yield 0
    left = engine.latencies.noted  # what comes meanwhile is for the next round
    most = max(NOTES_PER_SLICE, left // NOTE_SLICES_MAX)
    while left > 0:
        engine.latencies.settle(most)
        left -= most
        yield COMMITTED


def sweep_workers(engine: "Engine", now: int) -> Work[None]:
    """Forget workers that have been silent for three times their limit."""
    workers.forget_silent(engine, now)
    yield 0


TIMED: tuple[Timed, ...] = (
    Timed("leases", 1_000, sweep_leases, skips_when_late=True),
    Timed("rates", 1_000, sample_rates),
    Timed("stalls", 5_000, sweep_stalls, skips_when_late=True),
    Timed("cleanup", 10_000, cleanup),
    Timed("dead letters", 60_000, deadletters.maintain),
    Timed("workers", 60_000, sweep_workers),
)
