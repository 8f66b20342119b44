"""Moving or changing one job by hand; which is legal where is engine.md 1.3.

Every operation is committed before its answer and undone in memory if that commit fails. A worker's
job is moved with its lease's token and is never charged for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bunqueue.engine import leases
from bunqueue.engine.deadletters import bury, revive
from bunqueue.engine.dependencies import settle
from bunqueue.engine.events import emit
from bunqueue.engine.flows import updated_data
from bunqueue.engine.job import Job, keep_timeline
from bunqueue.engine.places import forget, requeue
from bunqueue.engine.reads import matured
from bunqueue.engine.slices import Work, in_order, parts
from bunqueue.engine.states import ACTIVE, FAILED, PARKED, QUEUED, state_of
from bunqueue.engine.successors import heir
from bunqueue.engine.suspects import acquit
from bunqueue.engine.undo import put_back, remember
from bunqueue.errors import NotFound, WrongPlace
from bunqueue.protocol.fields import TEXT_CHARS_MAX

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

PROMOTED_PER_STEP: Final = 50
PROMOTED_US: Final = 20  # one, with its undo and its row: loadtests/hub.py promote


@contextmanager
def _held(engine: "Engine", job_id: str, missing: str, now: int) -> Iterator[Job]:
    """Lock the job's shard and commit what the block does to the job, or undo it.

    Raises:
        NotFound: There is no such job; the text is ``missing``.
    """
    job = engine.index.get(job_id)
    if job is None:
        raise NotFound(missing)
    with job.queue.shard.lock:
        memory = remember(job)
        yield job
        engine.storage.sync(put_back, (engine, job, memory, now))
        if job.queue.waiters:
            engine.serve(job.queue, now)
    if engine.graph.due:
        settle(engine, now)


def cancel(engine: "Engine", job_id: str, now: int) -> None:
    """Remove a job that nobody is running."""
    refusal = "Job not found or cannot be cancelled"
    with _held(engine, job_id, refusal, now) as job:
        if job.place not in (QUEUED, PARKED):
            raise WrongPlace(refusal)
        forget(engine, job)
        emit(engine, "removed", job.queue.name, job.id, now, prev="waiting")


def discard(engine: "Engine", job_id: str, token: str | None, now: int) -> None:
    """Send a queued or running job to the dead letters, uncharged."""
    with _held(engine, job_id, "Job not found", now) as job:
        if job.place not in (QUEUED, ACTIVE):
            raise NotFound("Job not found")
        if job.place == ACTIVE:
            leases.check_token(job, token)
        keep_timeline(job)
        _record_discard(job, now)
        bury(engine, job, "discard", "unknown", None, now)


def _record_discard(job: Job, now: int) -> None:
    """Enter the end of the job in its history, though no attempt is charged (engine.md 4.2)."""
    job.own_extra().history.append([job.attempts, job.started_at, now, "unknown", None])


def promote(engine: "Engine", job_id: str, now: int) -> None:
    """Let a delayed job run now."""
    refusal = "Job not found or not delayed"
    with _held(engine, job_id, refusal, now) as job:
        if state_of(job, now) != "delayed":
            raise WrongPlace(refusal)
        _set_run_at(engine, job, now, now)


def _set_run_at(engine: "Engine", job: Job, run_at: int, now: int) -> None:
    """Give a queued job another time to run, and its place in line by that."""
    keep_timeline(job)
    job.queue.run_set.leave(job)
    job.run_at = run_at
    job.stamp += 1
    job.queue.run_set.enter(job, now)
    engine.storage.changed(job)


def promote_jobs(engine: "Engine", queue_name: str, count: int | None, now: int) -> Work[int]:
    """Let delayed jobs run now, oldest first; None is all of them. Return how many."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return 0
    yield from matured(queue, now)
    most = None if count is None else max(0, count)
    delayed = (job for job in queue.run_set.jobs() if _is_delayed(job))
    chosen = yield from in_order(delayed, _by_age, most)
    moved = 0
    for jobs in parts(chosen, PROMOTED_PER_STEP):
        with queue.shard.lock:
            for job in jobs:
                if _is_delayed(job):  # still
                    memory = remember(job)
                    _set_run_at(engine, job, now, now)
                    engine.storage.sync(put_back, (engine, job, memory, now))
                    moved += 1
            if queue.waiters:
                engine.serve(queue, now)
        now = yield len(jobs) * PROMOTED_US
    return moved


def _is_delayed(job: Job) -> bool:
    return job.place == QUEUED and not job.is_ripe


