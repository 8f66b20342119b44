"""Deadlines that fire once: timeouts of runs, expiry of jobs, ends of long polls.

A heap with lazy removal. What was cancelled stays until it is due or until more than half of the
heap is cancelled, whichever is first, so the heap is proportional to what still waits. To build a
heap of a million anew takes a tenth of a second, so that is done by and by: the old heap gives its
last entries, some with each cancellation, to a new one. Until it is empty both are looked at; a
heap that loses its last entry stays one.

A step of the wall clock moves all deadlines at once: they are kept without it.
"""

import heapq
from collections.abc import Callable
from typing import Any

COMPACT_ABOVE = 1024  # smaller heaps are not worth rebuilding
MOVED_PER_CANCEL = 4  # entries: half of a heap is live, so it is through when that has gone too

# [due at but for the steps of the clock, number, action or None once cancelled, first argument,
# second argument]
Timer = list[Any]


class Timers:
    """A heap of deadlines."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._old: list[Timer] = []  # given up, entry by entry
        self._number = 0
        self._cancelled = 0
        self._shifted_ms = 0
        self.next_at: float = float("inf")
        self.on_sooner: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return self.size - self._cancelled

    @property
    def size(self) -> int:
        """How many entries there are, those that were cancelled among them."""
        return len(self._heap) + len(self._old)

    def add(self, at: int, action: Callable[..., None], first: Any, second: Any = None) -> Timer:
        """Have ``action(first, second, now)`` called at ``at`` (epoch ms)."""
        self._number += 1
        timer: Timer = [at - self._shifted_ms, self._number, action, first, second]
        heapq.heappush(self._heap, timer)
        if at < self.next_at:
            self.next_at = at
            if self.on_sooner is not None:
                self.on_sooner(at)
        return timer

    def due_at(self, timer: Timer) -> int:
        """Return when the timer is due, epoch ms."""
        at: int = timer[0] + self._shifted_ms
        return at

    def cancel(self, timer: Timer) -> None:
        """Make sure that the action is not called; harmless if it was."""
        if timer[2] is None:
            return
        timer[2] = timer[3] = timer[4] = None
        self._cancelled += 1
        if self._old:
            self._move_on()
        elif self._cancelled > COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._old, self._heap = self._heap, []
            self._move_on()

    def _move_on(self) -> None:
        """Let the old heap give some entries to the new one, those that were not cancelled."""
        old = self._old
        for _ in range(min(MOVED_PER_CANCEL, len(old))):
            timer = old.pop()
            if timer[2] is None:
                self._cancelled -= 1
            else:
                heapq.heappush(self._heap, timer)

    def run(self, now: int, at_most: int) -> int:
        """Fire what is due, at most so many; return how many fired."""
        fired = 0
        while fired < at_most:
            heap = self._first()
            if not heap:
                break
            if heap[0][2] is None:
                heapq.heappop(heap)
                self._cancelled -= 1
                continue
            if self.due_at(heap[0]) > now:
                break
            _, _, action, first, second = timer = heapq.heappop(heap)
            timer[2] = timer[3] = timer[4] = None
            fired += 1
            action(first, second, now)
        heap = self._first()
        self.next_at = self.due_at(heap[0]) if heap else float("inf")
        return fired

    def _first(self) -> list[Timer]:
        """Return the heap with the first entry of all."""
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap

    def clear(self) -> None:
        """Forget every deadline; no entry refers to anything any more."""
        for timer in (*self._heap, *self._old):
            timer[2] = timer[3] = timer[4] = None
        self._heap.clear()
        self._old.clear()
        self._cancelled = 0
        self.next_at = float("inf")

    def shift(self, delta_ms: int) -> None:
        """Move every deadline, after the wall clock jumped."""
        self._shifted_ms += delta_ms
        self.next_at += delta_ms
