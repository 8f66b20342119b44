"""How a job gets in: ids, twins, keys, and when it becomes visible.

A plain push is in the run set at once and on disk some ms later. A push that must not be lost, or
that ends an older generation of its id or key, is *admitted*: it holds its id and its key from
now on, but nobody sees or pulls it until old and new have been committed together. If that commit
fails, everything is as it was before and the peer reads an error.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from bunqueue import compiled
from bunqueue.engine import dependencies, keys, proofs, repeats
from bunqueue.engine.events import announce, emit
from bunqueue.engine.flows import OWN_PARENT, link, link_refusal, linked_parent
from bunqueue.engine.job import Job
from bunqueue.engine.keys import LIVE
from bunqueue.engine.later import Later
from bunqueue.engine.locks import in_order, wait_for
from bunqueue.engine.places import stop_ttl, take_out
from bunqueue.engine.ports import NO_WAIT
from bunqueue.engine.queue import Queue, Shard
from bunqueue.engine.slices import COMMITTED, Work, parts, weighed
from bunqueue.engine.states import ACTIVE, ADMITTED, GONE, PARKED, QUEUED, move, state_of
from bunqueue.engine.undo import Memory, place_in, put_back, remember
from bunqueue.errors import InvalidField, Refused, StorageFailed
from bunqueue.protocol.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# name, packed data, shared options, the request's own options or None
Entry = tuple[str, bytes, JobOptions, Mapping[str, Any] | None]

_own_of = itemgetter(3)

# What of a job that was admitted is needed to show it or to take it out again.
Hidden = tuple[Job, Sequence[tuple[Job, Memory]], Job | None, int | None, int]

NO_IDS: Mapping[str, None] = {}

# How many jobs are admitted between two looks at what was spent, and what one costs:
# loadtests/hub.py push-batch, push-depends-on.
ADMITTED_AT_ONCE: Final = 2_500  # of a batch
OPTIONS_WEIGHT: Final = 8  # so many of them for one with options
ADMITTED_PER_STEP: Final = 50
NAMED_PER_STEP: Final = 1_000  # ids that are looked up, or noted
NAMED_PER_US: Final = 1
EDGES_PER_US: Final = 4
ADMITTED_US: Final = 30
PUBLISHED_US: Final = 10

# A ``timestamp`` this close to the present is the present: a timeline that can be derived from the
# job's moments costs no memory, and clients that stamp every job do it as they push.
STAMP_SLACK_MS = 1_000


def push(
    engine: "Engine",
    queue_name: str,
    name: str,
    data: bytes,
    options: JobOptions,
    own: Mapping[str, Any] | None,
    now: int,
) -> str | Later:
    """Add one job.

    Args:
        queue_name, name: Checked.
        data: Packed payload.
        options: What the job shares with others.
        own: wire name -> value of its own options, or None if it sets no option at all.
        now: Epoch ms.

    Returns:
        The id of the job, or of the live one that already holds its id or key. A ``Later`` if the
        push is about a job of a flow that is on its way in: to that, or to the exception.

    Raises:
        Refused: A rule of identity says no.
        StorageFailed: The backlog is full.
    """
    queue = engine.queues.get(queue_name) or engine.open_queue(queue_name)
    if own is None:
        if engine.storage.is_refusing:
            raise backlog_is_full()
        if queue.shard.lock.locked():
            wait_for(queue.shard.lock)
        return _admit_plain(engine, queue, name, data, DEFAULT_OPTIONS, now).id
    if engine.arriving:
        later = _after_arrival(engine, [own], push, queue_name, name, data, options, own, now)
        if later is not None:
            return later
    custom_id = _custom_id(own)
    if custom_id is None and "parentId" not in own:
        with queue.shard.lock:
            return _admit(engine, queue, (name, data, options, own), None, now)
    with engine.identity_lock, in_order({queue.shard, *_others(engine, own, custom_id)}):
        return _admit(engine, queue, (name, data, options, own), custom_id, now)


def backlog_is_full() -> StorageFailed:
    """Build the refusal of what is new while too much waits for the disk."""
    return StorageFailed("the write backlog is full")


def _others(engine: "Engine", own: Mapping[str, Any] | None, custom_id: str | None) -> list[Shard]:
    """Return the shards of the jobs that a push may change: its id's owner and its parent."""
    parent_id = None if own is None else linked_parent(own)
    jobs = [engine.index.get(job_id) for job_id in (custom_id, parent_id) if job_id]
    return [job.queue.shard for job in jobs if job is not None]


