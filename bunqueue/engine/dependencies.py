"""Who waits for whom, and what happens when the last dependency of a job is met (engine.md 5).

One reverse index leads from an id to the jobs that refer to it, its *consumers*; each consumer
holds the set of ids it still misses. So the end of a job costs one lookup, and a step more for
each of its consumers, however wide the fan-in or the fan-out is. A consumer stays in the index
until it has ended itself: until then it may ask for its children's results.

A job whose last dependency is met is *released*: its row already says queued, but it stays parked
for everybody until that is committed; then it enters the run set and workers are told. Nobody can
start it on the strength of a completion that is not on disk.

What follows from the end of a job concerns jobs of other queues, whose locks may not be taken
under the lock of this one. It is put on a list, ``Graph.later``, and done by the same operation
once it has let go of its lock (``settle``), in slices; a timer takes care of what is left over.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine import proofs
from bunqueue.engine.job import Job, note
from bunqueue.engine.listing import Listing
from bunqueue.engine.proofs import Proof, Proofs
from bunqueue.engine.states import (
    ACTIVE,
    ADMITTED,
    COMPLETED,
    FAILED,
    GONE,
    PARKED,
    QUEUED,
    move,
)

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

SETTLED_PER_SLICE: Final = 500  # consequences dealt with in one go: some ms
EDGES_PER_JOB: Final = 8  # that are entered in the time of a job: loadtests/hub.py push-children
FAILURES: Final = "flow_failures"

Action = tuple[Callable[..., None], tuple[Any, ...]]
Record = tuple[str, str, str, str, str, int]  # parent, child, its queue, mode, error, epoch ms


class Ties:
    """What ties one job to others; ``Job.extra.flow``.

    Attributes:
        missing: Ids of its dependencies that are not met.
        is_released: Its last dependency is met, and that is being committed.
        failed: ``queue:id`` -> error, of children after whose failure it goes on.
        ignored: ``queue:id`` -> error, of children whose failure it ignores.
        records: child id -> the failure record that the file holds of it.
        listing: The data of a parent whose list of children grows one by one, or None.
    """

    __slots__ = ("missing", "is_released", "failed", "ignored", "records", "listing")

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.is_released = False
        self.failed: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        self.listing: Listing | None = None

    def copy(self) -> "Ties":
        """Return a copy for an undo."""
        copy = Ties(set(self.missing))
        copy.is_released = self.is_released
        copy.failed = dict(self.failed)
        copy.ignored = dict(self.ignored)
        copy.records = dict(self.records)
        return copy


def edges_in(own: Mapping[str, Any] | None) -> int:
    """Return how many others a push names in its lists."""
    if own is None:
        return 0
    return len(own.get("dependsOn") or ()) + len(own.get("childrenIds") or ())


def edges_of(own: Mapping[str, Any]) -> Iterator[str]:
    """Return those others."""
    return chain(own.get("dependsOn") or (), own.get("childrenIds") or ())


def weight(job: Job) -> int:
    """Return as how many jobs one counts when it is entered or taken out."""
    extra = job.extra
    return 1 + (len(extra.depends_on) + len(extra.children_ids)) // EDGES_PER_JOB


def ties_of(job: Job) -> Ties:
    """Return the ties of a job that has some."""
    ties = job.extra.flow
    assert ties is not None
    return ties


class Graph:
    """The dependencies of all jobs.

    Attributes:
        consumers: id -> the unfinished jobs that refer to it (a dict for its order).
        proofs: Who has completed and is not kept.
        due: Consequences that are still to be dealt with.
    """

    __slots__ = ("consumers", "proofs", "due", "_timer")

    def __init__(self) -> None:
        self.consumers: dict[str, dict[Job, None]] = {}
        self.proofs = Proofs()
        self.due: deque[Action] = deque()
        self._timer: list[Any] | None = None

    def later(self, engine: "Engine", action: Callable[..., None], *args: Any) -> None:
        """Have ``action(engine, *args, now)`` called once no lock is held."""
        self.due.append((action, args))
        self._arm(engine)

    def first(self, engine: "Engine", action: Callable[..., None], *args: Any) -> None:
        """As ``later``, ahead of what is on the list."""
        self.due.appendleft((action, args))
        self._arm(engine)

    def _arm(self, engine: "Engine") -> None:
        if self._timer is None:
            self._timer = engine.timers.add(engine.last_now, _on_timer, engine)

    def rest(self, engine: "Engine", now: int) -> None:
        """Set the timer for what is left, or put it off."""
        if self._timer is not None:
            engine.timers.cancel(self._timer)
            self._timer = None
        if self.due:
            self._timer = engine.timers.add(now + 1, _on_timer, engine)


def _on_timer(engine: "Engine", _second: object, now: int) -> None:
    settle(engine, now)


def settle(engine: "Engine", now: int) -> None:
    """Deal with the consequences of what has just ended; no lock may be held."""
    due = engine.graph.due
    # Who waits gets the best of the jobs that are let go together, once they are.
    with engine.served_after(is_committed=True) if len(due) > 1 else nullcontext():
        for _ in range(SETTLED_PER_SLICE):
            if not due:
                break
            action, args = due.popleft()
            action(engine, *args, now)
    engine.graph.rest(engine, now)


# -- admission ------------------------------------------------------------------------------------


def exists(engine: "Engine", job_id: str) -> bool:
    """Say whether the id is that of a job that can be depended on."""
    return engine.index.get(job_id) is not None or job_id in engine.graph.proofs


def is_met(engine: "Engine", job_id: str) -> bool:
    """Say whether a dependency on the job is satisfied."""
    job = engine.index.get(job_id)
    return job_id in engine.graph.proofs if job is None else job.place == COMPLETED


def refusal(
    engine: "Engine", own: Mapping[str, Any], job_id: str | None, batch: Collection[str]
) -> str | None:
    """Return why a push cannot have its dependencies, or None.

    Args:
        own: The push's own options.
        job_id: Its custom id, if it has one.
        batch: Custom ids of the same call, which it may name before they exist.
    """
    for dependency in own.get("dependsOn") or ():
        if dependency in batch:
            if dependency == job_id:
                return f"Job cannot depend on itself: {job_id}"
        elif not exists(engine, dependency):
            return f"Dependency job not found: {dependency}"
    return None


def reuse_refusal(engine: "Engine", job_id: str) -> str | None:
    """Return why the id of a job that was removed on completion cannot be used again, or None."""
    if job_id in engine.graph.proofs and any(
        consumer.place in (PARKED, ADMITTED) for consumer in engine.graph.consumers.get(job_id, ())
    ):
        return f"Custom ID {job_id} still has unresolved dependency consumers"
    return None


def has_live_consumer(engine: "Engine", job_id: str) -> bool:
    """Say whether a job that has not ended refers to this one."""
    return any(
        consumer.place in (ADMITTED, QUEUED, PARKED, ACTIVE)
        for consumer in engine.graph.consumers.get(job_id, ())
    )


def is_awaited(engine: "Engine", job_id: str) -> bool:
    """Say whether a job that has not ended depends on this one, not just names it as a child."""
    consumers = engine.graph.consumers.get(job_id, ())
    return any(job_id in consumer.extra.depends_on for consumer in consumers)


def waits_for_commit(engine: "Engine", job_ids: Iterable[str]) -> bool:
    """Say whether the admission or the completion of one of the jobs may not be committed yet.

    What depends on it is committed with it or after it, and undone with it: else it could start on
    the strength of a completion that is taken back.
    """
    for job_id in job_ids:
        job = engine.index.get(job_id)
        if is_met(engine, job_id) if job is None else job.place in (ADMITTED, COMPLETED):
            return True
    return False


def tie(engine: "Engine", job: Job, to_come: Collection[str] = ()) -> None:
    """Enter the edges of an admitted job into the index, and work out what it misses.

    Args:
        to_come: Ids that the same call will admit; their present owners do not count.
    """
    extra = job.own_extra()
    extra.flow = Ties(
        {
            dependency
            for dependency in extra.depends_on
            if dependency in to_come or not is_met(engine, dependency)
        }
    )
    register(engine, job)


def register(engine: "Engine", job: Job) -> None:
    """Enter the job under every id that it refers to."""
    for job_ids in (job.extra.depends_on, job.extra.children_ids):
        register_under(engine, job, job_ids)


def register_under(engine: "Engine", job: Job, job_ids: Iterable[str]) -> None:
    """Enter the job under some ids that it refers to."""
    consumers = engine.graph.consumers
    free = engine.graph.proofs.free
    for job_id in job_ids:
        of_id = consumers.get(job_id)
        if of_id is None:
            of_id = consumers[job_id] = {}
            if job_id in free:
                proofs.pin(engine, job_id)
        of_id[job] = None


def redirect(engine: "Engine", job: Job, twins: Mapping[str, str]) -> None:
    """Let a job that was just admitted depend on the jobs that answer for others, their twins.

    Args:
        twins: id that nobody has got -> id of who answers for it.
    """
    extra = job.extra
    if twins.keys().isdisjoint(extra.depends_on):
        return
    ties = ties_of(job)
    for job_id in twins:
        part(engine, job, job_id)
        ties.missing.discard(job_id)
    found = dict.fromkeys(twins.get(job_id, job_id) for job_id in extra.depends_on)
    found.pop(job.id, None)  # it answers for its own dependency
    extra.depends_on = found
    register(engine, job)
    ties.missing.update(job_id for job_id in found if not is_met(engine, job_id))
    engine.storage.rewritten(job)
    if not ties.missing and job.place == PARKED:
        engine.graph.later(engine, release, job)


def begin_parked(job: Job, now: int) -> None:
    """Write the first line of a parked job's timeline."""
    job.own_extra().timeline = [["waiting-children", now, None, None]]


