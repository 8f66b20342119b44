"""Ids and lock tokens: UUID version 7, strictly increasing within the process.

The milliseconds and a 12-bit counter make the order, 62 random bits make the rest. Random digits
are drawn in blocks, because one system call per id would cost more than the rest of an admission.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bunqueue import compiled

_COUNTER_TEXTS = tuple(f"{value:03x}-" for value in range(4096))
_BLOCK = 1024
# A tail is the last two bytes of eight, a dash, and the first six of the next eight: so the digits
# of a whole block are made at once, with their dashes. The first two bits of a tail are those of
# the variant, not chance.
_CHANCE = int.from_bytes(b"\xff\xff\xff\xff\xff\xff\x3f\xff" * (_BLOCK + 1))
_VARIANT = int.from_bytes(b"\x00\x00\x00\x00\x00\x00\x80\x00" * (_BLOCK + 1))
_TAIL_AT = 12
_TAIL_CHARS = 17


class Ids:
    """Makes ids; ``random_bytes`` is the source of chance (seeded in tests)."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._last_ms = 0
        self._counter = 0
        self._prefix = ""
        self._tails: list[str] = []

    def new(self, now: int) -> str:
        """Return an id that is greater than every one before."""
        counter = self._counter
        if now > self._last_ms:
            self._start(now)
            counter = 0
        elif counter == 4096:
            self._start(self._last_ms + 1)
            counter = 0
        self._counter = counter + 1
        tails = self._tails or self._refill()
        return self._prefix + _COUNTER_TEXTS[counter] + tails.pop()

    def _start(self, ms: int) -> None:
        self._last_ms = ms
        text = f"{ms:012x}"
        self._prefix = f"{text[:8]}-{text[8:]}-7"

    def _refill(self) -> list[str]:
        size = 8 * (_BLOCK + 1)
        chance = int.from_bytes(self._random_bytes(size))
        text = (chance & _CHANCE | _VARIANT).to_bytes(size).hex("-", 8)
        end = _TAIL_AT + _BLOCK * _TAIL_CHARS
        self._tails = [text[at : at + _TAIL_CHARS] for at in range(_TAIL_AT, end, _TAIL_CHARS)]
        return self._tails


if not TYPE_CHECKING and compiled.IS_COMPILED:
    Ids = compiled.part("records").Ids
