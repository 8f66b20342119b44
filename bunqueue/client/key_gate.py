"""A cap on how many jobs of one key run at once, by a field of their data (``group_key``).

A job beyond the cap keeps its slot and its lease, and starts when one of its key has ended.
"""

from __future__ import annotations

from collections import deque

from bunqueue.client.delivery import Delivery
from bunqueue.client.worlds import World


class KeyGate:
    """Lets deliveries start, at most ``most`` per value of the field ``key``."""

    def __init__(self, world: World, key: str, most: int) -> None:
        self._key = key
        self._most = most
        self._lock = world.lock()
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[Delivery]] = {}

    def may_start(self, delivery: Delivery) -> bool:
        """Count a delivery in; False when it has to wait for another of its key."""
        value = delivery.key = self._value(delivery)
        if value is None:
            return True
        with self._lock:
            if self._running.get(value, 0) >= self._most:
                self._waiting.setdefault(value, deque()).append(delivery)
                return False
            self._running[value] = self._running.get(value, 0) + 1
        return True

    def ended(self, delivery: Delivery) -> Delivery | None:
        """Count a delivery out, and return the one that starts in its place."""
        value = delivery.key  # not looked up again: the handler may have changed the data
        if value is None:
            return None
        with self._lock:
            waiting = self._waiting.get(value)
            if waiting and delivery in waiting:  # given up before it had begun
                waiting.remove(delivery)
                return None
            if waiting:
                following = waiting.popleft()
                if not waiting:
                    del self._waiting[value]
                return following
            self._running[value] -= 1
            if not self._running[value]:
                del self._running[value]
        return None

    def _value(self, delivery: Delivery) -> str | None:
        data = delivery.job.data
        value = data.get(self._key) if isinstance(data, dict) else None
        return None if value is None else repr(value)
