"""One steady line of epoch milliseconds, whatever is done to the wall clock."""

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

JUMP_MS_MIN: Final = 1_000  # a wall clock that moves this far against the steady one has jumped


class Clock:
    """Epoch milliseconds that never go back and never leap without a word.

    Stored times are wall time. When the wall clock is set, ``on_jump(delta_ms)`` is called before
    the new time is handed out, so that whatever measures spans by it can be moved along. Steps
    backwards below the limit are waited out instead.

    Attributes:
        steady: The monotonic clock, in seconds.
        on_jump: Called with the size of a jump.
        jumps: How often the wall clock was set since the start.
        last_jump: Epoch ms after the last time, and by how many ms; None before the first.
    """

    __slots__ = ("steady", "on_jump", "jumps", "last_jump", "_wall_ns", "_last", "_offset_ms")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steady = steady
        self.on_jump: Callable[[int], None] | None = None
        self.jumps = 0
        self.last_jump: tuple[int, int] | None = None
        self._wall_ns = wall_ns
        self._last = wall_ns() // 1_000_000
        self._offset_ms = self._last - steady() * 1000

    def now(self) -> int:
        """Return the time. Most calls are one read of the wall clock."""
        now = self._wall_ns() // 1_000_000
        if 0 <= now - self._last < JUMP_MS_MIN:
            self._last = now
            return now
        return self._after_gap(now)

    def look(self) -> int:
        """Return the time after comparing both clocks; slow drift between them is accepted."""
        return self._after_gap(self._wall_ns() // 1_000_000)

    def _after_gap(self, now: int) -> int:
        """Tell a jump from a long silence by the monotonic clock."""
        offset_ms = now - self.steady() * 1000
        delta_ms = round(offset_ms - self._offset_ms)
        if abs(delta_ms) < JUMP_MS_MIN:
            self._offset_ms = offset_ms
            self._last = max(now, self._last)
            return self._last
        log.warning("the clock was set, leases move along delta_ms=%d", delta_ms)
        self._offset_ms = offset_ms
        self._last = now
        self.jumps += 1
        self.last_jump = now, delta_ms
        if self.on_jump is not None:
            self.on_jump(delta_ms)
        return now
