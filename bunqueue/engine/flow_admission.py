"""How a whole flow gets in: all of its jobs in one commit, or none (engine.md 5.5).

It is a work (``slices``): a large flow is taken in slices, between which others are served. The
plan comes as an iterator that checks each job as it is asked for.

1. plan: every job is checked and made, and nobody knows of it;
2. reserve, in one step: no id of the flow is anybody's, and now all of them are the flow's;
3. tie: the jobs get their edges, and wait in ``admitted``, invisible; pushes that are about one of
   these ids are put off until the end of this step, so that they share the flow's commit;
4. commit, all in one batch;
5. show: they become visible and claimable.

Nothing can be refused after step 2; a commit that fails takes everything out again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bunqueue.engine import dependencies
from bunqueue.engine.admission import new_job
from bunqueue.engine.arrivals import arriving
from bunqueue.engine.job import Job
from bunqueue.engine.locks import in_order
from bunqueue.engine.ports import WITHHELD
from bunqueue.engine.refusals import backlog_is_full, full_group
from bunqueue.engine.slices import COMMITTED, Work, weighed
from bunqueue.engine.states import ADMITTED
from bunqueue.engine.visibility import publish, show_all, withdraw
from bunqueue.errors import Refused
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# How much is done between two looks at what was spent, and what it costs: loadtests/hub.py
# push-flow.
STEP_US: Final = 1_000
PLANNED_US: Final = 25
EDGES_PER_US: Final = 4  # that are checked and made a map
BYTES_PER_US: Final = 200  # of a payload that is checked and packed
CHECKED_US: Final = 3
JOBS_PER_STEP: Final = 50
TIED_US: Final = 20
SHOWN_AT_ONCE: Final = 250  # a flow of so many is shown in one go, as soon as it is committed

Show = Callable[[Job], bytes]


class FlowJob(NamedTuple):
    """One planned job: checked, its data packed.

    Attributes:
        own: Its own options under their wire names.
    """

    id: str
    queue_name: str
    name: str
    data: bytes
    options: JobOptions
    own: Mapping[str, Any]


def push_flow(
    engine: "Engine", plan: Iterator[FlowJob | None], show: Show, now: int
) -> Work[list[bytes]]:
    """Admit all jobs of a plan, or none.

    Args:
        plan: Yields the jobs, and None where it may be interrupted too; raises ``Refused`` at the
            first rule that is broken.
        show: Makes what the answer holds of a job.

    Returns:
        What ``show`` made of each job, in the order of the plan.

    Raises:
        Refused: A rule is broken, or an id is taken; nothing was admitted.
        StorageFailed: The backlog is full, or the flow could not be written.
    """
    jobs, all_planned = [], []
    spent_us = 0
    for planned in plan:
        if planned is None:
            spent_us += CHECKED_US
        else:
            jobs.append(_made(engine, planned, now))
            all_planned.append(planned)
            spent_us += PLANNED_US + len(planned.data) // BYTES_PER_US
            spent_us += dependencies.edges_in(planned.own) // EDGES_PER_US
        if spent_us >= STEP_US:
            now = yield spent_us
            spent_us = 0
    ids = {job.id for job in jobs}
    # A large batch that has said which ids it brings may still be on its way to one of them.
    while any(arrival.concerns(ids, set()) for arrival in engine.arriving):
        now = yield COMMITTED
    with engine.identity_lock:
        _refuse(engine, jobs, all_planned)
        for job in jobs:  # numbered anew: what began since they were planned came before them
            job.seq = engine.seq = engine.seq + 1
            job.dirty = WITHHELD
            engine.index.put(job)
    undo = _withdraw, (engine, jobs, now)
    engine.storage.sync(*undo)  # an id may be free by what is undone yet
    shown: list[bytes] = []
    with arriving(engine, [job.id for job in jobs], (), lambda: jobs):
        yield spent_us + len(jobs)
        for some, weighs in weighed(jobs, JOBS_PER_STEP, dependencies.weight):
            _tie(engine, some, now)
            shown += map(show, some)
            yield weighs * TIED_US
        for job in jobs:
            job.dirty = 0
            if job.place == ADMITTED:  # it has not been obliterated meanwhile
                engine.storage.added(job)
        is_small = len(jobs) <= SHOWN_AT_ONCE
        then = _show if is_small else None
        engine.storage.sync(*undo, then, durable=True)
    if is_small:
        return shown
    now = yield COMMITTED
    yield from show_all(engine, ((job, (), None, None, now) for job in jobs), now)
    return shown


def _made(engine: "Engine", planned: FlowJob, now: int) -> Job:
    """Make a job that nobody knows of."""
    queue = engine.open_queue(planned.queue_name)
    entry = (planned.name, planned.data, planned.options, planned.own)
    job = new_job(engine, queue, entry, planned.id, now)
    job.own_extra().is_custom_id = bool(planned.own.get("customId"))
    job.place = ADMITTED
    return job


def _refuse(engine: "Engine", jobs: Sequence[Job], all_planned: Sequence[FlowJob]) -> None:
    """Refuse ids that somebody has or had, and groups that are full."""
    graph, find = engine.graph, engine.index.get
    ids = {job.id for job in jobs}
    taken = {each for each in ids & graph.consumers.keys() if dependencies.is_awaited(engine, each)}
    taken |= ids & graph.proofs.free.keys() | ids & graph.proofs.pinned.keys()
    taken |= ids & engine.retired.ids.keys()
    labelled: Counter[tuple[str, str]] = Counter()
    for planned in all_planned:
        if planned.id in taken or find(planned.id) is not None:
            raise Refused(f"Flow job {planned.id} already exists")
        group_id = planned.own.get("groupId")
        if group_id and not planned.own.get("dependsOn"):  # who is parked takes no room
            label = planned.queue_name, group_id
            queue = engine.open_queue(planned.queue_name)
            problem = full_group(queue, planned.own, labelled[label])
            if problem is not None:
                raise Refused(problem)
            labelled[label] += 1
    if engine.storage.is_refusing:
        raise backlog_is_full()


def _tie(engine: "Engine", jobs: Sequence[Job], now: int) -> None:
    """Give jobs their edges."""
    queues = {job.queue.name: engine.open_queue(job.queue.name) for job in jobs}
    with in_order({queue.shard for queue in queues.values()}):
        for job in jobs:
            # The queue's name may have been forgotten since it was looked up: it was empty.
            queue = job.queue = queues[job.queue.name]
            queue.admitted[job.id] = job
            extra = job.extra
            if extra.depends_on or extra.children_ids:
                dependencies.tie(engine, job)
                if extra.depends_on:
                    dependencies.begin_parked(job, now)


def _show(engine: "Engine", jobs: Sequence[Job], now: int) -> None:
    """Make jobs visible."""
    with engine.served_after():
        for job in jobs:
            publish(engine, job, (), None, None, now)


def _withdraw(engine: "Engine", jobs: Sequence[Job], now: int) -> None:
    """Take everything out again whose commit failed."""
    for job in reversed(jobs):
        withdraw(engine, job, (), None, None, now)
