"""The engine in this process, as a link: the same commands and replies, without a socket.

One engine per process; the first path wins. A call runs in the caller. The reply comes at once, or
later from one of the broker's native threads, when the command waits for a job or for the disk;
then the caller waits on a gate of its own world, so a greenlet lets the others run. Commands and
replies cross as packed bytes, so nothing mutable is shared with the engine.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from bunqueue.broker import EmbeddedBroker, open_embedded
from bunqueue.client import forks, values
from bunqueue.client.endpoint import Endpoint
from bunqueue.client.worlds import Gate, World, current, now, tell_why_native
from bunqueue.commands.event_wire import pack_event
from bunqueue.errors import (
    BunqueueError,
    CommandTimeoutError,
    ConnectionClosedError,
    DataPathConflictError,
    EmbeddedError,
    StorageFailed,
)

PATH_VARIABLES = ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH")
TOLD_MAX = 100_000  # events a reader may lag behind; it hands them on at once, so it never does
SHUTDOWN_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = 5.0  # how long closing a queue waits for a disk that does not answer
EXIT_TIMEOUT_S = 5.0  # the bound of the atexit hook, client.md 0.3


class Engine:
    """The embedded broker of this process.

    Attributes:
        path: Absolute path of its file, None for memory only.
        process_id: Where it was opened; a fork does not have it.
        pools: Those who speak to it.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.process_id = os.getpid()
        self.pools: list[EmbeddedPool] = []
        self._why_not: str | None = None
        try:
            self.broker: EmbeddedBroker = open_embedded(path)
        except (StorageFailed, OSError) as error:
            raise EmbeddedError(str(error)) from error

    def check(self) -> None:
        """Raise ``EmbeddedError`` when it can serve no longer."""
        if self._why_not is not None:
            raise EmbeddedError(self._why_not)

    def end(self, why: str) -> None:
        """Serve nobody from now on; pending waits end."""
        self._why_not = why
        for pool in self.pools.copy():
            pool.fail_all(EmbeddedError(why))

    def forget_parent(self) -> None:
        """Be unusable in a forked child: its threads and its file lock are the parent's."""
        self._why_not = f"embedded engine was opened in process {self.process_id}"


_engine: Engine | None = None
_opening = threading.Lock()


def engine_on(data_path: str | os.PathLike[str] | None) -> Engine:
    """Return the engine of this process, opening it if there is none.

    Args:
        data_path: Its file; None joins the engine there is, or asks the environment.

    Raises:
        DataPathConflictError: There is one on another file.
        EmbeddedError: The file cannot be opened, or belongs to another process.
    """
    global _engine
    with _opening:
        if _engine is not None:
            if data_path is not None and _absolute(data_path) != _engine.path:
                where = _engine.path or "memory"
                raise DataPathConflictError(
                    f"the embedded engine of this process is on {where}, not on {data_path}"
                )
            return _engine
        path = data_path if data_path is not None else _path_from_environment()
        engine = Engine(None if path is None else _absolute(path))
        forks.watch(engine)
        forks.watch(_forgetter)
        atexit.register(_close_at_exit)
        _engine = engine
        return engine


