"""Pictures of an engine: all that a restart must find again, as values that compare.

A picture is taken before and after each step, at each cut of a batch and of what the file gives
back; the rules (``rules.py``) compare them. It is read from the engine's own records, but knows
nothing of how the rows of the file are made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bunqueue.engine.job import DeadLetter, Job, timeline_of
from bunqueue.engine.settings import DlqConfig, StallConfig

NO_STALL, NO_DLQ = StallConfig(), DlqConfig()


class Picture(NamedTuple):
    """One job, but for whom it waits for (``ties_of``)."""

    seq: int
    id: str
    queue: str
    place: str
    priority: int
    run_at: int
    attempts: int
    stall_count: int
    data: bytes
    token: str | None
    result: bytes | None
    started_at: int
    finished_at: int
    created_at: int
    name: str
    options: Any
    edges: Any
    key: Any
    group_id: str | None
    texts: Any
    history: Any
    letters: Any
    timeline: Any


def picture_of(job: Job, is_stored: bool = False) -> Picture:
    """Return the picture of one job; ``is_stored``: with the place that a file has for it."""
    extra = job.extra
    place = job.place
    if is_stored and place in ("admitted", "parked"):
        flow = extra.flow
        if place == "admitted":
            place = "parked" if flow is not None and flow.missing else "queued"
        elif flow is not None and flow.is_released:
            place = "queued"
    return Picture(
        job.seq,
        job.id,
        job.queue.name,
        place,
        job.priority,
        job.run_at,
        job.attempts,
        job.stall_count,
        job.data,
        job.token,
        job.result,
        job.started_at,
        job.finished_at,
        job.created_at,
        job.name,
        tuple(sorted((name, repr(value)) for name, value in job.options.given.items())),
        (extra.parent_id, tuple(extra.children_ids)),
        (extra.is_custom_id, extra.unique_key, extra.unique_until),
        extra.group_id,
        (extra.last_error, tuple(extra.stacktrace or ()), extra.progress, extra.progress_message),
        tuple(map(tuple, extra.history)),
        (_letter(extra.dead), _letter(extra.retry), extra.lives_from),
        tuple(map(tuple, timeline_of(job))),
    )


def _letter(letter: DeadLetter | None) -> Any:
    if letter is None:
        return None
    return tuple(getattr(letter, name) for name in DeadLetter.__slots__)


def pictures_of(engine: Any, is_stored: bool = False) -> dict[int, Picture]:
    """Return the pictures of all jobs of an engine by their admission numbers."""
    jobs: dict[int, Job] = {job.seq: job for job in engine.index}
    for queue in engine.queues.values():
        # One that waits for a commit while an older generation still has its id.
        jobs.update((job.seq, job) for job in queue.admitted.values())
    return {seq: picture_of(jobs[seq], is_stored) for seq in sorted(jobs)}


def ties_of(engine: Any) -> dict[int, frozenset[str]]:
    """Return what each parked job still waits for, by its admission number."""
    return {
        job.seq: frozenset(job.extra.flow.missing)
        for queue in engine.queues.values()
        for jobs in (queue.parked, queue.admitted)
        for job in jobs.values()
        if job.extra.flow is not None
    }


def control_of(engine: Any, now: int) -> dict[str, Any]:
    """Return what was set on queues, groups, schedulers and webhooks."""
    found: dict[str, Any] = {}
    for name, queue in engine.queues.items():
        gate = queue.gate
        rate = gate.rate  # not asked for the live one: that would forget one whose time is over
        if gate.is_paused:
            found[f"paused {name}"] = True
        if rate is not None and (rate.expires_at is None or rate.expires_at > now):
            found[f"rate {name}"] = rate.limit, rate.duration_ms, rate.expires_at
        if gate.concurrency is not None:
            found[f"concurrency {name}"] = gate.concurrency
        if queue.stall != NO_STALL:
            found[f"stall {name}"] = queue.stall
        if queue.dlq != NO_DLQ:
            found[f"dlq {name}"] = queue.dlq
        groups = queue.run_set.groups
        for group in () if groups is None else groups.by_id.values():
            if group.has_settings:
                found[f"group {name} {group.id}"] = (
                    group.rate,
                    group.concurrency,
                    group.is_paused,
                )
    for name in engine.metrics:
        if any(totals := engine.queue_totals(name)):
            found[f"totals {name}"] = totals
    for cron in engine.list_crons():
        found[f"cron {cron.definition.name}"] = (cron.definition, cron.executions, cron.next_run)
    for hook in engine.list_webhooks():
        found[f"webhook {hook.id}"] = (hook.url, tuple(hook.events), hook.is_enabled)
    proofs = engine.graph.proofs
    for job_id, proof in {**proofs.free, **proofs.pinned}.items():
        found[f"proof {job_id}"] = proof
    return found


def difference(before: dict[Any, Any], after: dict[Any, Any]) -> str:
    """Return what differs between two pictures, a line each."""
    lines = []
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Picture) and isinstance(new, Picture):
            parts = [
                f"{name} {one!r} -> {two!r}"
                for name, one, two in zip(Picture._fields, old, new, strict=True)
                if one != two
            ]
            lines.append(f"  {key} {old.id}: {', '.join(parts)}")
        else:
            lines.append(f"  {key}: {old!r} -> {new!r}")
    return "\n".join(lines) + "\n"
