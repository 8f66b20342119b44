"""How a whole flow gets in: all of its jobs in one commit, or none (engine.md 5.5).

The plan comes as an iterator that checks each job as it is asked for. A small flow is taken in one
go. A large one is taken in slices, between which others are served, and so are its jobs shown
after the commit; only the admission itself is one step, because no id of the flow may be taken by
anybody between the look for it and the job's entry: 10,000 jobs take some 30 ms.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bunqueue.engine import admission, dependencies
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.locks import in_order
from bunqueue.engine.queue import Queue
from bunqueue.engine.states import ADMITTED
from bunqueue.errors import Refused, StorageFailed
from bunqueue.protocol.options import JobOptions

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

PLANNED_PER_SLICE: Final = 500  # jobs checked in one go: some ms
PLANNED_BYTES_PER_SLICE: Final = 1 << 20  # the same for large payloads
SHOWN_PER_SLICE: Final = 1000  # jobs made visible in one go: some ms

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


class _Flow:
    """A large flow on its way in.

    Attributes:
        plan: Jobs still to come.
        jobs: Those that have come, or been admitted.
        shown: What the answer holds of them.
        later: Whoever asked, or None if the answer leaves by itself.
        at: How many have been made visible.
    """

    __slots__ = ("plan", "planned", "jobs", "show", "shown", "later", "at")

    def __init__(self, plan: Iterator[FlowJob], show: Show) -> None:
        self.plan = plan
        self.planned: list[FlowJob] = []
        self.jobs: list[Job] = []
        self.show = show
        self.shown: list[bytes] = []
        self.later: Later | None = None
        self.at = 0

    def take(self) -> bool:
        """Take one slice of the plan; return whether that was all."""
        size_bytes = 0
        for _ in range(PLANNED_PER_SLICE):
            job = next(self.plan, None)
            if job is None:
                return True
            self.planned.append(job)
            size_bytes += len(job.data)
            if size_bytes > PLANNED_BYTES_PER_SLICE:
                break
        return False


def push_flow(
    engine: "Engine", plan: Iterator[FlowJob], show: Show, now: int
) -> list[bytes] | Later:
    """Admit all jobs of a plan, or none.

    Args:
        plan: Yields the jobs; raises ``Refused`` at the first rule that is broken.
        show: Makes what the answer holds of a job.

    Returns:
        What ``show`` made of each job, in the order of the plan. A ``Later`` resolves to that, or
        to the exception that ended it.

    Raises:
        Refused: A rule is broken, or an id is taken; nothing was admitted.
        StorageFailed: The backlog is full.
    """
    flow = _Flow(plan, show)
    if flow.take():
        _admit(engine, flow, now)
        return flow.shown
    flow.later = Later()
    engine.timers.add(now, _plan_on, engine, flow)
    return flow.later


def _plan_on(engine: "Engine", flow: _Flow, now: int) -> None:
    assert flow.later is not None
    try:
        if flow.take():
            _admit(engine, flow, now)
        else:
            engine.timers.add(now + 1, _plan_on, engine, flow)
    except (Refused, StorageFailed) as error:
        flow.later.resolve(error)


def _admit(engine: "Engine", flow: _Flow, now: int) -> None:
    """Admit what has been planned, to be shown after its commit."""
    queues = {name: engine.open_queue(name) for name in {job.queue_name for job in flow.planned}}
    with engine.identity_lock, in_order({queue.shard for queue in queues.values()}):
        _refuse(engine, flow.planned, queues)
        to_come = {job.id: None for job in flow.planned}
        storage, index = engine.storage, engine.index
        for planned in flow.planned:
            queue = queues[planned.queue_name]
            entry = (planned.name, planned.data, planned.options, planned.own)
            job = admission.new_job(engine, queue, entry, planned.id, now)
            extra = job.own_extra()
            extra.is_custom_id = bool(planned.own.get("customId"))
            index.put(job)
            if extra.depends_on or extra.children_ids:
                dependencies.tie(engine, job, to_come)
                if extra.depends_on:
                    dependencies.begin_parked(job, now)
            job.place = ADMITTED
            queue.admitted[job.id] = job
            storage.added(job)
            flow.jobs.append(job)
        flow.planned.clear()
    if flow.later is None:
        flow.shown = list(map(flow.show, flow.jobs))
    storage.sync(_withdraw, (engine, flow, now), _show_on, durable=True)


def _refuse(engine: "Engine", planned: list[FlowJob], queues: dict[str, Queue]) -> None:
    """Refuse ids that somebody has or had, and groups that are full."""
    index, graph, retired = engine.index, engine.graph, engine.retired
    labelled: Counter[tuple[str, str]] = Counter()
    for job in planned:
        if (
            index.get(job.id) is not None
            or job.id in graph.proofs
            or job.id in graph.consumers
            or retired.has_id(job.id)
        ):
            raise Refused(f"Flow job {job.id} already exists")
        group_id = job.own.get("groupId")
        if group_id:
            label = job.queue_name, group_id
            problem = admission.full_group(queues[job.queue_name], job.own, labelled[label])
            if problem is not None:
                raise Refused(problem)
            labelled[label] += 1
    if engine.storage.is_refusing:
        raise StorageFailed("the write backlog is full")


def _show_on(engine: "Engine", flow: _Flow, now: int) -> None:
    """Make the next slice visible, and answer after the last."""
    later = flow.later
    end = len(flow.jobs) if later is None else flow.at + SHOWN_PER_SLICE
    for job in flow.jobs[flow.at : end]:
        if later is not None:
            flow.shown.append(flow.show(job))
        admission.publish(engine, job, (), None, None, now)
    flow.at = end
    if later is None:
        return
    if end < len(flow.jobs):
        engine.timers.add(max(now, engine.last_now) + 1, _show_on, engine, flow)
    else:
        later.resolve(flow.shown)


def _withdraw(engine: "Engine", flow: _Flow, now: int) -> None:
    """Take everything out again whose commit failed."""
    for job in reversed(flow.jobs):
        admission.withdraw(engine, job, (), None, None, now)
    if flow.later is not None:
        flow.later.resolve(StorageFailed("the flow could not be written"))
