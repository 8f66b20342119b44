"""What the storage needs of an event loop, and a plain one for processes that have none.

The server gives it gevent's hub, an embedded engine and the tests a ``PollLoop``. All callbacks run
in the loop's own thread, one after the other, and must not wait.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

from bunqueue.storage.native import original

Callback = Callable[[], None]


class Loop(Protocol):
    """An event loop."""

    def call_soon(self, fn: Callback) -> None:
        """Call ``fn`` once, at the end of the running turn."""

    def call_later(self, delay_ms: float, fn: Callback) -> Callback:
        """Call ``fn`` once after ``delay_ms``; returns what calls it off."""

    def watch_readable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has something to read; returns what ends the watch."""

    def watch_writable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has room for more; returns what ends the watch."""


class PollLoop:
    """A loop around ``poll(2)``, for one thread."""

    def __init__(self) -> None:
        self._poll = original("select", "poll")()
        self._pollin: int = original("select", "POLLIN")
        self._pollout: int = original("select", "POLLOUT")
        self._soon: deque[Callback] = deque()
        self._timers: list[tuple[float, int, list[Callback | None]]] = []
        self._numbers = count()
        self._watches: dict[int, dict[int, Callback]] = {}

    def call_soon(self, fn: Callback) -> None:
        """Call ``fn`` once, at the end of the running turn."""
        self._soon.append(fn)

    def call_later(self, delay_ms: float, fn: Callback) -> Callback:
        """Call ``fn`` once after ``delay_ms``; returns what calls it off."""
        cell: list[Callback | None] = [fn]
        due = time.monotonic() + delay_ms / 1000
        heapq.heappush(self._timers, (due, next(self._numbers), cell))

        def cancel() -> None:
            cell[0] = None

        return cancel

    def watch_readable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has something to read; returns what ends the watch."""
        return self._watch(fd, self._pollin, fn)

    def watch_writable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has room for more; returns what ends the watch."""
        return self._watch(fd, self._pollout, fn)

    def _watch(self, fd: int, event: int, fn: Callback) -> Callback:
        watches = self._watches.setdefault(fd, {})
        watches[event] = fn
        self._poll.register(fd, sum(watches))

        def stop() -> None:
            if watches.pop(event, None) is None:
                return
            if watches:
                self._poll.register(fd, sum(watches))
            else:
                self._poll.unregister(fd)
                if self._watches.get(fd) is watches:
                    del self._watches[fd]

        return stop

    def run_once(self, timeout_ms: float) -> None:
        """Waits at most ``timeout_ms`` for something to do, and does one turn of it."""
        now = time.monotonic()
        if self._soon:
            timeout_ms = 0
        elif self._timers:
            timeout_ms = min(timeout_ms, max(0.0, (self._timers[0][0] - now) * 1000))
        for fd, event in self._poll.poll(timeout_ms):
            for wanted, fn in tuple(self._watches.get(fd, {}).items()):
                # An error or a hang-up is for whoever watches: reading will tell which.
                if event & wanted or not event & (self._pollin | self._pollout):
                    fn()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2][0]
            if timer is not None:
                timer()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def run_until(self, is_done: Callable[[], bool], timeout_ms: float = 10_000) -> bool:
        """Waits until ``is_done()``; returns False if that took longer than ``timeout_ms``."""
        end = time.monotonic() + timeout_ms / 1000
        while not is_done():
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                return False
            self.run_once(left_ms)
        return True
