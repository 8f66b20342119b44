"""Starting from what a file holds (engine.md 11.5).

Jobs come back in order of admission. One that was active when the last process ended is charged
as a stalled attempt (T15), once; where its worker was a scheduler's, it is dropped. Everything
else goes back to its place, with its keys, timers and ids.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bunqueue.engine import (
    control,
    deadletters,
    dependencies,
    failures,
    group_control,
    keys,
    metrics,
    proofs,
    schedules,
    webhooks,
)
from bunqueue.engine.job import Job
from bunqueue.engine.outcomes import charge
from bunqueue.engine.places import put_in
from bunqueue.engine.states import ACTIVE, COMPLETED, FAILED, PARKED, QUEUED
from bunqueue.engine.sweeps import arm_ttl, drops_cron_job

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

log = logging.getLogger(__name__)

STEP_TOLD_MS_MIN: Final = 60_000  # less is what a clock that is kept right may be set back by


@dataclass(slots=True)
class Recovered:
    """What came back: numbers of jobs by what became of them."""

    pending: int = 0
    interrupted: int = 0
    completed: int = 0
    failed: int = 0


def recover(engine: "Engine", now: int) -> Recovered:
    """Fill an empty engine from its storage.

    Args:
        now: Epoch ms.

    Returns:
        Figures for the start-up log.
    """
    saved = engine.storage.load()
    found = Recovered()
    engine.seq = saved.seq
    engine.last_now = engine.started_at = now
    metrics.restore(engine, saved.tables)
    webhooks.restore(engine, saved.tables)
    for name, values in saved.tables.get("queues", {}).items():
        control.restore(engine.open_queue(name), values, now)
    for values in saved.tables.get(group_control.TABLE, {}).values():
        group_control.restore_group(engine, values)
    dependencies.restore_proofs(engine, saved.tables.get(proofs.TABLE, {}))
    schedules.restore(engine, saved.tables.get(schedules.TABLE, {}), now)
    interrupted: list[Job] = []
    completed: list[Job] = []
    tied: list[Job] = []
    newest = 0
    for job in saved.jobs(engine.open_queue):
        if (job.extra.depends_on or job.extra.children_ids) and job.place != COMPLETED:
            tied.append(job)
        newest = max(newest, job.started_at, job.finished_at)
        if job.place == ACTIVE:
            interrupted.append(job)
        elif job.place == COMPLETED:
            completed.append(job)
        elif job.place == FAILED:
            put_in(engine, job, now)
            found.failed += 1
        else:
            _back_in_line(engine, job, now)
            found.pending += 1
    for job in sorted(completed, key=lambda job: (job.finished_at, job.seq)):
        put_in(engine, job, now)
    found.completed = len(completed)
    for job in interrupted:
        put_in(engine, job, now)
    dependencies.restore_ties(engine, tied)
    failures.replay(engine, saved.tables.get(dependencies.FAILURES, {}).values(), now)
    for job in interrupted:
        _interrupted(engine, job, now)
    found.interrupted = len(interrupted)
    for queue in engine.queues.values():
        for _ in deadletters.evict_all(engine, queue, queue.dlq.max_entries):
            pass  # nobody waits yet
    dependencies.restored(engine, now)
    while engine.graph.due:
        dependencies.settle(engine, now)
    engine.storage.answer_waits = 0
    if newest - now >= STEP_TOLD_MS_MIN:
        log.warning(
            "the clock is behind the data file: set it right, or delays, times to live and"
            " schedules come by this one behind_ms=%d",
            newest - now,
        )
    saved.tables = {}  # the engine has it all now
    return found


def _back_in_line(engine: "Engine", job: Job, now: int) -> None:
    if job.place not in (QUEUED, PARKED):
        job.place = QUEUED
    engine.index.put(job)
    if job.run_at > now:
        _bring_forward(engine, job, now)
    if job.place == PARKED:
        job.queue.parked[job.id] = job
    else:
        job.queue.run_set.enter(job, now)
    keys.reclaim(job, now)
    if job.options.ttl is not None:
        arm_ttl(engine, job)


def _bring_forward(engine: "Engine", job: Job, now: int) -> None:
    """Let a job wait no longer because the clock was set back while nobody ran.

    What was ready is ready, and the wait before another attempt begins anew; a delay, and all
    else that was promised in wall time, comes when the clock says so. It is written, or the next
    start would bring the job forward again, behind those that came in between.
    """
    history, timeline = job.extra.history, job.extra.timeline
    due_at = job.run_at
    if job.attempts and history:
        failed_at = history[-1][2]
        if now < failed_at <= due_at:
            due_at += now - failed_at
    else:
        admitted_at = timeline[0][1] if timeline else job.created_at
        if now < due_at <= admitted_at:
            due_at = now
    if due_at != job.run_at:
        job.run_at = due_at
        engine.storage.changed(job)


def _interrupted(engine: "Engine", job: Job, now: int) -> None:
    """Charge a job that was active when the process ended; saved with the next batch."""
    keys.reclaim(job, now)
    if drops_cron_job(engine, job):
        return
    if job.options.ttl is not None:
        arm_ttl(engine, job)
    charge(
        engine,
        job,
        now,
        reason="stalled",
        error="stalled",
        is_stall=True,
        at_max="max_attempts_exceeded",
        texts=(
            f"Job reached max attempts ({job.options.attempts}) during startup recovery",
            f"Job stalled {job.stall_count + 1} times (recovered at startup)",
        ),
    )
