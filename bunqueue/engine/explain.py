"""Why is this job not running? Everything that stands in its way, in words and figures.

Nothing here changes anything. Reasons are told in the order in which they would have to go away:
a job that waits for its children is not told of its queue's limits.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bunqueue.engine.deadletters import retry_at
from bunqueue.engine.dependencies import ties_of
from bunqueue.engine.groups import NO_TERMS, Group, GroupTerms
from bunqueue.engine.job import Job
from bunqueue.engine.queue import Queue
from bunqueue.engine.slices import Work, parts
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, FAILED, PARKED, QUEUED, state_of
from bunqueue.protocol.findings import counted

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

MISSING_MAX = 100  # children named; their number is told in any case
LOOKED_AT_PER_STEP = 1_000
LOOKED_AT_US = 1

Reason = dict[str, Any]


def explain(engine: "Engine", job_id: str, now: int) -> Work[dict[str, Any]]:
    """Tell why a job is not running.

    Returns:
        ``{"id", "queue", "state", "reasons", "ahead"}``. A reason is ``{"code", "text"}``, with
        ``until`` (epoch ms) where time alone takes it away, and with figures of its own. No reason
        means that it runs, has ended, or is next but for the ``ahead`` jobs before it.
    """
    job = engine.index.get(job_id)
    if job is None or job.place == ADMITTED:
        text = "There is no such job: it was never added, or has been removed."
        return {"id": job_id, "state": "unknown", "reasons": [_reason("unknown", text)]}
    queue = job.queue
    with queue.shard.lock:
        reasons = list(_reasons(engine, job, now))
    told: dict[str, Any] = {
        "id": job_id,
        "queue": queue.name,
        "state": state_of(job, now),
        "reasons": reasons,
    }
    if _is_ready(job, now):
        told["ahead"] = yield from _ahead(job, queue, now)
    return told


def _reason(code: str, text: str, until: float | None = None, **figures: Any) -> Reason:
    told: Reason = {"code": code, "text": text, **figures}
    if until is not None:
        told["until"] = float(until)
    return told


def _reasons(engine: "Engine", job: Job, now: int) -> Iterator[Reason]:
    if job.place == COMPLETED:
        yield _reason("completed", "It has completed.", at=float(job.finished_at))
    elif job.place == FAILED:
        yield _failed(job)
    elif job.place == ACTIVE:
        yield _running(job)
    elif job.place == PARKED:
        yield _children(job)
    elif job.place == QUEUED:
        if job.run_at > now:
            what = "It waits for its next attempt." if job.attempts else "It is delayed."
            yield _reason("delayed", what, job.run_at, attempts=job.attempts)
        yield from _queue_limits(job.queue, now)
        yield from _group_limits(job, now)
        if not _has_workers(engine, job.queue):
            text = "No worker has registered for its queue, and none waits there for jobs."
            yield _reason("no-worker", text)


def _failed(job: Job) -> Reason:
    dead = job.extra.dead
    assert dead is not None
    text = f"It is in the dead-letter queue ({dead.reason}): {dead.error or 'no error was told'}"
    return _reason("failed", text, retry_at(job), reason=dead.reason, attempts=job.attempts)


def _running(job: Job) -> Reason:
    delivery = job.delivery
    assert delivery is not None
    if delivery.owner is None:
        return _reason("active", "It runs, without a lease.", startedAt=float(job.started_at))
    text = f"It runs: {delivery.owner} has leased it."
    return _reason(
        "active",
        text,
        delivery.expires_at,
        owner=delivery.owner,
        startedAt=float(job.started_at),
        lastHeartbeat=float(delivery.heartbeat_at),
    )


def _children(job: Job) -> Reason:
    if job.extra.flow is None:
        return _reason("children", "It was parked, and waits for nothing that is known.")
    missing = sorted(ties_of(job).missing)
    text = f"It waits for {counted(len(missing), 'other job')}."
    return _reason("children", text, count=len(missing), ids=missing[:MISSING_MAX])


def _queue_limits(queue: Queue, now: int) -> Iterator[Reason]:
    gate, active = queue.gate, len(queue.active)
    if gate.is_paused:
        yield _reason("paused", "Its queue is paused.")
    if gate.concurrency is not None and active >= gate.concurrency:
        text = f"Its queue runs {counted(active, 'job')}, and may run {gate.concurrency}."
        if not gate.concurrency:
            text = "Its queue may run no job: its concurrency is 0."
        yield _reason("concurrency", text, active=active, limit=gate.concurrency)
    rate = gate.live_rate(now)
    if rate is not None and rate.tokens(now) < 1:
        pace = f"{rate.limit:.15g} in {rate.duration_ms:g} ms"
        text = f"Its queue has used up its rate of {pace}."
        if rate.limit < 1:
            text = f"Its queue lets no job through: its rate is {pace}."
        yield _reason("rate-limit", text, gate.rate_opens_at(now), limit=rate.limit)


def _group_limits(job: Job, now: int) -> Iterator[Reason]:
    groups = job.queue.run_set.groups
    group = None if groups is None else groups.by_id.get(job.extra.group_id or "")
    if groups is None or group is None or job.extra.group_id is None:
        return
    if group.is_paused:
        yield _reason("group-paused", f"Its group {group.id!r} is paused.", group=group.id)
        return
    for terms in _terms(job.queue, groups.last_terms):
        if group.blocked_until(terms, now) is None:
            return
    yield from _group_rest(group, groups.last_terms, now)


def _terms(queue: Queue, last: GroupTerms) -> Iterable[GroupTerms]:
    """Return on which terms its workers ask: those that wait, else the last that pulled."""
    return {waiter.terms or NO_TERMS for waiter in queue.waiters} or {last}


def _group_rest(group: Group, terms: GroupTerms, now: int) -> Iterator[Reason]:
    until = group.blocked_until(terms, now)
    figures: dict[str, Any] = {"group": group.id, "active": group.active}
    if until is None or until == float("inf"):
        text = f"Its group {group.id!r} runs {counted(group.active, 'job')}, which is all it may."
        yield _reason("group-concurrency", text, **figures)
    else:
        text = f"Its group {group.id!r} rests, or its window is used up."
        yield _reason("group-rate", text, until, **figures)


def _has_workers(engine: "Engine", queue: Queue) -> bool:
    if queue.waiters or queue.active:
        return True
    return any(queue.name in worker.queues for worker in engine.workers.values())


def _is_ready(job: Job, now: int) -> bool:
    """Say whether a job may be handed out; one whose delay is over need not be in line yet."""
    return job.place == QUEUED and (job.is_ripe or job.run_at <= now)


def _ahead(job: Job, queue: Queue, now: int) -> Work[int]:
    """Count the ready jobs that are handed out before this one; of a grouped job, in its group."""
    own, count = _order(job), 0
    for jobs in parts(queue.run_set.jobs(), LOOKED_AT_PER_STEP):
        count += sum(
            _is_ready(other, now)
            and other.extra.group_id == job.extra.group_id
            and _order(other) < own
            for other in jobs
        )
        yield len(jobs) * LOOKED_AT_US
    return count


def _order(job: Job) -> tuple[int, bool, int, int]:
    """Return what sorts the ready jobs of a queue, or of a group, as they are handed out."""
    if job.extra.group_id is not None:
        return job.priority, False, 0, job.seq
    if job.options.lifo:
        return -job.priority, False, -job.seq, 0
    return -job.priority, True, job.run_at, job.seq
