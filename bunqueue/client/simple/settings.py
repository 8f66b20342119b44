"""Reading the option dicts of ``Bunqueue``: snake or camel keys, defaults, values that can work."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from bunqueue.client.options import camel, milliseconds

log = logging.getLogger("bunqueue")


class Settings:
    """One option dict; a missing or falsy value means the default.

    Args:
        name: Of the option, for errors.
        given: The dict.
        known: Its keys; others are named in one warning and not used.

    Raises:
        TypeError: It is no dict.
    """

    def __init__(self, name: str, given: Any, known: tuple[str, ...]) -> None:
        if not isinstance(given, Mapping):
            raise TypeError(f"{name} must be a dict")
        self._name = name
        self._given = given
        spellings = {*known, *map(camel, known)}
        unknown = sorted(str(key) for key in given if key not in spellings)
        if unknown:
            log.warning("keys of %s are not known and not used: %s", name, " ".join(unknown))

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value, or ``default`` when there is none."""
        return self._given.get(key) or self._given.get(camel(key)) or default

    def number(self, key: str, default: float, *, least: float = 0) -> float:
        """Return a finite number of at least ``least``; a ``timedelta`` counts in ms.

        Raises:
            TypeError, ValueError: It cannot be one.
        """
        return checked_number(f"{self._name} {key}", self.value(key, default), least=least)

    def whole(self, key: str, default: int, *, least: int = 1) -> int:
        """Return a number cut to a whole one."""
        number = int(self.number(key, default))
        if number < least:
            raise ValueError(f"{self._name} {key} must be at least {least}")
        return number

    def function(self, key: str) -> Callable[..., Any] | None:
        """Return a callback, or None when there is none.

        Raises:
            TypeError: It cannot be called.
        """
        found = self.value(key)
        if found is not None and not callable(found):
            raise TypeError(f"{self._name} {key} must be callable")
        return found  # type: ignore[no-any-return]  # a callable, as was just seen


def checked_number(name: str, value: Any, *, least: float = 0) -> float:
    """Return a finite number; texts that spell one have always passed.

    Raises:
        TypeError, ValueError: It cannot be one.
    """
    try:
        number = float(milliseconds(value))
    except TypeError as error:
        raise TypeError(f"{name} must be a number") from error
    except ValueError as error:
        raise ValueError(f"{name} must be a number") from error
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{name} must be finite and at least {least}")
    return number
