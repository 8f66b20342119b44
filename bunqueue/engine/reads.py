"""What readers are told: jobs, states, counts. Nothing here changes anything a reader can see."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.job import Job
from bunqueue.engine.lanes import MATURED_AT_ONCE
from bunqueue.engine.later import Later
from bunqueue.engine.ports import MUST_COMMIT, NO_WAIT
from bunqueue.engine.queue import Queue
from bunqueue.engine.slices import MERGED_US, Work, in_order, parts
from bunqueue.engine.states import COMPLETED, FAILED, GONE, STATES, state_of
from bunqueue.errors import NotFound
from bunqueue.protocol.fields import TEXT_CHARS_MAX
from bunqueue.protocol.options import KEEP_LOGS_MAX

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.ports import Peer

# How many are looked at between two looks at what was spent, and what one costs:
# loadtests/hub.py count-priorities, dashboard-queues, due-at-once.
LOOKED_AT_PER_STEP: Final = 1_000
LOOKED_AT_US: Final = 1
MATURED_US: Final = 4

LOGGED_JOBS_MAX: Final = 10_000  # jobs that have a log, engine.md 12


def find(engine: "Engine", job_id: str) -> Job | None:
    """Return the job of that id, or None; one that waits for its admission's commit is not seen."""
    job = engine.index.get(job_id)
    return None if job is None or job.place == "admitted" else job


def find_by_custom_id(engine: "Engine", custom_id: str) -> Job | None:
    """Return the unfinished job with that custom id, or None."""
    job = find(engine, custom_id)
    if job is None or not job.extra.is_custom_id or job.place in (COMPLETED, FAILED):
        return None
    return job


def state(engine: "Engine", job_id: str, now: int) -> str:
    """Return the job's state; "unknown" if there is none."""
    job = engine.index.get(job_id)
    return "unknown" if job is None else state_of(job, now)


def matured(queue: Queue, now: int) -> Work[None]:
    """See to it that what has fallen due counts as waiting."""
    while True:
        with queue.shard.lock:
            if queue.run_set.mature(now):
                return
        yield MATURED_AT_ONCE * MATURED_US


def list_jobs(
    engine: "Engine",
    queue_name: str,
    states: Sequence[str],
    limit: int,
    offset: int,
    ascending: bool,
    now: int,
) -> Work[list[Job]]:
    """Return the jobs of the given states, by ``createdAt`` and id.

    Args:
        states: Names of states, "paused" among them; empty means all. Unknown names match nothing.
    """
    queue = engine.queues.get(queue_name)
    if queue is None or limit <= 0:
        return []
    yield from matured(queue, now)
    chosen = _of_states(queue, set(states), now)
    ordered = yield from in_order(chosen, _by_age, offset + limit, not ascending)
    listed: list[Job] = []
    for jobs in parts(ordered, LOOKED_AT_PER_STEP):
        listed += jobs
        yield len(jobs) * MERGED_US
    return listed[offset:]


def _by_age(job: Job) -> tuple[int, str]:
    return job.created_at, job.id


def _of_states(queue: Queue, states: set[str], now: int) -> Iterator[Job]:
    wanted = states or set(STATES)
    pending = set(wanted)
    if queue.gate.is_paused and states:
        pending -= {"waiting", "prioritized"}
        if "paused" in wanted:
            pending |= {"waiting", "prioritized"}
    if pending & {"waiting", "prioritized", "delayed"}:
        for job in queue.run_set.jobs():
            if state_of(job, now) in pending:
                yield job
    for name, place in _PLACES:
        if name in wanted:
            for job in list(getattr(queue, place).values()):
                if job.place == place:  # still
                    yield job


_PLACES = (
    ("waiting-children", "parked"),
    ("active", "active"),
    ("completed", "completed"),
    ("failed", "failed"),
)


def counts(engine: "Engine", queue_name: str, now: int) -> Work[dict[str, int]]:
    """Return the number of jobs by state, with ``paused`` beside them (wire.md 3.6)."""
    queue = engine.queues.get(queue_name)
    if queue is None:
        return dict.fromkeys((*STATES, "paused"), 0)
    yield from matured(queue, now)
    run_set = queue.run_set
    is_paused = queue.gate.is_paused
    return {
        "waiting": 0 if is_paused else run_set.ready - run_set.ready_high,
        "prioritized": 0 if is_paused else run_set.ready_high,
        "delayed": run_set.not_due,
        "active": len(queue.active),
        "completed": len(queue.completed),
        "failed": len(queue.failed),
        "waiting-children": len(queue.parked),
        "paused": run_set.ready if is_paused else 0,
    }


def count(engine: "Engine", queue_name: str) -> int:
    """Return how many jobs are waiting, prioritized or delayed."""
    queue = engine.queues.get(queue_name)
    return 0 if queue is None else len(queue.run_set)


