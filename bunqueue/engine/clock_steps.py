"""What follows when somebody sets the wall clock.

Time is of two kinds here. A *span* that the broker measures itself goes on as if nothing had
happened: leases, silences, timeouts, long polls, windows of limits, the wait before another
attempt, the pace of a job that repeats. A *moment* that was promised in wall time comes when the
clock says so: a delay, a time to live, a dedup ttl, the age of a dead letter. Schedulers have a
rule of their own, see ``schedules``.

A job that is ready stays ready. Since the order of a queue is by ``run_at``, a clock set back
would let everything new overtake what waits, and what is taken back from a silent worker would
seem to be delayed; so no job that has been ready is later than now.
"""

import logging
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from bunqueue.engine import control, repeats, schedules
from bunqueue.engine.job import Job
from bunqueue.engine.queue import Queue
from bunqueue.engine.sweeps import arm_ttl, shift_silences

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

# A step back by less is not written for jobs that are ready: it would rewrite every row of a long
# queue, and all that a restart could do is to hold them up for so long.
STEP_WRITTEN_MS_MIN: Final = 60_000


def clock_jumped(engine: "Engine", delta_ms: int) -> None:
    """Move along what measures spans, and look again at what waits for moments."""
    now = engine.last_now = engine.last_now + delta_ms
    engine.timers.shift(delta_ms)
    for name in engine.timed_at:
        engine.timed_at[name] += delta_ms
    shift_silences(engine, delta_ms)
    if engine.deaf_at is not None:
        engine.deaf_at += delta_ms
    for queue in engine.queues.values():
        with queue.shard.lock:
            _shift(engine, queue, delta_ms, now)
    for job in list(engine.index):
        if job.extra.ttl_timer is not None:
            arm_ttl(engine, job)
    schedules.clock_jumped(engine, delta_ms, now)
    for queue in list(engine.queues.values()):
        if queue.waiters:
            with queue.shard.lock:
                engine.serve(queue, now)
    log.warning("wall clock jumped, spans were shifted delta_ms=%d", delta_ms)


def _shift(engine: "Engine", queue: Queue, delta_ms: int, now: int) -> None:
    queue.recount_at = 0  # the minute is another one now
    queue.used_at += delta_ms
    rate = queue.gate.rate
    if rate is not None:
        rate.shift(delta_ms)
        if rate.expires_at is not None:
            control.store(engine, queue)
    run_set = queue.run_set
    if run_set.groups is not None:
        run_set.groups.shift(delta_ms)
    for job in run_set.shift(_is_span, delta_ms):
        if _repeats_by_interval(job):
            assert job.options.repeat is not None
            repeat = repeats.shifted(job.options.repeat, delta_ms)
            job.options = engine.options_with(job.options, "repeat", repeat)
            engine.storage.rewritten(job)
        engine.storage.changed(job)
    if delta_ms > 0:
        return
    is_written = -delta_ms >= STEP_WRITTEN_MS_MIN
    for job in run_set.pull_forward(now):
        if is_written:
            engine.storage.changed(job)
    for job in chain(queue.active.values(), _about_to_be_ready(queue, now - delta_ms)):
        if job.run_at > now:
            job.run_at = now
            if is_written:
                engine.storage.changed(job)


def _about_to_be_ready(queue: Queue, before: int) -> Iterator[Job]:
    """Yield the jobs that are ready but for their commit; ``before``: what the clock said."""
    for jobs in (queue.admitted, queue.parked):
        for job in jobs.values():
            flow = job.extra.flow
            if job.run_at <= before and (flow is None or flow.is_released or not flow.missing):
                yield job


def _is_span(job: Job) -> bool:
    """Say whether a delayed job waits for a span to pass, and not for a moment."""
    return job.attempts > 0 or _repeats_by_interval(job)


def _repeats_by_interval(job: Job) -> bool:
    repeat = job.options.repeat
    return repeat is not None and "every" in repeat and "prevMillis" in repeat
