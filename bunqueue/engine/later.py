"""An answer that is not ready yet.

The engine never waits. An operation that must wait for a job, for another job's end or for time
to pass returns a ``Later``; the engine resolves it once, in whatever command or tick makes it
possible, and the adapter that asked is called back then. Nobody blocks and no greenlet is needed
for a wait.
"""

from collections.abc import Callable
from typing import Any


class Later:
    """One answer to come; resolved or cancelled exactly once.

    Attributes:
        is_done: It has been resolved or cancelled.
        commits: What the answer waits for, as ``ports.Storage.answer_waits``.
        shape: Turns the engine's answer into the command's reply, or None.
        dropped: Ids of jobs that commits before the answer have dropped, as ``ports.Committed``.
        on_cancel: Called when the peer goes away first.
    """

    __slots__ = ("is_done", "commits", "dropped", "shape", "on_cancel", "_callback", "_answer")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self.is_done = False
        self.commits = 0
        self.dropped: frozenset[str] = frozenset()
        self.shape: Callable[[Any], Any] | None = None
        self.on_cancel = on_cancel
        self._callback: Callable[[Any, int], None] | None = None
        self._answer: Any = None

    def resolve(self, answer: Any, commits: int = 0) -> None:
        """Give the answer; later calls are ignored.

        Args:
            answer: What the waiting operation returns.
            commits: What the answer waits for, as ``ports.Storage.answer_waits``.
        """
        if self.is_done:
            return
        self.is_done = True
        self.on_cancel = None
        answer = answer if self.shape is None else self.shape(answer)
        self.commits = commits
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(answer, commits)
        else:
            self._answer = answer

    def then(self, callback: Callable[[Any, int], None]) -> None:
        """Have ``callback(reply, commits)`` called when the answer is there, at once if it is.

        It is called once, and neither it nor the answer is held afterwards: it may hold this.
        """
        if self.is_done:
            answer, self._answer = self._answer, None
            callback(answer, self.commits)
        else:
            self._callback = callback

    def cancel(self) -> None:
        """Give up waiting: nobody wants the answer any more."""
        if self.is_done:
            return
        self.is_done = True
        self._callback = None
        if self.on_cancel is not None:
            self.on_cancel()
            self.on_cancel = None
