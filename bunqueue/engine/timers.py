"""Deadlines that fire once: timeouts of runs, expiry of jobs, ends of long polls.

A heap with lazy removal. What was cancelled stays until it is due or until more than half of the
heap is cancelled, whichever is first, so the heap is proportional to what still waits.
"""

import heapq
from collections.abc import Callable
from typing import Any

COMPACT_ABOVE = 1024  # smaller heaps are not worth rebuilding

# [due at, number, action or None once cancelled, first argument, second argument]
Timer = list[Any]


class Timers:
    """The engine's heap of deadlines."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._number = 0
        self._cancelled = 0
        self.next_at: float = float("inf")
        self.on_sooner: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, at: int, action: Callable[..., None], first: Any, second: Any = None) -> Timer:
        """Have ``action(first, second, now)`` called at ``at`` (epoch ms)."""
        self._number += 1
        timer: Timer = [at, self._number, action, first, second]
        heapq.heappush(self._heap, timer)
        if at < self.next_at:
            self.next_at = at
            if self.on_sooner is not None:
                self.on_sooner(at)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Make sure that the action is not called; harmless if it was."""
        if timer[2] is None:
            return
        timer[2] = timer[3] = timer[4] = None
        self._cancelled += 1
        if self._cancelled > COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run(self, now: int, at_most: int) -> int:
        """Fire what is due, at most so many; return how many fired."""
        fired = 0
        while self._heap and fired < at_most:
            if self._heap[0][2] is None:
                heapq.heappop(self._heap)
                self._cancelled -= 1
                continue
            if self._heap[0][0] > now:
                break
            _, _, action, first, second = timer = heapq.heappop(self._heap)
            timer[2] = timer[3] = timer[4] = None
            fired += 1
            action(first, second, now)
        self.next_at = self._heap[0][0] if self._heap else float("inf")
        return fired

    def shift(self, delta_ms: int) -> None:
        """Move every deadline, after the wall clock jumped; the order stays."""
        for timer in self._heap:
            timer[0] += delta_ms
        if self._heap:
            self.next_at = self._heap[0][0]
