"""What a job is, as the broker last told it: its map, read by Python names."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from bunqueue.protocol.options import OPTIONS

Data = TypeVar("Data")


class JobFields(Generic[Data]):
    """The reading half of ``Job``.

    Attributes:
        raw: The map.
        worker: The worker that runs the job, or None.
    """

    raw: dict[str, Any]
    worker: Any

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
