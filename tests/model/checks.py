"""Which invariant of the engine is looked at where, and whether it really was in this run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

INVARIANTS: Final = tuple(f"I{number}" for number in range(1, 51))
BY_INVARIANT: dict[str, list[str]] = {name: [] for name in INVARIANTS}
DONE: Counter[str] = Counter()  # functions that went through to their end


def checks(*invariants: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say which invariants a function holds the broker to; count when it has done so."""

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        for invariant in invariants:
            BY_INVARIANT[invariant].append(name)

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            DONE[name] += 1
            return result

        return run

    return declare


def unchecked() -> list[str]:
    """Return the invariants that no function has held the broker to in this run."""
    return [
        invariant
        for invariant, names in BY_INVARIANT.items()
        if not any(DONE[name] for name in names)
    ]