class Arrival:
    """Jobs on their way in: their ids and keys are theirs already, their commit is still to come.

    Attributes:
        ids: Custom ids.
        keys: (queue name, dedup key).
        jobs: Returns those of them that are admitted so far.
        waiting: Pushes that are put off until they are in: answers, functions and arguments.
    """

    __slots__ = ("ids", "keys", "jobs", "waiting")

    def __init__(
        self,
        ids: frozenset[str],
        keys: frozenset[tuple[str, str]],
        jobs: Callable[[], Iterable[Job]],
    ) -> None:
        self.ids = ids
        self.keys = keys
        self.jobs = jobs
        self.waiting: list[tuple[Later, Callable[..., Any], tuple[Any, ...]]] = []

    def concerns(self, ids: set[str], keys: set[tuple[str, str]]) -> bool:
        """Say whether a push that has or names these is about such a job."""
        return not ids.isdisjoint(self.ids) or not keys.isdisjoint(self.keys)


@contextmanager
def arriving(
    engine: "Engine",
    ids: Iterable[str],
    keys: Iterable[tuple[str, str]],
    jobs: Callable[[], Iterable[Job]],
) -> Iterator[None]:
    """Put pushes off that are about jobs on their way in, until all of these have been noted.

    Such a job is not to be relied on before: the commit may fail. After that, they share it.
    """
    arrival = Arrival(frozenset(ids), frozenset(keys), jobs)
    engine.arriving.append(arrival)
    try:
        yield
    finally:
        engine.arriving.remove(arrival)
        waits = engine.storage.answer_waits
        for waiting in arrival.waiting:
            _push_now(engine, *waiting)
        engine.storage.answer_waits = waits


