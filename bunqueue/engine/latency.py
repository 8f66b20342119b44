"""How long operations took: histograms with the bounds of wire.md 6.4.

Who runs commands measures; the engine has no clock. Counting is one search in a short tuple, done
once for all commands that were read together.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

BOUNDS_S: Final = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Histogram:
    """Counts by upper bound.

    Attributes:
        count, sum_s: Of everything that was observed.
    """

    __slots__ = ("count", "sum_s", "_counts")

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Note that ``count`` operations took so long each."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += count
        self.count += count
        self.sum_s += seconds * count

    def mean_ms(self) -> float:
        """Return the mean, 0 if there is nothing."""
        return self.sum_s * 1000 / self.count if self.count else 0.0

    def percentile_ms(self, part: float) -> float:
        """Return the bound below which that part (0..1) lies; the largest bound for what is above.

        0 if there is nothing.
        """
        wanted = part * self.count
        if not wanted:
            return 0.0
        for bound_s, count in self.cumulative():
            if count >= wanted:
                return round(bound_s * 1000, 3)
        return BOUNDS_S[-1] * 1000

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound in seconds with how many took at most so long."""
        total = 0
        for bound_s, count in zip(BOUNDS_S, self._counts, strict=False):
            total += count
            yield bound_s, total


Note = tuple[float, int, int, int]


class Latencies:
    """Attributes: push, pull, ack: one histogram each."""

    __slots__ = ("_push", "_pull", "_ack", "_noted", "note")

    def __init__(self) -> None:
        self._push = Histogram()
        self._pull = Histogram()
        self._ack = Histogram()
        self._noted: deque[Note] = deque()
        # ``note((seconds, pushes, pulls, acks))``: so many took so long each. An append and no more
        # where it is called; what was noted is sorted in when it is read, and by ``settle``.
        self.note: Callable[[Note], None] = self._noted.append

    @property
    def push(self) -> Histogram:
        """Of pushes."""
        self.settle()
        return self._push

    @property
    def pull(self) -> Histogram:
        """Of pulls that found a job."""
        self.settle()
        return self._pull

    @property
    def ack(self) -> Histogram:
        """Of completions."""
        self.settle()
        return self._ack

    @property
    def noted(self) -> int:
        """How many notes are still to be sorted in."""
        return len(self._noted)

    def settle(self, most: int | None = None) -> int:
        """Sort in what was noted; the engine's timed work does so every second.

        Args:
            most: No more than so many notes; None is all.

        Returns:
            How many are left.
        """
        noted = self._noted
        for _ in range(len(noted) if most is None else min(most, len(noted))):
            seconds, pushed, pulled, completed = noted.popleft()
            if pushed > 0:
                self._push.observe(seconds, pushed)
            if pulled > 0:
                self._pull.observe(seconds, pulled)
            if completed > 0:
                self._ack.observe(seconds, completed)
        return len(noted)

    def mean_ms(self) -> float:
        """Return the mean over all three."""
        every = (self.push, self.pull, self.ack)
        count = sum(each.count for each in every)
        return sum(each.sum_s for each in every) * 1000 / count if count else 0.0