def has_begun_parked(job: Job) -> bool:
    """Say whether the last that was written of a job is that it waits for others."""
    timeline = job.extra.timeline
    return timeline is not None and timeline[-1][0] == "waiting-children"


# -- a consumer ends ------------------------------------------------------------------------------


def untie(engine: "Engine", job: Job) -> None:
    """Take a job that has ended out of the index; results that were kept for it go."""
    extra = job.extra
    unpinned: list[tuple[str, Proof]] = []
    for job_id in {*extra.depends_on, *extra.children_ids}:
        proof = part(engine, job, job_id)
        if proof is not None:
            unpinned.append((job_id, proof))
    awaited: list[Job] = []
    if extra.flow is not None:
        for child_id in extra.flow.records:
            engine.storage.delete(FAILURES, record_key(job.id, child_id))
        awaited = _awaited_children(engine, job)
    engine.storage.sync(_retie, (engine, job, unpinned, awaited))


def _awaited_children(engine: "Engine", job: Job) -> list[Job]:
    """Return the children that a job waits for, but for those that have failed already."""
    found = map(engine.index.get, ties_of(job).missing)
    return [
        child
        for child in found
        if child is not None and child.extra.parent_id == job.id and child.place != FAILED
    ]


def tie_again(engine: "Engine", job: Job) -> None:
    """Enter a completed job that runs once more under the ids it refers to; it misses none.

    What its end has removed from the file, the errors of its children, it knows no more.
    """
    job.own_extra().flow = Ties(set())
    enter_again(engine, job)
    engine.storage.sync(_untie_again, (engine, job))


