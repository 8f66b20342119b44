"""How a whole flow gets in: all of its jobs in one commit, or none (engine.md 5.5).

The plan comes as an iterator that checks each job as it is asked for. A small flow is taken in one
go. A large one is taken in slices, between which others are served:

1. plan: every job is checked and made, and nobody knows of it;
2. reserve, in one step: no id of the flow is anybody's, and now all of them are the flow's;
3. tie: the jobs get their edges, and wait in ``admitted``, invisible; pushes that are about one of
   these ids are put off until the end of this step, so that they share the flow's commit;
4. commit, all in one batch;
5. show: they become visible and claimable.

Nothing can be refused after step 2; a commit that fails takes everything out again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bunqueue.engine import admission, dependencies
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.locks import in_order
from bunqueue.engine.ports import NO_WAIT
from bunqueue.engine.states import ADMITTED
from bunqueue.errors import Refused, StorageFailed
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

JOBS_PER_SLICE: Final = 250  # in each step but the second: a few ms
BYTES_PER_SLICE: Final = 1 << 20  # the same for large payloads

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


class Flow:
    """A flow on its way in.

    Attributes:
        plan: Jobs still to come.
        planned: What has come, for the second step.
        jobs: What has been made of it.
        show, shown: What the answer holds of the jobs.
        later: Whoever asked, or None if the answer leaves by itself.
        at: How many jobs the present step has dealt with.
        ids: Of its jobs, once they are the flow's.
        waiting: Pushes that are put off until it is in: their answers, functions and arguments.
    """

    __slots__ = ("plan", "planned", "jobs", "show", "shown", "later", "at", "ids", "waiting")

    def __init__(self, plan: Iterator[FlowJob | None], show: Show) -> None:
        self.plan = plan
        self.planned: list[FlowJob] = []
        self.jobs: list[Job] = []
        self.show = show
        self.shown: list[bytes] = []
        self.later: Later | None = None
        self.at = 0
        self.ids: frozenset[str] = frozenset()
        self.waiting: list[tuple[Later, Callable[..., Any], tuple[Any, ...]]] = []

    def slice(self) -> list[Job]:
        """Return the next jobs of the present step; all of them in a small flow."""
        end = len(self.jobs) if self.later is None else self.at + JOBS_PER_SLICE
        jobs = self.jobs[self.at : end]
        self.at += len(jobs)
        return jobs

    @property
    def is_through(self) -> bool:
        """The present step has dealt with all jobs."""
        return self.at >= len(self.jobs)


def push_flow(
    engine: "Engine", plan: Iterator[FlowJob | None], show: Show, now: int
) -> list[bytes] | Later:
    """Admit all jobs of a plan, or none.

    Args:
        plan: Yields the jobs, and None where it may be interrupted too; raises ``Refused`` at the
            first rule that is broken.
        show: Makes what the answer holds of a job.

    Returns:
        What ``show`` made of each job, in the order of the plan. A ``Later`` resolves to that, or
        to the exception that ended it.

    Raises:
        Refused: A rule is broken, or an id is taken; nothing was admitted.
        StorageFailed: The backlog is full.
    """
    flow = Flow(plan, show)
    if _take(engine, flow, now):
        _reserve(engine, flow)
        _tie(engine, flow, now)
        return flow.shown
    flow.later = Later()
    engine.timers.add(now, _plan_on, engine, flow)
    return flow.later


def _plan_on(engine: "Engine", flow: Flow, now: int) -> None:
    assert flow.later is not None
    try:
        if not _take(engine, flow, now):
            engine.timers.add(now + 1, _plan_on, engine, flow)
            return
        _reserve(engine, flow)
    except (Refused, StorageFailed) as error:
        flow.later.resolve(error)
    else:
        engine.timers.add(now + 1, _tie, engine, flow)


def _take(engine: "Engine", flow: Flow, now: int) -> bool:
    """Make the next slice of jobs; return whether that was all."""
    size_bytes = 0
    for _ in range(JOBS_PER_SLICE):
        try:
            planned = next(flow.plan)
        except StopIteration:
            return True
        if planned is None:
            continue
        queue = engine.open_queue(planned.queue_name)
        entry = (planned.name, planned.data, planned.options, planned.own)
        job = admission.new_job(engine, queue, entry, planned.id, now)
        job.own_extra().is_custom_id = bool(planned.own.get("customId"))
        job.place = ADMITTED
        flow.jobs.append(job)
        flow.planned.append(planned)
        size_bytes += len(planned.data)
        if size_bytes > BYTES_PER_SLICE:
            break
    return False


def _reserve(engine: "Engine", flow: Flow) -> None:
    """Take all ids, or none."""
    with engine.identity_lock:
        _refuse(engine, flow)
        put = engine.index.put
        for job in flow.jobs:
            put(job)
        if flow.later is not None:
            flow.ids = frozenset(job.id for job in flow.jobs)
            engine.arriving.append(flow)


def _refuse(engine: "Engine", flow: Flow) -> None:
    """Refuse ids that somebody has or had, and groups that are full."""
    graph, find = engine.graph, engine.index.get
    ids = {job.id for job in flow.jobs}
    taken = ids & graph.consumers.keys() | ids & graph.proofs.free.keys()
    taken |= ids & graph.proofs.pinned.keys() | ids & engine.retired.ids.keys()
    labelled: Counter[tuple[str, str]] = Counter()
    for planned in flow.planned:
        if planned.id in taken or find(planned.id) is not None:
            raise Refused(f"Flow job {planned.id} already exists")
        group_id = planned.own.get("groupId")
        if group_id:
            label = planned.queue_name, group_id
            queue = engine.open_queue(planned.queue_name)
            problem = admission.full_group(queue, planned.own, labelled[label])
            if problem is not None:
                raise Refused(problem)
            labelled[label] += 1
    if engine.storage.is_refusing:
        raise StorageFailed("the write backlog is full")


def _tie(engine: "Engine", flow: Flow, now: int) -> None:
    """Give the next slice its edges; after the last, commit."""
    jobs = flow.slice()
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
            if flow.later is None:
                flow.shown.append(flow.show(job))
    if not flow.is_through:
        engine.timers.add(now + 1, _tie, engine, flow)
        return
    flow.at = 0
    added = engine.storage.added
    for job in flow.jobs:
        if job.place == ADMITTED:  # it has not been obliterated meanwhile
            added(job)
    engine.storage.sync(_withdraw, (engine, flow, now), _show, durable=True)
    if flow.later is not None:
        engine.arriving.remove(flow)
        for waiting in flow.waiting:
            _push_now(engine, *waiting)


def _push_now(
    engine: "Engine", later: Later, action: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do a push that was put off until the flow's commit is the next one."""
    engine.storage.answer_waits = NO_WAIT
    try:
        answer = action(engine, *args)
    except (Refused, StorageFailed) as error:
        answer = error
    if isinstance(answer, Later):  # it is about another flow too
        answer.then(later.resolve)
    else:
        later.resolve(answer, engine.storage.answer_waits)


def _show(engine: "Engine", flow: Flow, now: int) -> None:
    """Make the next slice visible, and answer after the last."""
    later = flow.later
    for job in flow.slice():
        if later is not None:
            flow.shown.append(flow.show(job))
        admission.publish(engine, job, (), None, None, now)
    if later is None:
        return
    if flow.is_through:
        later.resolve(flow.shown)
    else:
        engine.timers.add(max(now, engine.last_now) + 1, _show, engine, flow)


def _withdraw(engine: "Engine", flow: Flow, now: int) -> None:
    """Take everything out again whose commit failed."""
    for job in reversed(flow.jobs):
        admission.withdraw(engine, job, (), None, None, now)
    if flow.later is not None:
        flow.later.resolve(StorageFailed("the flow could not be written"))
