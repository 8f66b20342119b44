"""What a queue can do to one of its jobs, by id."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bunqueue.client import requests
from bunqueue.client.options import compact, milliseconds


class QueueChanges:
    """The half of ``Queue`` that changes single jobs; None on success, ``CommandError`` if not."""

    connection: Any

    def _change(self, command: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self.connection.call(command)
        return reply

    def remove(self, job_id: str) -> None:
        """Take a queued job out. Waits."""
        self._change(requests.of_job("Cancel", job_id))

    cancel = remove

    def discard(self, job_id: str, token: str | None = None) -> None:
        """Send a queued or active job to the dead letters. Waits."""
        self._change(requests.of_job("Discard", job_id, token=token))

    def promote_job(self, job_id: str) -> None:
        """Make a delayed job ready. Waits."""
        self._change(requests.of_job("Promote", job_id))

    def retry_job(self, job_id: str, token: str | None = None) -> None:
        """Make a failed or active job ready again. Waits."""
        self.move_job_to_wait(job_id, token)

    def update_job_progress(self, job_id: str, progress: Any, message: str | None = None) -> None:
        """Report progress: a number of 0 to 100, or an object. Waits."""
        self._change(requests.progress(job_id, progress, message))

    def update_job_data(self, job_id: str, data: Any) -> None:
        """Replace a job's payload. Waits."""
        self._change({"cmd": "Update", "id": job_id, "data": data})

    def change_job_priority(self, job_id: str, priority: int, lifo: bool | None = None) -> None:
        """Change the priority of a queued job. Waits."""
        self._change(requests.of_job("ChangePriority", job_id, priority=priority, lifo=lifo))

    def change_job_delay(self, job_id: str, delay_ms: Any, token: str | None = None) -> None:
        """Make a job due ``delay_ms`` from now. Waits."""
        self._change(
            requests.of_job("ChangeDelay", job_id, delay=milliseconds(delay_ms), token=token)
        )

    def move_job_to_wait(self, job_id: str, token: str | None = None) -> None:
        """Make a job ready; no failure is counted. Waits."""
        self._change(requests.of_job("MoveToWait", job_id, token=token))

    def move_job_to_delayed(
        self,
        job_id: str,
        delay_ms: Any = 0,
        token: str | None = None,
        *,
        until: float | datetime | None = None,
    ) -> None:
        """Run a job later: in ``delay_ms``, or at ``until``; no failure is counted. Waits."""
        self._change(requests.move_to_delayed(job_id, delay_ms, token, until, time.time() * 1000))

    def move_job_to_completed(
        self, job_id: str, result: Any = None, token: str | None = None
    ) -> None:
        """Report a job's success. Waits."""
        self._change(requests.completed(job_id, result, token))

    def move_job_to_failed(
        self, job_id: str, error: BaseException | str, token: str | None = None
    ) -> None:
        """Report a job's failure; an exception brings its traceback. Waits."""
        self._change(requests.failed(job_id, error, token))

    def extend_job_lock(self, job_id: str, token: str, duration_ms: Any) -> int:
        """Renew a lease and return its span. Waits."""
        duration = milliseconds(duration_ms)
        self._change(requests.of_job("ExtendLock", job_id, token=token, duration=duration))
        return int(duration)

    def extend_job_locks(self, ids: Sequence[str], tokens: Sequence[str], duration_ms: Any) -> int:
        """Renew leases and return how many it was. Waits."""
        return extend_locks(self.connection, ids, tokens, duration_ms)


def extend_locks(
    connection: Any, ids: Sequence[str], tokens: Sequence[str], duration_ms: Any
) -> int:
    """Renew leases and return how many it was. Waits."""
    if not ids:
        return 0
    reply = connection.call(
        compact(
            {
                "cmd": "ExtendLocks",
                "ids": list(ids),
                "tokens": list(tokens),
                "durations": [milliseconds(duration_ms)] * len(ids),
            }
        )
    )
    return int(reply.get("count") or 0)
