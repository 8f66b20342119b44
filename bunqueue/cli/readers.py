"""Readers: how one field of a wire command is read off the parsed arguments.

A reader answers ``ABSENT`` when its option was not given, so that the field is left out and the
broker's own default holds.
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

from bunqueue.cli.usage import Args, UsageError


class Absent:
    """Stands for a field that is not sent."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = Absent()

Reader = Callable[[Args], Any]

UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def text(key: str) -> Reader:
    """Read the words as they are."""
    return lambda args: ABSENT if args[key] is None else args[key]


def words(key: str) -> Reader:
    """Read a list separated by commas."""
    return _given(key, lambda value: [word.strip() for word in value.split(",") if word.strip()])


def flag(key: str) -> Reader:
    """Read a switch; one that is off is not sent."""
    return lambda args: True if args[key] else ABSENT


def constant(value: Any) -> Reader:
    """Send the same value always."""
    return lambda _args: value


def whole(key: str) -> Reader:
    """Read a whole number; its bounds are the broker's business."""
    return _given(key, lambda value: _whole(key, value))


def number(key: str) -> Reader:
    """Read a number, fractions allowed."""
    return _given(key, lambda value: _number(key, value))


def span_ms(key: str) -> Reader:
    """Read a span: milliseconds, or a number with one of the units ms, s, m, h, d."""
    return _given(key, lambda value: milliseconds(key, value))


def json_value(key: str) -> Reader:
    """Read JSON; a lone ``-`` reads it from standard input."""
    return _given(key, lambda value: _json(key, value))


def milliseconds(key: str, value: str) -> int | float:
    """Return a span in milliseconds."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", value.strip())
    if match is None:
        raise UsageError(f"{key} must be a span such as 500, 30s or 5m, not {value!r}")
    span = float(match[1]) * UNITS_MS[match[2]]
    return int(span) if span.is_integer() else span


def _given(key: str, read: Callable[[str], Any]) -> Reader:
    return lambda args: ABSENT if args[key] is None else read(args[key])


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{key} must be a whole number, not {value!r}") from None


def _number(key: str, value: str) -> int | float:
    if not re.fullmatch(r"[+-]?\d+(\.\d+)?", value):
        raise UsageError(f"{key} must be a number, not {value!r}")
    return float(value) if "." in value else int(value)


def _json(key: str, value: str) -> Any:
    try:
        source = sys.stdin.read() if value == "-" else value
        return json.loads(source, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{key} is not valid JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
