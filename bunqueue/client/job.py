"""Job: one unit of work as the broker last told it, and the operations on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from bunqueue.client import requests
from bunqueue.client.cancel import CancelSignal
from bunqueue.client.dependencies import Selector, read_dependencies
from bunqueue.client.options import camel, milliseconds
from bunqueue.protocol.options import OPTIONS

Data = TypeVar("Data")


class Job(Generic[Data]):
    """A job.

    Args:
        raw: The job's map as the wire gives it.
        connection: What the operations go through; without one they raise ``RuntimeError``.
        token: The lease's lock token, in a worker.
        on_progress: Called with the job and the value after each progress report.

    Attributes:
        raw: The map as given.
        token: The lock token, or None.
        signal: Tells a handler that its work is no longer wanted.
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
        self.signal = CancelSignal()
        self.worker: Any = None
        self.lease_lost = False
        self.batch: list[Job[Any]] | None = None
        self.failed_with: BaseException | str | None = None
        self._conn = connection
        self._on_progress = on_progress
        # In a handler: the transition that ended the delivery instead of an ACK or FAIL.
        self._consumed_by: str | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} queue={self.queue!r}>"

    # -- what it is -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Id of the job."""
        return str(self.raw.get("id"))

    @property
    def queue(self) -> str:
        """Key of its queue, the prefix included."""
        return str(self.raw.get("queue"))

    queue_name = queue
    queue_qualified_name = queue

    @property
    def name(self) -> str | None:
        """Name of the job; one pushed by an old client has it in its data."""
        name = self.raw.get("name")
        if name is None:
            data = self.raw.get("data")
            name = data.get("name") if isinstance(data, dict) else None
        return name if isinstance(name, str) else None

    @property
    def data(self) -> Data:
        """The payload."""
        return self.raw.get("data")  # type: ignore[return-value]  # the caller states the type

    @property
    def priority(self) -> int:
        """Higher runs sooner."""
        return int(self.raw.get("priority") or 0)

    @property
    def attempts(self) -> int:
        """Runs that ended badly."""
        return int(self.raw.get("attempts") or 0)

    attempts_made = attempts

    @property
    def attempts_started(self) -> int:
        """Runs that began, the present one included."""
        return self.attempts + (1 if self.started_at is not None else 0)

    @property
    def max_attempts(self) -> int:
        """Runs in all."""
        return int(self.raw.get("maxAttempts") or 3)

    @property
    def created_at(self) -> int | None:
        """When it was added, epoch ms."""
        return self._moment("createdAt")

    timestamp = created_at

    @property
    def started_at(self) -> int | None:
        """When the present or last run began, epoch ms."""
        return self._moment("startedAt")

    processed_on = started_at

    @property
    def completed_at(self) -> int | None:
        """When it was done, epoch ms."""
        return self._moment("completedAt")

    finished_on = completed_at

    @property
    def run_at(self) -> int | None:
        """When it may run, epoch ms."""
        return self._moment("runAt")

    @property
    def delay(self) -> int:
        """Milliseconds between being added and being due."""
        if "delay" in self.raw:
            return int(self.raw["delay"] or 0)
        return max(0, (self.run_at or 0) - (self.created_at or 0))

    @property
    def custom_id(self) -> str | None:
        """The caller's own id."""
        found = self.raw.get("customId", self.raw.get("jobId"))
        return None if found is None else str(found)

    @property
    def tags(self) -> list[str]:
        """Its labels."""
        return list(self.raw.get("tags") or [])

    @property
    def group_id(self) -> str | None:
        """Its group."""
        return self.raw.get("groupId")

    @property
    def parent_id(self) -> str | None:
        """Id of its parent."""
        return self.raw.get("parentId")

    @property
    def parent(self) -> dict[str, Any] | None:
        """Its parent's id and queue, when it is truly linked to one."""
        data = self.raw.get("data")
        if self.parent_id is None or not isinstance(data, dict) or "__parentQueue" not in data:
            return None
        return {"id": self.parent_id, "queue": data["__parentQueue"]}

    @property
    def parent_key(self) -> str | None:
        """``queue:id`` of its parent."""
        parent = self.parent
        return None if parent is None else f"{parent['queue']}:{parent['id']}"

    @property
    def children_ids(self) -> list[str]:
        """Ids of its children."""
        return list(self.raw.get("childrenIds") or [])

    @property
    def depends_on(self) -> list[str]:
        """Ids of the jobs that must complete first."""
        return list(self.raw.get("dependsOn") or [])

    @property
    def progress(self) -> Any:
        """The progress last reported."""
        return self.raw.get("progress") or 0

    @property
    def progress_message(self) -> str | None:
        """The message last reported with it."""
        return self.raw.get("progressMessage")

    @property
    def stacktrace(self) -> list[str] | None:
        """The last failure's traceback."""
        return self.raw.get("stacktrace")

    @property
    def state(self) -> str | None:
        """Its state when it was read; None on a delivered job."""
        return self.raw.get("state")

    @property
    def returnvalue(self) -> Any:
        """The result, of a completed job that was read from the broker."""
        return self.raw.get("returnvalue")

    @property
    def failed_reason(self) -> str | None:
        """The last error text."""
        return self.raw.get("failedReason")

    @property
    def opts(self) -> dict[str, Any]:
        """The options it carries, by their Python names."""
        return {
            row.python: self.raw[row.wire]
            for row in OPTIONS
            if self.raw.get(row.wire) not in (None, row.default)
        }

    @property
    def backoff(self) -> Any:
        """The wait before the next attempt, as given."""
        return self.raw.get("backoffConfig") or self.raw.get("backoff")

    @property
    def lifo(self) -> bool:
        """Whether it runs before its elders of equal priority."""
        return bool(self.raw.get("lifo"))

    @property
    def durable(self) -> bool:
        """Whether adding it waited for the disk."""
        return bool(self.raw.get("durable"))

    @property
    def ttl(self) -> int | None:
        """Milliseconds after which it expires in the queue."""
        return self._moment("ttl")

    @property
    def timeout(self) -> int | None:
        """Milliseconds one run may take."""
        return self._moment("timeout")

    @property
    def stalled_counter(self) -> int:
        """How often its worker went silent."""
        return int(self.raw.get("stallCount") or 0)

    @property
    def deduplication_id(self) -> str | None:
        """The key that refuses a twin."""
        return self.raw.get("uniqueKey")

    @property
    def repeat_job_key(self) -> str | None:
        """The id its repetitions share."""
        repeat = self.raw.get("repeat")
        return repeat.get("jobId") if isinstance(repeat, dict) else None

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """Its last moves, oldest first."""
        return list(self.raw.get("timeline") or [])

    @property
    def processed_by(self) -> str | None:
        """Name of the worker that runs it."""
        return None if self.worker is None else self.worker.name

    def _moment(self, key: str) -> int | None:
        value = self.raw.get(key)
        return None if value is None else int(value)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a plain dict for an application's own answers."""
        return {
            "id": self.id,
            "name": self.name,
            "data": self.data,
            "opts": {camel(key): value for key, value in self.opts.items()},
            "progress": self.progress,
            "delay": self.delay,
            "timestamp": self.timestamp,
            "attemptsMade": self.attempts,
            "stacktrace": self.stacktrace,
            "returnvalue": self.returnvalue,
            "failedReason": self.failed_reason,
            "finishedOn": self.finished_on,
            "processedOn": self.processed_on,
            "queueQualifiedName": self.queue,
        }

    def as_raw(self) -> dict[str, Any]:
        """Return a copy of the wire map."""
        return dict(self.raw)

    # -- operations -----------------------------------------------------------------------------

    def _bound(self) -> Any:
        """Return the connection, which a job made by hand does not have."""
        if self._conn is None:
            raise RuntimeError("job is not bound to a connection")
        return self._conn

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self._bound().call(command)
        return reply

    def _transition(self, command: dict[str, Any]) -> dict[str, Any]:
        """Make a move that ends this delivery, when there is one."""
        reply = self._call(command)
        if self.token is not None:
            self._consumed_by = command["cmd"]
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
