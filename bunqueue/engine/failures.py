"""What the final failure of a child means for its parent (engine.md 5.4).

The failure is written down in the commit that ends the child. The parent's part follows in the
same operation, or, if the broker dies in between, at the next start, before anything is claimed.
Records of "fail" go once they are applied; the others say what the parent does without, and live
until it ends.
"""

from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.deadletters import bury
from bunqueue.engine.dependencies import (
    FAILURES,
    Record,
    Ties,
    drop_record,
    hold_back,
    part,
    put_record,
    record_key,
    register_under,
    release,
    ties_of,
)
from bunqueue.engine.events import announce, emit
from bunqueue.engine.job import Job
from bunqueue.engine.metrics import count_failure, recount
from bunqueue.engine.states import ADMITTED, COMPLETED, FAILED, GONE, PARKED
from bunqueue.engine.undo import Memory, has_successor, put_back, remember

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bunqueue.engine.engine import Engine
    from bunqueue.protocol.options import JobOptions

FAIL: Final = "fail"
CONTINUE: Final = "continue"
IGNORE: Final = "ignore"
REMOVE: Final = "remove"
_NOTED_IN: Final = {CONTINUE: "failed", IGNORE: "ignored"}  # attribute of the parent's ties
NO_ERROR: Final = "unknown error"  # a child's failure without a text


def policy_of(options: "JobOptions") -> str | None:
    """Return what the job's failure does to its parent: the first that is set, or None."""
    if options.fail_parent_on_failure:
        return FAIL
    if options.continue_parent_on_failure:
        return CONTINUE
    if options.ignore_dependency_on_failure:
        return IGNORE
    return REMOVE if options.remove_dependency_on_failure else None


def child_failed(engine: "Engine", job: Job, error: str | None, now: int) -> None:
    """Note what the final failure of a job with a parent means for that one."""
    mode = policy_of(job.options)
    if mode is None:
        return
    parent = engine.index.get(job.extra.parent_id or "")
    if parent is None or parent not in engine.graph.consumers.get(job.id, ()):
        return
    record = (parent.id, job.id, job.queue.name, mode, NO_ERROR if error is None else error, now)
    earlier = None if parent.extra.flow is None else parent.extra.flow.records.get(job.id)
    if mode == FAIL and earlier is not None:
        return  # the parent does without that id, or fails anyway: the record is to tell a restart
    put_record(engine, parent, record)
    engine.storage.sync(_reconsider, (engine, parent, job, earlier))
    engine.graph.later(engine, apply, parent, record)


def _reconsider(engine: "Engine", parent: Job, child: Job, earlier: Record | None) -> None:
    """After a failed commit: forget the record, or apply it again where the failure stands.

    ``earlier``: what the file has of a failure before this one; that stands, and is not forgotten.
    """
    ties = parent.extra.flow
    record = None if ties is None else ties.records.get(child.id)
    if record is None or _has_left(engine, parent):
        return
    if _stands(engine, parent, child):
        put_record(engine, parent, record)
        # An older undo may yet bring the run back, which has failed since.
        engine.graph.first(engine, _apply_if_it_stands, parent, child, record, earlier)
    else:
        _take_record_back(engine, parent, child.id, earlier)


def _stands(engine: "Engine", parent: Job, child: Job) -> bool:
    """Say whether a child has failed and is the parent's: the link may have been undone."""
    is_of_parent = child.extra.parent_id == parent.id
    return is_of_parent and child.place in (FAILED, GONE) and not has_successor(engine, child)


def _apply_if_it_stands(
    engine: "Engine", parent: Job, child: Job, record: Record, earlier: Record | None, now: int
) -> None:
    """Apply a record after all undos, before what they have put on the list."""
    ties = parent.extra.flow
    if ties is None or _has_left(engine, parent):
        return
    is_noted = ties.records.get(child.id) == record
    if not _stands(engine, parent, child):
        if is_noted:
            _take_record_back(engine, parent, child.id, earlier)
        return
    if not is_noted:  # an older undo gave the parent back what it knew before
        if parent not in engine.graph.consumers.get(child.id, ()):
            return
        put_record(engine, parent, record)
    apply(engine, parent, record, now)


def _take_record_back(engine: "Engine", parent: Job, child_id: str, earlier: Record | None) -> None:
    if earlier is None:
        drop_record(engine, parent, child_id)
    else:
        put_record(engine, parent, earlier)


def _has_left(engine: "Engine", parent: Job) -> bool:
    """Say whether a parent is gone for good, though what it has undergone is undone."""
    return parent.place == GONE or has_successor(engine, parent)


