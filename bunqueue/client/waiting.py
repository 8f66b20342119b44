"""Waiting for a job to finish, on brokers that tell of failure and on those that do not.

``WaitJob`` of the reference server ends early on completion only, so a failure would be noticed at
the deadline. Our broker ends it as soon as the job has failed for good or is gone. Against a peer
not known to do so the wait is cut into growing holds, and between two of them the state is read.

A broker runs only so many commands of a connection at once. Where many wait, their holds are short
and they take turns, so that whoever has something else to say is heard.
"""

from __future__ import annotations

import math
import time
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.connection import WAITS_PER_LINK_MAX
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.event_waiting import NOTHING, wait_by_events
from bunqueue.client.link import Slots
from bunqueue.client.timer import Timer
from bunqueue.errors import CommandError, CommandTimeoutError, JobFailedError

TIMEOUT_MS_DEFAULT = 30_000
HOLD_MS_MAX = 600_000  # wire.md 2.2, WaitJob
HOLD_MS_CROWDED = 2_000  # at most, once half of the waits that may be held at once are
HOLD_MS_LEAST = 100  # with however many who wait for their turn
REPLY_MARGIN_S = 5.0  # the client's patience beyond the server's hold, client.md 1.2
SIDE_CHECKS_MS = (1_000, 2_000, 4_000, 8_000, 30_000)  # after 1, 3, 7, 15 s, then every 30 s
PAUSE_S = 0.1  # after a hold that ended early for no reason we can see


def wait_for_job(connection: Any, job_id: str, timeout_ms: float | None, events: Any = None) -> Any:
    """Wait until a job is done and return its result.

    Args:
        connection: The way to the broker.
        job_id: The job.
        timeout_ms: How long; None for 30 seconds.
        events: A ``QueueEvents`` that decides at once; anything else is not used.

    Raises:
        JobFailedError: It failed for good.
        CommandError: It is gone, or never was.
        CommandTimeoutError: It is still under way after ``timeout_ms``.
    """
    wait_ms = clamped_timeout_ms(timeout_ms)
    if isinstance(events, EventEmitter):
        wait_s = None if math.isinf(wait_ms) else wait_ms / 1000
        result = wait_by_events(events, job_id, wait_s, lambda: _result_so_far(connection, job_id))
        if result is NOTHING:
            raise _timed_out(wait_ms)
        return result
    deadline = time.monotonic() + wait_ms / 1000
    checks = 0
    while True:
        left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
        hold_ms = min(left_ms, HOLD_MS_MAX)
        if not getattr(connection, "tells_failures", False):
            hold_ms = min(hold_ms, SIDE_CHECKS_MS[min(checks, len(SIDE_CHECKS_MS) - 1)])
        began = time.monotonic()
        reply = _held(connection, job_id, hold_ms, deadline)
        if reply.get("completed"):
            return reply.get("result")
        _raise_if_over(connection, job_id)
        if time.monotonic() >= deadline:
            raise _timed_out(wait_ms)
        if time.monotonic() - began < PAUSE_S:
            worlds.current().sleep(PAUSE_S)
        checks += 1


def _held(connection: Any, job_id: str, hold_ms: float, deadline: float) -> dict[str, Any]:
    """Have the broker hold one WaitJob for up to ``hold_ms``, when it is our turn. Waits."""
    slots: Slots | None = getattr(connection, "wait_slots", lambda: None)()
    if slots is None:
        return _ask(connection, job_id, hold_ms)
    taken: list[bool] = []
    has_left = True
    try:
        if not slots.take(None if math.isinf(deadline) else deadline, taken):
            hold_ms = 0  # there is time for a look only
        hold_ms = min(hold_ms, max(0.0, (deadline - time.monotonic()) * 1000))
        if slots.is_crowded:
            turn_ms = HOLD_MS_CROWDED / (1 + slots.waiting / WAITS_PER_LINK_MAX)
            hold_ms = min(hold_ms, max(HOLD_MS_LEAST, turn_ms))
        reply = _ask(connection, job_id, hold_ms)
        has_left = False
        return reply
    except Exception:
        has_left = False
        raise
    finally:
        if taken and has_left:  # thrown out: the broker goes on holding the command
            Timer(hold_ms / 1000, slots.give_back)
        elif taken:
            slots.give_back()


def _ask(connection: Any, job_id: str, hold_ms: float) -> dict[str, Any]:
    reply: dict[str, Any] = connection.call(
        {"cmd": "WaitJob", "id": job_id, "timeout": int(hold_ms)},
        timeout=hold_ms / 1000 + REPLY_MARGIN_S,
    )
    return reply


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


def _timed_out(wait_ms: float) -> CommandTimeoutError:
    shown = str(wait_ms) if math.isinf(wait_ms) else str(int(wait_ms))
    return CommandTimeoutError(f"waitUntilFinished timed out after {shown}ms")


def _result_so_far(connection: Any, job_id: str) -> Any:
    """Return the result of a completed job, ``NOTHING`` while it is under way.

    A result that the broker keeps for consumers of a removed job counts as one.
    """
    reply = connection.call({"cmd": "WaitJob", "id": job_id, "timeout": 0})
    if reply.get("completed"):
        return reply.get("result")
    _raise_if_over(connection, job_id)
    return NOTHING


def _raise_if_over(connection: Any, job_id: str) -> None:
    """Raise what a wait that found no completion must say when the job's life is over."""
    state = connection.call({"cmd": "GetState", "id": job_id}).get("state")
    if state == "unknown":
        raise CommandError("Job not found", "WaitJob")
    if state == "failed":
        job = connection.call({"cmd": "GetJob", "id": job_id}).get("job") or {}
        reason = job.get("failedReason")
        raise JobFailedError(reason or "job failed", job_id, reason)