def counts_per_priority(engine: "Engine", queue_name: str) -> Work[dict[str, int]]:
    """Return the number of queued jobs, due or not, by priority as text."""
    queue = engine.queues.get(queue_name)
    found: Counter[int] = Counter()
    if queue is not None:
        for jobs in parts(queue.run_set.jobs(), LOOKED_AT_PER_STEP):
            found.update([job.priority for job in jobs])
            yield len(jobs) * LOOKED_AT_US
    return {str(priority): count for priority, count in found.items()}


def queue_names(engine: "Engine") -> list[str]:
    """Return the names of all queues, in order of appearance."""
    return list(engine.queues)


def wait_job(
    engine: "Engine", peer: "Peer", job_id: str, wait_ms: int, now: int
) -> Job | None | Later:
    """Wait until the job has ended.

    Returns:
        The job once it has completed, or None if it has not; or a ``Later`` of that, answered when
        the job completes, fails for good or is removed, and at the deadline.

    Raises:
        NotFound: There is no such job.
    """
    job = find(engine, job_id)
    if job is None:
        raise NotFound("Job not found")
    if job.place == COMPLETED:
        return job
    if job.place == FAILED or wait_ms <= 0:
        return None
    later = Later()
    waits = engine.waits.setdefault(job_id, {})
    waits[later] = None

    def leave() -> None:
        peer.parked.discard(later)
        engine.timers.cancel(timer)
        waits.pop(later, None)
        if not waits and engine.waits.get(job_id) is waits:
            del engine.waits[job_id]

    def over(_first: object, _second: object, _now: int) -> None:
        leave()
        later.resolve(None)

    timer = engine.timers.add(now + wait_ms, over, None)
    later.on_cancel = leave
    peer.parked.add(later)
    return later


def end_waits(engine: "Engine", job: Job) -> None:
    """Answer everyone who waits for the job: it has completed, failed for good, or is gone."""
    waits = engine.waits.pop(job.id, None)
    if waits is None:
        return
    answer = job if job.place == COMPLETED or _was_acknowledged(job) else None
    commits = MUST_COMMIT if engine.storage.is_persistent else NO_WAIT
    for later in list(waits):
        leave = later.on_cancel
        if leave is not None:
            leave()
        later.resolve(answer, commits)


def _was_acknowledged(job: Job) -> bool:
    """Say whether a job that is gone went by completing (T4)."""
    return job.place == GONE and job.finished_at > 0 and job.extra.dead is None


def stats(engine: "Engine", now: int) -> dict[str, Any]:
    """Return counts over all queues, totals since the start, and uptime in ms."""
    waiting = active = delayed = dead = completed = 0
    for queue in engine.queues.values():  # 0.5 us each: loadtests/hub.py stats
        run_set = queue.run_set
        run_set.mature(now)
        waiting += run_set.ready - run_set.ready_high
        delayed += run_set.not_due
        active += len(queue.active)
        dead += len(queue.failed)
        completed += len(queue.completed)
    return {
        "waiting": waiting,
        "active": active,
        "delayed": delayed,
        "dlq": dead,
        "completed": completed,
        "failed": engine.totals.failed,
        "uptime": now - engine.started_at,
        "pushPerSec": engine.rates.push_per_s,
        "pullPerSec": engine.rates.pull_per_s,
    }


def logs(engine: "Engine", job_id: str) -> list[list[Any]]:
    """Return the job's log lines, ``[timestamp, level, message]``, oldest first."""
    job = engine.index.get(job_id)
    return [] if job is None else job.extra.logs or []


def add_log(engine: "Engine", job_id: str, message: str, level: str, now: int) -> None:
    """Add a line to the job's log; the oldest goes when there are too many. A long one is cut.

    Raises:
        NotFound: There is no such job.
    """
    job = find(engine, job_id)
    if job is None:
        raise NotFound("Job not found")
    extra = job.own_extra()
    if extra.logs is None:
        extra.logs = []
    extra.logs.append([now, level, message[:TEXT_CHARS_MAX]])
    _log_last(engine, job_id)
    keep = job.options.keep_logs
    _trim(extra.logs, KEEP_LOGS_MAX if keep is None else min(keep, KEEP_LOGS_MAX))


def _log_last(engine: "Engine", job_id: str) -> None:
    """Note whose log was added to last; beyond ``LOGGED_JOBS_MAX`` the oldest goes."""
    logged = engine.logged
    logged[job_id] = None
    logged.move_to_end(job_id)
    if len(logged) > LOGGED_JOBS_MAX:
        oldest = engine.index.get(logged.popitem(last=False)[0])
        if oldest is not None and oldest.extra.logs is not None:
            oldest.extra.logs = None


def clear_logs(engine: "Engine", job_id: str, keep: int) -> None:
    """Drop the job's log but for the newest ``keep`` lines."""
    job = engine.index.get(job_id)
    if job is not None and job.extra.logs is not None:
        _trim(job.extra.logs, keep)


def _trim(lines: list[list[Any]], keep: int) -> None:
    if len(lines) > keep:
        del lines[: len(lines) - keep]
