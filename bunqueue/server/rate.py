"""The request limit of one connection (wire.md 1.7): a sliding window over past requests."""

from collections import deque


class RequestRate:
    """Admits at most so many requests within any window.

    Refused requests do not count: a client that keeps knocking is let in again as soon as its older
    requests have left the window.
    """

    __slots__ = ("_max", "_window_s", "_moments")

    def __init__(self, requests_max: int, window_ms: int) -> None:
        self._max = requests_max
        self._window_s = window_ms / 1000
        self._moments: deque[float] = deque()

    def admits(self, now_s: float) -> bool:
        """Count a request at ``now_s`` (seconds of the steady clock), or refuse it."""
        moments = self._moments
        while moments and moments[0] <= now_s - self._window_s:
            moments.popleft()
        if len(moments) >= self._max:
            return False
        moments.append(now_s)
        return True
