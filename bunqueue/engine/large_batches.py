"""How any number of jobs of one queue gets in: all or none, a slice at a time (``slices``).

1. survey: the ids and keys that the entries name are gathered, so that pushes which are about them
   can be put off from then on; a batch that turns out to be small is a ``push_batch``;
2. hide: the jobs are admitted in slices, invisible and not written yet; one that is refused on the
   way takes those before it out again, and so does a commit that fails: what a slice builds on may
   be undone, an end that has freed an id or a key, or a completion. Those that take the id or key
   of others are put off: until the batch is written, it has done nothing to anybody;
3. write: those are admitted, and all is written in one batch, in one step;
4. show, in slices, what is committed by then.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from bunqueue.engine import dependencies, keys
from bunqueue.engine.admission import admit, hide_plain, other_shards
from bunqueue.engine.arrivals import arriving
from bunqueue.engine.batch_admission import ids_to_come, push_batch
from bunqueue.engine.entries import (
    EDGES_PER_US,
    NAMED_PER_STEP,
    NAMED_PER_US,
    Entry,
    custom_id_of,
    edges_and_one,
    named,
)
from bunqueue.engine.flows import link, link_refusal, linked_parent
from bunqueue.engine.job import Job
from bunqueue.engine.keys import LIVE
from bunqueue.engine.locks import in_order
from bunqueue.engine.ports import WITHHELD
from bunqueue.engine.queue import Queue, Shard
from bunqueue.engine.refusals import (
    backlog_is_full,
    check_edges,
    clash,
    edge_refusal,
    entry_refusal,
    loss_refusal,
)
from bunqueue.engine.slices import COMMITTED, Work, parts, weighed
from bunqueue.engine.states import ACTIVE, ADMITTED
from bunqueue.engine.visibility import Hidden, show_all, withdraw_all
from bunqueue.errors import Refused, StorageFailed

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# How many jobs are admitted between two looks at what was spent, and what one costs:
# loadtests/hub.py push-batch, push-depends-on.
ADMITTED_AT_ONCE: Final = 2_500  # of a batch
OPTIONS_WEIGHT: Final = 8  # so many of them for one with options
ADMITTED_PER_STEP: Final = 50
ADMITTED_US: Final = 30
# How many may take something from others. They are admitted in one step, some 15 us each:
# loadtests/hub.py push-replacing.
TAKING_MAX: Final = 50_000


class _Survey(NamedTuple):
    """What the entries of a batch name.

    Attributes:
        custom_ids: Of each entry, or None.
        brought: The custom ids, in order.
        ids: Those and the ones that entries depend on.
        keys: (queue name, dedup key).
        weight: As many jobs without options take as long.
        has_options, has_edges, has_parents: Some entry has.
        may_redirect: Another job may answer for one that others of the batch depend on.
    """

    custom_ids: Sequence[str | None]
    brought: Mapping[str, None]
    ids: Set[str]
    keys: Set[tuple[str, str]]
    weight: int
    has_options: bool = True
    has_edges: bool = False
    has_parents: bool = False
    may_redirect: bool = False

    @property
    def is_about_others(self) -> bool:
        """Some entry names an id or a key that others have, or had."""
        return bool(self.ids or self.keys or self.has_edges)


class _SoFar:
    """What a batch has come to until now.

    Attributes:
        ids: Of each entry; empty of one that is put off.
        hidden: What was admitted.
        to_come: Custom ids of new jobs that were not.
        labelled: group -> how many were admitted for it.
        taking: Entries that are put off: their number, and the admission number of their job.
        names: Their custom ids, their keys as (key,), and the ids of those whose key they take.
        replaced: Those ids, if the job goes: who names it comes after that.
        awaited: The ids that they name, as what they depend on or as children.
    """

    __slots__ = ("ids", "hidden", "to_come", "labelled", "taking", "names", "replaced", "awaited")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.hidden: list[Hidden] = []
        self.to_come: dict[str, None] = {}
        self.labelled: Counter[str] = Counter()
        self.taking: list[tuple[int, int]] = []
        self.names: set[str | tuple[str]] = set()
        self.replaced: set[str] = set()
        self.awaited: set[str] = set()

    def put_off(
        self,
        engine: "Engine",
        queue: Queue,
        number: int,
        entry: Entry,
        custom_id: str | None,
        now: int,
    ) -> None:
        """Leave an entry for the end; those after it that are of its id or key must follow."""
        if len(self.taking) == TAKING_MAX:
            raise Refused(
                f"more than {TAKING_MAX} jobs of a batch would take the id or the key of others: "
                "add them in parts"
            )
        own = entry[3]
        assert own is not None
        engine.seq += 1
        self.taking.append((number, engine.seq))
        self.ids.append("")
        self.awaited.update(dependencies.edges_of(own))
        if custom_id is not None:
            self.names.add(custom_id)
            self.to_come |= ids_to_come(engine, [custom_id])
        if own.get("uniqueKey"):
            self.names.add((own["uniqueKey"],))
            owner = keys.owner_of(queue, own["uniqueKey"], now)
            if owner is not None:
                self.names.add(owner.id)
                if keys.strategy(entry[2]) == "replace" and owner.place != ACTIVE:
                    self.replaced.add(owner.id)


def push_many(
    engine: "Engine", queue_name: str, entries: Sequence[Entry], now: int
) -> Work[list[str]]:
    """Add any number of jobs to one queue, all or none; ids come back in order.

    Raises:
        Refused: As ``push_batch``.
        StorageFailed: The backlog is full, or they could not be written.
    """
    survey, now = yield from _surveyed(queue_name, entries, now)
    # From here on nobody comes in before the ids and keys are noted as this call's.
    while any(arrival.concerns(survey.ids, survey.keys) for arrival in engine.arriving):
        now = yield COMMITTED
    # Another job may answer for one on whom others depend; a proof changes with its successor.
    is_entangled = survey.may_redirect or engine.graph.proofs.has_any(survey.brought)
    if is_entangled or survey.weight <= ADMITTED_AT_ONCE:
        answer = push_batch(engine, queue_name, entries, now)
        assert isinstance(answer, list)  # nothing arrives that it is about
        return answer
    so_far = _SoFar()
    hidden = so_far.hidden
    with arriving(engine, survey.brought, survey.keys, lambda: [job for job, *_ in hidden]):
        if survey.has_options:
            for spent_us in check_edges(engine, entries, survey.custom_ids, survey.brought):
                now = yield spent_us
        try:
            now = yield from _hide(engine, queue_name, entries, survey, so_far, now)
            begin = len(hidden)
            if survey.has_parents:
                _check_links(engine, entries, so_far)
            if so_far.taking:
                _take(engine, queue_name, entries, survey, so_far, now)
        except (Refused, StorageFailed):
            withdraw_all(engine, hidden)
            raise
        ids = so_far.ids
        pairs = _to_link(engine, hidden, entries, ids) if survey.has_parents else []
        _write(engine, hidden)
        _link(engine, pairs, now)
        is_durable = survey.has_options and any([job.options.durable for job, *_ in hidden])
        engine.storage.sync(withdraw_all, (engine, hidden), durable=is_durable)
    now = yield COMMITTED
    in_order_of_entries = heapq.merge(
        islice(hidden, begin), islice(hidden, begin, None), key=_seq_of
    )
    yield from show_all(engine, in_order_of_entries if so_far.taking else hidden, now)
    return ids


def _surveyed(queue_name: str, entries: Sequence[Entry], now: int) -> Work[tuple[_Survey, int]]:
    """Look at what the entries name; return that, and the time."""
    owns = [own for _, _, _, own in entries]
    given = len(owns) - owns.count(None)
    if not given:
        now = yield len(owns)
        return _Survey([None] * len(owns), {}, set(), set(), len(owns), has_options=False), now
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    custom_ids: list[str | None] = []
    edges = 0
    has_parents = has_dependencies = has_ids_with_keys = False
    for some, weighs in weighed(owns, NAMED_PER_STEP, edges_and_one):
        of_some = named(queue_name, some)
        ids |= of_some[0]
        keys |= of_some[1]
        custom_ids += map(custom_id_of, some)
        edges += weighs - len(some)
        for own in filter(None, some):
            has_parents = has_parents or "parentId" in own
            has_dependencies = has_dependencies or bool(own.get("dependsOn"))
            has_ids_with_keys |= bool(own.get("uniqueKey") and custom_id_of(own))
        now = yield weighs // NAMED_PER_US
    survey = _Survey(
        custom_ids,
        dict.fromkeys(filter(None, custom_ids)),
        ids,
        keys,
        len(owns) + (OPTIONS_WEIGHT - 1) * given + edges // dependencies.EDGES_PER_JOB,
        has_edges=edges > 0,
        has_parents=has_parents,
        may_redirect=has_dependencies and has_ids_with_keys,
    )
    return survey, now


def _hide(
    engine: "Engine",
    queue_name: str,
    entries: Sequence[Entry],
    survey: _Survey,
    so_far: _SoFar,
    now: int,
) -> Work[int]:
    """Admit jobs of a batch one after the other, invisible; return the time."""
    custom_ids, hidden, ids, to_come = (
        survey.custom_ids, so_far.hidden, so_far.ids, so_far.to_come
    )  # fmt: skip
    for some in parts(filter(None, custom_ids), NAMED_PER_STEP):
        to_come |= ids_to_come(engine, some)
        now = yield len(some) // EDGES_PER_US

    def weight(number: int) -> int:
        return 1 + dependencies.edges_in(entries[number][3]) // dependencies.EDGES_PER_JOB

    all_numbers, weight_of = range(len(entries)), weight if survey.has_edges else None
    for numbers, weighs in weighed(all_numbers, ADMITTED_PER_STEP, weight_of):
        if engine.storage.is_refusing:
            raise backlog_is_full()
        queue = engine.open_queue(queue_name)
        begin = len(hidden)
        with engine.identity_lock, in_order(_shards(engine, queue, entries, survey, numbers)):
            for number in numbers:
                entry, custom_id = entries[number], custom_ids[number]
                if entry[3] is None:
                    ids.append(hide_plain(engine, queue, entry, hidden, now))
                    continue
                if _takes(engine, queue, entry, custom_id, so_far, now):
                    so_far.put_off(engine, queue, number, entry, custom_id, now)
                    continue
                problem = entry_refusal(engine, queue, entry, custom_id, so_far.labelled, now)
                if problem:
                    raise Refused(problem)
                ids.append(admit(engine, queue, entry, custom_id, now, to_come, hidden))
                to_come.pop(custom_id or "", None)
        if survey.is_about_others:
            waits = engine.storage.answer_waits
            engine.storage.sync(withdraw_all, (engine, hidden, begin))
            engine.storage.answer_waits = waits  # nothing is written yet: the next slice may come
        admitted = len(hidden)
        now = yield weighs * ADMITTED_US
        if len(hidden) < admitted:
            raise StorageFailed("what the batch builds on could not be written")
    return now


def _shards(
    engine: "Engine",
    queue: Queue,
    entries: Sequence[Entry],
    survey: _Survey,
    numbers: Iterable[int],
) -> set[Shard]:
    """Return the shards of the jobs that some entries may change."""
    shards = {queue.shard}
    for number in numbers:
        own = entries[number][3]
        if own is not None:
            shards.update(other_shards(engine, own, survey.custom_ids[number]))
    return shards


def _takes(
    engine: "Engine",
    queue: Queue,
    entry: Entry,
    custom_id: str | None,
    so_far: _SoFar,
    now: int,
) -> bool:
    """Say whether an entry takes an id or key of others, or gives a key of theirs more time.

    Also if it relies on one whose commit is still to come, or comes after one that was put off.
    """
    _, _, options, own = entry
    assert own is not None
    key = own.get("uniqueKey") or None
    if custom_id in so_far.names or (key is not None and (key,) in so_far.names):
        return True
    if so_far.replaced and not so_far.replaced.isdisjoint(dependencies.edges_of(own)):
        return True
    if custom_id is not None:
        old = engine.index.get(custom_id)
        if old is not None:
            return not old.dirty & WITHHELD and (old.place not in LIVE or old.place == ADMITTED)
        if custom_id in engine.graph.proofs:
            return True
    owner = None if key is None else keys.owner_of(queue, key, now)
    if owner is None:
        return False
    if owner.dirty & WITHHELD:
        return owner.id in so_far.awaited and keys.strategy(options) == "replace"
    return owner.place == ADMITTED or keys.strategy(options) != "reject"


def _take(
    engine: "Engine",
    queue_name: str,
    entries: Sequence[Entry],
    survey: _Survey,
    so_far: _SoFar,
    now: int,
) -> None:
    """Admit the entries that were put off."""
    queue = engine.open_queue(queue_name)
    numbers = [number for number, _ in so_far.taking]
    some = [entries[number] for number in numbers]
    custom_ids = [survey.custom_ids[number] for number in numbers]
    hidden, to_come = so_far.hidden, ids_to_come(engine, filter(None, custom_ids))
    with engine.identity_lock, in_order(_shards(engine, queue, entries, survey, numbers)):
        for entry, custom_id in zip(some, custom_ids, strict=True):
            problem = entry_refusal(engine, queue, entry, custom_id, None, now)
            if not problem and (survey.has_edges or survey.has_parents):
                problem = edge_refusal(engine, entry[3] or {}, custom_id, to_come)
            if problem:
                raise Refused(problem)
        problem = clash(engine, queue, some, custom_ids, to_come, so_far.labelled, now)
        if problem:
            raise Refused(problem)
        for (number, seq), entry, custom_id in zip(so_far.taking, some, custom_ids, strict=True):
            admitted = len(hidden)
            so_far.ids[number] = admit(engine, queue, entry, custom_id, now, to_come, hidden)
            to_come.pop(custom_id or "", None)
            if len(hidden) > admitted:
                hidden[-1][0].seq = seq


def _seq_of(hidden: Hidden) -> int:
    return hidden[0].seq


def _check_links(engine: "Engine", entries: Sequence[Entry], so_far: _SoFar) -> None:
    """Ask whether what was admitted can be linked to its parents, before anything is taken.

    Raises:
        Refused: A parent has begun or gone while the others were admitted; or the batch replaces
            it, or its child.
    """
    new = {job.id for job, *_ in so_far.hidden}
    replaced = {
        gone.id for _, ended, *_ in so_far.hidden for gone, _ in ended if gone.dirty & WITHHELD
    } | so_far.replaced
    for (_, _, _, own), job_id in zip(entries, so_far.ids, strict=True):
        parent_id = None if own is None else linked_parent(own)
        if own is not None and parent_id is not None and job_id in new:
            problem = link_refusal(engine, own, parent_id, job_id)
            if problem is None and parent_id in replaced:
                problem = loss_refusal(own, parent_id)
            if problem is None and job_id in replaced:
                problem = keys.irreplaceable(job_id)
            if problem is not None:
                raise Refused(problem)
        new.discard(job_id)  # a twin that comes later links nothing


def _to_link(
    engine: "Engine", hidden: Sequence[Hidden], entries: Sequence[Entry], ids: Sequence[str]
) -> list[tuple[Job, Job]]:
    """Return the new jobs that are to be linked to a parent, each with that."""
    new = {job.id: job for job, *_ in hidden}
    pairs = []
    for (_, _, _, own), job_id in zip(entries, ids, strict=True):
        parent_id = None if own is None else linked_parent(own)
        job = new.pop(job_id, None)  # a twin that comes later links nothing
        parent = None if parent_id is None else engine.index.get(parent_id)
        if job is not None and parent is not None and job.place == ADMITTED:
            pairs.append((job, parent))
    return pairs


def _write(engine: "Engine", hidden: Sequence[Hidden]) -> None:
    """Note all that was admitted, and what it ended.

    In one batch, and so in one step of the hub: 0.3 us a job, 0.6 in pure Python.
    """
    added = engine.storage.added
    for job, ended, robbed, _, _ in hidden:
        job.dirty = 0
        if job.place == ADMITTED:  # it has not been obliterated meanwhile
            added(job)
        for gone, _ in ended:
            engine.storage.removed(gone)
        if robbed is not None:
            engine.storage.rewritten(robbed)


def _link(engine: "Engine", pairs: Sequence[tuple[Job, Job]], now: int) -> None:
    """Make the parents wait for their new children."""
    shards = {job.queue.shard for pair in pairs for job in pair}
    with engine.identity_lock, in_order(shards):
        for job, parent in pairs:
            link(engine, parent, job.id, now)
