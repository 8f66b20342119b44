"""When two replies say the same.

Generated ids and tokens become names in the order in which they turn up, wherever in a text they
stand. A moment is compared as its distance from the start of the run on its own side, with room for
the time that commands take; spans that a clock is running down likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.wire.conversation import UNDEFINED
from tests.wire.record import GENERATED_ID, MOMENT_MIN

# Two servers that get the same commands side by side are never this far apart, and no span that a
# sequence uses is as short, but those that it waits for.
CLOCK_MS_MAX = 5_000

# Spans that depend on how much time has passed, and figures that do.
CLOCKED = frozenset({"rateLimitTtl", "ttl", "duration", "uptime"})

_generated = re.compile(GENERATED_ID.__self__.pattern)


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Any = _Absent()
"""Stands for a key that one reply lacks."""


class Normaliser:
    """Gives the generated ids of one side the names they have on the other side too."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        """Return ``value`` with names for ids, without what is "undefined"."""
        if isinstance(value, dict):
            return {self(key): self(value[key]) for key in sorted(value) if value[key] != UNDEFINED}
        if isinstance(value, list):
            return [self(item) for item in value]
        if isinstance(value, str):
            return _generated.sub(self._name, value)
        return value

    def _name(self, match: re.Match[str]) -> str:
        return self._names.setdefault(match[0], f"<id{len(self._names) + 1}>")


@dataclass(frozen=True, slots=True)
class Difference:
    """One spot at which two replies differ.

    Attributes:
        path: Keys and positions that lead to it.
        theirs: What the reference says there.
        ours: What we say.
    """

    path: tuple[str | int, ...]
    theirs: Any
    ours: Any

    @property
    def where(self) -> str:
        """The path as a text, ``jobs.0.runAt``."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        theirs, ours = _brief(self.theirs), _brief(self.ours)
        return f"{self.where or '(reply)'}: reference {theirs!r}, ours {ours!r}"


def _brief(value: Any) -> Any:
    """Return a list of jobs as their ids and when they are due; anything else as it is."""
    if isinstance(value, list) and all(
        isinstance(each, dict) and "runAt" in each for each in value
    ):
        return [(each.get("id"), each["runAt"]) for each in value]
    return value


def differences(
    theirs: Any, ours: Any, starts: tuple[float, float], path: tuple[str | int, ...] = ()
) -> Iterator[Difference]:
    """Yield every spot at which two normalised values differ.

    Args:
        theirs: The reference's value.
        ours: Our value.
        starts: When the run began, on either side's clock, in epoch milliseconds.
        path: Where the values stand in the reply.
    """
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            their_item, our_item = theirs.get(key, ABSENT), ours.get(key, ABSENT)
            yield from differences(their_item, our_item, starts, (*path, key))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (their_item, our_item) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(their_item, our_item, starts, (*path, number))
    elif not _is_alike(theirs, ours, starts, path):
        yield Difference(path, theirs, ours)


def _is_alike(
    theirs: Any, ours: Any, starts: tuple[float, float], path: tuple[str | int, ...]
) -> bool:
    if not (_is_number(theirs) and _is_number(ours)):
        return type(theirs) is type(ours) and bool(theirs == ours)
    if theirs >= MOMENT_MIN and ours >= MOMENT_MIN:
        return abs((theirs - starts[0]) - (ours - starts[1])) < CLOCK_MS_MAX
    if path and path[-1] in CLOCKED and theirs >= 0 and ours >= 0:
        return abs(theirs - ours) < CLOCK_MS_MAX
    return bool(theirs == ours)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
