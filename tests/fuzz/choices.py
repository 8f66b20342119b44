"""Choices that a fuzzer's bytes make: a mutation of them is another request, not a damaged one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")

DEPTH_MAX = 4
MARKED = (
    b"\xd4\x00\x00", b"\xd6\xff\x00\x00\x00\x01", b"\xc4\x01a", b"\xa2\xff\xfe", b"\xd4\x05\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", b"\xc1",
    b"\xca\x7f\x7f\xff\xff", b"\xcb\x41\xef\xff\xff\xff\xe0\x00\x00",
)  # fmt: skip
TEXTS = (
    "", "a", "name", "n" * 256, "n" * 257, "\u00e9\U0001f600", "\x00", "__proto__", "q:1", "a b",
    "undefined", "*", "-1", "1e9", "2030-01-01", "UTC", "5 * * * *", "http://127.0.0.1/x",
)  # fmt: skip
NUMBERS = (
    0, 1, 2, 3, 5, 10, -1, -2, 100, 255, 256, 1000, 1001, 30_000, 60_000, 60_001, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 0.5, -0.0,
    1.5, 1e9, 1e300, -1e300, float("nan"), float("inf"), 31_536_000_000, 1_700_000_000_000,
)  # fmt: skip


class Raw(bytes):
    """Bytes that are msgpack already, maybe broken."""


class Choices:
    """Bytes, spent one choice after the other; behind their end every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def below(self, bound: int) -> int:
        """Return a number of 0 .. ``bound`` - 1; takes a byte, or two."""
        value = self._byte()
        if bound > 256:
            value = value << 8 | self._byte()
        return value % bound

    def chance(self, one_in: int) -> bool:
        """Say yes about once in so many times; at the end of the bytes no."""
        return self.below(one_in) == one_in - 1

    def of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def taken(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        self._at += count
        return data

    def rest(self) -> bytes:
        return self.taken(len(self._data))

    def value(self, depth: int = 0) -> Any:
        """Return anything that msgpack has, and some that it has not."""
        kind = self.below(12)
        if kind < 2:
            return self.of((None, True, False))
        if kind < 4:
            return self.of(NUMBERS)
        if kind < 6:
            return self.of(TEXTS)
        if kind == 6:
            return self.taken(self.below(20))
        if kind == 7:
            return Raw(self.of(MARKED))
        if depth == DEPTH_MAX:
            return self.below(256)
        if kind < 10:
            return [self.value(depth + 1) for _ in range(self.below(4))]
        return {self.key(): self.value(depth + 1) for _ in range(self.below(4))}

    def key(self) -> Any:
        return self.of((*TEXTS, "a", "b", 1, -1, None, True, 1.5, b"a"))

    def _byte(self) -> int:
        at, self._at = self._at, self._at + 1
        return self._data[at] if at < len(self._data) else 0


def packed(value: Any, choices: Choices, odd: bool) -> bytes:
    """Pack a value; if ``odd``, in forms that are not the shortest, and with keys twice."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        pairs = [packed(key, choices, odd) + packed(item, choices, odd)
                 for key, item in value.items()]  # fmt: skip
        if odd and pairs and choices.chance(6):
            pairs.append(pairs[choices.below(len(pairs))])
        return _head(len(pairs), 0x80, b"\xde", b"\xdf", choices, odd) + b"".join(pairs)
    if isinstance(value, list):
        items = [packed(item, choices, odd) for item in value]
        return _head(len(items), 0x90, b"\xdc", b"\xdd", choices, odd) + b"".join(items)
    if odd and isinstance(value, str):
        data = value.encode()
        return choices.of((b"\xda" + struct.pack(">H", len(data)),
                           b"\xdb" + struct.pack(">I", len(data)))) + data  # fmt: skip
    if odd and isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return choices.of((b"\xd2" + struct.pack(">i", value), struct.pack(">Bq", 0xD3, value)))
    body: bytes = msgpack.packb(value)
    return body


def _head(count: int, fix: int, wide: bytes, widest: bytes, choices: Choices, odd: bool) -> bytes:
    if odd and choices.chance(2):
        return choices.of((wide + struct.pack(">H", count), widest + struct.pack(">I", count)))
    return bytes((fix | count,)) if count < 16 else wide + struct.pack(">H", count)
