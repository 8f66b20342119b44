"""Frames for tests: making them, cutting them, and brokers to send them to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from bunqueue.broker import Broker, EngineSettings, Tokens
from bunqueue.commands.targets import AllowedTargets
from bunqueue.config import Settings
from bunqueue.engine.ports import MUST_COMMIT
from bunqueue.server.host import ServerHost
from bunqueue.server.loop import HubAlarm, NoGate, hub_lock
from bunqueue.storage.memory import MemoryStorage

QUEUES_SHOWN_MAX = 100  # with series of their own for Prometheus


def frame(value: object) -> bytes:
    """Pack a value into a frame."""
    return frame_of(msgpack.packb(value))


def frame_of(body: bytes) -> bytes:
    """Put the length in front of a body."""
    return struct.pack(">I", len(body)) + body


def ping(req_id: object) -> bytes:
    return frame({"cmd": "Ping", "reqId": req_id})


def push(queue: str = "emails", **fields: Any) -> bytes:
    return frame({"cmd": "PUSH", "queue": queue, "name": "welcome", "data": {}} | fields)


def values(data: bytes) -> list[Any]:
    """Cut a stream of whole frames into their values."""
    return list(_values(data))


def _values(data: bytes) -> Iterator[Any]:
    while data:
        (size,) = struct.unpack_from(">I", data)
        assert len(data) >= 4 + size, "the stream ends inside a frame"
        yield msgpack.unpackb(data[4 : 4 + size], strict_map_key=False)
        data = data[4 + size :]


class Reader:
    """Reads frames off a socket, any kind that has ``recv``. Waits."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self._kept = b""

    def value(self) -> Any:
        """Return the next frame's value."""
        (size,) = struct.unpack(">I", self._exactly(4))
        return msgpack.unpackb(self._exactly(size), strict_map_key=False)

    def send(self, request: dict[str, Any]) -> None:
        """Send a request, whose answer is read later."""
        self.sock.sendall(frame(request))

    def call(self, request: dict[str, Any]) -> Any:
        """Send a request and return the next frame's value."""
        self.sock.sendall(frame(request))
        return self.value()

    def is_at_end(self) -> bool:
        """Tell whether the other side has closed, by FIN or reset, with nothing left to read."""
        try:
            return not self._kept and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        while len(self._kept) < size:
            more = self.sock.recv(65536)
            if not more:
                raise EOFError(f"closed after {self._kept!r}")
            self._kept += more
        data, self._kept = self._kept[:size], self._kept[size:]
        return data


class HoldingStorage(MemoryStorage):
    """A storage whose commits the test makes; everything else is as in memory.

    Attributes:
        holds: Answers of changes wait for ``commit``; otherwise none does.
        held: Answers that wait.
        is_congested: Set by the test.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.held: list[Callable[[bool], None]] = []
        self.is_congested = False
        self._relief: list[Callable[[], None]] = []

    def sync(self, *args: Any, **kwargs: Any) -> None:
        if self.holds:
            self.answer_waits = MUST_COMMIT
        super().sync(*args, **kwargs)

    def hold(self, deliver: Callable[[bool], None]) -> None:
        self.held.append(deliver)

    def commit(self, is_committed: bool = True) -> None:
        """Let every held answer go."""
        held, self.held = self.held, []
        for deliver in held:
            deliver(is_committed)

    def on_relief(self, callback: Callable[[], None]) -> None:
        self._relief.append(callback)

    def relieve(self) -> None:
        """End the congestion."""
        self.is_congested = False
        relief, self._relief = self._relief, []
        for callback in relief:
            callback()


def make_broker(storage: Any = None, tokens: tuple[str, ...] = ()) -> Broker:
    """Build the broker of a server for one hub, in memory; its ticker does not run."""
    broker = Broker(
        storage or MemoryStorage(),
        EngineSettings(),
        alarm=HubAlarm(),
        gate=NoGate(),
        locks=hub_lock,
        tokens=Tokens(tokens),
    )
    broker.host = ServerHost(
        broker,
        lambda: {"tcp": 1, "ws": 0, "sse": 0},
        Settings(metrics_queues_max=QUEUES_SHOWN_MAX),
        AllowedTargets(),
    )
    return broker