def shutdown_manager(timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
    """Stop the embedded engine: write everything, close the file. Waits.

    Calls that wait raise ``EmbeddedError``, and so does every later one on the same objects. A new
    ``Queue(embedded=True)`` opens a new engine.
    """
    global _engine
    with _opening:
        engine, _engine = _engine, None
        if engine is None:
            return
        atexit.unregister(_close_at_exit)
        engine.end("embedded engine was shut down")
        engine.broker.close(timeout_s)


def _close_at_exit() -> None:
    shutdown_manager(EXIT_TIMEOUT_S)


def _path_from_environment() -> str | None:
    for name in PATH_VARIABLES:
        if os.environ.get(name):
            return os.environ[name]
    return None


def _absolute(path: str | os.PathLike[str]) -> str | None:
    text = os.fspath(path)
    return None if text in ("", ":memory:") else os.path.realpath(text)


class _Forgetter:
    """Drops the parent's engine in a forked child, so that the child may open its own."""

    def forget_parent(self) -> None:
        global _engine, _opening
        _engine = None
        _opening = threading.Lock()
        atexit.unregister(_close_at_exit)


_forgetter = _Forgetter()


class Waiter:
    """A caller whose reply is not in yet."""

    __slots__ = ("error", "gate", "reply")

    def __init__(self) -> None:
        self.reply: bytes | None = None
        self.error: BunqueueError | None = None
        self.gate: Gate | None = None

    def deliver(self, reply: bytes) -> None:
        """Take the reply. Called by the broker, from any native thread; never waits."""
        if self.error is not None:
            return  # the engine ends, and answers its polls in passing
        self.reply = reply
        if self.gate is not None:
            self.gate.open()

    def fail(self, error: BunqueueError) -> None:
        """End the wait with an error."""
        self.error = error
        if self.gate is not None:
            self.gate.open()

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return self.reply is not None or self.error is not None


class EmbeddedPool:
    """What a ``LinkPool`` is over TCP: one peer of the engine, with commands in flight.

    Attributes:
        links: Itself while open; what ``Connection`` reads about links it finds here.
    """

    # What a link over TCP would answer.
    generation = 1
    timeouts = 0
    failed_attempts = 0
    next_attempt_at = 0.0
    last_error: str | None = None

    def __init__(
        self,
        engine: Engine,
        endpoint: Endpoint,
        world: World,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        on_loss: values.OnLoss | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.world = world
        self.pending: dict[int, Waiter] = {}
        self._engine = engine
        self._peer = engine.broker.new_peer()
        self.has_int64 = self._peer.int64 = endpoint.int64 != "float"
        self._on_loss = on_loss
        self._is_closed = False
        self._gates: list[Gate] = []
        # What the engine has told and ``listen`` has not handed on: it is told under the broker's
        # gate, where nothing of the user's may run.
        self._told: deque[Any] = deque(maxlen=TOLD_MAX)
        self._on_event = on_event
        self._listener: Waiter | None = None
        if on_event is not None:
            self._peer.on_event = self._take_event
        engine.pools.append(self)
        if world.is_native:
            tell_why_native()

    @property
    def links(self) -> list[EmbeddedPool]:
        """Itself while open."""
        return [] if self._is_closed else [self]

    @property
    def is_up(self) -> bool:
        """Whether commands can be sent."""
        return not self._is_closed

    def pick(self) -> EmbeddedPool:
        """Return itself, once it is sure that the engine serves."""
        self._engine.check()
        return self

    def call(self, command: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Run ``command`` and return the reply, refusals included. Waits."""
        if self._is_closed:
            raise ConnectionClosedError("connection closed by client")
        self._engine.check()
        body = values.encode_body(
            command,
            int64=self.has_int64,
            policy=self.endpoint.int64,
            on_loss=self._on_loss,
        )
        waiter = Waiter()
        key = id(waiter)
        self.pending[key] = waiter
        try:
            self._engine.broker.call(self._peer, body, waiter.deliver)
            if waiter.reply is None:
                self._wait(waiter, self.endpoint.command_timeout if timeout is None else timeout)
        finally:
            del self.pending[key]
        if waiter.reply is not None:
            reply: dict[str, Any] = values.decode(waiter.reply)
            return reply
        if waiter.error is not None:
            raise waiter.error
        raise CommandTimeoutError(f"no response for {command.get('cmd')} within timeout")

    def _wait(self, waiter: Waiter, timeout_s: float | None) -> None:
        gate = self._gates.pop() if self._gates else self.world.gate()
        waiter.gate = gate
        deadline = None if timeout_s is None else now() + timeout_s
        # The reply may have come before the gate was there; later ones open it.
        while not waiter.is_done:
            left_s = None if deadline is None else deadline - now()
            if left_s is not None and left_s <= 0:
                return
            if gate.wait(left_s) and waiter.is_done:
                self._gates.append(gate)  # used up: nobody will open it again
                return

    def call_on(
        self, _link: EmbeddedPool, command: dict[str, Any], deadline: float | None
    ) -> dict[str, Any]:
        """Run ``command``; what a ``LinkPool`` does on one of its links. Waits."""
        return self.call(command, None if deadline is None else max(0.0, deadline - now()))

    def _take_event(self, event: Any) -> None:
        """Note an event. Called by the broker, from any native thread; never waits."""
        self._told.append(event)
        listener = self._listener
        if listener is not None and listener.gate is not None:
            listener.gate.open()

    def listen(self, deadline: float | None) -> None:
        """Hand on events as they come, until the deadline. Waits.

        Raises:
            ConnectionClosedError, EmbeddedError: It was closed, or the engine ended.
        """
        waiter = Waiter()
        waiter.gate = self.world.gate()
        self.pending[id(waiter)] = waiter
        self._listener = waiter
        try:
            if self._is_closed:
                raise ConnectionClosedError("connection closed by client")
            self._engine.check()
            while waiter.error is None:
                while self._told and self._on_event is not None:
                    told = values.decode(pack_event(self._told.popleft(), True))
                    self._on_event(told["event"])
                left_s = None if deadline is None else deadline - now()
                if (left_s is not None and left_s <= 0) or not waiter.gate.wait(left_s):
                    return
            raise waiter.error
        finally:
            self._listener = None
            del self.pending[id(waiter)]

    def probe(self, timeout_s: float, only_quiet: bool = False) -> None:
        """There is no connection that could be dead."""

    def sever(self) -> None:
        """There is no socket to cut."""

    def fail_all(self, error: BunqueueError) -> None:
        """End every wait with ``error``."""
        for waiter in list(self.pending.values()):
            waiter.fail(error)

    def close(self) -> None:
        """Leave: polls end, leases never renewed go back. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.fail_all(ConnectionClosedError("connection closed by client"))
        if self in self._engine.pools:
            self._engine.pools.remove(self)
        try:
            self._engine.check()
            self._flush()
            self._engine.broker.close_peer(self._peer)
        except EmbeddedError:
            return  # the engine has gone, and let everybody go with it

    def _flush(self) -> None:
        """Wait until what was done so far is in the file."""
        gate = current().gate()
        self._engine.broker.flush(lambda _is_written: gate.open())
        gate.wait(FLUSH_TIMEOUT_S)

    def abandon(self) -> None:
        """A forked child leaves the parent's engine alone."""
        self._is_closed = True
