"""How an admitted job becomes visible after its commit, or is withdrawn if that fails."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from bunqueue.engine import dependencies, keys
from bunqueue.engine.events import emit
from bunqueue.engine.failures import apply_to_shown
from bunqueue.engine.job import Job
from bunqueue.engine.keys import LIVE
from bunqueue.engine.places import take_out
from bunqueue.engine.ports import NO_WAIT
from bunqueue.engine.slices import Work, parts
from bunqueue.engine.states import ADMITTED, GONE, PARKED, QUEUED, move
from bunqueue.engine.undo import Memory, place_in, put_back

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# What of a job that was admitted is needed to show it or to take it out again: the job, those that
# ended with it, the running one whose key it took, until when that one had it, and when.
Hidden = tuple[Job, Sequence[tuple[Job, Memory]], Job | None, int | None, int]

# How many are shown between two looks at what was spent, and what one costs: loadtests/hub.py
# push-batch, push-flow.
SHOWN_PER_STEP: Final = 50
SHOWN_US: Final = 10


def publish(
    engine: "Engine",
    job: Job,
    ended: Sequence[tuple[Job, Memory]],
    robbed: Job | None,
    had_until: int | None,
    now: int,
) -> None:
    """Show the job after its commit."""
    if job.place != ADMITTED:  # obliterated meanwhile, or the file does not take it
        if job in engine.refused:
            _restore(engine, job, ended, robbed, had_until, now)
        return
    del job.queue.admitted[job.id]
    move(job, "publish")
    for gone, memory in ended:
        if gone.id in engine.waits and gone.id != job.id:
            engine.end_waits(gone)
        place = place_in(memory)
        if place == ADMITTED:  # replaced before it was shown
            engine.totals.pushed += 1
            emit(engine, "pushed", gone.queue.name, gone.id, now, gone.data)
        if place in (ADMITTED, QUEUED, PARKED):
            emit(engine, "removed", gone.queue.name, gone.id, now, prev="waiting")
    enter(engine, job, now)


def enter(engine: "Engine", job: Job, now: int) -> None:
    """Make the job visible, and claimable unless it waits for others."""
    queue = job.queue
    flow = job.extra.flow
    if flow is not None and (flow.missing or dependencies.has_begun_parked(job)):
        move(job, "park")
        queue.parked[job.id] = job
        if not flow.missing:  # met meanwhile, by what may be taken back yet
            engine.storage.changed(job)  # its row may say that it is ready
            engine.graph.later(engine, dependencies.release, job)
    else:
        queue.run_set.enter(job, now)
    if flow is not None and flow.records:
        apply_to_shown(engine, job)
    engine.totals.pushed += 1
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    if engine.listeners:
        emit(engine, "pushed", queue.name, job.id, now, job.data)
    else:
        queue.events_total += 1
    if queue.waiters:  # the commit may have taken its time, which is none of the lease's
        engine.serve(queue, engine.time_after(now))


def show_all(engine: "Engine", hidden: Iterable[Hidden], now: int) -> Work[None]:
    """Show any number of jobs after their commit.

    It can no longer fail. Those who are served with the jobs may bring about what has to be
    committed, and that may: this work does not wait for it.
    """
    for some in parts(hidden, SHOWN_PER_STEP):
        with engine.served_after():
            for job, ended, robbed, had_until, _ in some:
                publish(engine, job, ended, robbed, had_until, now)
        engine.storage.answer_waits = NO_WAIT
        now = yield len(some) * SHOWN_US


def withdraw(
    engine: "Engine",
    job: Job,
    ended: Sequence[tuple[Job, Memory]],
    robbed: Job | None,
    had_until: int | None,
    now: int,
) -> None:
    """Undo an admission whose commit failed: no trace of the new job, the old ones as before.

    Args:
        robbed: The running job whose key it took, and until when (``had_until``) that one had it.
    """
    if job.place == ADMITTED:
        if job.extra.flow is not None:
            dependencies.untie(engine, job)
        take_out(engine, job)
        keys.release(job)
        engine.index.drop(job)
        job.place = GONE
        engine.storage.removed(job)
    _restore(engine, job, ended, robbed, had_until, now)


def _restore(
    engine: "Engine",
    job: Job,
    ended: Sequence[tuple[Job, Memory]],
    robbed: Job | None,
    had_until: int | None,
    now: int,
) -> None:
    """Bring back what had to make room for a job that has not got in."""
    engine.refused.discard(job)
    for gone, memory in reversed(ended):
        put_back(engine, gone, memory, now)
    if robbed is not None and robbed.place in LIVE:
        robbed.own_extra().unique_until = had_until
        keys.reclaim(robbed, now)
        engine.storage.rewritten(robbed)


def withdraw_all(engine: "Engine", hidden: list[Hidden], begin: int = 0) -> None:
    """Undo many admissions, newest first, and take them from the list; the first ``begin`` stay."""
    while len(hidden) > begin:
        withdraw(engine, *hidden.pop())
