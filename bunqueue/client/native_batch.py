"""Native batches: one call of the handler for several jobs.

The pull loop hands every delivery over and asks what is complete. A batch is complete with ``size``
members; a smaller one goes as soon as it has ``min_size``, or once its first member has waited
``timeout``. Jobs of groups do not wait, unless ``group_affinity`` keeps their groups apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bunqueue.client.delivery import Delivery
from bunqueue.client.worlds import now

SIZE_MAX = 1000  # a pull brings no more
KEYS = {"size", "min_size", "timeout", "group_affinity"}


class BatchOptions:
    """What ``batch=`` of a worker may say; see client.md 3.6.

    Raises:
        TypeError, ValueError: It cannot work.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        unknown = given.keys() - KEYS
        if unknown:
            raise TypeError(f"unknown batch option: {', '.join(sorted(unknown))}")
        self.size = _whole("size", given.get("size"), SIZE_MAX)
        self.min_size = _whole("min_size", given.get("min_size", 1), self.size)
        timeout = given.get("timeout") or 0
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError("batch timeout must be a number of ms")
        if not 0 <= timeout < math.inf:
            raise ValueError("batch timeout must be finite and at least 0")
        self.timeout_s = timeout / 1000
        self.is_affine = bool(given.get("group_affinity", False))


class Gathering:
    """Deliveries on their way into batches; used by the pull loop only."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        # By group, with affinity; all under None without. Each with the moment of its first member.
        self._waiting: dict[str | None, list[Delivery]] = {}
        self._since: dict[str | None, float] = {}

    def add(self, delivery: Delivery) -> list[list[Delivery]]:
        """Take a delivery and return the batches that it completes."""
        group = delivery.job.group_id if self._options.is_affine else None
        waiting = self._waiting.setdefault(group, [])
        if not waiting:
            self._since[group] = now()
        waiting.append(delivery)
        if len(waiting) >= self._options.size:
            return [self._take(group)]
        return []

    def due(self) -> list[list[Delivery]]:
        """Return the batches that wait no longer, after a pull."""
        options, moment = self._options, now()
        found = []
        for group, waiting in list(self._waiting.items()):
            is_late = options.timeout_s and moment >= self._since[group] + options.timeout_s
            may_not_wait = not options.is_affine and any(
                one.job.group_id is not None for one in waiting
            )
            if len(waiting) >= options.min_size or is_late or may_not_wait:
                found.append(self._take(group))
        return found

    def rest_s(self) -> float | None:
        """Return the seconds until a batch is late; None when none can be."""
        if not self._since or not self._options.timeout_s:
            return None
        return max(0.0, min(self._since.values()) + self._options.timeout_s - now())

    def wanted(self) -> dict[str, str | None]:
        """Return what a pull asks for, to fill the batch that waits longest: ``affinity``."""
        if not (self._options.is_affine and self._since):
            return {}
        return {"affinity": min(self._since, key=self._since.__getitem__)}

    def all(self) -> list[Delivery]:
        """Take out whatever waits: there will be no batch of it."""
        return [one for group in list(self._waiting) for one in self._take(group)]

    def _take(self, group: str | None) -> list[Delivery]:
        self._since.pop(group, None)
        return self._waiting.pop(group)


def _whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"batch {name} must be an int")
    if not 1 <= value <= most:
        raise ValueError(f"batch {name} must be 1 to {most}")
    return value