def apply(
    engine: "Engine", parent: Job, record: Record, now: int, *, is_replay: bool = False
) -> None:
    """Do to the parent what the record says, if that still stands; harmless if it was done.

    ``is_replay``: The record is from the file. Whether a parent has gone on in spite of the child
    is told by its row, which has lost the dependency with all others; it may have got new ones.
    """
    _, child_id, child_queue, mode, error, _ = record
    with parent.queue.shard.lock:
        extra = parent.extra
        ties = extra.flow
        if (
            ties is None
            or ties.records.get(child_id) != record
            or engine.index.get(parent.id) is not parent
        ):
            return
        if mode in (FAIL, CONTINUE) and parent.place == ADMITTED:
            return  # applied when it is shown
        if mode == FAIL:
            is_due = parent.place == PARKED and child_id in ties.missing
            _drop_record(engine, parent, record)
            if is_due:
                fail_parked(engine, parent, f"Child job {child_id} failed: {error}", now)
            return
        label = f"{child_queue}:{child_id}"
        dropped: set[str] = set()
        noted = _NOTED_IN.get(mode)
        if mode == CONTINUE:
            if parent.place == PARKED and not (is_replay and child_id not in extra.depends_on):
                dropped = ties.missing.copy()
                engine.storage.rewritten(parent)
        else:
            dropped = {child_id}
        before = _do_without(engine, parent, dropped)
        error_before = None
        if noted is not None:
            errors = getattr(ties, noted)
            error_before = errors.get(label)
            errors[label] = error
        engine.storage.sync(_unapply, (engine, parent, record, before, noted, label, error_before))
    if parent.place == PARKED and not ties.missing and not ties.is_released:
        release(engine, parent, now, by_edit=True)
        announce(engine, "waiting", parent.queue.name, parent.id, now, prev="waiting-children")


def apply_to_shown(engine: "Engine", parent: Job) -> None:
    """Apply what children did to a parent before it was shown: it had taken the id of theirs.

    Or it is one of a large flow, whose children were shown before it.
    """
    for record in ties_of(parent).records.values():
        engine.graph.later(engine, apply, parent, record)


# What a parent has had of the ids that it does without: dependencies, and which of them missing.
Dropped = tuple[dict[str, None], set[str]]


def _do_without(engine: "Engine", parent: Job, child_ids: set[str]) -> Dropped:
    """Take dependencies away from a parent; costs what they are, however many it has."""
    extra, ties = parent.extra, ties_of(parent)
    had: Dropped = {}, child_ids & ties.missing  # as fast as the smaller one
    for child_id in child_ids:
        if child_id in extra.depends_on:
            del extra.depends_on[child_id]
            had[0][child_id] = None
            if child_id not in extra.children_ids:
                part(engine, parent, child_id)
    ties.missing -= had[1]
    return had


def _unapply(
    engine: "Engine",
    parent: Job,
    record: Record,
    before: Dropped,
    noted: str | None,
    label: str,
    error_before: str | None,
) -> None:
    """Undo ``apply``; where the record itself is in the file, it is applied once more."""
    if _has_left(engine, parent):
        return
    engine.graph.later(engine, apply, parent, record)
    depends_on, missing = before
    ties = ties_of(parent)
    parent.extra.depends_on.update(depends_on)
    ties.missing |= missing
    register_under(engine, parent, depends_on)
    if depends_on:
        engine.storage.rewritten(parent)
    if noted is None:
        return
    if error_before is None:
        getattr(ties, noted).pop(label, None)
    else:
        getattr(ties, noted)[label] = error_before


def _drop_record(engine: "Engine", parent: Job, record: Record) -> None:
    drop_record(engine, parent, record[1])
    engine.storage.sync(_redrop, (engine, parent, record))


def _redrop(engine: "Engine", parent: Job, record: Record) -> None:
    """Undo the dropping of a record, to apply it again; ``_reconsider`` may drop it for good."""
    if parent.extra.flow is not None and not _has_left(engine, parent):
        put_record(engine, parent, record)
        engine.graph.later(engine, apply, parent, record)


def fail_parked(engine: "Engine", job: Job, error: str, now: int) -> None:
    """Give up a parked job, uncharged; its shard is locked.

    It is a dead letter whatever ``removeOnFail`` says: that is of runs, and nobody reported this.
    """
    memory = remember(job)
    if ties_of(job).is_released:
        hold_back(engine, job)
    extra = job.own_extra()
    extra.last_error = error
    extra.history.append([job.attempts, job.started_at, now, "unknown", error])
    count_failure(engine, job.queue, now)
    emit(engine, "failed", job.queue.name, job.id, now, job.data, error=error, terminal=True)
    bury(engine, job, "fail", "unknown", error, now)
    engine.storage.sync(_unfail_parked, (engine, job, memory, now))


def _unfail_parked(engine: "Engine", job: Job, memory: Memory, now: int) -> None:
    job.queue.failed_total -= 1
    engine.totals.failed -= 1
    recount(engine, job.queue, now)
    put_back(engine, job, memory, now)


def replay(engine: "Engine", rows: "Iterable[tuple[Any, ...]]", now: int) -> None:
    """Take up the failure records of the file, and apply what was not applied."""
    for parent_id, child_id, child_queue, mode, error, created_at in rows:
        record = (parent_id, child_id, child_queue, mode, error, created_at)
        parent = engine.index.get(parent_id)
        if parent is None or parent.place == COMPLETED:
            engine.storage.delete(FAILURES, record_key(parent_id, child_id))
            continue
        extra = parent.own_extra()
        if extra.flow is None:  # it goes on without the child, and refers to nobody else
            extra.flow = Ties(set())
        extra.flow.records[child_id] = record
        apply(engine, parent, record, now, is_replay=True)