def enter_again(engine: "Engine", job: Job) -> None:
    """Enter a job that was untied under the ids it refers to, with its records.

    One of these may have been about to be applied while the job was away.
    A dependency that was met stays met. Where nothing shows that any more, since its id was used
    again while the job was away, it leaves ``dependsOn`` as in ``outlive``.
    """
    extra = job.extra
    ties = extra.flow
    missing: Collection[str] = () if ties is None else ties.missing
    met = [job_id for job_id in extra.depends_on if job_id not in missing]
    unproved = [job_id for job_id in met if not is_met(engine, job_id)]
    for job_id in unproved:
        del extra.depends_on[job_id]
    if unproved:
        engine.storage.rewritten(job)
    register(engine, job)
    if ties is not None:
        for child_id, record in ties.records.items():
            engine.storage.put(FAILURES, record_key(job.id, child_id), record)
            if child_id in ties.missing:
                engine.graph.later(engine, _applied_late, job, record)


def _applied_late(engine: "Engine", job: Job, record: Record, now: int) -> None:
    """Apply a failure record that was not, while the job was away."""
    if job.extra.flow is not None and record[1] in job.extra.flow.missing:
        engine.apply_record(job, record, now)


def _untie_again(engine: "Engine", job: Job) -> None:
    """Undo ``tie_again`` where the job is completed as before."""
    if job.place == COMPLETED:
        untie(engine, job)


