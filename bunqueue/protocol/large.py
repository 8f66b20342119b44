"""Decoding a large frame piece by piece, with the hub free in between.

msgpack decodes in one go: up to 30 ns a byte where values are small, more than a second for the
largest frame. What makes frames large is a list of jobs or of results, so the map and its lists
are taken apart first. An ``Unpacker`` skips over the members, which tells where each ends, and runs
of them go through ``codec.decode``: what is accepted is the same as in a small frame.

One member is decoded in one go, whatever its size.
"""

from collections.abc import Generator
from typing import Any, Final

import msgpack
from msgpack.exceptions import OutOfData

from bunqueue.protocol.codec import UNDEFINED, InvalidFrame, NestedTooDeeply, decode, text_key

RUN_BYTES: Final = 32_768  # members of a list that are decoded together, at least so many bytes
RUN_LENGTH_MAX: Final = 500  # or so many
FED_BYTES: Final = 262_144  # what the unpacker is given at a time, so that no skip takes long
# Bytes that are dealt with in a us: members of lists, which have many values, and the rest, which
# is rarely more than one long text. loadtests/hub.py push-many-values, push-large.
LISTED_BYTES_PER_US: Final = 50
OTHER_BYTES_PER_US: Final = 500
MEMBER_US: Final = 2  # of a list, beside its bytes: loadtests/hub.py push-batch

# Yields what it has cost since it was last asked, in us.
Steps = Generator[int, Any, Any]


def decode_large(body: memoryview) -> Steps:
    """Decode one frame's body; return its value.

    Raises:
        NestedTooDeeply, InvalidFrame: As ``codec.decode``.
    """
    if not _is_map(body[0]):
        return decode(bytes(body))
    try:
        return (yield from _decode_map(_Reader(body)))
    except NestedTooDeeply:
        raise
    except ValueError as error:  # msgpack's are
        raise InvalidFrame(str(error)) from error


def _decode_map(reader: "_Reader") -> Steps:
    pairs: dict[str, Any] = {}
    is_too_deep = False
    for _ in range(reader.open_map()):
        yield from reader.skip()
        key = reader.take(0)
        if isinstance(key, (list, dict)):
            raise InvalidFrame("a key is a container")
        try:
            value = yield from _decode_member(reader)
        except NestedTooDeeply:
            is_too_deep = True  # go on: the answer needs the reqId
            continue
        if value is not UNDEFINED:
            pairs[text_key(key)] = value
    reader.end()
    if is_too_deep:
        raise NestedTooDeeply(pairs)
    return pairs


def _decode_member(reader: "_Reader") -> Steps:
    count = reader.open_list()
    if count is None:
        yield from reader.skip()
        yield reader.taken_bytes // OTHER_BYTES_PER_US
        return reader.take(0)
    items: list[Any] = []
    too_deep: NestedTooDeeply | None = None
    run = 0
    for number in range(1, count + 1):
        yield from reader.skip()
        run += 1
        if reader.taken_bytes >= RUN_BYTES or run == RUN_LENGTH_MAX or number == count:
            yield reader.taken_bytes // LISTED_BYTES_PER_US + run * MEMBER_US
            try:
                items += reader.take(run)
            except NestedTooDeeply as error:
                too_deep = error
            run = 0
    if too_deep is not None:
        raise too_deep
    return items


class _Reader:
    """Finds out where the members of a frame end.

    Attributes:
        taken_bytes: Size of what was skipped since the last ``take``.
    """

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._unpacker = msgpack.Unpacker(max_buffer_size=len(body) + FED_BYTES)
        self._fed = 0
        self._begin = self._end = 0
        self._feed()

    @property
    def taken_bytes(self) -> int:
        return self._end - self._begin

    def _feed(self) -> None:
        if self._fed >= len(self._body):
            raise InvalidFrame("the value is not complete")
        self._unpacker.feed(self._body[self._fed : self._fed + FED_BYTES])
        self._fed += FED_BYTES

    def open_map(self) -> int:
        """Go into the map that comes next; return how many pairs it has."""
        count: int = self._unpacker.read_map_header()
        self._begin = self._end = self._unpacker.tell()
        return count

    def open_list(self) -> int | None:
        """Go into the list that comes next; return how long it is, or None if it is no list."""
        if self._end >= len(self._body) or not _is_list(self._body[self._end]):
            return None
        while True:
            try:
                count: int = self._unpacker.read_array_header()
            except OutOfData:
                self._feed()
            else:
                self._begin = self._end = self._unpacker.tell()
                return count

    def skip(self) -> Steps:
        """Skip the next value."""
        while True:
            try:
                self._unpacker.skip()
            except OutOfData:
                self._feed()
                yield FED_BYTES // OTHER_BYTES_PER_US
            else:
                self._end = self._unpacker.tell()
                return

    def take(self, count: int) -> Any:
        """Decode what was skipped: ``count`` members of a list, or one value for 0."""
        raw = bytes(self._body[self._begin : self._end])
        self._begin = self._end
        return decode(b"\xdd" + count.to_bytes(4, "big") + raw if count else raw, outer=1)

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._end != len(self._body):
            raise InvalidFrame("something follows the value")


def _is_map(mark: int) -> bool:
    return 0x80 <= mark <= 0x8F or mark in (0xDE, 0xDF)


def _is_list(mark: int) -> bool:
    return 0x90 <= mark <= 0x9F or mark in (0xDC, 0xDD)
