"""Waiting for a job to finish, on brokers that tell of failure and on those that do not.

``WaitJob`` of the reference server ends early on completion only, so a failure would be noticed at
the deadline. Our broker ends it as soon as the job has failed for good or is gone. Against a peer
not known to do so the wait is cut into growing holds, and between two of them the state is read.
"""

from __future__ import annotations

import math
import time
from typing import Any

from bunqueue.errors import CommandError, CommandTimeoutError, JobFailedError

TIMEOUT_MS_DEFAULT = 30_000
HOLD_MS_MAX = 600_000  # wire.md 2.2, WaitJob
REPLY_MARGIN_S = 5.0  # the client's patience beyond the server's hold, client.md 1.2
SIDE_CHECKS_MS = (1_000, 2_000, 4_000, 8_000, 30_000)  # after 1, 3, 7, 15 s, then every 30 s
PAUSE_S = 0.1  # after a hold that ended early for no reason we can see


def wait_for_job(connection: Any, job_id: str, timeout_ms: float | None) -> Any:
    """Wait until a job is done and return its result.

    Raises:
        JobFailedError: It failed for good.
        CommandError: It is gone, or never was.
        CommandTimeoutError: It is still under way after ``timeout_ms``.
    """
    wait_ms = clamped_timeout_ms(timeout_ms)
    deadline = time.monotonic() + wait_ms / 1000
    checks = 0
    while True:
        left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
        hold_ms = min(left_ms, HOLD_MS_MAX)
        if not getattr(connection, "tells_failures", False):
            hold_ms = min(hold_ms, SIDE_CHECKS_MS[min(checks, len(SIDE_CHECKS_MS) - 1)])
        began = time.monotonic()
        reply = connection.call(
            {"cmd": "WaitJob", "id": job_id, "timeout": int(hold_ms)},
            timeout=hold_ms / 1000 + REPLY_MARGIN_S,
        )
        if reply.get("completed"):
            return reply.get("result")
        _raise_if_over(connection, job_id)
        if time.monotonic() >= deadline:
            raise CommandTimeoutError(f"waitUntilFinished timed out after {_shown(wait_ms)}ms")
        if time.monotonic() - began < PAUSE_S:
            time.sleep(PAUSE_S)
        checks += 1


def clamped_timeout_ms(timeout_ms: float | None) -> float:
    """Return the wait in ms, infinity included.

    Raises:
        TypeError: It is no number.
    """
    if timeout_ms is None:
        return TIMEOUT_MS_DEFAULT
    if not isinstance(timeout_ms, (int, float)):
        raise TypeError("timeout_ms must be a number or None")
    if math.isnan(timeout_ms) or timeout_ms < 0:
        return 0
    return float(timeout_ms)


def _shown(wait_ms: float) -> str:
    return str(wait_ms) if math.isinf(wait_ms) else str(int(wait_ms))


def _raise_if_over(connection: Any, job_id: str) -> None:
    """Raise what a wait that found no completion must say when the job's life is over."""
    state = connection.call({"cmd": "GetState", "id": job_id}).get("state")
    if state == "unknown":
        raise CommandError("Job not found", "WaitJob")
    if state == "failed":
        job = connection.call({"cmd": "GetJob", "id": job_id}).get("job") or {}
        reason = job.get("failedReason")
        raise JobFailedError(reason or "job failed", job_id, reason)