def part(engine: "Engine", job: Job, job_id: str) -> Proof | None:
    """Take the job out from under one id; return the proof that nobody needs any more, if any."""
    consumers = engine.graph.consumers
    of_id = consumers.get(job_id)
    if of_id is None or job not in of_id:
        return None
    del of_id[job]
    if of_id:
        return None
    del consumers[job_id]
    return proofs.unpin(engine, job_id)


def _retie(
    engine: "Engine", job: Job, unpinned: list[tuple[str, Proof]], awaited: list[Job]
) -> None:
    """Undo ``untie`` where the job has come back; tell it what it was not told while away."""
    if job.place in (COMPLETED, GONE) or engine.index.get(job.id) is not job:
        return
    enter_again(engine, job)
    graph = engine.graph
    for job_id, proof in unpinned:
        if job_id in graph.consumers and engine.index.get(job_id) is None:
            proofs.add(engine, job_id, proof, is_pinned=True)
    for child in awaited:
        if child.place in (FAILED, GONE):  # now; it may come back too
            graph.later(engine, _told_late, child)
    if engine.settings.fails_orphans and job.place == PARKED:
        _fail_if_orphaned(engine, job)


def _told_late(engine: "Engine", child: Job, now: int) -> None:
    """Tell a parent that was away how its child has ended."""
    # One that went otherwise than by failing went before its last attempt.
    is_removed = child.place == GONE and child.attempts >= child.options.attempts
    if child.place == FAILED or is_removed:
        engine.child_failed(child, child.extra.last_error, now)


def record_key(parent_id: str, child_id: str) -> str:
    """Return the key of a failure record."""
    return f"{parent_id}\0{child_id}"


def put_record(engine: "Engine", parent: Job, record: Record) -> None:
    """Write down what the failure of a child means for its parent."""
    child_id = record[1]
    ties_of(parent).records[child_id] = record
    engine.storage.put(FAILURES, record_key(parent.id, child_id), record)


def drop_record(engine: "Engine", parent: Job, child_id: str) -> None:
    """Forget a failure record, if there is one."""
    ties = parent.extra.flow
    if ties is not None and child_id in ties.records:
        del ties.records[child_id]
        engine.storage.delete(FAILURES, record_key(parent.id, child_id))


# -- a dependency ends ----------------------------------------------------------------------------


def completed(engine: "Engine", job: Job) -> None:
    """Tell the consumers of a job that it has completed."""
    job_id = job.id
    touched = []
    for consumer in engine.graph.consumers.get(job_id, ()):
        ties = consumer.extra.flow
        if ties is not None and job_id in ties.missing:
            ties.missing.discard(job_id)
            touched.append(consumer)
            if not ties.missing and consumer.place == PARKED:
                engine.graph.later(engine, release, consumer)
    if touched:
        engine.storage.sync(_not_completed, (engine, job_id, touched))


