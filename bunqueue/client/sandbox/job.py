"""SandboxJob: what a handler in a child process gets in place of a Job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunqueue.client.cancel import CancelSignal


class SandboxJob:
    """A job as far as a child process needs it; it has no connection of its own.

    Args:
        raw: The job's map as the wire gives it.
        tell: Sends a message to the parent.

    Attributes:
        id: Id of the job.
        name: Its name.
        data: Its payload.
        queue: Key of its queue.
        attempts: Runs that ended badly.
        parent_id: Id of its parent, or None.
        signal: Tells that its work is no longer wanted.
        failed_with: What ``fail`` was told, or None.
    """

    def __init__(self, raw: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self.id = str(raw.get("id"))
        self.name = raw.get("name")
        self.data = raw.get("data")
        self.queue = str(raw.get("queue"))
        self.attempts = int(raw.get("attempts") or 0)
        self.parent_id = raw.get("parentId")
        self.signal = CancelSignal()
        self.failed_with: BaseException | str | None = None
        self._tell = tell

    def __repr__(self) -> str:
        return f"<SandboxJob {self.id} {self.name!r} queue={self.queue!r}>"

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Report progress: a number of 0 to 100, or an object."""
        self._tell({"progress": progress, "message": message})

    def progress(self, value: Any) -> None:
        """Report progress, by the name the Bun package gives it."""
        self.update_progress(value)

    def log(self, message: str, level: str | None = None) -> None:
        """Add a line to the job's log."""
        self._tell({"log": message, "level": level})

    def fail(self, error: BaseException | str) -> None:
        """Have the job fail, whatever the handler returns."""
        self.failed_with = error

    def is_cancelled(self) -> bool:
        """Tell whether the work is no longer wanted."""
        return self.signal.aborted

    def raise_if_cancelled(self) -> None:
        """Raise ``JobCancelledError`` once the work is no longer wanted."""
        self.signal.raise_if_aborted()
