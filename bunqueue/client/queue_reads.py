"""What a queue can be asked: jobs, states, results, counts, logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from bunqueue.client.job import Job
from bunqueue.client.options import compact
from bunqueue.client.types import JobExplanation
from bunqueue.client.waiting import wait_for_job
from bunqueue.errors import CommandError

PAGE_SIZE = 1000
States = str | Sequence[str] | None


class JobLogs(list[dict[str, Any]]):
    """Lines ``{"timestamp", "level", "message"}``.

    Attributes:
        count: How many lines there are in all.
    """

    count: int  # type: ignore[assignment]  # client.md 1.2 wants the number under this name

    def __init__(self, lines: Sequence[dict[str, Any]] = (), count: int = 0) -> None:
        super().__init__(lines)
        self.count = count


class QueueReads:
    """The reading half of ``Queue``."""

    connection: Any
    queue_key: str

    def _call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command, without the fields that are None."""
        reply: dict[str, Any] = self.connection.call(compact({"cmd": cmd, **fields}))
        return reply

    def _ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command about this queue."""
        return self._call(cmd, queue=self.queue_key, **fields)

    # -- jobs -----------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job[Any] | None:
        """Return a job, or None when there is none with this id. Waits."""
        return self._find("GetJob", id=job_id)

    def get_job_by_custom_id(self, custom_id: str) -> Job[Any] | None:
        """Return the unfinished job with the caller's own id, or None. Waits."""
        return self._find("GetJobByCustomId", customId=custom_id)

    def _find(self, cmd: str, **fields: Any) -> Job[Any] | None:
        try:
            raw = self._call(cmd, **fields).get("job")
        except CommandError as error:
            if "not found" in str(error).lower():
                return None
            raise
        return None if raw is None else Job(raw, self.connection)

    def get_jobs(
        self, state: States = None, start: int = 0, end: int = PAGE_SIZE, *, asc: bool = True
    ) -> list[Job[Any]]:
        """Return the jobs number ``start`` up to, not including, ``end``; -1 for all. Waits."""
        if end == -1:
            return list(self.iter_jobs(state, asc=asc, start=start))
        return self._page(state, start, max(0, end - start), asc)

    def iter_jobs(
        self, state: States = None, *, page_size: int = PAGE_SIZE, asc: bool = True, start: int = 0
    ) -> Iterator[Job[Any]]:
        """Yield the jobs in pages. Waits at each page."""
        while page := self._page(state, start, page_size, asc):
            yield from page
            if len(page) < page_size:
                return
            start += page_size

    def _page(self, state: States, offset: int, limit: int, asc: bool) -> list[Job[Any]]:
        if limit == 0:
            return []
        wanted = state if state is None or isinstance(state, str) else list(state)
        reply = self._ask(
            "GetJobs", state=wanted, offset=offset, limit=limit, asc=None if asc else False
        )
        return [Job(raw, self.connection) for raw in reply.get("jobs") or []]

    def get_waiting(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that are ready, without priority. Waits."""
        return self.get_jobs("waiting", start, end)

    def get_prioritized(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that are ready, with a priority. Waits."""
        return self.get_jobs("prioritized", start, end)

    def get_delayed(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that are due later. Waits."""
        return self.get_jobs("delayed", start, end)

    def get_active(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that run. Waits."""
        return self.get_jobs("active", start, end)

    def get_completed(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that are done. Waits."""
        return self.get_jobs("completed", start, end)

    def get_failed(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that have failed for good. Waits."""
        return self.get_jobs("failed", start, end)

    def get_waiting_children(self, start: int = 0, end: int = PAGE_SIZE) -> list[Job[Any]]:
        """Return jobs that wait for others. Waits."""
        return self.get_jobs("waiting-children", start, end)

    # -- one job's state ------------------------------------------------------------------------

    def get_state(self, job_id: str) -> str:
        """Return a job's state; ``"unknown"`` when it does not exist. Waits."""
        return str(self._call("GetState", id=job_id).get("state"))

    get_job_state = get_state

    def explain(self, job_id: str) -> JobExplanation:
        """Tell why a job is not running; a broker of the original kind does not know. Waits.

        Returns:
            ``{"id", "queue", "state", "reasons", "ahead"}``; each reason has a ``code`` for
            programs, a ``text`` for people, and ``until`` (epoch ms) where time takes it away.
        """
        return cast(JobExplanation, self._call("ExplainJob", id=job_id)["explanation"])

    def get_result(self, job_id: str, default: Any = None) -> Any:
        """Return a job's result, or ``default`` when it has none. Waits."""
        return self._call("GetResult", id=job_id).get("result", default)

    def get_progress(self, job_id: str) -> dict[str, Any]:
        """Return ``{"progress", "message"}`` of an active job. Waits."""
        reply = self._call("GetProgress", id=job_id)
        return {"progress": reply.get("progress"), "message": reply.get("message")}

    def wait_for_job(
        self, job_id: str, timeout_ms: float | None = 30_000, *, queue_events: Any = None
    ) -> Any:
        """Wait until a job is done and return its result.

        Args:
            job_id: The job.
            timeout_ms: How long; None for 30 seconds.
            queue_events: A ``QueueEvents`` of this queue, which tells without asking.

        Raises:
            JobFailedError: It failed for good.
            CommandError: It is gone, or never was.
            CommandTimeoutError: It is still under way after ``timeout_ms``.
        """
        return wait_for_job(self.connection, job_id, timeout_ms, queue_events)

    def wait_job_until_finished(
        self, job_id: str, queue_events: Any = None, ttl_ms: float | None = None
    ) -> Any:
        """Wait until a job is done; another name of ``wait_for_job``."""
        return self.wait_for_job(job_id, ttl_ms, queue_events=queue_events)

    # -- counts ---------------------------------------------------------------------------------

    def get_job_counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state. Waits."""
        counts = self._ask("GetJobCounts").get("counts") or {}
        return {state: int(count) for state, count in counts.items()}

    def _count_of(self, state: str) -> int:
        return self.get_job_counts().get(state, 0)

    def get_waiting_count(self) -> int:
        """Return how many jobs are ready, without priority. Waits."""
        return self._count_of("waiting")

    def get_prioritized_count(self) -> int:
        """Return how many jobs are ready, with a priority. Waits."""
        return self._count_of("prioritized")

    def get_active_count(self) -> int:
        """Return how many jobs run. Waits."""
        return self._count_of("active")

    def get_completed_count(self) -> int:
        """Return how many jobs are done. Waits."""
        return self._count_of("completed")

    def get_failed_count(self) -> int:
        """Return how many jobs have failed for good. Waits."""
        return self._count_of("failed")

    def get_delayed_count(self) -> int:
        """Return how many jobs are due later. Waits."""
        return self._count_of("delayed")

    def get_waiting_children_count(self) -> int:
        """Return how many jobs wait for others. Waits."""
        return self._count_of("waiting-children")

    def count(self) -> int:
        """Return how many jobs are waiting, prioritized or delayed. Waits."""
        return int(self._ask("Count").get("count") or 0)

    def get_counts_per_priority(self) -> dict[str, int]:
        """Return how many queued jobs there are of each priority. Waits."""
        counts = self._ask("GetCountsPerPriority").get("counts") or {}
        return {str(priority): int(count) for priority, count in counts.items()}

    # -- logs -----------------------------------------------------------------------------------

    def get_job_logs(
        self, job_id: str, start: int | None = None, end: int | None = None
    ) -> JobLogs:
        """Return log lines ``start`` to ``end``, both included. Waits."""
        try:
            found = self._call("GetLogs", id=job_id, start=start, end=end).get("data") or {}
        except CommandError as error:
            if "not found" in str(error).lower():
                return JobLogs()
            raise
        lines = found.get("logs") or []
        return JobLogs(lines, int(found.get("count") or len(lines)))

    def add_job_log(self, job_id: str, message: str, level: str | None = None) -> None:
        """Add a line to a job's log. Waits."""
        self._call("AddLog", id=job_id, message=message, level=level)

    def clear_job_logs(self, job_id: str, keep_logs: int | None = None) -> None:
        """Drop a job's log but for the newest lines. Waits."""
        self._call("ClearLogs", id=job_id, keepLogs=keep_logs)

    # -- deduplication --------------------------------------------------------------------------

    def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """Return the id of the job that holds a deduplication key, or None. Waits."""
        reply = self._ask("GetDeduplicationJobId", deduplicationId=deduplication_id)
        found = (reply.get("data") or {}).get("jobId")
        return None if found is None else str(found)

    def remove_deduplication_key(self, dedup_id: str) -> int:
        """Let a twin in; return how many keys were released. Waits."""
        data = self._ask("RemoveDeduplicationKey", deduplicationId=dedup_id).get("data") or {}
        return int(data.get("count") or 0)