def _by_age(job: Job) -> tuple[int, str]:
    return job.created_at, job.id


def change_priority(
    engine: "Engine", job_id: str, priority: int, lifo: bool | None, now: int
) -> None:
    """Give a queued job another rank; ``lifo`` None leaves it as it is."""
    refusal = "Job not found or not in queue"
    with _held(engine, job_id, refusal, now) as job:
        if job.place != QUEUED:
            raise WrongPlace(refusal)
        keep_timeline(job)
        job.queue.run_set.leave(job)
        job.priority = priority
        if lifo is not None and lifo != job.options.lifo:
            job.options = engine.options_with(job.options, "lifo", lifo)
        job.stamp += 1
        job.queue.run_set.enter(job, now)
        engine.storage.rewritten(job)
        engine.storage.changed(job)  # the timeline


def change_delay(engine: "Engine", job_id: str, delay_ms: int, token: str | None, now: int) -> None:
    """Make a job due ``delay_ms`` from now; a running one goes back to the queue, uncharged."""
    refusal = "Job not found or cannot change delay"
    with _held(engine, job_id, refusal, now) as job:
        if job.place == QUEUED:
            _set_run_at(engine, job, now + delay_ms, now)
        elif job.place == ACTIVE:
            _send_back(engine, job, token, delay_ms, now)
        else:
            raise WrongPlace(refusal)


def move_to_delayed(
    engine: "Engine", job_id: str, delay_ms: int, token: str | None, now: int
) -> None:
    """Send a running job back to the queue, due ``delay_ms`` from now; uncharged."""
    with _held(engine, job_id, "Job not found", now) as job:
        if job.place == QUEUED:
            _set_run_at(engine, job, now + delay_ms, now)
        elif job.place == ACTIVE:
            _send_back(engine, job, token, delay_ms, now)
        else:
            raise not_active(job, now)


def not_active(job: Job, now: int) -> WrongPlace:
    """Build the refusal of what only a running job can do."""
    return WrongPlace(f"Job is not active (current state: {state_of(job, now)})")


def _send_back(
    engine: "Engine", job: Job, token: str | None, delay_ms: int | None, now: int
) -> None:
    """Send a running job back to waiting (no delay), or to delayed."""
    leases.check_token(job, token)
    acquit(job)
    keep_timeline(job)
    job.token = None
    job.run_at = now + (delay_ms or 0)
    job.started_at = 0
    requeue(engine, job, "release", now)
    engine.storage.changed(job)
    if delay_ms is None:
        emit(engine, "waiting", job.queue.name, job.id, now, prev="active")
    else:
        emit(engine, "delayed", job.queue.name, job.id, now, delay=delay_ms)


def move_to_wait(engine: "Engine", job_id: str, token: str | None, now: int) -> None:
    """Send a running, delayed or failed job to waiting; waiting ones stay as they are."""
    missing = "Cannot move job from state 'unknown' to waiting"
    with _held(engine, job_id, missing, now) as job:
        if job.place == ACTIVE:
            _send_back(engine, job, token, None, now)
        elif job.place == QUEUED:
            if state_of(job, now) == "delayed":
                _set_run_at(engine, job, now, now)
        elif job.place != FAILED or not revive(engine, job, now):
            raise WrongPlace(f"Cannot move job from state '{state_of(job, now)}' to waiting")


def update_data(engine: "Engine", job_id: str, data: bytes, now: int) -> None:
    """Replace the payload (packed) of a job that has not ended, or of who repeats it."""
    refusal = "Job not found or cannot be updated"
    with _held(engine, heir(engine, job_id), refusal, now) as job:
        if job.place not in (QUEUED, ACTIVE, PARKED):
            raise WrongPlace(refusal)
        job.data = updated_data(job, data)
        engine.storage.rewritten(job)


def set_progress(
    engine: "Engine", job_id: str, progress: float, message: str | None, now: int
) -> None:
    """Note how far a running job is: 0..100, fractions kept; None keeps the old message.

    A long message is cut.
    """
    with _held(engine, job_id, "Job not found", now) as job:
        if job.place != ACTIVE:
            raise not_active(job, now)
        extra = job.own_extra()
        extra.progress = min(100, max(0, progress))
        if message is not None:
            extra.progress_message = message[:TEXT_CHARS_MAX]
        if job.delivery is not None:
            job.delivery.heartbeat_at = now
            job.delivery.is_suspect = False
        engine.storage.changed(job)
        data = {"progress": extra.progress, "message": extra.progress_message}
        emit(engine, "progress", job.queue.name, job.id, now, progress=extra.progress, data=data)
