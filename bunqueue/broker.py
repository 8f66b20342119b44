"""The joint: engine, storage, clock and ticker of one broker, in a server or inside a program.

The engine is told the time and never asks for it; ``Clock`` makes it one steady line. ``Ticker``
runs the engine's timed work and sleeps until the engine wants it again. What differs between a
server and an embedded engine is handed in: how to wait (``Alarm``), what excludes others (``gate``,
the locks), which loop the storage's answers come through. Nothing here knows gevent.

An embedded engine is called from any thread or greenlet of the program. All of it, the calls, the
timed work and the storage's callbacks, runs under one native lock, the gate: nothing inside waits,
so the gate is held for microseconds. Its threads and locks are the original ones even in a process
that gevent has patched, so that user code which never yields cannot stop the timed work.
"""

import hmac
import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Protocol

from bunqueue.commands import dispatch
from bunqueue.engine.engine import Engine
from bunqueue.engine.later import Later
from bunqueue.engine.locks import LockFactory, no_lock
from bunqueue.engine.ports import MUST_COMMIT, NO_WAIT
from bunqueue.engine.settings import COMPLETED_JOBS_MAX_DEFAULT, EngineSettings
from bunqueue.protocol.codec import InvalidFrame, decode, pack
from bunqueue.protocol.replies import (
    INTERNAL_ERROR,
    INVALID_FORMAT,
    Reply,
    encode_reply,
    error_reply,
)
from bunqueue.storage.loop import Callback, Loop, PollLoop
from bunqueue.storage.memory import MemoryStorage
from bunqueue.storage.native import original

log = logging.getLogger(__name__)

JUMP_MS_MIN: Final = 1_000  # a wall clock that moves this far against the steady one has jumped
TICK_MS_MAX: Final = 1_000  # the ticker looks at least this often, so that a jump is noticed
TICK_FAILED_MS: Final = 1_000  # wait after a tick that raised
LOOP_MS_MAX: Final = 10_000  # longest poll of an embedded broker's thread


__all__ = [
    "MUST_COMMIT",
    "NO_WAIT",
    "Broker",
    "Clock",
    "EmbeddedBroker",
    "EngineSettings",
    "Later",
    "LocalPeer",
    "Tokens",
    "open_embedded",
    "open_storage",
]


