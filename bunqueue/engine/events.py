"""Telling listeners what happened to a job or a queue, once it is true for good.

Who emits asks ``if engine.listeners:`` first, so that an engine nobody listens to pays one test.

An event is told after the commit of the batch that its transition is in, in the order of the
transitions; without a file that is at once. If the commit fails, the undo of an operation retracts
the events of the job since then, and nobody ever hears of what did not happen. What no undo takes
back (a plain push, a claim, a sweep) did happen, in memory at least, and is told all the same.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

# The kinds of wire.md 3.7, which subscribed connections are sent; other kinds are for streams that
# tell of more than jobs.
OF_JOBS: Final = frozenset(
    {
        "pushed", "duplicated", "pulled", "progress", "completed", "failed", "retried", "delayed",
        "waiting", "waiting-children", "stalled", "removed", "paused", "resumed", "drained",
    }
)  # fmt: skip

# Orders events and the pictures of ``undo.remember``; shared by all engines of a process.
_numbers = count(1)


class Event:
    """One transition, as listeners hear of it.

    Attributes:
        kind: One of ``OF_JOBS``, or a kind that only streams tell.
        queue_name: Where it happened.
        job_id: The job, or "" for an event of the queue.
        timestamp: Epoch ms.
        extra: The fields of its kind, but for a packed ``data``.
        payload: Packed value that goes with it: the result of a completed job, the data of a job
            that was pushed, pulled or failed; None for none. Decoded only by who needs it.
        forms: What receivers have made of it, so that each form is made once.
    """

    __slots__ = (
        "kind",
        "queue_name",
        "job_id",
        "timestamp",
        "extra",
        "payload",
        "forms",
        "number",
        "is_retracted",
    )

    def __init__(
        self,
        kind: str,
        queue_name: str,
        job_id: str,
        timestamp: int,
        payload: bytes | None,
        extra: dict[str, Any],
    ) -> None:
        self.kind = kind
        self.queue_name = queue_name
        self.job_id = job_id
        self.timestamp = timestamp
        self.payload = payload
        self.extra = extra
        self.forms: dict[object, Any] = {}
        self.number = next(_numbers)
        self.is_retracted = False


class Listener(Protocol):
    """Who is told of events. Must not wait, and must not call the engine."""

    def wants(self, kind: str, queue_name: str) -> bool:
        """Say whether events of that kind and queue are of interest now."""

    def hear(self, event: Event) -> None:
        """Take one event."""


class ListenToAll:
    """A listener that wants everything."""

    __slots__ = ("hear",)

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self.hear = hear

    def wants(self, kind: str, queue_name: str) -> bool:  # noqa: ARG002  # everything
        """Say yes."""
        return True


def emit(
    engine: "Engine",
    kind: str,
    queue_name: str,
    job_id: str,
    now: int,
    payload: bytes | None = None,
    **extra: Any,
) -> None:
    """Have every listener told after the commit of what was logged until now.

    Args:
        kind: An event type of wire.md 3.7.
        job_id: The job, or "" for an event of the queue.
        payload: See ``Event``.
        extra: The fields of that type.
    """
    _emit(engine, kind, queue_name, job_id, now, payload, extra)


def _emit(
    engine: "Engine",
    kind: str,
    queue_name: str,
    job_id: str,
    now: int,
    payload: bytes | None,
    extra: dict[str, Any],
) -> Event | None:
    """Emit; return the event, or None if nobody wants it."""
    queue = engine.queues.get(queue_name)
    if queue is not None and kind in OF_JOBS:
        queue.events_total += 1
    if not any(listener.wants(kind, queue_name) for listener in engine.listeners):
        return None
    event = Event(kind, queue_name, job_id, now, payload, extra)
    if engine.storage.is_persistent:
        engine.untold.setdefault((queue_name, job_id), []).append(event)
        engine.storage.follow(partial(_committed, engine, event))
    else:
        _tell(engine, event)
    return event


def announce(
    engine: "Engine",
    kind: str,
    queue_name: str,
    job_id: str,
    now: int,
    payload: bytes | None = None,
    **extra: Any,
) -> None:
    """As ``emit``, for an operation that is undone if its commit fails: then nobody is told."""
    event = _emit(engine, kind, queue_name, job_id, now, payload, extra)
    if event is not None:
        engine.storage.sync(_retract_one, (event,))


def mark() -> int:
    """Return a number between those of the events before and after this call."""
    return next(_numbers)


def retract(engine: "Engine", queue_name: str, job_id: str, since: int) -> None:
    """Let nobody hear of what happened to the job since ``since`` (a ``mark``): it is undone."""
    for event in engine.untold.get((queue_name, job_id), ()):
        if event.number > since:
            event.is_retracted = True


def _retract_one(event: Event) -> None:
    event.is_retracted = True


def _committed(engine: "Engine", event: Event, _outcome: object) -> None:
    """Tell an event whose batch has been tried; undos have run by now."""
    key = (event.queue_name, event.job_id)
    waiting = engine.untold[key]
    waiting.remove(event)
    if not waiting:
        del engine.untold[key]
    if not event.is_retracted:
        _tell(engine, event)


def _tell(engine: "Engine", event: Event) -> None:
    for listener in tuple(engine.listeners):
        if listener.wants(event.kind, event.queue_name):
            listener.hear(event)