def completed_again(engine: "Engine", job: Job, _now: int) -> None:
    """Let those go who began to wait for a rerun that is undone; once all undos are done."""
    if job.place == COMPLETED and engine.index.get(job.id) is job:
        completed(engine, job)


def _not_completed(engine: "Engine", job_id: str, touched: list[Job]) -> None:
    """Undo ``completed``; where the completion itself stands, it is told once more."""
    job = engine.index.get(job_id)
    if job is not None and job.place == COMPLETED:
        engine.graph.later(engine, completed_again, job)
    for consumer in touched:
        ties_of(consumer).missing.add(job_id)
    # Of one that was away, the edge may have gone for good.
    _depend_again(engine, job_id, [job for job in touched if job_id not in job.extra.depends_on])


def prove(engine: "Engine", job: Job) -> None:
    """Leave a proof of a completed job that is not kept."""
    proof = (job.queue.name, job.finished_at, job.result)
    proofs.add(engine, job.id, proof, job.id in engine.graph.consumers)


def outlive(engine: "Engine", job_id: str) -> None:
    """Let the dependencies that a completed job has met stay met although it goes or runs again.

    They leave ``dependsOn``, so that no restart can mistake its successor for it. It is undone
    with what made it necessary: the completion itself may be taken back next.
    """
    parted = []
    for consumer in list(engine.graph.consumers.get(job_id, ())):
        extra = consumer.extra
        if job_id in extra.depends_on and job_id not in ties_of(consumer).missing:
            del extra.depends_on[job_id]
            if job_id not in extra.children_ids:
                part(engine, consumer, job_id)
            engine.storage.rewritten(consumer)
            parted.append(consumer)
    if parted:
        engine.storage.sync(_depend_again, (engine, job_id, parted))


def _depend_again(engine: "Engine", job_id: str, consumers: list[Job]) -> None:
    """Undo ``outlive``, unless the job runs again all the same: its worker has been handed it."""
    job = engine.index.get(job_id)
    runs_again = job is not None and job.place in (QUEUED, PARKED, ACTIVE)
    for consumer in consumers:
        ties = consumer.extra.flow
        is_missed = ties is not None and job_id in ties.missing
        if consumer.place == GONE or (runs_again and not is_missed):
            continue
        consumer.own_extra().depends_on[job_id] = None
        if consumer.place != COMPLETED:
            register_under(engine, consumer, (job_id,))
        engine.storage.rewritten(consumer)


def gone(engine: "Engine", job: Job) -> None:
    """Look after the consumers of a job that is being removed; its place is still the old one."""
    if job.place == COMPLETED:
        prove(engine, job)
        engine.storage.sync(_unprove, (engine, job))
    elif engine.settings.fails_orphans:
        for consumer in engine.graph.consumers[job.id]:
            ties = consumer.extra.flow
            if consumer.place == PARKED and ties is not None and job.id in ties.missing:
                engine.graph.later(engine, fail_orphan, consumer, job.id)


def _unprove(engine: "Engine", job: Job) -> None:
    """Undo the proof of a completed job that is there again."""
    if engine.index.get(job.id) is job:
        proofs.drop(engine, job.id)


def release(engine: "Engine", job: Job, now: int, *, by_edit: bool = False) -> None:
    """Let a parked job that misses nothing any more go, once that is committed.

    Args:
        engine, job, now: Where, who, when.
        by_edit: It misses nothing because an edge was dropped. Then it may run at once, whatever
            its delay, and its timeline has no line of it.
    """
    with job.queue.shard.lock:
        ties = job.extra.flow
        if job.place != PARKED or ties is None or ties.missing or ties.is_released:
            return
        ties.is_released = True
        run_at = job.run_at
        high = "prioritized" if job.priority > 0 else "waiting"
        if by_edit:
            job.run_at = now
        else:
            note(job, "delayed" if job.run_at > now else high, now)
        engine.storage.changed(job)
    engine.storage.sync(_unrelease, (engine, job, now, run_at), show_released)