def _push_now(
    engine: "Engine", later: Later, action: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do a push that was put off."""
    engine.storage.answer_waits = NO_WAIT
    try:
        answer = action(engine, *args)
    except (Refused, StorageFailed) as error:
        answer = error
    if isinstance(answer, Later):  # it is about others that arrive too
        answer.then(later.resolve)
    else:
        later.resolve(answer, engine.storage.answer_waits)


def _named(
    queue_name: str, owns: Iterable[Mapping[str, Any] | None]
) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the ids that pushes have or depend on, and their keys."""
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for own in owns:
        if own is not None:
            ids.update(own.get("dependsOn") or (), filter(None, (_custom_id(own),)))
            if own.get("uniqueKey"):
                keys.add((queue_name, own["uniqueKey"]))
    return ids, keys


def _after_arrival(
    engine: "Engine",
    owns: Iterable[Mapping[str, Any]],
    action: Callable[..., Any],
    queue_name: str,
    *args: Any,
) -> Later | None:
    """Put a push off until the jobs are in that it is about; None if there are none."""
    ids, keys = _named(queue_name, owns)
    for arrival in engine.arriving:
        if arrival.concerns(ids, keys):
            later = Later()
            arrival.waiting.append((later, action, (queue_name, *args)))
            return later
    return None


def push_batch(
    engine: "Engine", queue_name: str, entries: Sequence[Entry], now: int
) -> list[str] | Later:
    """Add several jobs to one queue, all or none; ids come back in order.

    Returns:
        The ids; a ``Later`` as ``push`` does.

    Raises:
        Refused, StorageFailed: As ``push``; nothing was added. Only for dependencies does the text
            say which entry is meant, with ``jobs[i]: `` before it: JavaScript clients send every
            add in a batch, and their callers know the texts as they are (2.9.5).
    """
    queue = engine.queues.get(queue_name) or engine.open_queue(queue_name)
    # Asked once: a batch that fills the backlog up is the last one, and taken whole.
    if engine.storage.is_refusing:
        raise backlog_is_full()
    if not any(map(_own_of, entries)):
        with queue.shard.lock:
            if not queue.waiters:
                return _admit_all_plain(engine, queue, entries, now)
            with engine.served_after():
                return _admit_all_plain(engine, queue, entries, now)
    if engine.arriving:
        owns = [entry[3] for entry in entries if entry[3] is not None]
        later = _after_arrival(engine, owns, push_batch, queue_name, entries, now)
        if later is not None:
            return later
    with engine.identity_lock:
        custom_ids = [_custom_id(own) for _, _, _, own in entries]
        shards = {queue.shard}
        for entry, custom_id in zip(entries, custom_ids, strict=True):
            shards.update(_others(engine, entry[3], custom_id))
        with in_order(shards):
            named = dict.fromkeys(filter(None, custom_ids))
            for _ in _check_edges(engine, entries, custom_ids, named):
                pass
            for entry, custom_id in zip(entries, custom_ids, strict=True):
                problem = _refusal(engine, queue, entry, custom_id, None, now)
                if problem:
                    raise Refused(problem)
            batch = _ids_to_come(engine, named)
            problem = _clash(queue, entries, custom_ids, batch, now)
            if problem:
                raise Refused(problem)
            is_together = len(entries) > 1 and _waits_for_commit(engine, queue, entries, now)
            ids: list[str] = []
            twins: dict[str, str] = {}  # custom id -> who answers for it instead
            first_seq = engine.seq
            with engine.served_after(is_together):
                for entry, custom_id in zip(entries, custom_ids, strict=True):
                    entry = _redirected(entry, twins)
                    job_id = _admit(engine, queue, entry, custom_id, now, batch, None, is_together)
                    ids.append(job_id)
                    batch.pop(custom_id or "", None)
                    if custom_id and job_id != custom_id:
                        twins[custom_id] = job_id
                if twins:  # the jobs before a twin have been told to wait for it
                    for job_id in ids:
                        job = engine.index.get(job_id)
                        if job is not None and job.seq > first_seq:
                            dependencies.redirect(engine, job, twins)
    if twins:
        dependencies.settle(engine, now)
    return ids


def _waits_for_commit(engine: "Engine", queue: Queue, entries: Sequence[Entry], now: int) -> bool:
    """Say whether a job of a batch may have to be committed before it is seen.

    Then all of them have to: if that commit fails, the caller will send the whole batch again.
    """
    awaited: set[str] | None = None
    for _, _, options, own in entries:
        if own is None:
            continue
        if options.durable or linked_parent(own) is not None:
            return True
        custom_id, key = _custom_id(own), own.get("uniqueKey")
        old = engine.index.get(custom_id) if custom_id else None
        if old is not None and old.place not in LIVE:
            return True
        graph = engine.graph
        if custom_id and custom_id in graph.proofs:
            if awaited is None:
                awaited = _awaited(entries)
            if custom_id in graph.consumers or custom_id in awaited:
                return True
        if key and ("replace" in keys.strategy(options) or keys.owner_of(queue, key, now)):
            return True
        if dependencies.waits_for_commit(engine, own.get("dependsOn") or ()):
            return True
    return False


def _awaited(entries: Sequence[Entry]) -> set[str]:
    """Return the ids that jobs of a batch name as their children."""
    given = [own for _, _, _, own in entries if own is not None]
    return {child for own in given for child in own.get("childrenIds") or ()}


def _redirected(entry: Entry, twins: Mapping[str, str]) -> Entry:
    """Let an entry depend on the jobs that answer for others of its batch."""
    name, data, options, own = entry
    if not twins or own is None or twins.keys().isdisjoint(own.get("dependsOn") or ()):
        return entry
    depends_on = [twins.get(job_id, job_id) for job_id in own["dependsOn"]]
    return name, data, options, {**own, "dependsOn": depends_on}


def push_many(
    engine: "Engine", queue_name: str, entries: Sequence[Entry], now: int
) -> Work[list[str]]:
    """Add any number of jobs to one queue, all or none; ids come back in order.

    A few are a ``push_batch``. Many are admitted in slices, invisible and not written yet; when
    all are in, they are written in one batch, and shown after that. One that is refused on the way
    takes those before it out again.

    Raises:
        Refused: As ``push_batch``.
        StorageFailed: The backlog is full, or they could not be written.
    """
    owns = [own for _, _, _, own in entries]
    given = len(owns) - owns.count(None)
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    custom_ids: list[str | None] = []
    edges = 0
    has_parents = has_dependencies = has_ids_with_keys = False
    if not given:
        custom_ids = [None] * len(owns)
        now = yield len(owns)
    for some, weighs in weighed(owns if given else (), NAMED_PER_STEP, _edges_and_one):
        of_some = _named(queue_name, some)
        ids |= of_some[0]
        keys |= of_some[1]
        custom_ids += map(_custom_id, some)
        edges += weighs - len(some)
        for own in filter(None, some):
            has_parents = has_parents or "parentId" in own
            has_dependencies = has_dependencies or bool(own.get("dependsOn"))
            has_ids_with_keys |= bool(own.get("uniqueKey") and _custom_id(own))
        now = yield weighs // NAMED_PER_US
    named = dict.fromkeys(filter(None, custom_ids))
    # From here on nobody comes in before the ids and keys are noted as this call's.
    while any(arrival.concerns(ids, keys) for arrival in engine.arriving):
        now = yield COMMITTED
    weight = len(owns) + (OPTIONS_WEIGHT - 1) * given + edges // dependencies.EDGES_PER_JOB
    # Another job may answer for one on whom others depend; a proof changes with its successor.
    is_entangled = (has_dependencies and has_ids_with_keys) or engine.graph.proofs.has_any(named)
    if weight <= ADMITTED_AT_ONCE or is_entangled:
        answer = push_batch(engine, queue_name, entries, now)
        assert isinstance(answer, list)  # nothing arrives that it is about
        return answer
    hidden: list[Hidden] = []
    with arriving(engine, named, keys, lambda: [job for job, *_ in hidden]):
        if given:
            for spent_us in _check_edges(engine, entries, custom_ids, named):
                now = yield spent_us
        try:
            has_edges = edges > 0
            answer = yield from _hide(
                engine, queue_name, entries, custom_ids, has_edges, hidden, now
            )
            by_parent = _linked(engine, hidden, entries, answer) if has_parents else []
        except (Refused, StorageFailed):
            _withdraw_all(engine, hidden)
            raise
        # What follows is one batch, and so one step of the hub: 0.3 us a job, 0.6 in pure Python.
        added = engine.storage.added
        for job, ended, robbed, _, _ in hidden:
            if job.place == ADMITTED:  # it has not been obliterated meanwhile
                added(job)
            for gone, _ in ended:
                engine.storage.removed(gone)
            if robbed is not None:
                engine.storage.rewritten(robbed)
        _link_all(engine, by_parent, now)
        is_durable = bool(given) and any([job.options.durable for job, *_ in hidden])
        engine.storage.sync(_withdraw_all, (engine, hidden), durable=is_durable)
    now = yield COMMITTED
    for hidden_some in parts(hidden, ADMITTED_PER_STEP):
        with engine.served_after():
            for job, ended, robbed, had_until, _ in hidden_some:
                publish(engine, job, ended, robbed, had_until, now)
        now = yield len(hidden_some) * PUBLISHED_US
    return answer


def _edges_and_one(own: Mapping[str, Any] | None) -> int:
    return 1 + dependencies.edges_in(own)


def _linked(
    engine: "Engine", hidden: Sequence[Hidden], entries: Sequence[Entry], ids: Sequence[str]
) -> list[tuple[Job, Job]]:
    """Return the new jobs that are to be linked to a parent, each with that.

    Raises:
        Refused: A parent has begun or gone while the others were admitted.
    """
    new = {job.id: job for job, *_ in hidden}
    pairs = []
    for (_, _, _, own), job_id in zip(entries, ids, strict=True):
        parent_id = None if own is None else linked_parent(own)
        job = new.pop(job_id, None) if parent_id is not None else None
        if own is None or parent_id is None or job is None or job.place != ADMITTED:
            continue
        problem = link_refusal(engine, own, parent_id, job_id)
        if problem is not None:
            raise Refused(problem)
        parent = engine.index.get(parent_id)
        assert parent is not None
        pairs.append((job, parent))
    return pairs


def _link_all(engine: "Engine", pairs: Sequence[tuple[Job, Job]], now: int) -> None:
    """Make the parents wait for their new children."""
    shards = {job.queue.shard for pair in pairs for job in pair}
    with engine.identity_lock, in_order(shards):
        for job, parent in pairs:
            link(engine, parent, job.id, now)


def _hide(
    engine: "Engine",
    queue_name: str,
    entries: Sequence[Entry],
    custom_ids: Sequence[str | None],
    has_edges: bool,
    hidden: "list[Hidden]",
    now: int,
) -> Work[list[str]]:
    """Admit the jobs of a batch one after the other, invisible; return their ids."""
    batch: dict[str, None] = {}
    for some in parts(filter(None, custom_ids), NAMED_PER_STEP):
        batch |= _ids_to_come(engine, some)
        now = yield len(some) // EDGES_PER_US
    labelled: Counter[str] = Counter()
    ids: list[str] = []

    def weight(number: int) -> int:
        return 1 + dependencies.edges_in(entries[number][3]) // dependencies.EDGES_PER_JOB

    all_numbers, weight_of = range(len(entries)), weight if has_edges else None
    for numbers, weighs in weighed(all_numbers, ADMITTED_PER_STEP, weight_of):
        if engine.storage.is_refusing:
            raise backlog_is_full()
        queue = engine.open_queue(queue_name)
        shards = {queue.shard}
        for number in numbers:
            if entries[number][3] is not None:
                shards.update(_others(engine, entries[number][3], custom_ids[number]))
        with engine.identity_lock, in_order(shards):
            for number in numbers:
                entry, custom_id = entries[number], custom_ids[number]
                if entry[3] is None:
                    ids.append(_hide_plain(engine, queue, entry, hidden, now))
                    continue
                problem = _refusal(engine, queue, entry, custom_id, labelled, now)
                if problem:
                    raise Refused(problem)
                ids.append(_admit(engine, queue, entry, custom_id, now, batch, hidden))
                batch.pop(custom_id or "", None)
        now = yield weighs * ADMITTED_US
    return ids


def _hide_plain(
    engine: "Engine", queue: Queue, entry: Entry, hidden: "list[Hidden]", now: int
) -> str:
    """Admit a job without any option of its own, invisible; return its id."""
    name, data, _, _ = entry
    seq = engine.seq = engine.seq + 1
    job = Job(engine.ids.new(now), seq, queue, name, data, DEFAULT_OPTIONS, 0, now, now, ADMITTED)
    engine.index.put(job)
    queue.admitted[job.id] = job
    hidden.append((job, (), None, None, now))
    return job.id


def _withdraw_all(engine: "Engine", hidden: Sequence[Hidden]) -> None:
    for args in reversed(hidden):
        withdraw(engine, *args)


def _ids_to_come(engine: "Engine", custom_ids: Iterable[str]) -> dict[str, None]:
    """Return the custom ids of a call of which new jobs will come."""
    owners = {custom_id: engine.index.get(custom_id) for custom_id in custom_ids}
    return {
        custom_id: None
        for custom_id, owner in owners.items()
        if owner is None or owner.place not in LIVE
    }


def _custom_id(own: Mapping[str, Any] | None) -> str | None:
    """Return the caller's own id: PUSH calls it jobId, batches customId; both are taken."""
    return None if own is None else own.get("jobId") or own.get("customId") or None


def _check_edges(
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
    for some, weighs in weighed(tied, NAMED_PER_STEP, lambda each: _edges_and_one(each[1])):
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


def _refusal(
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
            problem = None if owner.place == ACTIVE else _loss_refusal(own, owner.id)
    if labelled is None or problem is not None or not group_id:
        return problem
    if not (key and keys.owner_of(queue, key, now)):
        problem = full_group(queue, own, labelled[group_id])
        labelled[group_id] += 1
    return problem


def _clash(
    queue: Queue,
    entries: Sequence[Entry],
    custom_ids: Sequence[str | None],
    batch: Mapping[str, None],
    now: int,
) -> str | None:
    """Return why an entry of a batch cannot have what those before it leave of it, or None.

    Args:
        batch: Custom ids of this call whose jobs are still to come.
    """
    to_come = dict(batch)
    holders: dict[str, str | None] = {}  # key -> id of who will have it, None for one made here
    awaited: set[str] = set()
    gone: set[str] = set()
    labelled: Counter[str] = Counter()
    for (_, _, options, own), custom_id in zip(entries, custom_ids, strict=True):
        if own is None or (custom_id and custom_id not in to_come):
            continue  # a twin is not added
        to_come.pop(custom_id or "", None)
        key, depends_on = own.get("uniqueKey"), own.get("dependsOn") or ()
        replaces = False
        if key:
            owner = keys.owner_of(queue, key, now)
            is_held = key in holders or owner is not None
            if is_held and keys.strategy(options) != "replace":
                continue  # a twin too
            owner_id = None if owner is None or owner.place == ACTIVE else owner.id
            replaced_id = holders.get(key, owner_id)
            replaces = key in holders or owner_id is not None
            if replaced_id in awaited:
                return keys.irreplaceable(replaced_id)
            if replaced_id is not None:
                gone.add(replaced_id)
            holders[key] = custom_id
        for job_id in (linked_parent(own), *depends_on):
            if job_id in gone:
                return _loss_refusal(own, job_id)
        group_id = own.get("groupId")
        if group_id and not replaces:
            problem = full_group(queue, own, labelled[group_id])
            if problem:
                return problem
            labelled[group_id] += 1
        awaited.update(depends_on)
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


def _edge_refusal(
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


def _loss_refusal(own: Mapping[str, Any], replaced_id: str) -> str | None:
    """Return why the push cannot do without the job whose key it takes, or None."""
    if linked_parent(own) == replaced_id:
        return f"Parent job not found: {replaced_id}"
    if replaced_id in (own.get("dependsOn") or ()):
        return f"Dependency job not found: {replaced_id}"
    return None


def _own_refusal(own: Mapping[str, Any], custom_id: str | None) -> str | None:
    """Return what is wrong with the push itself, whoever lives already, or None."""
    if own.get("repeat") is not None:
        return repeats.refusal(own)
    if custom_id is not None and linked_parent(own) == custom_id:
        return OWN_PARENT
    return None


def _admit_plain(
    engine: "Engine", queue: Queue, name: str, data: bytes, options: JobOptions, now: int
) -> Job:
    """Put a job without any option of its own into the run set."""
    storage = engine.storage
    seq = engine.seq = engine.seq + 1
    job = Job(engine.ids.new(now), seq, queue, name, data, options, 0, now, now, QUEUED)
    engine.index.put(job)
    queue.run_set.enter(job, now)
    engine.totals.pushed += 1
    storage.added(job)
    if engine.listeners:
        emit(engine, "pushed", queue.name, job.id, now, data)
    else:
        queue.events_total += 1
    if queue.waiters:
        engine.serve(queue, now)
    return job


if not TYPE_CHECKING and compiled.IS_COMPILED:
    _admit_plain = compiled.part("hot").admit_plain


def _admit_all_plain(
    engine: "Engine", queue: Queue, entries: Sequence[Entry], now: int
) -> list[str]:
    """Put jobs without any option of their own into the run set; return their ids.

    As ``_admit_plain`` of each; in one go, 0.7 us a job less, where nobody looks on.
    """
    if compiled.IS_COMPILED or engine.listeners or queue.waiters or not entries:
        return [
            _admit_plain(engine, queue, name, data, DEFAULT_OPTIONS, now).id
            for name, data, _, _ in entries
        ]
    storage = engine.storage
    new_id = engine.ids.new
    jobs = [
        Job(new_id(now), seq, queue, name, data, DEFAULT_OPTIONS, 0, now, now, QUEUED)
        for seq, (name, data, _, _) in enumerate(entries, engine.seq + 1)
    ]
    engine.seq += len(jobs)
    engine.index.put_all(jobs)
    queue.run_set.enter_all(jobs)
    engine.totals.pushed += len(jobs)
    queue.events_total += len(jobs)
    added = storage.added
    for job in jobs:
        added(job)
    return [job.id for job in jobs]


def _admit_later(engine: "Engine", queue: Queue, entry: Entry, now: int) -> str:
    """Admit a job without any option of its own that becomes visible after its commit."""
    hidden: list[Hidden] = []
    job_id = _hide_plain(engine, queue, entry, hidden, now)
    engine.storage.added(hidden[0][0])
    engine.storage.sync(withdraw, (engine, *hidden[0]), publish)
    return job_id


def _admit(
    engine: "Engine",
    queue: Queue,
    entry: Entry,
    custom_id: str | None,
    now: int,
    batch: Mapping[str, None] = NO_IDS,
    hidden: "list[Hidden] | None" = None,
    is_together: bool = False,
) -> str:
    """Admit a job with options; its shard, its id's old owner's and its parent's are locked.

    Args:
        batch: Custom ids of the same call whose jobs are still to come.
        hidden: Gets the job, which stays invisible and is not written.
        is_together: It becomes visible with others, after the commit.
    """
    name, data, options, own = entry
    if own is None:
        if is_together:
            return _admit_later(engine, queue, entry, now)
        return _admit_plain(engine, queue, name, data, options, now).id
    old = engine.index.get(custom_id) if custom_id else None
    if old is not None and old.place in LIVE:
        problem = _own_refusal(own, custom_id)
        if problem:
            raise Refused(problem)
        return _twin(engine, old)
    problem = _edge_refusal(engine, own, custom_id, batch)
    if problem:
        raise Refused(problem)
    key = own.get("uniqueKey") or None
    replaced = robbed = None
    if key is not None:
        owner = keys.owner_of(queue, key, now)
        if owner is not None:
            until = owner.extra.unique_until
            if not keys.meet(engine, queue, owner, key, options, now, batch is not NO_IDS):
                is_undone = is_together or hidden is not None
                if keys.strategy(options) == "extend" and is_undone:
                    engine.storage.sync(keys.unextend, (engine, owner, key, until))
                elif keys.strategy(options) == "reject":
                    told = (engine, "duplicated", queue.name, owner.id, now)
                    if owner.place == ADMITTED:
                        # Its own admission is told first, if it comes to it.
                        engine.storage.sync(None, told, emit)
                    elif is_undone:
                        announce(*told)
                    else:
                        emit(*told)
                return _twin(engine, owner)
            if owner.place == ACTIVE:
                robbed = owner
            else:
                problem = _loss_refusal(own, owner.id)
                if problem:
                    raise Refused(problem)
                replaced = owner
    full = None if replaced is not None else full_group(queue, own, 0)
    if full is not None:
        raise Refused(full)
    if batch is NO_IDS and engine.storage.is_refusing:
        raise backlog_is_full()
    job = new_job(engine, queue, entry, custom_id, now)
    is_tied = bool(job.extra.depends_on or job.extra.children_ids)
    waits = is_tied and dependencies.waits_for_commit(engine, job.extra.depends_on)
    # What ends with this admission leaves memory now and comes back if the commit fails.
    ended = [(gone, remember(gone)) for gone in (old, replaced) if gone is not None]
    for gone, _ in ended:
        _retire(engine, gone)
        if hidden is None:
            engine.storage.removed(gone)
    had_until = None
    if key is not None:
        if robbed is not None:
            had_until = keys.lose(robbed)
            if hidden is None:
                engine.storage.rewritten(robbed)
        ttl = (options.deduplication or {}).get("ttl")
        keys.take(queue, job, key, now + int(ttl) if ttl else None)
    if custom_id is not None and custom_id in engine.graph.proofs:
        is_referred_to = custom_id in engine.graph.consumers
        proof = proofs.drop(engine, custom_id)
        waits = waits or is_referred_to or linked_parent(own) is not None
        if options.durable or ended or waits or is_together:
            engine.storage.sync(_reprove, (engine, custom_id, proof))
        if is_referred_to:
            dependencies.outlive(engine, custom_id)
    engine.index.put(job)
    if is_tied:
        dependencies.tie(engine, job, batch)
        if job.extra.flow is not None and job.extra.flow.missing:
            dependencies.begin_parked(job, now)
    if hidden is not None:
        job.place = ADMITTED
        queue.admitted[job.id] = job
        hidden.append((job, ended, robbed, had_until, now))
        return job.id
    engine.storage.added(job)
    parent_id = linked_parent(own)
    if parent_id is not None:
        parent = engine.index.get(parent_id)
        assert parent is not None
        link(engine, parent, job.id, now)
        waits = True
    if options.durable or ended or waits or is_together:
        job.place = ADMITTED
        queue.admitted[job.id] = job
        args = (engine, job, ended, robbed, had_until, now)
        engine.storage.sync(withdraw, args, publish, durable=bool(options.durable))
    else:
        _enter(engine, job, now)
    return job.id


def new_job(engine: "Engine", queue: Queue, entry: Entry, custom_id: str | None, now: int) -> Job:
    name, data, options, own = entry
    assert own is not None
    stamp = own.get("timestamp")
    created_at = now if stamp is None else int(stamp)
    run_at = created_at + int(own.get("delay") or 0)
    seq = engine.seq = engine.seq + 1
    priority = int(own.get("priority") or 0)
    if options.repeat is not None:
        options = engine.options_with(options, "repeat", repeats.normalised(options.repeat))
    job_id = custom_id or engine.ids.new(now)
    job = Job(job_id, seq, queue, name, data, options, priority, created_at, run_at, QUEUED)
    if custom_id:
        job.own_extra().is_custom_id = True
    if abs(created_at - now) > STAMP_SLACK_MS:  # the first line tells of the admission
        job.own_extra().timeline = [[state_of(job, now), now, None, None]]
    if own.get("groupId"):
        job.own_extra().group_id = own["groupId"]
    parent_id, children_ids = own.get("parentId"), own.get("childrenIds")
    if parent_id:
        job.own_extra().parent_id = parent_id
    if children_ids:
        job.own_extra().children_ids = dict.fromkeys(children_ids)
    if own.get("dependsOn"):
        job.own_extra().depends_on = dict.fromkeys(own["dependsOn"])
    return job


def _reprove(engine: "Engine", job_id: str, proof: proofs.Proof) -> None:
    """Undo the dropping of a proof whose successor could not be committed."""
    proofs.add(engine, job_id, proof, job_id in engine.graph.consumers)


def _twin(engine: "Engine", owner: Job) -> str:
    """Answer for a newcomer with the live job that holds its id or key."""
    if owner.place == ADMITTED:
        engine.storage.sync()
    return owner.id


def _retire(engine: "Engine", job: Job) -> None:
    """Take an ended generation out of memory, for its successor."""
    if job.id in engine.graph.consumers:
        dependencies.outlive(engine, job.id)
    if job.extra.flow is not None:
        dependencies.untie(engine, job)
    take_out(engine, job)
    keys.release(job)
    engine.index.drop(job)
    stop_ttl(engine, job)
    job.place = GONE


def _enter(engine: "Engine", job: Job, now: int) -> None:
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
    engine.totals.pushed += 1
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    if engine.listeners:
        emit(engine, "pushed", queue.name, job.id, now, job.data)
    else:
        queue.events_total += 1
    if queue.waiters:  # the commit may have taken its time, which is none of the lease's
        engine.serve(queue, engine.time_after(now))


def publish(
    engine: "Engine",
    job: Job,
    ended: Sequence[tuple[Job, Memory]],
    _robbed: Job | None,
    _had_until: int | None,
    now: int,
) -> None:
    """Show the job after its commit."""
    if job.place != ADMITTED:
        return  # obliterated meanwhile
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
    _enter(engine, job, now)


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
    for gone, memory in reversed(ended):
        put_back(engine, gone, memory, now)
    if robbed is not None and robbed.place in LIVE:
        robbed.own_extra().unique_until = had_until
        keys.reclaim(robbed, now)
        engine.storage.rewritten(robbed)
