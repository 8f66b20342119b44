"""What an embedded broker waits with: original threads and locks, also under gevent's patching."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from bunqueue.storage.loop import Callback, PollLoop
from bunqueue.storage.native import original

LOOP_MS_MAX: Final = 10_000  # longest poll of the storage's thread


class NativeAlarm:
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


class NativeThread:
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


class StorageLoop:
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

    def close(self) -> None:
        """Give the descriptors back; nothing calls any more."""
        close = original("os", "close")  # gevent's would wait for a turn of its hub
        for end in (self._wake_read, self._wake_write):
            close(end)
        self._wake_read = self._wake_write = -1

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
        if not self._is_awake and self._wake_write >= 0:
            self._is_awake = True
            with suppress(BlockingIOError):  # the pipe is full of wakes
                os.write(self._wake_write, b"w")

    def _drain_pipe(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        # Only now: cleared before the read, a wake written between the two would be swallowed by it
        # and leave the flag up, and nobody would ever write again.
        self._is_awake = False
