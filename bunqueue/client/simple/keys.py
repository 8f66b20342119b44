"""The keys of Simple Mode: jobs of one name and payload are twins, those of one name debounced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bunqueue.client.options import compact
from bunqueue.client.simple.settings import Settings

DEDUPLICATION_KEYS = ("ttl", "extend", "replace")
DEDUPLICATION_TTL_MS_DEFAULT = 3_600_000


class Keys:
    """Adds the options ``deduplication`` and ``debounce`` where a job has none of its own.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, deduplication: Any, debounce: Any) -> None:
        self._policy: dict[str, Any] | None = None
        self._debounce_ttl: float | None = None
        if deduplication:
            settings = Settings("deduplication", deduplication, DEDUPLICATION_KEYS)
            self._policy = compact(
                {
                    "ttl": settings.number("ttl", DEDUPLICATION_TTL_MS_DEFAULT),
                    "extend": settings.value("extend"),
                    "replace": settings.value("replace"),
                }
            )
        if debounce:
            settings = Settings("debounce", debounce, ("ttl",))
            if settings.value("ttl") is None:
                raise ValueError("debounce ttl is required")
            self._debounce_ttl = settings.number("ttl", 0)

    def add(self, name: str, data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the keys of a job."""
        merged = dict(options)
        if self._policy is not None and "deduplication" not in merged:
            text = "" if data is None else json.dumps(data, separators=(",", ":"), default=repr)
            merged["deduplication"] = {"id": f"{name}:{text}", **self._policy}
        if self._debounce_ttl is not None and "debounce" not in merged:
            merged["debounce"] = {"id": name, "ttl": self._debounce_ttl}
        return merged
