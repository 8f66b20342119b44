"""Events of a queue as applications read them, made from what the broker tells (client.md 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What the broker calls it -> what listeners call it; others are called the same.
NAMES = {"pushed": "waiting", "pulled": "active"}
# Name -> keys beside ``jobId``, each with the fields of the event it is taken from.
_KEYS: dict[str, dict[str, str]] = {
    "completed": {"returnvalue": "data"},
    "failed": {"failedReason": "error", "data": "data", "terminal": "terminal"},
    "delayed": {"delay": "delay"},
    "removed": {"prev": "prev"},
    "retried": {"prev": "prev"},
}
_DEFAULTS: dict[str, Any] = {"terminal": True}
_OF_QUEUE = ("paused", "resumed")


class EventData(dict[str, Any]):
    """One event: a dict with the wire's keys, which are attributes by their Python names as well.

    ``event["jobId"]`` and ``event.job_id`` are the same; a key that this event does not have is
    None as an attribute.
    """

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key by its Python name."""
        if name.startswith("__") or name not in _ATTRIBUTES:
            raise AttributeError(name)
        return self.get(_ATTRIBUTES[name])


_ATTRIBUTES = {
    "job_id": "jobId",
    "returnvalue": "returnvalue",
    "failed_reason": "failedReason",
    "data": "data",
    "terminal": "terminal",
    "delay": "delay",
    "prev": "prev",
    "id": "id",
}


def event_of(told: Mapping[str, Any]) -> tuple[str, EventData] | None:
    """Return an event's name and data, or None for a frame that tells none."""
    kind, job_id = told.get("eventType"), told.get("jobId")
    if not isinstance(kind, str):
        return None
    name = NAMES.get(kind, kind)
    if name in _OF_QUEUE:
        return name, EventData()
    if name == "drained":
        return name, EventData(id=job_id)
    event = EventData(jobId=job_id)
    if name == "progress":
        event["data"] = _progress(told)
    for key, field in _KEYS.get(name, {}).items():
        event[key] = told.get(field, _DEFAULTS.get(key))
    return name, event


def _progress(told: Mapping[str, Any]) -> Any:
    """Return the value reported, without the envelope it travels in."""
    if "progress" in told:
        return told["progress"]
    data = told.get("data")
    return data.get("progress") if isinstance(data, Mapping) else data
