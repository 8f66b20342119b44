"""A mailbox: one task that makes calls for others, in order, in its own world.

A worker's listeners must not run in the pull loop, which they could hold up, nor in the lease
keeper, which they must never hold up. The task starts with the first call that is posted.
"""

import logging
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from bunqueue.client.worlds import Task, World

log = logging.getLogger("bunqueue.worker")


class Mailbox:
    """Calls functions one after the other.

    Attributes:
        runner: Identity of its thread or greenlet, None while it does not run.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._calls: deque[Callable[[], Any] | None] = deque()
        self._gate = world.gate()
        self._lock = world.lock()
        self._task: Task | None = None
        self.runner: int | None = None

    def open(self) -> None:
        """Start the task. Call it from the mailbox's own world."""
        with self._lock:
            if self._task is None:
                self._task = self._world.spawn(self._run, self._name)

    def post(self, call: Callable[[], Any]) -> None:
        """Have ``call`` made soon. From any native thread."""
        self._calls.append(call)
        self._gate.open()

    def _run(self) -> None:
        self.runner = get_ident()
        try:
            self._make_calls()
        finally:
            self.runner = None  # the next thread may have the same identity

    def _make_calls(self) -> None:
        while True:
            while self._calls:
                call = self._calls.popleft()
                if call is None:
                    return
                try:
                    call()
                except Exception:
                    log.warning("posted call raised", exc_info=True)
            self._gate.wait()

    def close(self, timeout_s: float) -> None:
        """Have what was posted done, then end the task. Waits."""
        self._calls.append(None)
        self._gate.open()
        if self._task is not None:
            self._task.join(timeout_s)
