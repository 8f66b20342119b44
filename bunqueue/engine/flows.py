"""Parents and children by hand: links, their removal, parking, and what children have left.

A child names its parent in ``parentId``; that is a bare note unless its data says the same
(``__parentId``, ``__parentQueue``), which makes it a true link: the parent then depends on the
child and lists it in its own data (``__childrenIds``). These keys of ``data`` are the broker's.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine import leases
from bunqueue.engine.dependencies import (
    Ties,
    drop_record,
    hold_back,
    is_met,
    part,
    register_under,
    release,
    settle,
    ties_of,
)
from bunqueue.engine.events import announce, emit
from bunqueue.engine.failures import REMOVE, child_failed, policy_of
from bunqueue.engine.job import Job, keep_timeline, note
from bunqueue.engine.keys import LIVE
from bunqueue.engine.listing import Listing
from bunqueue.engine.locks import in_order
from bunqueue.engine.places import forget, requeue, stop_ttl, take_out
from bunqueue.engine.slices import Work, parts
from bunqueue.engine.states import ACTIVE, COMPLETED, FAILED, GONE, PARKED, QUEUED, move
from bunqueue.engine.undo import (
    Memory,
    has_successor,
    light_memory,
    put_all_back,
    put_back,
    remember,
)
from bunqueue.errors import InvalidField, NotFound, Refused, WrongPlace
from bunqueue.protocol.codec import pack, unpack
from bunqueue.protocol.large import CHILDREN_KEY, PARENT_KEY, PARENT_QUEUE_KEY, marks_of

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

PENDING: Final = "pending"  # what 0.1.x clients call a parent that is still to come, wire.md 9
OWN_PARENT: Final = "A job cannot be its own parent"
FLOW_KEYS: Final = (PARENT_KEY, PARENT_QUEUE_KEY, CHILDREN_KEY, "__flowParentId", "__flowParentIds")
# How many children are dealt with between two looks at what was spent, and what one costs:
# loadtests/hub.py remove-children, children-values. The parent's own lists cost a bit each time.
REMOVED_PER_STEP: Final = 250
REMOVED_US: Final = 10
LOOKED_AT_PER_US: Final = 5
READ_PER_STEP: Final = 500
READ_US: Final = 2

_MARK: Final = b"__"  # in the packed form of whatever has such a key


# -- links ----------------------------------------------------------------------------------------


def linked_parent(own: Mapping[str, Any]) -> str | None:
    """Return the id of the parent that a push is truly linked to, or None.

    Args:
        own: The push, with its data as it came.
    """
    parent_id = own.get("parentId")
    if not parent_id or parent_id == PENDING:
        return None
    marks = marks_of(own.get("data"))
    if marks is None or marks.get(PARENT_KEY) != parent_id:
        return None
    return parent_id if isinstance(marks.get(PARENT_QUEUE_KEY), str) else None


def link_refusal(
    engine: "Engine", own: Mapping[str, Any], parent_id: str, job_id: str | None
) -> str | None:
    """Return why a push cannot be linked to its parent, or None."""
    if parent_id == job_id:
        return OWN_PARENT
    parent = engine.index.get(parent_id)
    if parent is None:
        return f"Parent job not found: {parent_id}"
    if parent.place not in (QUEUED, PARKED):
        return not_linkable(parent_id)
    queue_name = (marks_of(own["data"]) or {})[PARENT_QUEUE_KEY]
    if parent.queue.name == queue_name:
        return None
    return f"Parent job {parent_id} belongs to queue {parent.queue.name}, not {queue_name}"


def not_linkable(parent_id: str) -> str:
    """Build the refusal of a parent that runs, has ended or is not there yet."""
    return f"Parent job {parent_id} is not linkable"


def link(engine: "Engine", parent: Job, child_id: str, now: int) -> None:
    """Make a pending job depend on a child; both shards are locked."""
    extra = parent.own_extra()
    is_new = child_id not in extra.depends_on and child_id not in extra.children_ids
    if is_new and parent.place == PARKED and extra.flow and not extra.flow.is_released:
        # One more of many: nothing else of the parent changes.
        undo: tuple[Any, ...] = _unlink_one, (engine, parent, child_id, parent.data)
    else:
        undo = _unlink, (engine, parent, child_id, remember(parent), now)
    if extra.flow is None:
        extra.flow = Ties(set())
    ties = extra.flow
    extra.depends_on[child_id] = None
    if ties.listing is None or ties.listing.data is not parent.data:
        ties.listing = Listing(parent.data, extra.children_ids)
    extra.children_ids[child_id] = None
    parent.data = ties.listing.add(child_id)
    register_under(engine, parent, (child_id,))
    drop_record(engine, parent, child_id)
    engine.storage.rewritten(parent)
    if not is_met(engine, child_id):
        if ties.is_released:
            hold_back(engine, parent)
        ties.missing.add(child_id)
        if parent.place == QUEUED:
            park(engine, parent, now)
    engine.storage.sync(*undo)


def _unlink(engine: "Engine", parent: Job, child_id: str, memory: Memory, now: int) -> None:
    put_back(engine, parent, memory, now)
    extra = parent.extra
    if child_id not in extra.depends_on and child_id not in extra.children_ids:
        part(engine, parent, child_id)


def _unlink_one(engine: "Engine", parent: Job, child_id: str, data: bytes) -> None:
    """Undo the link to one child more."""
    if has_successor(engine, parent) or parent.place == GONE:
        return
    _detach(parent, child_id)
    parent.data = data
    part(engine, parent, child_id)
    engine.storage.rewritten(parent)


def park(engine: "Engine", job: Job, now: int) -> None:
    """Move a queued or active job to those that wait for others."""
    take_out(engine, job)
    move(job, "park")
    stop_ttl(engine, job)
    job.queue.parked[job.id] = job
    note(job, "waiting-children", now)
    engine.storage.changed(job)


def _with_keys(data: Any, keys: Mapping[str, Any]) -> bytes:
    """Pack ``data`` with some keys changed; a value of None takes a key out."""
    changed = {**data, **keys} if isinstance(data, dict) else dict(keys)
    return pack({key: value for key, value in changed.items() if keys.get(key, value) is not None
                 or key not in keys})  # fmt: skip


def update_parent(engine: "Engine", child_id: str, parent_id: str, now: int) -> None:
    """Make one existing job the child of another.

    Raises:
        Refused: One of them is not there, the child has another parent, the parent has begun.
    """
    if child_id == parent_id:
        raise InvalidField("A flow job cannot be its own parent")
    child = _visible(engine, child_id)
    if child is None:
        raise NotFound(f"Child job not found: {child_id}")
    parent = _visible(engine, parent_id)
    if parent is None:
        raise NotFound(f"Parent job not found: {parent_id}")
    with engine.identity_lock, in_order((child.queue.shard, parent.queue.shard)):
        present = child.extra.parent_id
        if present not in (None, PENDING, parent_id):
            raise Refused(f"Child job {child_id} already belongs to parent {present}")
        extra = parent.extra
        is_declared = child_id in extra.children_ids
        if not is_declared:
            if parent.place not in (QUEUED, PARKED):
                raise WrongPlace(not_linkable(parent_id))
            if _waits_for(engine, child, parent):
                raise Refused("flow contains a dependency cycle")
        memory = remember(child)
        child.own_extra().parent_id = parent_id
        child.data = _with_keys(
            unpack(child.data), {PARENT_KEY: parent_id, PARENT_QUEUE_KEY: parent.queue.name}
        )
        engine.storage.rewritten(child)
        engine.storage.sync(put_back, (engine, child, memory, now))
        if not is_declared:
            link(engine, parent, child_id, now)
        if child.place == FAILED:
            child_failed(engine, child, child.extra.last_error, now)
    settle(engine, now)


def _visible(engine: "Engine", job_id: str) -> Job | None:
    return engine.find(job_id)


def _waits_for(engine: "Engine", job: Job, other: Job) -> bool:
    """Say whether a job waits, over however many others, for ``other``."""
    seen = {job.id}
    open_ids = [job]
    while open_ids:
        ties = open_ids.pop().extra.flow
        for job_id in () if ties is None else ties.missing:
            if job_id == other.id:
                return True
            dependency = engine.index.get(job_id)
            if dependency is not None and job_id not in seen:
                seen.add(job_id)
                open_ids.append(dependency)
    return False


# -- taking children away -------------------------------------------------------------------------


def remove_child_dependency(engine: "Engine", child_id: str, now: int) -> bool:
    """Detach a child from its parent, which goes on if it misses nothing else.

    Returns:
        False if the child has finished, or the parent does not know it: nothing was changed.

    Raises:
        NotFound, Refused: There is no such job, or it has no parent.
    """
    child = _visible(engine, child_id)
    if child is None:
        raise NotFound(f"Job not found: {child_id}")
    parent_id = child.extra.parent_id
    if parent_id is None:
        raise Refused(f"Job {child_id} has no parent")
    parent = _visible(engine, parent_id)
    if parent is None or child.place in (COMPLETED, FAILED):
        return False
    with engine.identity_lock, in_order((child.queue.shard, parent.queue.shard)):
        extra = parent.extra
        if child_id not in extra.depends_on and child_id not in extra.children_ids:
            return False
        memories = remember(child), remember(parent)
        child.own_extra().parent_id = None
        child.data = _with_keys(unpack(child.data), {PARENT_KEY: None, PARENT_QUEUE_KEY: None})
        engine.storage.rewritten(child)
        _part_from(engine, parent, child_id)
        engine.storage.sync(_reattach, (engine, child, parent, memories, now))
    _go_on(engine, parent, now)
    return True


def do_without(engine: "Engine", parent: Job, child_id: str, now: int) -> None:
    """Let a parent forget a child that has never been; it goes on if it misses nothing else."""
    with parent.queue.shard.lock:
        _part_from(engine, parent, child_id)
    _go_on(engine, parent, now)


def _part_from(engine: "Engine", parent: Job, child_id: str) -> None:
    """Take a child out of all that a parent knows."""
    _detach(parent, child_id)
    data = unpack(parent.data)
    listed = data.get(CHILDREN_KEY) if isinstance(data, dict) else None
    if isinstance(listed, list):
        left = [each for each in listed if each != child_id]
        parent.data = _with_keys(data, {CHILDREN_KEY: left or None})
    engine.storage.rewritten(parent)
    drop_record(engine, parent, child_id)
    part(engine, parent, child_id)


def _detach(parent: Job, child_id: str) -> None:
    extra = parent.extra
    extra.depends_on.pop(child_id, None)
    extra.children_ids.pop(child_id, None)
    if extra.flow is not None:
        extra.flow.missing.discard(child_id)


def _reattach(
    engine: "Engine", child: Job, parent: Job, memories: tuple[Memory, Memory], now: int
) -> None:
    put_back(engine, child, memories[0], now)
    put_back(engine, parent, memories[1], now)


def _go_on(engine: "Engine", parent: Job, now: int) -> None:
    """Let a parent go if it misses nothing any more."""
    ties = parent.extra.flow
    if parent.place != PARKED or ties is None or ties.missing or ties.is_released:
        return
    release(engine, parent, now, by_edit=True)
    announce(engine, "waiting", parent.queue.name, parent.id, now, prev="waiting-children")


def remove_unprocessed_children(engine: "Engine", parent_id: str, now: int) -> Work[None]:
    """Cancel the children of a job that have not begun; the parent does without them."""
    parent = _visible(engine, parent_id)
    if parent is None:
        return
    for child_ids in parts(list(parent.extra.children_ids), REMOVED_PER_STEP):
        children = [engine.index.get(job_id) for job_id in child_ids]
        unprocessed = [
            child for child in children if child is not None and child.place in (QUEUED, PARKED)
        ]
        if unprocessed:
            _remove_children(engine, parent, unprocessed, now)
        now = (
            yield len(unprocessed) * REMOVED_US + len(parent.extra.children_ids) // LOOKED_AT_PER_US
        )
    _go_on(engine, parent, now)


def _remove_children(engine: "Engine", parent: Job, children: list[Job], now: int) -> None:
    with in_order({parent.queue.shard, *(child.queue.shard for child in children)}):
        memory = remember(parent)
        memories = [light_memory(child) for child in children]
        gone = {child.id for child in children}
        extra = parent.own_extra()
        for child_id in gone:
            extra.depends_on.pop(child_id, None)
        if extra.flow is not None:
            extra.flow.missing -= gone
        for child in children:
            forget(engine, child)
            emit(engine, "removed", child.queue.name, child.id, now, prev="waiting")
        engine.storage.rewritten(parent)
        engine.storage.sync(put_back, (engine, parent, memory, now))
        engine.storage.sync(put_all_back, (engine, memories, now))


def move_to_waiting_children(engine: "Engine", job_id: str, token: str | None, now: int) -> None:
    """Park a running job until its children have settled; at once back in line if they have.

    Raises:
        WrongPlace, LeaseLost: It is not running, or not with this token.
    """
    job = engine.index.get(job_id)
    if job is None or job.place != ACTIVE:
        raise WrongPlace("Job is not active")
    with job.queue.shard.lock:
        leases.check_token(job, token)
        memory = remember(job)
        extra = job.own_extra()
        if extra.flow is None:
            extra.flow = Ties(set())
        extra.losses = 0
        _wait_for_unsettled(engine, job)
        keep_timeline(job)
        job.token = None
        job.started_at = 0
        job.run_at = now
        if extra.flow.missing:
            park(engine, job, now)
            engine.storage.rewritten(job)
        else:
            note(job, "waiting", now)
            requeue(engine, job, "release", now)
            engine.storage.changed(job)
        engine.storage.sync(put_back, (engine, job, memory, now))
        state = "waiting-children" if job.place == PARKED else "waiting"
        emit(engine, state, job.queue.name, job.id, now, prev="active")
        if job.queue.waiters:
            engine.serve(job.queue, now)


def _wait_for_unsettled(engine: "Engine", job: Job) -> None:
    """Let a job miss what is still to come; what can never come is no dependency any more."""
    extra = job.extra
    missing = dict.fromkeys(_unsettled(engine, job))
    for job_id in list(extra.depends_on):
        if job_id not in missing and not is_met(engine, job_id):
            del extra.depends_on[job_id]
            if job_id not in extra.children_ids:
                part(engine, job, job_id)
            engine.storage.rewritten(job)
    extra.depends_on.update(missing)
    ties_of(job).missing = set(missing)


def _unsettled(engine: "Engine", job: Job) -> Iterator[str]:
    """Yield the children and dependencies of which something is still to come."""
    extra = job.extra
    settled = ties_of(job).records  # whoever has got the id of such a child since then
    for job_id in dict.fromkeys((*extra.depends_on, *extra.children_ids)):
        other = engine.index.get(job_id)
        if other is None or job_id in settled:
            continue
        is_needless = other.extra.parent_id == job.id and policy_of(other.options) == REMOVE
        if other.place in LIVE or (other.place == FAILED and not is_needless):
            yield job_id


# -- what children have left ----------------------------------------------------------------------


def children_values(engine: "Engine", job_id: str) -> Work[list[tuple[str, bytes]]]:
    """Return ``queue:id`` and packed result of each child that has left one.

    A child that is not kept any more stands under its bare id.
    """
    parent = _visible(engine, job_id)
    values: list[tuple[str, bytes]] = []
    for child_ids in parts([] if parent is None else parent.extra.children_ids, READ_PER_STEP):
        for child_id in child_ids:
            child = engine.index.get(child_id)
            if child is None:
                result = kept_result(engine, child_id)
                if result is not None:
                    values.append((child_id, result))
            elif child.place == COMPLETED and child.result is not None:
                values.append((f"{child.queue.name}:{child_id}", child.result))
        yield len(child_ids) * READ_US
    return values


def kept_result(engine: "Engine", job_id: str) -> bytes | None:
    """Return the packed result that a removed job has left for its consumers, or None."""
    proof = engine.graph.proofs.get(job_id)
    return None if proof is None else proof[2]


def failed_children(engine: "Engine", job_id: str) -> dict[str, str]:
    """Return ``queue:id`` -> error of the children after whose failure the job goes on."""
    ties = _ties_of_unended(engine, job_id)
    return {} if ties is None else ties.failed


def ignored_children(engine: "Engine", job_id: str) -> dict[str, str]:
    """Return ``queue:id`` -> error of the children whose failure the job ignores."""
    ties = _ties_of_unended(engine, job_id)
    return {} if ties is None else ties.ignored


def _ties_of_unended(engine: "Engine", job_id: str) -> Ties | None:
    parent = _visible(engine, job_id)
    if parent is None or parent.place in (COMPLETED, FAILED):
        return None
    return parent.extra.flow


# -- data that belongs to the broker --------------------------------------------------------------


def updated_data(job: Job, packed: bytes) -> bytes:
    """Return the new payload of a job, with the broker's keys as they were.

    Raises:
        InvalidField: The job is part of a flow, and the payload is no object or has such keys.
    """
    if _MARK not in job.data:
        return packed
    old = unpack(job.data)
    own = {key: old[key] for key in FLOW_KEYS if key in old} if isinstance(old, dict) else {}
    if not own:
        return packed
    data = unpack(packed)
    if not isinstance(data, dict):
        raise InvalidField("flow job data must be an object")
    for key in data:
        if key.startswith("__"):
            raise InvalidField(f"flow job data key is reserved: {key}")
    return pack({**data, **own})