def show_released(engine: "Engine", job: Job, now: int, _run_at: int = 0) -> None:
    """Show a released job to the workers, after the commit."""
    ties = job.extra.flow
    if job.place != PARKED or ties is None or not ties.is_released:
        return  # cancelled meanwhile, or it has got another dependency
    ties.is_released = False
    show_parked(engine, job, engine.time_after(now))


def release_again(engine: "Engine", job: Job, now: int) -> None:
    """Let a job go that was put back among the parked ones, if it misses nothing by now."""
    ties = job.extra.flow
    if ties is not None and ties.is_released:
        show_released(engine, job, now)
    else:
        release(engine, job, now)


def show_parked(engine: "Engine", job: Job, now: int) -> None:
    """Move a parked job into the run set."""
    queue = job.queue
    del queue.parked[job.id]
    move(job, "promote")
    job.stamp += 1
    queue.run_set.enter(job, now)
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    if queue.waiters:
        engine.serve(queue, now)


def _unrelease(engine: "Engine", job: Job, _now: int, run_at: int) -> None:
    """Undo a release that could not be committed."""
    ties = job.extra.flow
    if job.place == PARKED and ties is not None and ties.is_released:
        job.run_at = run_at
        hold_back(engine, job)
        if not ties.missing:  # what it waited for may have been committed before
            engine.graph.later(engine, release, job)


def hold_back(engine: "Engine", job: Job) -> None:
    """Let a released job go on waiting."""
    ties_of(job).is_released = False
    timeline = job.extra.timeline
    if timeline and timeline[-1][0] != "waiting-children":
        timeline.pop()
    engine.storage.changed(job)


def fail_orphan(engine: "Engine", job: Job, missing_id: str, now: int) -> None:
    """Give up a parked job of which a dependency can never complete."""
    with job.queue.shard.lock:
        ties = job.extra.flow
        if job.place != PARKED or ties is None or missing_id not in ties.missing:
            return
        if exists(engine, missing_id):
            return  # the id has come back
        engine.fail_parked(job, f"Dependency job {missing_id} was removed", now)


# -- starting from a file -------------------------------------------------------------------------


def restore_proofs(engine: "Engine", rows: Mapping[str, tuple[Any, ...]]) -> None:
    """Take up the proofs of the file, before any job that refers to them."""
    free = engine.graph.proofs.free
    for job_id, values in sorted(rows.items(), key=_completed_at):
        free[job_id] = (values[0], values[1], values[2])


def _completed_at(row: tuple[str, tuple[Any, ...]]) -> int:
    completed_at: int = row[1][1]
    return completed_at


def restore_ties(engine: "Engine", jobs: Iterable[Job]) -> None:
    """Enter the edges of the jobs of the file, once all jobs are there."""
    for job in jobs:
        tie(engine, job)


def restored(engine: "Engine", now: int) -> None:
    """Finish: trim proofs nobody refers to, and let go who misses nothing any more."""
    for job_id, proof in list(engine.graph.proofs.free.items()):
        if proof[2] is not None:
            proofs.add(engine, job_id, proof, is_pinned=False)
    proofs.trim(engine)
    for queue in list(engine.queues.values()):
        for job in list(queue.parked.values()):
            ties = job.extra.flow
            if ties is None or not ties.missing:
                if ties is None:
                    job.own_extra().flow = Ties(set())
                note(job, "waiting", now)
                show_parked(engine, job, now)
                engine.storage.changed(job)
            elif engine.settings.fails_orphans:  # the last process may have died before it did so
                _fail_if_orphaned(engine, job)


def _fail_if_orphaned(engine: "Engine", job: Job) -> None:
    """Have a parked job given up if a dependency of it can never complete."""
    missing = sorted(ties_of(job).missing)
    lost = next((job_id for job_id in missing if not exists(engine, job_id)), None)
    if lost is not None:
        engine.graph.later(engine, fail_orphan, job, lost)
