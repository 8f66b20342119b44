"""What a queue can do as a whole: pause, clean, limits, dead letters, and what the broker tells."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Unpack

from bunqueue.client.dlq import DlqEntry, DlqStats, dlq_entry, dlq_filter, dlq_stats
from bunqueue.client.job import Job
from bunqueue.client.options import camel, compact, epoch_ms, milliseconds
from bunqueue.client.types import DlqConfig, DlqFilter, StallConfig

DLQ_CONFIG = frozenset(
    {"auto_retry", "auto_retry_interval", "max_auto_retries", "max_age", "max_entries"}
)
STALL_CONFIG = frozenset({"enabled", "stall_interval", "max_stalls", "grace_period"})
RATE_LIMIT_WINDOW_MS = 1000  # of rate_limit(): one job per second until it expires


class CleanResult(int):
    """How many jobs were removed.

    Attributes:
        ids: Their ids.
    """

    ids: list[str]

    def __new__(cls, count: int, ids: list[str]) -> CleanResult:
        """Return the number, carrying the ids."""
        self = super().__new__(cls, count)
        self.ids = ids
        return self


class QueueControl:
    """The half of ``Queue`` that acts on the queue as a whole."""

    connection: Any
    queue_key: str

    def _control(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command about this queue, without the fields that are None."""
        reply: dict[str, Any] = self.connection.call(
            compact({"cmd": cmd, "queue": self.queue_key, **fields})
        )
        return reply

    def _number(self, cmd: str, **fields: Any) -> int:
        return int(self._control(cmd, **fields).get("count") or 0)

    # -- the queue ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out no more jobs until ``resume``. Waits."""
        self._control("Pause")

    def resume(self) -> None:
        """Hand out jobs again. Waits."""
        self._control("Resume")

    def is_paused(self) -> bool:
        """Ask whether the queue is paused. Waits."""
        return bool(self._control("IsPaused").get("paused"))

    def drain(self) -> int:
        """Remove all waiting, prioritized and delayed jobs; return how many. Waits."""
        return self._number("Drain")

    def obliterate(self) -> None:
        """Remove the queue with everything in it. Waits."""
        self._control("Obliterate")

    def clean(
        self, grace_ms: Any, limit: int | None = None, state: str | None = None
    ) -> CleanResult:
        """Remove jobs older than ``grace_ms``. Waits."""
        reply = self._control("Clean", grace=milliseconds(grace_ms), limit=limit, state=state)
        ids = [str(job_id) for job_id in reply.get("ids") or []]
        return CleanResult(int(reply.get("count") or 0), ids)

    def promote_jobs(self, count: int | None = None) -> int:
        """Make delayed jobs ready, the oldest first; return how many. Waits."""
        return self._number("PromoteJobs", count=count)

    def retry_jobs(
        self,
        state: str = "failed",
        count: int | None = None,
        *,
        timestamp: float | datetime | None = None,
    ) -> int:
        """Make failed or completed jobs ready again; return how many. Waits.

        Raises:
            ValueError: ``state`` is neither ``"failed"`` nor ``"completed"``.
        """
        if state == "completed":
            return self.retry_completed(count=count, timestamp=timestamp)
        if state != "failed":
            raise ValueError("state must be 'failed' or 'completed'")
        older = None if timestamp is None else {"olderThan": epoch_ms(timestamp)}
        return self._number("RetryDlq", count=count, filter=older)

    def retry_completed(
        self,
        job_id: str | None = None,
        *,
        count: int | None = None,
        timestamp: float | datetime | None = None,
    ) -> int:
        """Run completed jobs again; return how many. Waits."""
        return self._number("RetryCompleted", id=job_id, count=count, timestamp=epoch_ms(timestamp))

    # -- limits ---------------------------------------------------------------------------------

    def set_global_rate_limit(self, max_jobs: int, duration_ms: Any = None) -> None:
        """Hand out at most ``max_jobs`` per ``duration_ms``, over all workers. Waits."""
        self._control("RateLimit", limit=max_jobs, duration=milliseconds(duration_ms))

    def remove_global_rate_limit(self) -> None:
        """Drop the rate limit. Waits."""
        self._control("RateLimitClear")

    def set_global_concurrency(self, concurrency: int) -> None:
        """Let at most that many jobs be active, over all workers. Waits."""
        self._control("SetConcurrency", limit=concurrency)

    def remove_global_concurrency(self) -> None:
        """Drop the concurrency limit. Waits."""
        self._control("ClearConcurrency")

    def _limits(self, max_jobs: int | None = None) -> dict[str, Any]:
        data = self._control("GetQueueLimits", maxJobs=max_jobs).get("data") or {}
        limits: dict[str, Any] = data.get("limits") or {}
        return limits

    def get_global_rate_limit(self) -> dict[str, Any] | None:
        """Return ``{"max", "duration"}``, or None. Waits."""
        return self._limits().get("rateLimit")

    def get_global_concurrency(self) -> int | None:
        """Return how many jobs may be active, or None. Waits."""
        limit = self._limits().get("concurrencyLimit")
        return None if limit is None else int(limit)

    def get_rate_limit_ttl(self, max_jobs: int | None = None) -> int:
        """Return the ms until the next job may go; -2 without a limit. Waits."""
        return int(self._limits(max_jobs).get("rateLimitTtl", -2))

    def rate_limit(self, expire_time_ms: Any) -> None:
        """Slow the queue down to one job per second for a while. Waits."""
        self._control(
            "RateLimit",
            limit=1,
            duration=RATE_LIMIT_WINDOW_MS,
            ttl=milliseconds(expire_time_ms),
        )

    def is_maxed(self) -> bool:
        """Ask whether as many jobs are active as may be. Waits."""
        return bool(self._limits().get("maxed"))

    # -- dead letters ---------------------------------------------------------------------------

    def get_dlq(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the maps of jobs that have failed for good. Waits."""
        return list(self._control("Dlq", count=count).get("jobs") or [])

    def get_dlq_jobs(self, count: int | None = None) -> list[Job[Any]]:
        """Return the jobs that have failed for good. Waits."""
        return [Job(raw, self.connection) for raw in self.get_dlq(count)]

    def get_dlq_entries(
        self,
        filter: DlqFilter | Mapping[str, Any] | None = None,
        **named: Unpack[DlqFilter],
    ) -> list[DlqEntry]:
        """Return dead letters with their reasons and attempts. Waits."""
        wanted = dlq_filter(filter, named)
        entries = self._control("Dlq", filter=wanted or None).get("entries") or []
        return [dlq_entry(raw, self.connection) for raw in entries]

    def get_dlq_stats(self) -> DlqStats:
        """Return figures about the dead letters. Waits."""
        data = self._control("GetDlqStats").get("data") or {}
        return dlq_stats(data.get("stats") or {})

    def retry_dlq(
        self,
        job_id: str | None = None,
        count: int | None = None,
        *,
        filter: DlqFilter | Mapping[str, Any] | None = None,
    ) -> int:
        """Make dead letters ready again; return how many. Waits."""
        if job_id is not None and filter is not None:
            raise TypeError("job_id and filter exclude each other")
        wanted = None if filter is None else dlq_filter(filter, {})
        return self._number("RetryDlq", jobId=job_id, count=count, filter=wanted)

    def retry_dlq_by_filter(self, filter: DlqFilter | Mapping[str, Any]) -> int:
        """Make the dead letters that match ready again; return how many. Waits."""
        return self.retry_dlq(filter=filter)

    def remove_dlq_job(self, job_id: str) -> bool:
        """Remove one dead letter; False when there is none with this id. Waits."""
        data = self._control("RemoveDlqJob", jobId=job_id).get("data") or {}
        return bool(data.get("removed"))

    def purge_dlq(self) -> int:
        """Remove all dead letters; return how many. Waits."""
        return self._number("PurgeDlq")

    def set_dlq_config(
        self, config: DlqConfig | Mapping[str, Any] | None = None, **named: Unpack[DlqConfig]
    ) -> None:
        """Change how dead letters are kept; what is not named stays. Waits."""
        self._control("SetDlqConfig", config=_config(config, named, DLQ_CONFIG))

    def get_dlq_config(self) -> dict[str, Any]:
        """Return how dead letters are kept. Waits."""
        return dict(self._control("GetDlqConfig").get("config") or {})

    def set_stall_config(
        self, config: StallConfig | Mapping[str, Any] | None = None, **named: Unpack[StallConfig]
    ) -> None:
        """Change how silent workers are found; what is not named stays. Waits."""
        self._control("SetStallConfig", config=_config(config, named, STALL_CONFIG))

    def get_stall_config(self) -> dict[str, Any]:
        """Return how silent workers are found. Waits."""
        return dict(self._control("GetStallConfig").get("config") or {})


def _config(
    config: Mapping[str, Any] | None, named: Mapping[str, Any], known: frozenset[str]
) -> dict[str, Any]:
    for name in named:
        if name not in known:
            raise TypeError(f"unknown setting: {name!r}")
    return {camel(key): milliseconds(value) for key, value in {**(config or {}), **named}.items()}
