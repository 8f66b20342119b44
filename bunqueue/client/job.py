"""Job: one unit of work as the broker last told it, and the operations on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bunqueue.client import requests
from bunqueue.client.cancel import CancelSignal
from bunqueue.client.dependencies import Selector, read_dependencies
from bunqueue.client.job_fields import Data, JobFields
from bunqueue.client.job_shapes import job_dict, job_texts
from bunqueue.client.options import milliseconds

LATE = "late"  # stands for a transition that came too late: the job was not ours to end


class Job(JobFields[Data]):
    """A job.

    Args:
        raw: The job's map as the wire gives it.
        connection: What the operations go through; without one they raise ``RuntimeError``.
        token: The lease's lock token, in a worker.
        on_progress: Called with the job and the value after each progress report.

    Attributes:
        raw: The map as given.
        token: The lock token, or None.
        worker: The worker that runs the job, or None.
        lease_lost: The broker has given the job to somebody else.
        batch: The members of the native batch this job leads, or None.
        failed_with: What this member of a batch fails with, or None.
    """

    def __init__(
        self,
        raw: dict[str, Any],
        connection: Any = None,
        token: str | None = None,
        on_progress: Callable[[Job[Any], Any], Any] | None = None,
    ) -> None:
        self.raw = raw
        self.token = token
        self.worker: Any = None
        self.lease_lost = False
        self.batch: list[Job[Any]] | None = None
        self.failed_with: BaseException | str | None = None
        self._conn = connection
        self._on_progress = on_progress
        # In a handler: the transition that ended the delivery instead of an ACK or FAIL.
        self._consumed_by: str | None = None

    @property
    def signal(self) -> CancelSignal:
        """Tells a handler that its work is no longer wanted. Made when somebody first asks."""
        signal: CancelSignal | None = self.__dict__.get("_signal")
        if signal is None:
            # One call in C, so that two threads do not make two.
            signal = self.__dict__.setdefault("_signal", CancelSignal())
        return signal

    def share_signal(self, other: Job[Any]) -> None:
        """Take another job's signal for one's own: what calls one off calls both off."""
        mine: CancelSignal | None = self.__dict__.get("_signal")
        self.__dict__["_signal"] = other.signal
        if mine is not None and mine.aborted:
            other.signal.abort(mine.reason)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} queue={self.queue!r}>"

    # -- as a plain dict ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a plain dict for an application's own answers."""
        return job_dict(self)

    def as_raw(self) -> dict[str, Any]:
        """Return the same with every value as text, as BullMQ's tools store it."""
        return job_texts(self)

    # -- operations -----------------------------------------------------------------------------

    def _bound(self) -> Any:
        """Return the connection, which a job made by hand does not have."""
        if self._conn is None:
            raise RuntimeError("Job is not bound to a connection")
        return self._conn

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self._bound().call(command)
        return reply

    def _transition(self, command: dict[str, Any]) -> dict[str, Any]:
        """Make a move that ends this delivery, when there is one."""
        reply = self._call(command)
        if self.worker is not None:
            self._consumed_by = LATE if requests.is_late(reply) else command["cmd"]
        return reply

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Report progress: a number of 0 to 100, or an object."""
        self._call(requests.progress(self.id, progress, message))
        self.raw["progress"] = progress
        if self._on_progress is not None:
            self._on_progress(self, progress)

    def log(self, message: str, level: str | None = None) -> None:
        """Add a line to the job's log."""
        self._call(requests.of_job("AddLog", self.id, message=message, level=level))
        if self.worker is not None:
            self.worker.emit("log", self, message)

    def clear_logs(self, keep_logs: int | None = None) -> None:
        """Drop the log but for the newest lines."""
        self._call(requests.of_job("ClearLogs", self.id, keepLogs=keep_logs))

    def heartbeat(self) -> None:
        """Renew the lease for its own span."""
        self._call(requests.of_job("JobHeartbeat", self.id, token=self.token))

    def extend_lock(self, duration_ms: Any, duration: Any = None) -> None:
        """Renew the lease for ``duration_ms``; ``extend_lock(token, duration_ms)`` is taken too."""
        token = self.token
        if isinstance(duration_ms, str):
            token, duration_ms = duration_ms, duration
        self._call(
            requests.of_job("ExtendLock", self.id, token=token, duration=milliseconds(duration_ms))
        )

    def get_state(self) -> str:
        """Ask for the present state; ``"unknown"`` when the job is gone."""
        return str(self._call(requests.of_job("GetState", self.id)).get("state"))

    def is_waiting(self) -> bool:
        """Ask whether it is ready to run."""
        return self.get_state() in ("waiting", "prioritized")

    def is_active(self) -> bool:
        """Ask whether it runs."""
        return self.get_state() == "active"

    def is_delayed(self) -> bool:
        """Ask whether it is due later."""
        return self.get_state() == "delayed"

    def is_completed(self) -> bool:
        """Ask whether it is done."""
        return self.get_state() == "completed"

    def is_failed(self) -> bool:
        """Ask whether it has failed for good."""
        return self.get_state() == "failed"

    def is_waiting_children(self) -> bool:
        """Ask whether it waits for other jobs."""
        return self.get_state() == "waiting-children"

    def refresh(self) -> Job[Data]:
        """Read the job again, in place."""
        self.raw = self._call(requests.of_job("GetJob", self.id))["job"]
        return self

    def wait_until_finished(self, queue_events: Any = None, ttl_ms: float | None = None) -> Any:
        """Wait for the result; see ``Queue.wait_for_job``."""
        from bunqueue.client.waiting import wait_for_job

        return wait_for_job(self._bound(), self.id, ttl_ms, queue_events)

    def remove(self) -> None:
        """Take the job out of its queue."""
        self._call(requests.of_job("Cancel", self.id))

    def discard(self) -> None:
        """Give the job up: it goes to the dead letters."""
        self._transition(requests.of_job("Discard", self.id, token=self.token))

    def promote(self) -> None:
        """Make a delayed job ready."""
        self._call(requests.of_job("Promote", self.id))

    def retry(self) -> None:
        """Make a failed or active job ready again."""
        self.move_to_wait()

    def update_data(self, data: Any) -> None:
        """Replace the payload."""
        self._call({"cmd": "Update", "id": self.id, "data": data})
        self.raw["data"] = data

    def change_priority(self, priority: int, lifo: bool | None = None) -> None:
        """Change the priority of a queued job."""
        self._call(requests.of_job("ChangePriority", self.id, priority=priority, lifo=lifo))

    def change_delay(self, delay_ms: Any) -> None:
        """Make the job due ``delay_ms`` from now."""
        self._transition(
            requests.of_job("ChangeDelay", self.id, delay=milliseconds(delay_ms), token=self.token)
        )

    def move_to_delayed(self, delay_ms: Any = 0, *, until: float | datetime | None = None) -> None:
        """Run the job later: in ``delay_ms``, or at ``until``; no failure is counted."""
        self._transition(
            requests.move_to_delayed(self.id, delay_ms, self.token, until, time.time() * 1000)
        )

    def move_to_wait(self) -> None:
        """Make the job ready again; no failure is counted."""
        self._transition(requests.of_job("MoveToWait", self.id, token=self.token))

    def move_to_completed(self, result: Any = None) -> None:
        """Report success."""
        self._transition(requests.completed(self.id, result, self.token))

    def move_to_failed(self, error: BaseException | str) -> None:
        """Report failure."""
        self._transition(
            requests.failed(self.id, error, self.token, self.raw.get("stackTraceLimit"))
        )

    def move_to_waiting_children(self) -> bool:
        """Park the job until its children have settled; no failure is counted."""
        reply = self._transition(
            requests.of_job("MoveToWaitingChildren", self.id, token=self.token)
        )
        return bool((reply.get("data") or {}).get("moved"))

    def get_children_values(self) -> dict[str, Any]:
        """Return ``queue:id`` -> result of the children that left one."""
        reply = self._call(requests.of_job("GetChildrenValues", self.id))
        return dict((reply.get("data") or {}).get("values") or {})

    def get_failed_children_values(self) -> dict[str, str]:
        """Return ``queue:id`` -> error of the children after whose failure the job goes on."""
        reply = self._call(requests.of_job("GetFailedChildrenValues", self.id))
        return dict(reply.get("values") or {})

    def get_ignored_children_failures(self) -> dict[str, str]:
        """Return ``queue:id`` -> error of the children whose failure the job ignores."""
        reply = self._call(requests.of_job("GetIgnoredChildrenFailures", self.id))
        return dict(reply.get("values") or {})

    def get_dependencies(
        self, processed: Selector = None, unprocessed: Selector = None
    ) -> dict[str, Any]:
        """Return the job's children by what has become of them; see ``Queue``."""
        return read_dependencies(self._bound(), self.id).pages(processed, unprocessed)

    def get_dependencies_count(self) -> dict[str, int]:
        """Return ``{"processed": n, "unprocessed": n}`` of the job's children."""
        return read_dependencies(self._bound(), self.id).counts()

    def remove_child_dependency(self) -> bool:
        """Detach the job from its parent; False if that does not know it."""
        reply = self._call(requests.of_job("RemoveChildDependency", self.id))
        return bool(reply.get("removed"))

    def remove_unprocessed_children(self) -> None:
        """Cancel the job's children that nobody has begun."""
        self._call(requests.of_job("RemoveUnprocessedChildren", self.id))

    def remove_deduplication_key(self) -> bool:
        """Let a twin in; True when the job held its key."""
        reply = self._call(requests.of_job("RemoveJobDeduplicationKey", self.id))
        return bool((reply.get("data") or {}).get("removed"))

    def get_batch(self) -> list[Job[Any]]:
        """Return the jobs of the native batch this one leads; itself alone without one."""
        return self.batch if self.batch is not None else [self]

    def set_as_failed(self, error: BaseException | str) -> None:
        """Fail this member of a native batch, whatever the handler returns for the others."""
        self.failed_with = error

    def is_cancelled(self) -> bool:
        """Tell whether the work was called off."""
        return self.signal.aborted

    def raise_if_cancelled(self) -> None:
        """Raise ``JobCancelledError`` once the work was called off."""
        self.signal.raise_if_aborted()
