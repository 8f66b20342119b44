"""Putting memory back when a commit fails.

Outcomes and control changes act in memory first and answer after their commit. If that fails, the
peer reads an error and the job must be as it was, lease included (engine.md 1.4 B): ``remember``
takes a picture of it beforehand, ``put_back`` restores it. The storage calls back newest first.
What was promised meanwhile stands: a plain push whose answer has left keeps the id or the key that
the undone operation had freed, and a run that it had made possible goes on.
"""

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from bunqueue.engine import keys
from bunqueue.engine.claiming import look_soon
from bunqueue.engine.dependencies import (
    FAILURES,
    completed_again,
    enter_again,
    record_key,
    register,
)
from bunqueue.engine.events import mark, retract
from bunqueue.engine.job import NO_EXTRA, Delivery, Extra, Job
from bunqueue.engine.places import put_in, take_out
from bunqueue.engine.states import ACTIVE, ADMITTED, COMPLETED, GONE, PARKED, QUEUED

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

_FIELDS = (
    "data",
    "options",
    "place",
    "priority",
    "run_at",
    "started_at",
    "finished_at",
    "attempts",
    "stall_count",
    "delivery",
    "token",
    "result",
)
_values_of = attrgetter(*_FIELDS)
_extra_values_of = attrgetter(*Extra.__slots__)
Memory = tuple[tuple[Any, ...], Extra, bool, int]
LightMemory = tuple[Job, str, Delivery | None, bool, int]


def remember(job: Job) -> Memory:
    """Take a picture of everything about the job that an operation may change."""
    return _values_of(job), _copy(job.extra), _owns_key(job), mark()


def _owns_key(job: Job) -> bool:
    key = job.extra.unique_key
    entry = None if key is None else job.queue.keys.get(key)
    return entry is not None and entry.job is job


def _copy(extra: Extra) -> Extra:
    if extra is NO_EXTRA:
        return NO_EXTRA
    copy = Extra.__new__(Extra)
    for name, value in zip(Extra.__slots__, _extra_values_of(extra), strict=True):
        kind = type(value)
        setattr(copy, name, value.copy() if kind is dict or kind is list else value)
    if extra.flow is not None:
        copy.flow = extra.flow.copy()
    return copy


def place_in(memory: Memory) -> str:
    """Return where the job was when the picture was taken."""
    place: str = memory[0][_FIELDS.index("place")]
    return place


def light_memory(job: Job) -> LightMemory:
    """Take the small picture that removing the job needs: nothing else of it changes."""
    return job, job.place, job.delivery, _owns_key(job), mark()


def put_all_back(engine: "Engine", memories: list[LightMemory], now: int) -> None:
    """Bring removed jobs back to the places where they were."""
    for job, place, delivery, owns_key, since in memories:
        if job.place != GONE or has_successor(engine, job):
            continue
        if engine.untold:
            retract(engine, job.queue.name, job.id, since)
        job.place = place
        job.delivery = delivery
        put_in(engine, job, now)
        if owns_key and not keys.reclaim(job, now):
            keys.lose(job)
        if job.options.ttl is not None and place == QUEUED:
            engine.arm_ttl(job)
        write_again(engine, job)
        look_soon(engine, job.queue)


def has_successor(engine: "Engine", job: Job) -> bool:
    """Say whether a newer generation has the job's id; then the old one stays gone."""
    holder = engine.index.get(job.id)
    return holder is not None and holder is not job


def _runs_anew(job: Job, memory: Memory) -> bool:
    """Say whether the job was handed out since; that answer leaves, so the run goes on."""
    return job.place == ACTIVE and job.delivery is not memory[0][_FIELDS.index("delivery")]


def put_back(engine: "Engine", job: Job, memory: Memory, now: int) -> None:
    """Restore the job to the picture, in memory and for the next batch."""
    values, extra, owns_key, since = memory
    if has_successor(engine, job):
        return
    if _runs_anew(job, memory):
        if job.extra.parent_id != extra.parent_id:  # of a link, the parent's side is undone too
            job.own_extra().parent_id = extra.parent_id
            job.data = values[_FIELDS.index("data")]
            engine.storage.rewritten(job)
        return
    if engine.untold:
        retract(engine, job.queue.name, job.id, since)
    was, flow = job.place, job.extra.flow
    take_out(engine, job)
    for name, value in zip(_FIELDS, values, strict=True):
        setattr(job, name, value)
    if job.place == ADMITTED and was in (QUEUED, PARKED):
        job.place = was  # its own commit has shown it since
    job.extra = extra
    put_in(engine, job, now)
    if job.place == COMPLETED and job.id in engine.graph.consumers:
        engine.graph.later(engine, completed_again, job)
    has_edges = extra.flow is not None and job.place not in (COMPLETED, GONE)
    if was == GONE and has_edges:
        enter_again(engine, job)  # what took it away since is not undone by itself: its ttl, say
    elif flow is not None and extra.flow is not None:
        if has_edges:
            register(engine, job)
        for child_id in flow.records.keys() - extra.flow.records.keys():
            engine.storage.delete(FAILURES, record_key(job.id, child_id))
        for child_id, record in extra.flow.records.items():
            if flow.records.get(child_id) != record:
                engine.storage.put(FAILURES, record_key(job.id, child_id), record)
    if owns_key and not keys.reclaim(job, now):
        keys.lose(job)
    if job.options.ttl is not None:
        engine.arm_ttl(job)
    write_again(engine, job)
    look_soon(engine, job.queue)


def write_again(engine: "Engine", job: Job) -> None:
    """Note all of a job that an undo has changed; its rows may be in the file, or may be not.

    One that was never written is still noted as that, since its batch has failed. To note any
    other as new would have a later removal leave its rows in the file.
    """
    engine.storage.rewritten(job)
    engine.storage.changed(job)
