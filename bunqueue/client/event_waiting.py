"""Waiting for a job to finish by listening, which decides at once and costs the broker nothing.

The listeners are attached before the state is read, so an end between the two is not missed; and
it is read again after a reconnect, since events of the gap are lost.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bunqueue.client import worlds
from bunqueue.errors import CommandError, JobFailedError

ENDS = ("completed", "failed", "removed")
# Events may have been lost to a slow listener, or end with ``events.close()``: the state is looked
# at now and then all the same.
LOOK_PERIOD_S = 30.0
NOTHING = object()


def wait_by_events(events: Any, job_id: str, wait_s: float | None, look: Callable[[], Any]) -> Any:
    """Return the job's result, or ``NOTHING`` when the time is over first. Waits.

    Args:
        events: A ``QueueEvents`` of the job's queue.
        job_id: The job.
        wait_s: How long; None for ever.
        look: Reads the job's state: returns its result if it is completed and ``NOTHING`` if it is
            under way, and raises if it is over otherwise.
    """
    gate = worlds.current().gate()
    heard: deque[tuple[str, Any]] = deque()

    def listener(name: str) -> Callable[..., None]:
        def hear(event: Any = None) -> None:
            if name == "resubscribed" or (event or {}).get("jobId") == job_id:
                heard.append((name, event))
                gate.open()

        return hear

    listeners = {name: listener(name) for name in (*ENDS, "resubscribed")}
    for name, hear in listeners.items():
        events.on(name, hear)
    try:
        result = look()
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while result is NOTHING:
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            if not heard and left_s <= 0:
                return NOTHING
            if not heard and not gate.wait(min(left_s, LOOK_PERIOD_S)):
                result = look()
            while heard and result is NOTHING:
                name, event = heard.popleft()
                result = look() if name == "resubscribed" else _outcome(job_id, name, event)
        return result
    finally:
        for name, hear in listeners.items():
            events.off(name, hear)


def _outcome(job_id: str, name: str, event: Any) -> Any:
    if name == "completed":
        return event.get("returnvalue")
    if name == "removed":
        raise CommandError("Job not found", "WaitJob")
    if not event.get("terminal", True):
        return NOTHING
    reason = event.get("failedReason")
    raise JobFailedError(reason or "job failed", job_id, reason)
