"""Telling listeners what happened to a job or a queue.

Who emits asks ``if engine.listeners:`` first, so that an engine nobody listens to pays one test.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine


def emit(engine: "Engine", kind: str, queue_name: str, job_id: str, now: int, **extra: Any) -> None:
    """Tell every listener, in order of registration.

    Args:
        kind: An event type of wire.md 3.7.
        job_id: The job, or "" for an event of the queue.
        extra: The fields of that type.
    """
    event = {"eventType": kind, "queue": queue_name, "jobId": job_id, "timestamp": now, **extra}
    for listener in engine.listeners:
        listener(event)
