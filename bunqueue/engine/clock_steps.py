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
from bunqueue.engine.slices import Work, parts
from bunqueue.engine.states import ACTIVE, ADMITTED, PARKED, QUEUED
from bunqueue.engine.sweeps import shift_silences

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

# A step back by less is not written for jobs that are ready: it would rewrite every row of a long
# queue, and all that a restart could do is to hold them up for so long.
STEP_WRITTEN_MS_MIN: Final = 60_000

# How much is done between two looks at what was spent, and what it costs.
MOVED_PER_STEP: Final = 200
MOVED_US: Final = 6
LOOKED_AT_US: Final = 1

_READY: Final = frozenset((QUEUED, ACTIVE, ADMITTED, PARKED))


def clock_jumped(engine: "Engine", delta_ms: int) -> None:
    """Move along what measures spans, and look again at what waits for moments.

    Jobs are moved along in slices; until theirs have been, no delayed job of a queue falls due.
    """
    now = engine.last_now = engine.last_now + delta_ms
    engine.timers.shift(delta_ms)
    for name in engine.timed_at:
        engine.timed_at[name] += delta_ms
    shift_silences(engine, delta_ms)
    if engine.deaf_at is not None:
        engine.deaf_at += delta_ms
    for queue in engine.queues.values():
        with queue.shard.lock:
            _step(engine, queue, delta_ms, now)
    schedules.clock_jumped(engine, delta_ms, now)
    log.warning("wall clock jumped, spans were shifted delta_ms=%d", delta_ms)
    engine.clock_steps.append((delta_ms, now))
    if len(engine.clock_steps) == 1:  # else they follow those before
        waits = engine.storage.answer_waits
        engine.run(_follow(engine), now)
        engine.storage.answer_waits = waits


def _step(engine: "Engine", queue: Queue, delta_ms: int, now: int) -> None:
    """Do at once what costs nothing: all but the jobs."""
    queue.recount_at = 0  # the minute is another one now
    queue.used_at += delta_ms
    rate = queue.gate.rate
    if rate is not None:
        rate.shift(delta_ms)
        if rate.expires_at is not None:
            control.store(engine, queue)
    elif delta_ms < 0 and queue.is_stored:
        control.store(engine, queue)  # its row may hold a limit that was over, and comes back
    run_set = queue.run_set
    if run_set.groups is not None:
        run_set.groups.shift(delta_ms)
    run_set.is_held = bool(run_set.delayed)
    if delta_ms < 0:
        run_set.step_back(now, engine.seq)


def _follow(engine: "Engine") -> Work[None]:
    """Move the jobs along, step by step of the clock."""
    try:
        while engine.clock_steps:
            delta_ms, at = engine.clock_steps[0]
            for queue in list(engine.queues.values()):
                yield from _shift(engine, queue, delta_ms)
                if delta_ms < 0:
                    yield from _pull_forward(engine, queue, delta_ms, at)
            del engine.clock_steps[0]
    finally:  # whatever happened: no queue may be held for ever
        engine.clock_steps.clear()
        for queue in engine.queues.values():
            queue.run_set.is_held = False
    for queue in list(engine.queues.values()):
        if queue.waiters:
            with queue.shard.lock:
                engine.serve(queue, engine.last_now)


def _shift(engine: "Engine", queue: Queue, delta_ms: int) -> Work[None]:
    """Move along the delayed jobs that wait for a span."""
    run_set = queue.run_set
    for jobs in parts(run_set.delayed_jobs(), MOVED_PER_STEP):
        moved = 0
        with queue.shard.lock:
            for job in jobs:
                if job.place != QUEUED or job.is_ripe or not _is_span(job):
                    continue
                moved += 1
                run_set.leave(job)
                job.run_at += delta_ms
                job.stamp += 1
                run_set.enter(job, engine.last_now)
                if _repeats_by_interval(job):
                    assert job.options.repeat is not None
                    repeat = repeats.shifted(job.options.repeat, delta_ms)
                    job.options = engine.options_with(job.options, "repeat", repeat)
                    engine.storage.rewritten(job)
                engine.storage.changed(job)
        yield len(jobs) * LOOKED_AT_US + moved * MOVED_US


def _pull_forward(engine: "Engine", queue: Queue, delta_ms: int, at: int) -> Work[None]:
    """Let no ready job be later than the clock was when it had been set back."""
    is_written = -delta_ms >= STEP_WRITTEN_MS_MIN
    run_set = queue.run_set
    for jobs in parts(run_set.late_jobs(), MOVED_PER_STEP):
        with queue.shard.lock:
            for job in jobs:
                if job.place == QUEUED and job.is_ripe and job.run_at > at:
                    run_set.leave(job)
                    job.run_at = at
                    job.stamp += 1
                    run_set.enter(job, at)
                    if is_written:
                        engine.storage.changed(job)
        yield len(jobs) * MOVED_US
    others = chain(queue.active.values(), _about_to_be_ready(queue, at - delta_ms))
    for jobs in parts(chain(run_set.jobs(), list(others)), MOVED_PER_STEP):
        for job in jobs:
            is_delayed = job.place == QUEUED and not job.is_ripe
            if job.run_at > at and job.place in _READY and not is_delayed:
                job.run_at = at
                if is_written:
                    engine.storage.changed(job)
        yield len(jobs) * LOOKED_AT_US


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
