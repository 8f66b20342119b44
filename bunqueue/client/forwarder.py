"""Store and forward: a worker that hands the jobs of one queue to a queue of another broker.

Each job has a fixed id there, made from its queue and its id here. So a job that is handed over
again, after a crash between the remote answer and the local outcome or after an answer that was
lost, meets its twin for as long as that one is unfinished: at least once, and not doubled.

A remote failure fails the local job, so its own attempts, backoff and dead letters decide. While
the remote broker cannot be reached, one job at a time tries, with growing rests: an outage must
not use up the attempts of everything that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bunqueue.client import worlds
from bunqueue.client.connection import Connection
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.job import Job
from bunqueue.client.worker import Worker
from bunqueue.errors import (
    AuthError,
    CommandTimeoutError,
    ConnectionClosedError,
    RateLimitedError,
)

if TYPE_CHECKING:
    from bunqueue.client.queue import Queue

CONCURRENCY_DEFAULT = 4
RESTS_MS = (500, 1000, 2000, 5000)  # after failures to reach the broker in a row; the last repeats
UNREACHABLE = (AuthError, CommandTimeoutError, ConnectionClosedError, RateLimitedError)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Target = Connection | Mapping[str, Any] | str

# What may be kept of a job's options -> how it is read; None is not sent.
PRESERVABLE: dict[str, Callable[[Job[Any]], Any]] = {
    "priority": lambda job: job.priority or None,
    "tags": lambda job: job.tags or None,
    "group_id": lambda job: job.group_id,
    "timeout": lambda job: job.timeout,
    "attempts": lambda job: job.max_attempts,
    "backoff": lambda job: job.backoff,
    "ttl": lambda job: job.ttl,
    "lifo": lambda job: job.lifo or None,
}

log = logging.getLogger("bunqueue.worker")


@dataclass(frozen=True, slots=True)
class ForwardedInfo:
    """One job that was handed over; as a dict it is the local job's result.

    Attributes:
        id: Its id here.
        remote_id: Its id there.
        name: Its name.
    """

    id: str
    remote_id: str
    name: str


class Forwarder(EventEmitter):
    """Drains a queue into a queue of another broker, until it is closed; see ``Queue.forward``.

    Events: ``forwarded`` with a ``ForwardedInfo``, ``error`` with an exception.

    Attributes:
        remote: The queue there.
        worker: What drains the queue here.
    """

    def __init__(
        self,
        source: Queue,
        to: Target,
        *,
        queue: str | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        durable: bool = False,
        preserve: Sequence[str] = ("priority",),
    ) -> None:
        super().__init__()
        unknown = [name for name in preserve if name not in PRESERVABLE]
        if isinstance(preserve, str) or unknown:
            raise ValueError(f"preserve takes any of {', '.join(PRESERVABLE)}")
        self._kept = {name: PRESERVABLE[name] for name in preserve}
        self._durable = durable
        self._source_key = source.queue_key
        self._concurrency = concurrency
        self._failures = 0
        self._forwarded = 0
        self._lock = worlds.native_lock()  # nothing waits inside
        self._is_closed = False
        self.remote = _remote_queue(to, queue or str(source.name))
        self._connection: Connection | None = None
        try:
            if _are_same(source, self.remote):
                raise ValueError(f"a queue cannot be forwarded to itself: {source.queue_key!r}")
            self._connection = source.connection.clone()
            self.worker = Worker(
                source.name,
                self._forward,
                concurrency=concurrency,
                connection=self._connection,
                autorun=False,
            )
        except BaseException:
            self.remote.close()
            if self._connection is not None:
                self._connection.close()
            raise
        # Failures are those of the remote: the worker's own handler is all that can fail.
        self.worker.on("failed", lambda _job, error: self.emit("error", error))
        self.worker.on("error", lambda error: self.emit("error", error))
        self.worker.start()

    def _forward(self, job: Job[Any]) -> dict[str, Any]:
        """Hand one job over. In the worker. Waits."""
        remote_id = f"fwd:{self._source_key}:{job.id}"
        name = job.name or "default"
        options = {option: read(job) for option, read in self._kept.items()}
        if self._durable:
            options["durable"] = True
        try:
            self.remote.add(name, job.data, job_id=remote_id, **options)
        except UNREACHABLE:
            self._rest()
            raise
        self._note_reached()
        info = ForwardedInfo(job.id, remote_id, name)
        self.emit("forwarded", info)
        return asdict(info)

    def _rest(self) -> None:
        """Let nothing start for a while, and then one job at a time."""
        with self._lock:
            rest_ms = RESTS_MS[min(self._failures, len(RESTS_MS) - 1)]
            is_first = self._failures == 0
            self._failures += 1
        self.worker.rate_limit(rest_ms)
        self.worker.concurrency = 1
        if is_first:
            log.warning("remote broker cannot be reached queue=%s", self.remote.queue_key)

    def _note_reached(self) -> None:
        with self._lock:
            self._forwarded += 1
            was_unreachable = self._failures > 0
            self._failures = 0
        if was_unreachable:
            self.worker.concurrency = self._concurrency

    # -- lifecycle ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand nothing over until ``resume``."""
        self.worker.pause()

    def resume(self) -> None:
        """Hand jobs over again."""
        self.worker.resume()

    def stats(self) -> dict[str, Any]:
        """Return ``{"forwarded", "failed", "active", "reachable"}``."""
        worker = self.worker.stats()
        return {
            "forwarded": self._forwarded,
            "failed": worker["failed"],
            "active": worker["active"],
            "reachable": self._failures == 0,
        }

    def is_closed(self) -> bool:
        """Tell whether it was closed."""
        return self._is_closed

    def close(self, timeout: float | None = None) -> None:
        """Let jobs under way be handed over, then let go of both brokers. Waits; idempotent.

        A listener of its own cannot wait for that: the rest goes on beside it.

        Args:
            timeout: Seconds for that; what is not through then goes back to the queue.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.worker.run_beside(lambda: self._close(timeout))

    def _close(self, timeout: float | None) -> None:
        if not self.worker.close(timeout):
            self.worker.close(force=True)
        self.remote.close()
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Forwarder {self._source_key!r} to {self.remote!r}>"


def _remote_queue(to: Target, name: str) -> Queue:
    from bunqueue.client.queue import Queue

    if isinstance(to, str):
        return Queue(name, url=to, embedded=False, auto_batch=False)
    if isinstance(to, Connection):
        return Queue(name, connection=to, auto_batch=False)
    if isinstance(to, Mapping):
        return Queue(name, connection={"embedded": False, **to}, auto_batch=False)
    raise TypeError("to must be a Connection, a dict of its parameters, or a url")


def _are_same(source: Queue, remote: Queue) -> bool:
    return source.queue_key == remote.queue_key and _place(source) == _place(remote)


def _place(queue: Queue) -> tuple[Any, ...]:
    """Return what two connections to one broker have in common, however they spell it."""
    connection = queue.connection
    if connection.embedded:
        return tuple(connection.identity)
    host = connection.host.lower()
    return ("localhost" if host in LOOPBACK else host, connection.port)
