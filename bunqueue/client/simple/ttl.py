"""The time to live of Simple Mode: a job that is picked up too late fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bunqueue.client.simple.settings import Settings, checked_number

KEYS = ("default_ttl", "per_name")


class TimeToLive:
    """How old jobs may be when they are picked up, in ms; 0 is any age.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        settings = Settings("ttl", config or {}, KEYS)
        self._default_ms = settings.number("default_ttl", 0)
        per_name = settings.value("per_name", {})
        if not isinstance(per_name, Mapping):
            raise TypeError("ttl per_name must be a dict")
        self._per_name = {
            name: checked_number(f"ttl of {name}", value) for name, value in per_name.items()
        }

    def set_default(self, ttl_ms: Any) -> None:
        """Change the age of jobs without an entry of their own."""
        self._default_ms = checked_number("ttl_ms", ttl_ms)

    def set_for(self, name: str, ttl_ms: Any) -> None:
        """Change the age of jobs of one name."""
        self._per_name[name] = checked_number("ttl_ms", ttl_ms)

    def check(self, name: str, created_at: int) -> None:
        """Raise ``RuntimeError`` for a job that is too old."""
        ttl_ms = self._per_name.get(name, self._default_ms)
        if ttl_ms <= 0:
            return
        age_ms = time.time() * 1000 - created_at
        if age_ms > ttl_ms:
            raise RuntimeError(f"Job expired (age: {int(age_ms)}ms)")
