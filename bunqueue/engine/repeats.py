"""Jobs that repeat: what their ``repeat`` may say, and when the next one is due (engine.md 3.4)."""

import math
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

from bunqueue.engine.cron_text import parse
from bunqueue.engine.cron_times import MOMENT_MS_MAX, next_run, zone_of
from bunqueue.protocol.fields import SAFE_INTEGER_MAX

# The members of ``repeat``, in the order in which they are told.
_MEMBERS: Final = (
    "every",
    "limit",
    "pattern",
    "count",
    "startDate",
    "endDate",
    "tz",
    "immediately",
    "prevMillis",
    "offset",
    "jobId",
)
_MOMENTS: Final = ("startDate", "endDate", "prevMillis", "offset")
_COUNTED_ON: Final = ("prevMillis", "offset", "count")  # the next generation's come of them


def refusal(own: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a push that repeats, or None.

    Args:
        own: The push; its ``repeat`` is a map.
    """
    repeat = own["repeat"]
    every, pattern = repeat.get("every"), repeat.get("pattern") or None
    if (every is None) == (pattern is None):
        return "repeat requires exactly one of every or pattern"
    if every is not None and not (_is_finite(every) and every > 0):
        return "repeat.every must be a positive finite number"
    if pattern is not None:
        try:
            _check_pattern(pattern, repeat.get("tz"))
        except ValueError as error:
            return f"Invalid repeat pattern: {error}"
    for name in (*_MOMENTS, "limit", "count"):
        is_good = _is_bounded if name in _COUNTED_ON else _is_finite
        if repeat.get(name) is not None and not is_good(repeat[name]):
            kind = "timestamp" if name in _MOMENTS else "number"
            return f"repeat.{name} must be a finite {kind}"
    if own.get("jobId") or own.get("customId"):
        return "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead"
    if own.get("parentId") or own.get("dependsOn") or own.get("childrenIds"):
        return "repeat jobs cannot participate in parent or dependency relationships"
    return None


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_bounded(value: object) -> bool:
    """Say whether it is a finite number that every client can hold as a whole one."""
    return _is_finite(value) and abs(value) <= SAFE_INTEGER_MAX  # type: ignore[arg-type]


def _check_pattern(pattern: object, zone_name: object) -> None:
    if not isinstance(pattern, str):
        raise ValueError("pattern must be a string")
    if zone_name is not None and not isinstance(zone_name, str):
        raise ValueError("tz must be a string")
    parse(pattern)
    if zone_name:
        zone_of(zone_name)


def normalised(repeat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known members that were given, with a ``count``; moments as floats."""
    found: dict[str, Any] = {}
    for name in _MEMBERS:
        value = repeat.get(name)
        if name == "count":
            found[name] = int(value or 0)
        elif value is not None:
            found[name] = float(value) if name in _MOMENTS and name != "offset" else value
    return found


def following(repeat: Mapping[str, Any], now: int) -> dict[str, Any] | None:
    """Return the ``repeat`` of the next generation, due at its ``prevMillis``; None at the end.

    Args:
        repeat: Normalised, of the generation that has completed now.
    """
    limit = repeat.get("limit")
    if limit is not None and repeat["count"] >= limit:
        return None
    due_at = _due_at(repeat, now)
    end = repeat.get("endDate")
    if due_at is None or due_at > MOMENT_MS_MAX or (end is not None and due_at > end):
        return None
    return {**repeat, "count": repeat["count"] + 1, "prevMillis": float(due_at)}


def shifted(repeat: Mapping[str, Any], delta_ms: int) -> dict[str, Any]:
    """Return the ``repeat`` of a waiting generation after the wall clock was set."""
    return {**repeat, "prevMillis": repeat["prevMillis"] + delta_ms}


def _due_at(repeat: Mapping[str, Any], now: int) -> int | None:
    offset: float = repeat.get("offset") or 0
    previous: float | None = repeat.get("prevMillis")
    start: float | None = repeat.get("startDate")
    every: float | None = repeat.get("every")
    if every is not None:
        every = max(1, every)  # nothing is due twice in a millisecond
        if previous is not None:  # along the grid, whole slots that were missed left out
            steps = max(1, math.floor((now - previous) / every) + 1)
            return math.ceil(previous + steps * every)
        if start is not None and start > now:
            return math.ceil(start + offset)
        return math.ceil(now + every + offset)
    base: float = now if previous is None else max(now, previous)
    base -= offset
    if start is not None:
        base = max(base, start - 1)  # the start itself counts
    zone = zone_of(repeat["tz"]) if repeat.get("tz") else UTC
    found = next_run(parse(repeat["pattern"]), zone, max(0, math.floor(base)))
    return None if found is None else math.floor(found + offset)
