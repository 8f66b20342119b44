"""Why a push is refused: by itself, for what it refers to, or beside the others of its batch.

Nothing here has an effect. The refusals of a key, an edge, a link and a repetition alone stand in
``keys``, ``dependencies``, ``flows`` and ``repeats``; here they are asked in the order of 2.9.5.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from bunqueue.engine import dependencies, keys, repeats
from bunqueue.engine.entries import EDGES_PER_US, NAMED_PER_STEP, NAMED_PER_US, Entry, edges_and_one
from bunqueue.engine.flows import OWN_PARENT, link_refusal, linked_parent, not_linkable
from bunqueue.engine.keys import LIVE
from bunqueue.engine.queue import Queue
from bunqueue.engine.slices import parts, weighed
from bunqueue.engine.states import ACTIVE
from bunqueue.errors import InvalidField, Refused, StorageFailed

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine


def backlog_is_full() -> StorageFailed:
    """Build the refusal of what is new while too much waits for the disk."""
    return StorageFailed("the write backlog is full")


def own_refusal(own: Mapping[str, Any], custom_id: str | None) -> str | None:
    """Return what is wrong with the push itself, whoever lives already, or None."""
    if own.get("repeat") is not None:
        return repeats.refusal(own)
    if custom_id is not None and linked_parent(own) == custom_id:
        return OWN_PARENT
    return None


def edge_refusal(
    engine: "Engine", own: Mapping[str, Any], custom_id: str | None, batch: Mapping[str, None]
) -> str | None:
    """Return why the push cannot repeat, or have its dependencies, parent or id, or None."""
    problem = None
    if own.get("dependsOn"):
        problem = dependencies.refusal(engine, own, custom_id, batch)
    if problem is None and own.get("repeat") is not None:
        problem = repeats.refusal(own)
    parent_id = linked_parent(own)
    if problem is None and parent_id is not None:
        problem = link_refusal(engine, own, parent_id, custom_id)
    if problem is None and custom_id is not None and custom_id not in batch:
        # Of a batch that was asked before; what waits for the id since then came with it.
        problem = dependencies.reuse_refusal(engine, custom_id)
    return problem


def loss_refusal(own: Mapping[str, Any], replaced_id: str) -> str | None:
    """Return why the push cannot do without the job whose key it takes, or None."""
    if linked_parent(own) == replaced_id:
        return f"Parent job not found: {replaced_id}"
    if replaced_id in (own.get("dependsOn") or ()):
        return f"Dependency job not found: {replaced_id}"
    return None


def full_group(queue: Queue, own: Mapping[str, Any], earlier: int) -> str | None:
    """Return the refusal of a group that is full; ``earlier``: entries of the same call for it."""
    group_id, most = own.get("groupId"), own.get("groupMaxSize")
    if not group_id or most is None:
        return None
    groups = queue.run_set.groups
    group = None if groups is None else groups.by_id.get(group_id)
    pending = earlier + (0 if group is None else group.pending)
    return None if pending < most else f"Group {group_id} has reached its maximum size of {most}"


def check_edges(
    engine: "Engine",
    entries: Sequence[Entry],
    custom_ids: Sequence[str | None],
    batch: Mapping[str, None],
) -> Iterator[int]:
    """Refuse a batch in which a job cannot have its dependencies, its repetition or its parent.

    Each is asked of all entries before the next, as by 2.9.5: the first problem is the one told.

    Args:
        batch: Custom ids of this call.

    Yields:
        What was spent, us.
    """
    given = [(number, entry[3]) for number, entry in enumerate(entries) if entry[3] is not None]
    tied = [each for each in given if each[1].get("dependsOn")]
    for some, weighs in weighed(tied, NAMED_PER_STEP, lambda each: edges_and_one(each[1])):
        for number, own in some:
            problem = dependencies.refusal(engine, own, custom_ids[number], batch)
            if problem:
                raise InvalidField(f"jobs[{number}]: {problem}")
        yield weighs // EDGES_PER_US
    for repeating in parts([each for each in given if "repeat" in each[1]], NAMED_PER_STEP):
        for _, own in repeating:
            problem = repeats.refusal(own) if own["repeat"] is not None else None
            if problem:
                raise Refused(problem)
        yield len(repeating) // EDGES_PER_US
    for children in parts([each for each in given if "parentId" in each[1]], NAMED_PER_STEP):
        for number, own in children:
            parent_id = linked_parent(own)
            if parent_id is not None:
                problem = link_refusal(engine, own, parent_id, custom_ids[number])
                if problem:
                    raise Refused(problem)
        yield len(children) // NAMED_PER_US


def entry_refusal(
    engine: "Engine",
    queue: Queue,
    entry: Entry,
    custom_id: str | None,
    labelled: Counter[str] | None,
    now: int,
) -> str | None:
    """Return why an entry of a batch cannot have its id, its key or its group; without effect.

    Args:
        labelled: group -> entries of this call before it, counted on; None: not asked here.
    """
    _, _, options, own = entry
    old = engine.index.get(custom_id) if custom_id else None
    if own is None or (old is not None and old.place in LIVE):
        return None  # a twin is not added
    key, group_id = own.get("uniqueKey"), own.get("groupId")
    problem = None if custom_id is None else dependencies.reuse_refusal(engine, custom_id)
    if problem is None and key:
        problem = keys.refusal(engine, queue, key, options, now)
        owner = keys.owner_of(queue, key, now)
        if problem is None and owner is not None and keys.strategy(options) == "replace":
            problem = None if owner.place == ACTIVE else loss_refusal(own, owner.id)
    if labelled is None or problem is not None or not group_id:
        return problem
    if not (key and keys.owner_of(queue, key, now)):
        problem = full_group(queue, own, labelled[group_id])
        labelled[group_id] += 1
    return problem


def clash(
    engine: "Engine",
    queue: Queue,
    entries: Sequence[Entry],
    custom_ids: Sequence[str | None],
    batch: Mapping[str, None],
    labelled: Counter[str],
    now: int,
) -> str | None:
    """Return why an entry of a batch cannot have what those before it leave of it, or None.

    Args:
        batch: Custom ids of this call whose jobs are still to come.
        labelled: group -> entries of this call before these, counted on.
    """
    to_come = dict(batch)
    holders: dict[str, str] = {}  # key -> id of who will have it, or its place in the call
    twins: dict[str, str] = {}  # custom id that nobody gets -> who answers for it
    awaited: set[str] = set()
    gone: set[str] = set()
    renewed: set[str] = set()  # a parent has to be there before the call
    for number, ((_, _, options, own), custom_id) in enumerate(
        zip(entries, custom_ids, strict=True)
    ):
        if own is None or (custom_id and custom_id not in to_come):
            continue  # a twin is not added
        own_id = custom_id or f"jobs[{number}]"
        key, depends_on = own.get("uniqueKey"), own.get("dependsOn") or ()
        problem = _loss(own, gone, twins) if gone else None  # a twin needs them too
        if problem is None and renewed and linked_parent(own) in renewed:
            problem = not_linkable(str(linked_parent(own)))
        if problem:
            return problem
        replaces = False
        if key:
            owner = keys.owner_of(queue, key, now)
            is_held = key in holders or owner is not None
            if is_held and keys.strategy(options) != "replace":  # a twin too
                answers = holders.get(key) or (owner.id if owner is not None else "")
                if custom_id:
                    twins[custom_id] = answers
                if custom_id in awaited:
                    awaited.add(answers)
                continue
            owner_id = None if owner is None or owner.place == ACTIVE else owner.id
            replaced_id = holders.get(key, owner_id)
            replaces = key in holders or owner_id is not None
            if replaced_id is not None:
                if replaced_id in awaited or dependencies.has_live_consumer(engine, replaced_id):
                    return keys.irreplaceable(replaced_id)
                gone.add(replaced_id)
                to_come[replaced_id] = None  # its id is free then
                problem = _loss(own, {replaced_id}, twins)
                if problem:
                    return problem
            holders[key] = own_id
        if custom_id:
            del to_come[custom_id]
            if custom_id in gone:
                gone.remove(custom_id)
                renewed.add(custom_id)
        group_id = own.get("groupId")
        if group_id and not replaces:
            problem = full_group(queue, own, labelled[group_id])
            if problem:
                return problem
            labelled[group_id] += 1
        awaited.update(depends_on, own.get("childrenIds") or ())
        awaited.update(twins[job_id] for job_id in depends_on if job_id in twins)
        if linked_parent(own) is not None:
            awaited.add(own_id)
    return None


def _loss(own: Mapping[str, Any], gone: Set[str], twins: Mapping[str, str]) -> str | None:
    """Return why an entry cannot do without jobs that are gone, or that answer for its own."""
    for job_id in (linked_parent(own), *(own.get("dependsOn") or ())):
        if job_id is not None and (job_id in gone or twins.get(job_id) in gone):
            return loss_refusal(own, job_id)
    return None
