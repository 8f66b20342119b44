"""Defining, reading and removing schedulers; when they are due is ``schedules``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bunqueue.engine import keys
from bunqueue.engine.cron import Cron, Definition, Timetable
from bunqueue.engine.events import emit
from bunqueue.engine.places import forget
from bunqueue.engine.schedules import TABLE, drop, store, tell
from bunqueue.engine.states import QUEUED
from bunqueue.engine.undo import put_back, remember
from bunqueue.errors import NotFound

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

NOT_FOUND: Final = "Cron job not found"


def set_cron(
    engine: "Engine",
    definition: Definition,
    immediately: bool,
    replaces_leftover: bool,
    now: int,
) -> Cron:
    """Define a scheduler, or give the one of that name another definition.

    The next run stays where it was unless the schedule, its zone or the interval changes: programs
    define their schedulers at every start, which must neither bring a run nor put one off.

    Args:
        immediately: A new scheduler is due at once; one that exists is not.
        replaces_leftover: Remove the job that the scheduler left in the queue.

    Raises:
        InvalidField: It has no moments, or they cannot be understood.
    """
    limit = definition.max_limit
    if limit is not None and limit <= 0:
        definition = replace(definition, max_limit=None)
    timetable = Timetable(definition)
    schedules = engine.schedules
    cron = schedules.by_name.get(definition.name)
    before = None
    if cron is None:
        cron = schedules.by_name[definition.name] = Cron(definition, timetable)
        cron.next_run = now if immediately else timetable.first(now)
    else:
        before = cron.definition, cron.timetable, cron.next_run, cron.doubt
        has_same_moments = definition.has_moments_of(cron.definition)
        cron.define(definition, timetable)
        if not has_same_moments:
            cron.next_run = timetable.first(now)
            cron.doubt = ""
    if replaces_leftover:
        _remove_leftover(engine, cron, now)
    store(engine, cron)
    engine.storage.sync(_unset, (engine, cron, before))
    schedules.enter(engine, cron, cron.next_run)
    if engine.listeners:
        tell(
            engine,
            "cron:created" if before is None else "cron:updated",
            cron,
            now,
            pattern=definition.schedule,
            every=definition.repeat_every,
            nextRun=cron.next_run,
        )
    return cron


def _unset(
    engine: "Engine", cron: Cron, before: tuple[Definition, Timetable, int, str] | None
) -> None:
    """Undo a definition that could not be written."""
    schedules = engine.schedules
    if schedules.by_name.get(cron.name) is not cron:
        return
    if before is None:
        del schedules.by_name[cron.name]
        cron.stamp += 1
        engine.storage.delete(TABLE, cron.name)
        return
    definition, timetable, cron.next_run, cron.doubt = before
    cron.define(definition, timetable)
    store(engine, cron)
    schedules.enter(engine, cron, cron.next_run)


def _remove_leftover(engine: "Engine", cron: Cron, now: int) -> None:
    key = cron.definition.key
    queue = engine.queues.get(cron.definition.queue)
    if key is None or queue is None:
        return
    with queue.shard.lock:
        job = keys.owner_of(queue, key, now)
        if job is None or job.place != QUEUED:
            return
        memory = remember(job)
        forget(engine, job)
        engine.storage.sync(put_back, (engine, job, memory, now))
        if engine.listeners:
            emit(engine, "removed", queue.name, job.id, now, prev="waiting")


def find_cron(engine: "Engine", name: str) -> Cron:
    """Return the scheduler of that name.

    Raises:
        NotFound: There is none.
    """
    cron = engine.schedules.by_name.get(name)
    if cron is None:
        raise NotFound(NOT_FOUND)
    return cron


def delete_cron(engine: "Engine", name: str, now: int) -> None:
    """Remove a scheduler; the jobs that it has made stay.

    Raises:
        NotFound: There is none.
    """
    cron = find_cron(engine, name)
    drop(engine, cron, now)
    engine.storage.sync(_undrop, (engine, cron))


def _undrop(engine: "Engine", cron: Cron) -> None:
    """Undo a removal that could not be written."""
    if cron.name not in engine.schedules.by_name:
        engine.schedules.by_name[cron.name] = cron
        store(engine, cron)
        engine.schedules.enter(engine, cron, cron.next_run)


def list_crons(engine: "Engine") -> list[Cron]:
    """Return all schedulers, in order of definition."""
    return list(engine.schedules.by_name.values())
