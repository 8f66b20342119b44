"""The rate limit of Simple Mode: job starts in a rolling window, per group if wanted.

A job whose window is full waits in its slot. ``Worker``'s own limiter pulls fewer jobs instead, but
knows no groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.cancel import CancelSignal
from bunqueue.client.simple.settings import Settings
from bunqueue.client.worlds import now

KEYS = ("max", "duration", "group_key")
DURATION_MS_DEFAULT = 1000
GROUPS_BETWEEN_SWEEPS = 1000  # so many groups may have been seen before empty ones are dropped


class StartGate:
    """Lets ``max`` jobs start per ``duration``.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings("rate_limit", config, KEYS)
        if settings.value("max") is None:
            raise ValueError("rate_limit max is required")
        self._max = settings.whole("max", 0)
        self._window_s = settings.number("duration", DURATION_MS_DEFAULT) / 1000
        group_key = settings.value("group_key")
        self._group_key = None if group_key is None else str(group_key)
        self._starts: dict[str, deque[float]] = {}
        self._sweep_at = GROUPS_BETWEEN_SWEEPS
        self._lock = worlds.native_lock()  # nothing waits inside

    def group_for(self, data: Any) -> str:
        """Return the group a job with this data belongs to; "" for none."""
        if self._group_key is None or not isinstance(data, Mapping):
            return ""
        value = data.get(self._group_key)
        return "" if value is None else str(value)

    def wait(self, data: Any, signal: CancelSignal) -> None:
        """Wait until a job with this data may start.

        Raises:
            JobCancelledError: It was called off first.
        """
        group = self.group_for(data)
        while (left_s := self._take(group)) > 0:
            if signal.wait(left_s):
                signal.raise_if_aborted()

    def _take(self, group: str) -> float:
        """Count a start and return 0, or return the seconds until there may be room."""
        with self._lock:
            moment = now()
            starts = self._starts.setdefault(group, deque())
            while starts and starts[0] <= moment - self._window_s:
                starts.popleft()
            if len(starts) >= self._max:
                return starts[0] + self._window_s - moment
            starts.append(moment)
            if len(self._starts) > self._sweep_at:
                self._sweep_locked(moment)
            return 0.0

    def _sweep_locked(self, moment: float) -> None:
        since = moment - self._window_s
        self._starts = {
            group: starts for group, starts in self._starts.items() if starts and starts[-1] > since
        }
        self._sweep_at = len(self._starts) + GROUPS_BETWEEN_SWEEPS
