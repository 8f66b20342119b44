"""Which invariant of the engine is looked at where, and whether it really was in this run.

What depends on the moment of a commit, or on many limits that meet, is held more sharply by the
simulation, which has thousands of histories in the time of one here: ``RULES`` in
``tests/simulation/rules.py`` names it, and ``tests/simulation/test_mutations.py`` shows that each
rule notices when its invariant is broken. Here the same is asked of a real broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, ParamSpec, TypeVar

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
        def tell(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            yield from function(*args, **kwargs)  # type: ignore[misc]
            DONE[name] += 1

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            DONE[name] += 1
            return result

        return tell if isgeneratorfunction(function) else run  # type: ignore[return-value]

    return declare


def unchecked() -> list[str]:
    """Return the invariants that no function has held the broker to in this run."""
    return [
        invariant
        for invariant, names in BY_INVARIANT.items()
        if not any(DONE[name] for name in names)
    ]