class Clock:
    """Epoch milliseconds that never go back and never leap without a word.

    Stored times are wall time. When the wall clock is set, ``on_jump(delta_ms)`` is called before
    the new time is handed out, so that whatever measures spans by it can be moved along. Steps
    backwards below the limit are waited out instead.

    Attributes:
        steady: The monotonic clock, in seconds.
        on_jump: Called with the size of a jump.
    """

    __slots__ = ("steady", "on_jump", "_wall_ns", "_last", "_offset_ms")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steady = steady
        self.on_jump: Callable[[int], None] | None = None
        self._wall_ns = wall_ns
        self._last = wall_ns() // 1_000_000
        self._offset_ms = self._last - steady() * 1000

    def now(self) -> int:
        """Return the time. Most calls are one read of the wall clock."""
        now = self._wall_ns() // 1_000_000
        if 0 <= now - self._last < JUMP_MS_MIN:
            self._last = now
            return now
        return self._after_gap(now)

    def look(self) -> int:
        """Return the time after comparing both clocks; slow drift between them is accepted."""
        return self._after_gap(self._wall_ns() // 1_000_000)

    def _after_gap(self, now: int) -> int:
        """Tell a jump from a long silence by the monotonic clock."""
        offset_ms = now - self.steady() * 1000
        delta_ms = round(offset_ms - self._offset_ms)
        if abs(delta_ms) < JUMP_MS_MIN:
            self._offset_ms = offset_ms
            self._last = max(now, self._last)
            return self._last
        log.warning("the clock was set, leases move along delta_ms=%d", delta_ms)
        self._offset_ms = offset_ms
        self._last = now
        if self.on_jump is not None:
            self.on_jump(delta_ms)
        return now


class Tokens:
    """The tokens that let a peer in; false when there are none, and then everyone is in."""

    __slots__ = ("_digests",)

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = tuple(sha256(token.encode()).digest() for token in tokens)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def match(self, token: object) -> bool:
        """Compare with every token, all of them and in constant time."""
        if not isinstance(token, str):
            return False
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        is_ours = False
        for each in self._digests:
            is_ours |= hmac.compare_digest(each, digest)
        return is_ours


class Alarm(Protocol):
    """How the ticker waits, and how it is woken."""

    def ring(self) -> None:
        """End the wait that runs, or the next one. Callable from wherever the engine runs."""

    def wait(self, timeout_s: float) -> None:
        """Waits for a ring, at most ``timeout_s``."""


class Ticker:
    """Runs the engine's timed work whenever the engine wants it."""

    def __init__(self, engine: Any, clock: Clock, alarm: Alarm, gate: Any) -> None:
        """Prepare.

        Args:
            engine: Whose ``tick`` to call.
            clock: Its time.
            alarm: How to wait.
            gate: Context manager that excludes everyone else from the engine.
        """
        self._engine = engine
        self._clock = clock
        self._alarm = alarm
        self._gate = gate
        self._next_at: float = float("-inf")
        self._is_stopped = False
        engine.on_sooner = self._sooner

    def run(self) -> None:
        """Tick until ``stop``. Waits."""
        while not self._is_stopped:
            with self._gate:
                wait_ms = self._tick()
            if wait_ms > 0:
                self._alarm.wait(wait_ms / 1000)

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._is_stopped = True
        self._alarm.ring()

    def _tick(self) -> float:
        """Do what is due; return how long to wait."""
        self._next_at = float("-inf")  # whatever becomes due meanwhile, the tick's answer covers it
        now = self._clock.look()
        try:
            self._next_at = min(self._engine.tick(now), now + TICK_MS_MAX)
        except Exception:
            log.exception("timed work failed")
            self._next_at = now + TICK_FAILED_MS
        return self._next_at - self._clock.now()

    def _sooner(self, at: float) -> None:
        if at < self._next_at:
            self._next_at = at
            self._alarm.ring()


class Broker:
    """One engine on one storage, with its time.

    Attributes:
        engine, storage, clock, tokens, ticker: Its parts.
    """

    def __init__(
        self,
        storage: Any,
        settings: EngineSettings,
        *,
        alarm: Alarm,
        gate: Any,
        locks: LockFactory = no_lock,
        tokens: Tokens | None = None,
    ) -> None:
        """Load what the storage holds and make it a running engine, but for its timed work.

        Args:
            storage: Opened, not read yet.
            settings: The engine's.
            alarm: How the ticker waits.
            gate: Context manager that excludes everyone else from the engine while it ticks.
            locks: Makes the engine's own locks.
            tokens: Who may come in; None lets everyone in.
        """
        self.storage = storage
        self.clock = Clock()
        self.tokens = tokens or Tokens()
        self.engine = Engine(storage, settings, locks, random.Random(), os.urandom)
        self.clock.on_jump = self.engine.clock_jumped
        self._started_s = self.clock.steady()
        self.engine.recover(self.clock.now())
        self.ticker = Ticker(self.engine, self.clock, alarm, gate)

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return self.clock.steady() - self._started_s

    def close(self) -> None:
        """Hand back what is still active, uncharged, and write everything. Waits.

        Raises:
            StorageFailed: Not everything could be written.
        """
        self.ticker.stop()
        self.engine.release_all(self.clock.now())
        self.storage.close()


def open_storage(path: str | None, loop: Loop, is_embedded: bool = False) -> Any:
    """Open the storage of a broker.

    Args:
        path: The file; None keeps the jobs in memory only.
        loop: Where its callbacks run.
        is_embedded: A native thread writes, instead of a process.

    Raises:
        BunqueueError: The file is used by another process, or cannot be opened.
    """
    if path is None:
        return MemoryStorage()
    from bunqueue.storage import sqlite  # late: a broker in memory needs no SQLite

    return sqlite.SqliteStorage.open(path, loop, "thread" if is_embedded else "process")


class LocalPeer:
    """Someone inside this process who asks: an HTTP request, or an embedded client."""

    __slots__ = ("id", "held", "parked", "is_open", "engine", "is_authenticated", "int64", "now")

    def __init__(self, broker: Broker, name: str = "local") -> None:
        self.id = name
        self.held: dict[Any, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True
        self.engine = broker.engine
        self.is_authenticated = True
        self.int64 = True
        self.now = broker.clock.now

    def authenticate(self, token: object) -> bool:  # noqa: ARG002  # nobody is asked in here
        """Refuse, as a server without tokens does."""
        return False


# -- embedded --------------------------------------------------------------------------------------


class EmbeddedBroker:
    """A broker inside the calling program, for any of its threads and greenlets."""

    def __init__(self, data_path: str | None, settings: EngineSettings) -> None:
        """Open the file, recover, and start the threads for timed work and for writing.

        Raises:
            StorageFailed: The file is used by another process, or cannot be opened.
        """
        self._gate = original("_thread", "allocate_lock")()
        self._loop = _StorageLoop(self._gate)
        storage = open_storage(data_path, self._loop, is_embedded=True)
        alarm = _NativeAlarm()
        self._broker = Broker(storage, settings, alarm=alarm, gate=self._gate)
        self._storage = storage
        runs = [self._broker.ticker.run]
        if storage.is_persistent:
            runs.append(self._loop.run)
        self._threads = [_NativeThread(run) for run in runs]

    def new_peer(self, name: str = "embedded") -> LocalPeer:
        """Return a new peer, as a new connection would be one."""
        return LocalPeer(self._broker, name)

    def call(self, peer: LocalPeer, request: bytes, deliver: Callable[[bytes], None]) -> None:
        """Run one command.

        Args:
            peer: Who asks.
            request: The command, packed as in a frame.
            deliver: Called once with the packed reply, now or later and maybe from another thread;
                it must not wait, nor call the broker.
        """
        with self._gate:
            try:
                command = decode(request)
            except InvalidFrame:
                deliver(encode_reply(error_reply(INVALID_FORMAT), None, True))
                return
            req_id = None
            if isinstance(command, dict) and "reqId" in command:
                req_id = pack(command["reqId"])
            reply = dispatch(peer, command)
            waits, self._storage.answer_waits = self._storage.answer_waits, NO_WAIT
            if isinstance(reply, Later):
                self._deliver_later(peer, reply, req_id, deliver)
            else:
                self._deliver(reply, waits, req_id, deliver)

    def close_peer(self, peer: LocalPeer) -> None:
        """Let go of all that the peer had."""
        with self._gate:
            if peer.is_open:
                self._broker.engine.peer_closed(peer, self._broker.clock.now())

    def close(self, timeout_s: float = 30.0) -> None:
        """End everything: polls answer empty, what is active goes back, the file is closed. Waits.

        Raises:
            StorageFailed: Not everything could be written.
        """
        with self._gate:
            self._broker.engine.drain_begin()
            self._broker.ticker.stop()
            self._loop.stop()
        for thread in self._threads:
            thread.join(timeout_s)
        with self._gate:
            self._broker.close()

    def _deliver_later(
        self,
        peer: LocalPeer,
        later: Later,
        req_id: bytes | None,
        deliver: Callable[[bytes], None],
    ) -> None:
        def answered(reply: Reply, commits: int) -> None:
            peer.parked.discard(later)
            self._deliver(reply, commits, req_id, deliver)

        peer.parked.add(later)
        later.then(answered)

    def _deliver(
        self, reply: Reply, waits: int, req_id: bytes | None, deliver: Callable[[bytes], None]
    ) -> None:
        """Hand the reply over once what it waits for is written, or the backlog has room."""
        storage = self._storage

        def committed(is_committed: bool) -> None:
            may_leave = is_committed or waits != MUST_COMMIT
            deliver(encode_reply(reply if may_leave else error_reply(INTERNAL_ERROR), req_id, True))

        if waits != NO_WAIT:
            storage.hold(committed)
        elif storage.is_congested:
            storage.on_relief(lambda: committed(True))
        else:
            committed(True)


def open_embedded(
    data_path: str | None = None,
    *,
    max_completed_jobs: int = COMPLETED_JOBS_MAX_DEFAULT,
    completed_retention_ms: int | None = None,
) -> EmbeddedBroker:
    """Start a broker inside this process.

    Args:
        data_path: Its file; None keeps the jobs in memory only.
        max_completed_jobs: Completed jobs that are kept.
        completed_retention_ms: How long they are kept at most.

    Raises:
        StorageFailed: The file is used by another process, or cannot be opened.
    """
    settings = EngineSettings(
        max_completed_jobs=max_completed_jobs, completed_retention_ms=completed_retention_ms
    )
    return EmbeddedBroker(data_path, settings)


class _NativeAlarm:
    """An alarm made of one original lock: free while it rings."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = original("_thread", "allocate_lock")()
        self._lock.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        self._lock.acquire(True, timeout_s)


class _NativeThread:
    """A thread of the operating system, also in a process that gevent has patched."""

    __slots__ = ("_done",)

    def __init__(self, run: Callable[[], None]) -> None:
        self._done = original("_thread", "allocate_lock")()
        self._done.acquire()

        def body() -> None:
            try:
                run()
            finally:
                self._done.release()

        original("_thread", "start_new_thread")(body, ())

    def join(self, timeout_s: float) -> None:
        """Waits for its end, at most that long."""
        if self._done.acquire(True, timeout_s):
            self._done.release()


class _StorageLoop:
    """The loop of an embedded broker's storage: a thread that polls, callbacks under the gate."""

    def __init__(self, gate: Any) -> None:
        self._gate = gate
        self._loop = PollLoop()
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._is_awake = False
        self._is_stopped = False
        self._loop.watch_readable(self._wake_read, self._drain_pipe)

    def run(self) -> None:
        """Turn until ``stop``. Waits."""
        while not self._is_stopped:
            self._loop.run_once(LOOP_MS_MAX)

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._is_stopped = True
        self._wake()

    def call_soon(self, fn: Callback) -> None:
        self._loop.call_soon(self._gated(fn))
        self._wake()

    def call_later(self, delay_ms: float, fn: Callback) -> Callback:
        cancel = self._loop.call_later(delay_ms, self._gated(fn))
        self._wake()
        return cancel

    def watch_readable(self, fd: int, fn: Callback) -> Callback:
        stop = self._loop.watch_readable(fd, self._gated(fn))
        self._wake()
        return stop

    def watch_writable(self, fd: int, fn: Callback) -> Callback:
        stop = self._loop.watch_writable(fd, self._gated(fn))
        self._wake()
        return stop

    def _gated(self, fn: Callback) -> Callback:
        def call() -> None:
            with self._gate:
                fn()

        return call

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with suppress(BlockingIOError):  # the pipe is full of wakes
                os.write(self._wake_write, b"w")

    def _drain_pipe(self) -> None:
        self._is_awake = False
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
