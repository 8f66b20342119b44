"""Read-ahead: jobs that are here already when the slot comes free that will run them.

A pull takes a round trip, and with short handlers slots come free while it is under way; each
would stand idle until the next one is back. So a worker asks for as many jobs more as slots came
free during its last pull. With handlers that take longer than a pull that is none: nothing is held
here that another worker could run. Nor is it where something says when or how often jobs may
start: limiters, caps, native batches, child processes, ``max_jobs``.

A job that waits here is active for the broker, and its lease is kept. It goes back, no attempt
counted, when the worker pauses or closes, or when no slot has come free for it soon after all.
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from bunqueue.client import worlds
from bunqueue.client.delivery import Delivery

STALE_S = 0.1  # how long a job may wait here: what a pull by somebody else would hardly cost


class Ahead:
    """The jobs that one worker has pulled beyond its slots.

    Attributes:
        limit: How many there may be.
        lock: Guards what comes in and goes out together with the slots; nothing waits inside.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._deliveries: deque[Delivery] = deque()
        self._stale_at = 0.0
        self._freed = 0
        self._freed_before = 0
        self.limit = 0
        self.lock = worlds.native_lock()

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def room(self) -> int:
        """How many more may be pulled."""
        return self.limit - len(self._deliveries)

    @property
    def is_low(self) -> bool:
        """Whether it is worth a pull of its own: half of what may be here has been used."""
        return 2 * self.room > self.limit

    @property
    def rest_s(self) -> float | None:
        """How long the jobs may go on waiting, None when there are none."""
        return max(0.0, self._stale_at - monotonic()) if self._deliveries else None

    def put(self, delivery: Delivery) -> None:
        """Keep a delivery until a slot is free; ``lock`` is held."""
        if not self._deliveries:
            self._stale_at = monotonic() + STALE_S
        self._deliveries.append(delivery)

    def take(self) -> Delivery | None:
        """Return the one that came first; ``lock`` is held."""
        if not self._deliveries:
            return None
        self._stale_at = monotonic() + STALE_S
        return self._deliveries.popleft()

    def take_all(self) -> list[Delivery]:
        """Return all of them, and ask for none until a pull shows again that it is worth while."""
        with self.lock:
            taken = list(self._deliveries)
            self._deliveries.clear()
            self.limit = 0
        return taken

    def note_freed(self) -> None:
        """Note that a slot has come free; ``lock`` is held."""
        self._freed += 1

    def pull_begins(self) -> None:
        """Note that a pull leaves."""
        self._freed_before = self._freed

    def pull_ends(self, was_filled: bool, most: int) -> None:
        """Set the limit by what happened meanwhile.

        Args:
            was_filled: It brought as many as were asked for: there may be more.
            most: The limit is never above that.
        """
        freed = self._freed - self._freed_before
        self.limit = min(freed, most) if was_filled and self._is_wanted else 0
