"""Dead letters as Python sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bunqueue.client.job import Job
from bunqueue.client.options import camel, compact, epoch_ms

FILTER_KEYS = frozenset(
    {"reason", "older_than", "newer_than", "retriable", "expired", "limit", "offset"}
)


@dataclass(frozen=True, slots=True)
class DlqAttempt:
    """One run that ended badly; times are epoch ms, the duration is in ms."""

    attempt: int
    started_at: int | None
    failed_at: int | None
    reason: str | None
    error: str | None
    duration: int | None


@dataclass(frozen=True, slots=True)
class DlqEntry:
    """A job that has given up, why, and what becomes of it; times are epoch ms."""

    job: Job[Any]
    entered_at: int | None
    reason: str | None
    error: str | None
    attempts: list[DlqAttempt]
    retry_count: int
    last_retry_at: int | None
    next_retry_at: int | None
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class DlqStats:
    """Figures about the dead letters of a queue."""

    total: int
    by_reason: dict[str, int]
    by_queue: dict[str, int]
    pending_retry: int
    expired: int
    oldest_entry: int | None
    newest_entry: int | None


def dlq_entry(raw: Mapping[str, Any], connection: Any) -> DlqEntry:
    """Return an entry of a Dlq reply."""
    return DlqEntry(
        job=Job(dict(raw.get("job") or {}), connection),
        entered_at=_whole(raw.get("enteredAt")),
        reason=raw.get("reason"),
        error=raw.get("error"),
        attempts=[
            DlqAttempt(
                attempt=int(one.get("attempt") or 0),
                started_at=_whole(one.get("startedAt")),
                failed_at=_whole(one.get("failedAt")),
                reason=one.get("reason"),
                error=one.get("error"),
                duration=_whole(one.get("duration")),
            )
            for one in raw.get("attempts") or []
        ],
        retry_count=int(raw.get("retryCount") or 0),
        last_retry_at=_whole(raw.get("lastRetryAt")),
        next_retry_at=_whole(raw.get("nextRetryAt")),
        expires_at=_whole(raw.get("expiresAt")),
    )


def dlq_stats(raw: Mapping[str, Any]) -> DlqStats:
    """Return the figures of a GetDlqStats reply."""
    return DlqStats(
        total=int(raw.get("total") or 0),
        by_reason=dict(raw.get("byReason") or {}),
        by_queue=dict(raw.get("byQueue") or {}),
        pending_retry=int(raw.get("pendingRetry") or 0),
        expired=int(raw.get("expired") or 0),
        oldest_entry=_whole(raw.get("oldestEntry")),
        newest_entry=_whole(raw.get("newestEntry")),
    )


def dlq_filter(given: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a filter as the wire spells it; keys of ``given`` pass, keywords are checked.

    Raises:
        TypeError: An unknown keyword.
    """
    for name in named:
        if name not in FILTER_KEYS:
            raise TypeError(f"unknown filter: {name!r}")
    merged = compact({**(given or {}), **named})
    return {camel(key): epoch_ms(value) for key, value in merged.items()}


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
