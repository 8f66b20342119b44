"""QueueEvents: what happens in a queue, as it happens.

Two tasks: the reader of the subscription puts events into a bounded backlog, the dispatcher takes
them out and calls the listeners in order. A listener that is too slow so loses the oldest events,
and the broker and its connection never notice.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from threading import get_ident
from typing import Any

from bunqueue.client import forks, worlds
from bunqueue.client.connecting import address_of
from bunqueue.client.connection import Connection
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.endpoint import HOST_DEFAULT, PORT_DEFAULT, TlsOption
from bunqueue.client.event_data import EventData, event_of
from bunqueue.client.subscription import Subscription
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.errors import (
    AuthError,
    BunqueueError,
    CommandError,
    ConnectionClosedError,
    EmbeddedError,
)

BACKLOG_MAX = 10_000  # client.md 4.2
CLOSE_TIMEOUT_S = 5.0
PERMANENT = (AuthError, CommandError, EmbeddedError)

log = logging.getLogger("bunqueue")

Told = tuple[str, Any]


class QueueEvents(EventEmitter):
    """Listens to a queue's events over a link of its own.

    Listeners get one ``EventData``: ``waiting``, ``active``, ``stalled``, ``duplicated`` and
    ``waiting-children`` with ``{jobId}``; ``completed`` with ``{jobId, returnvalue}``; ``failed``
    with ``{jobId, failedReason, data, terminal}``; ``progress`` with ``{jobId, data}``; ``delayed``
    with ``{jobId, delay}``; ``removed`` and ``retried`` with ``{jobId, prev}``; ``drained`` with
    ``{id}``; ``paused``, ``resumed`` and, after a reconnect, ``resubscribed`` with ``{}``. What
    happened between a loss and ``resubscribed`` is not told. ``error`` brings the exception.

    Args:
        name: Logical name, or a ``Queue``'s ``name``.
        host: Where the broker listens.
        port: Its TCP port.
        token: Authentication token.
        tls: See ``Connection``.
        connection: A ``Connection`` whose broker to listen to, or a dict of its parameters.
        embedded: Listen to the engine in this process.
        data_path: The embedded engine's file.
        prefix_key: Namespace in front of the name.
        url: ``bunqueue://[:token@]host[:port]``.
        autorun: Listen from now on; else from ``run()`` on.
        on_telemetry: Called with a dict per event of the connection.

    Attributes:
        name: The logical name.
        queue_key: What the broker is told.
        connection: Whose broker is listened to.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | Mapping[str, Any] | None = None,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        prefix_key: str = "",
        url: str | None = None,
        autorun: bool = True,
        on_telemetry: TelemetryHandler | None = None,
    ) -> None:
        super().__init__()
        address = address_of(
            name,
            prefix_key=prefix_key,
            connection=connection,
            url=url,
            given={
                "host": host,
                "port": port,
                "token": token,
                "tls": tls,
                "on_telemetry": on_telemetry,
                "embedded": embedded,
                "data_path": data_path,
            },
        )
        self.name = address.name
        self.queue_key = address.name.key
        self.connection = address.connection
        self.embedded = self.connection.embedded
        self._owns_connection = address.owns_connection
        self._set_up()
        forks.watch(self)
        if autorun:
            self._start()

    def _set_up(self) -> None:
        self._world = worlds.current()
        self._subscription: Subscription | None = None
        self._dispatcher: Any = None
        self._dispatcher_ident: int | None = None
        self._backlog: deque[Told] = deque()
        self._lost = 0
        self._wake = self._world.gate()
        self._ready = worlds.Latch()
        self._closed = worlds.Latch()
        self._failure: BunqueueError | None = None
        self._streams: list[Stream] = []

    # -- lifecycle ------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._subscription is not None or self._closed.is_set():
            return
        self._dispatcher = self._world.spawn(self._dispatch, f"bunqueue-listeners-{self.name}")
        self._subscription = Subscription(
            self.connection,
            self.queue_key,
            self._take,
            on_ready=self._note_ready,
            on_error=self._note_error,
            is_private=not self._owns_connection,
        )

    def run(self) -> None:
        """Listen until ``close()``. Waits."""
        self._start()
        self._closed.wait()

    def wait_until_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has confirmed the subscription. Waits.

        Raises:
            TimeoutError: It has not within ``timeout`` seconds.
            AuthError, CommandError, EmbeddedError: It will not.
            ConnectionClosedError: This was closed.
        """
        self._start()
        is_ready = self._ready.wait(timeout)
        if self._closed.is_set():
            raise ConnectionClosedError("connection closed by client")
        if self._failure is not None:
            raise self._failure
        if not is_ready:
            raise TimeoutError(f"no subscription to {self.queue_key!r} within {timeout} s")

    def is_closed(self) -> bool:
        """Tell whether it was closed."""
        return self._closed.is_set()

    def close(self) -> None:
        """Listen no more; events already received are told first. Waits; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._subscription is not None:
            self._subscription.close()
        self._wake.open()
        for stream in self._streams.copy():
            stream.end()
        is_own_code = self._dispatcher_ident == get_ident()
        if self._dispatcher is not None and worlds.current() is self._world and not is_own_code:
            self._dispatcher.join(CLOSE_TIMEOUT_S)
        if self._owns_connection:
            self.connection.close()
        self._ready.set()  # who waits is to find out

    disconnect = close

    def forget_parent(self) -> None:
        """In a forked child nobody reads: it is as if never started."""
        if self._subscription is not None:
            self._subscription.forget_parent()
        self._set_up()

    def __enter__(self) -> QueueEvents:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QueueEvents {self.queue_key!r} on {self.connection!r}>"

    # -- in the reader: nothing here may wait ---------------------------------------------------

    def _take(self, told: dict[str, Any]) -> None:
        found = event_of(told)
        if found is not None and told.get("queue", self.queue_key) == self.queue_key:
            self._post(*found)

    def _note_ready(self, is_again: bool) -> None:
        self._failure = None
        self._ready.set()
        if is_again:
            self._post("resubscribed", EventData())

    def _note_error(self, error: BunqueueError) -> None:
        if isinstance(error, PERMANENT):
            self._failure = error
            self._ready.set()
        self._post("error", error)

    def _post(self, name: str, what: Any) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.popleft()
            self._lost += 1
        self._backlog.append((name, what))
        self._wake.open()

    # -- in the dispatcher ----------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._dispatcher_ident = get_ident()
        was_behind = False
        while True:
            while self._backlog:
                if self._lost and not was_behind:
                    was_behind = True
                    self.emit("error", BunqueueError("listeners are too slow: events were lost"))
                name, what = self._backlog.popleft()
                for stream in self._streams.copy():
                    stream.put(name, what)
                self.emit(name, what)
            was_behind, self._lost = False, 0
            if self._closed.is_set():
                return
            self._wake.wait()

    # -- streams --------------------------------------------------------------------------------

    def stream(self, timeout: float | None = None) -> Iterator[tuple[str, EventData]]:
        """Yield ``(name, EventData)`` until ``close()``. Waits for each.

        Args:
            timeout: Seconds without an event after which it ends.
        """
        stream = Stream(worlds.current())
        self._streams.append(stream)
        self._start()
        if self._closed.is_set():
            stream.end()
        return self._drain(stream, timeout)

    def _drain(self, stream: Stream, timeout: float | None) -> Iterator[tuple[str, EventData]]:
        try:
            while (told := stream.take(timeout)) is not None:
                yield told
        finally:
            self._streams.remove(stream)


class Stream:
    """Events on their way to one iterator; it loses the oldest when it is not read."""

    def __init__(self, world: worlds.World) -> None:
        self._told: deque[tuple[str, EventData]] = deque(maxlen=BACKLOG_MAX)
        self._gate = world.gate()
        self._is_over = False

    def put(self, name: str, what: Any) -> None:
        """Take an event; errors are for listeners."""
        if isinstance(what, EventData):
            self._told.append((name, what))
            self._gate.open()

    def end(self) -> None:
        """Let the iterator end once it has yielded what came until now."""
        self._is_over = True
        self._gate.open()

    def take(self, timeout_s: float | None) -> tuple[str, EventData] | None:
        """Return the next event; None at the end. Waits."""
        while not self._told:
            if self._is_over or not self._gate.wait(timeout_s):
                return None
        return self._told.popleft()
