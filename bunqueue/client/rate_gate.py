"""The worker's own rate limit: a rolling window of job starts, and a rest on demand."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from bunqueue.client.worlds import now

ROOM_UNBOUNDED = 1_000_000_000


class RateGate:
    """Counts job starts; used by the pull loop only, so it needs no lock; but anybody may ``rest``.

    Args:
        limiter: ``{"max", "duration"}`` with the window in ms, or None for no limit.
    """

    def __init__(self, limiter: Mapping[str, Any] | None = None) -> None:
        self.limit: int | None = None
        self.window_s = 1.0
        self._starts: deque[float] = deque()
        self._rest_until = 0.0
        if limiter and "group_key" not in limiter:
            unknown = limiter.keys() - {"max", "duration"}
            if unknown:
                raise TypeError(f"unknown limiter option: {', '.join(sorted(unknown))}")
            limit, duration = limiter["max"], limiter.get("duration", 1000)
            if not isinstance(limit, int) or limit < 1:
                raise ValueError("limiter max must be an int of at least 1")
            if not isinstance(duration, (int, float)) or not 0 < duration < math.inf:
                raise ValueError("limiter duration must be a finite number above 0")
            self.limit, self.window_s = limit, duration / 1000

    def room(self) -> int:
        """Return how many jobs may start now."""
        if self.limit is None and not self._rest_until:
            return ROOM_UNBOUNDED
        moment = now()
        if moment < self._rest_until:
            return 0
        return ROOM_UNBOUNDED if self.limit is None else self.limit - self._recent(moment)

    def rest_s(self) -> float | None:
        """Return the seconds until there may be room; None when there is no limit."""
        moment = now()
        if moment < self._rest_until:
            return self._rest_until - moment
        if self.limit is None or self._recent(moment) < self.limit:
            return None
        return max(0.0, self._starts[0] + self.window_s - moment)

    def note_start(self) -> None:
        """Count a job start."""
        if self.limit is not None:
            self._starts.append(now())

    def rest(self, seconds: float) -> None:
        """Start nothing for a while."""
        self._rest_until = now() + seconds

    @property
    def is_resting(self) -> bool:
        """Whether a rest was asked for and is not over."""
        return now() < self._rest_until

    def info(self) -> dict[str, Any] | None:
        """Return ``{"max", "duration", "current"}``, or None without a limit."""
        if self.limit is None:
            return None
        return {
            "max": self.limit,
            "duration": self.window_s * 1000,
            "current": self._recent(now()),
        }

    def _recent(self, moment: float) -> int:
        while self._starts and self._starts[0] <= moment - self.window_s:
            self._starts.popleft()
        return len(self._starts)
