"""Jobs whose rows no file takes: they leave memory, and so does what was not promised yet."""

from typing import TYPE_CHECKING

from bunqueue.engine.flows import do_without
from bunqueue.engine.job import Job
from bunqueue.engine.places import forget
from bunqueue.engine.states import ADMITTED, COMPLETED, GONE

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine


def drop(engine: "Engine", job: Job) -> list[Job]:
    """Let a job leave memory that the file does not take.

    Returns:
        The jobs that were admitted on the strength of it, as its parent, its children or because
        they depend on it: their commit is still to be answered, so they are to go with it.
    """
    if job.place == GONE:
        return []
    relying = [] if job.place == COMPLETED else _relying(engine, job)
    parent = None
    if job.place == ADMITTED:
        parent = engine.index.get(job.extra.parent_id or "")
        engine.refused.add(job)  # whom it has replaced comes back then
    with job.queue.shard.lock:
        forget(engine, job)
    if parent is not None and parent.place != ADMITTED and job.id in parent.extra.depends_on:
        do_without(engine, parent, job.id, engine.last_now)  # it got the child with this push
    return relying


def _relying(engine: "Engine", job: Job) -> list[Job]:
    consumers = engine.graph.consumers.get(job.id, ())
    children = map(engine.index.get, job.extra.children_ids)
    related = [
        *consumers,
        *(child for child in children if child is not None and child.extra.parent_id == job.id),
    ]
    return [each for each in related if each.place == ADMITTED]
