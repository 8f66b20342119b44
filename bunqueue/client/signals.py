"""Signals while ``run()`` is in charge: the first drains, the second cuts short, the third kills.

Handlers are installed in the main thread only, only for signals that are still at Python's default,
and are taken away afterwards. In a patched process the hub's own signal watchers are used, since a
hub that waits for sockets would not notice Python's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from bunqueue.client import worlds

WATCHED = (signal.SIGTERM, signal.SIGINT)
EXIT_STATUS_KILLED = 130


class SignalScope:
    """Context manager that watches SIGTERM and SIGINT.

    Args:
        drain: Begin to close gracefully. Must not wait.
        force: Close at once. Must not wait.
        is_on: False installs nothing.

    Attributes:
        received: The signals so far.
    """

    def __init__(
        self, drain: Callable[[], Any], force: Callable[[], Any], *, is_on: bool = True
    ) -> None:
        self._drain = drain
        self._force = force
        self._is_on = is_on
        self._undo: list[Callable[[], Any]] = []
        self.received: list[int] = []

    def __enter__(self) -> SignalScope:
        if self._is_on and threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                before = signal.getsignal(number)
                if before in (signal.SIG_DFL, signal.default_int_handler):
                    self._watch(number, before)
        return self

    def __exit__(self, *_exc: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _watch(self, number: int, before: Any) -> None:
        if worlds.standard().is_native:
            signal.signal(number, self._on_python_signal)
            self._undo.append(lambda: signal.signal(number, before))
            return
        import gevent

        watcher: Any = gevent.signal_handler(number, self.on_signal, number)

        def undo() -> None:
            watcher.cancel()
            signal.signal(number, before)  # libev has reset it to the system's default

        self._undo.append(undo)

    def _on_python_signal(self, number: int, _frame: FrameType | None) -> None:
        self.on_signal(number)

    def on_signal(self, number: int) -> None:
        """Take one signal."""
        self.received.append(number)
        if len(self.received) == 1:
            self._drain()
        elif len(self.received) == 2:
            self._force()
        else:
            os._exit(EXIT_STATUS_KILLED)

    @property
    def was_interrupted(self) -> bool:
        """Whether the first signal was a SIGINT."""
        return bool(self.received) and self.received[0] == signal.SIGINT
