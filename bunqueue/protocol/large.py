"""Decoding a large frame piece by piece, with the hub free in between.

msgpack decodes in one go: 0.2 us and more for a list or a map, so that the largest frame could take
ten seconds, and as long again to be packed, counted and freed. So a container that does not fit
into ``WINDOW_BYTES`` is opened: its header is read here, and its items are decoded in runs, each
through ``codec.decode``; an item that is too large for the window itself is opened in turn. What is
accepted is the same as in a small frame. To find where a run ends an ``Unpacker`` skips over the
items, which makes no objects.

A byte may be a list or a map, which takes 64 bytes of memory and more: what is packed so densely is
counted, and beyond ``CONTAINERS_MAX`` nothing more is kept of the frame than what its answer needs.

The opened containers are told, so that a payload of theirs can be packed (``pack_large``) and all
of them be freed (``let_go``) piece by piece too. A long string grows piece by piece; only one that
is ASCII for long and something else then is copied in one go.
"""

import gc
import sys
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from io import BytesIO
from itertools import chain, islice
from json import dumps
from typing import Any, Final

import msgpack
from msgpack.exceptions import OutOfData

from bunqueue.protocol.codec import (
    CONTAINER_MARKS,
    DEPTH_MAX,
    NAMING,
    UNDEFINED,
    BeyondBounds,
    InvalidFrame,
    NestedTooDeeply,
    decode,
    naming,
    pack,
    text_key,
    unpack,
)
from bunqueue.protocol.frames import FRAME_BYTES_MAX

WINDOW_BYTES: Final = 16_384  # what is larger is opened, what is smaller decoded in one go
RUN_LENGTH_MAX: Final = 500  # items that are decoded together
ITEMS_PER_STEP: Final = 32  # of an opened container, packed or counted together
# Lists and maps of one frame that stand closer than one in ``SPARSE_BYTES``. Any job that may be
# stored has fewer: its JSON form, at least three characters each, is bounded by 10 MiB.
SPARSE_BYTES: Final = 16
CONTAINERS_MAX: Final = FRAME_BYTES_MAX // SPARSE_BYTES
# Members of one map, which is copied whole when it has outgrown its table: 40 ms for so many. One
# with as many that may be stored has names of five characters at most.
MEMBERS_MAX: Final = 1_048_576
# The collector goes through what is young item by item: 70 ms for the longest list. It leaves alone
# what is old (``server/main.py`` GC_THRESHOLDS): so a long list is made old while it is empty. (A
# map of plain values is none of its business, one of others grows old as it is filled.)
AGED_ITEMS_MIN: Final = 262_144
AGED_US: Final = 2_000  # the collector looks at some thousand young objects
COPIED_PER_STEP: Final = 1_048_576  # bytes of one value
FREED_PER_STEP: Final = 2_000
FREED_BYTES_PER_STEP: Final = 16_384  # of the frame
COUNTED_BYTES_MIN: Final = 1_400_000  # a packed payload below this is well within any limit
# What it costs, at most: loadtests/hub.py push-many-lists, push-many-values, push-large.
BYTES_PER_US: Final = 50
CONTAINERS_PER_US: Final = 5  # to make, check and collect
TEXT_BYTES_PER_US: Final = 500  # decoded, or counted
COPIED_BYTES_PER_US: Final = 5_000
ITEM_US: Final = 2
SKIPPED_PER_US: Final = 8
STEP_US: Final = 3
PACKED_BYTES_PER_US: Final = 15
FREED_PER_US: Final = 10
PASSED_PER_US: Final = 4  # payloads that are looked at and left as they are
FREED_BYTES_PER_US: Final = 40  # if each is a list of its own

# Yields what it has cost since it was last asked, in us.
Steps = Generator[int, Any, Any]
Container = list[Any] | dict[Any, Any]


class Packed:
    """A payload that has been packed in pieces, and stands where it stood.

    Attributes:
        packed: Its packed form.
        json_chars: Length of its JSON form, or None if it is short enough to be counted in one go.
        name: A string that it has under ``name``, or None.
        nameless: The same payload without that string, or None.
        marks: What it has under the keys that tie jobs to each other; None if it is no map.

    Name and nameless are None as well where the request has a name of its own.
    """

    __slots__ = ("packed", "json_chars", "name", "nameless", "marks")

    def __init__(self, packed: bytes, json_chars: int | None) -> None:
        self.packed = packed
        self.json_chars = json_chars
        self.name: str | None = None
        self.nameless: Packed | None = None
        self.marks: dict[str, Any] | None = None


def marks_of(payload: Any) -> dict[str, Any] | None:
    """Return a map that has what a payload has under the keys that tie jobs; None if it is none."""
    if payload.__class__ is Packed:
        marks: dict[str, Any] | None = payload.marks
        return marks
    return payload if isinstance(payload, dict) else None


# Keys of data that are the broker's own (``engine/flows.py``).
PARENT_KEY: Final = "__parentId"
PARENT_QUEUE_KEY: Final = "__parentQueue"
CHILDREN_KEY: Final = "__childrenIds"
_MARKS: Final = (PARENT_KEY, PARENT_QUEUE_KEY, CHILDREN_KEY)

_NONE: Final = object()  # no key
_ONE_DIGIT: Final = bytes(range(10))
_TWO_DIGITS: Final = bytes(range(100))
_utf8: Final = getincrementaldecoder("utf-8")


class TooManyMembers(BeyondBounds):
    """A map would be too large."""

    def __init__(self, value: object) -> None:
        super().__init__(f"holds too large a map: more than {MEMBERS_MAX} members", value)


class TooManyContainers(BeyondBounds):
    """The value would take too much memory."""

    def __init__(self, value: object) -> None:
        super().__init__(f"holds too many lists and maps: more than {CONTAINERS_MAX}", value)


# -- decoding --------------------------------------------------------------------------------------


class _Open:
    """A container that is being read.

    Attributes:
        value: The container, with the items until now.
        left: Items still to come; keys count too.
    """

    __slots__ = ("value", "left", "_key", "_is_odd")

    def __init__(self, value: Container, left: int) -> None:
        self.value = value
        self.left = left
        self._key: Any = _NONE
        self._is_odd = False

    def add(self, items: list[Any], is_refused: bool = False) -> None:
        """Add the items that come next; to a request that is refused, what its answer needs.

        Raises:
            InvalidFrame: A key is a container.
        """
        self.left -= len(items)
        value = self.value
        if isinstance(value, list):
            value += items
            return
        for item in items:
            if self._key is _NONE:
                if item.__class__ is not str:
                    if isinstance(item, (list, dict)):
                        raise InvalidFrame("a key is a container")
                    self._is_odd = True
                self._key = item
            else:
                if not is_refused or self._key in NAMING:
                    value[self._key] = item
                self._key = _NONE
                if item is UNDEFINED:
                    self._is_odd = True

    def close(self) -> Steps:
        """Make keys strings and drop undefined members, as ``codec.decode`` does."""
        value = self.value
        if not self._is_odd or isinstance(value, list):
            return
        pairs: list[tuple[Any, Any]] = []  # the last first
        while value:
            pairs.append(value.popitem())
            if not len(pairs) % FREED_PER_STEP:
                yield FREED_PER_STEP // FREED_PER_US
        while pairs:
            key, item = pairs.pop()
            if item is not UNDEFINED:
                value[text_key(key)] = item
            if not len(pairs) % FREED_PER_STEP:
                yield FREED_PER_STEP // FREED_PER_US


def decode_large(body: memoryview, opened: list[Container]) -> Steps:
    """Decode one frame's body; return its value.

    Args:
        opened: Is given the containers that were opened, each before those inside it.

    Raises:
        TooManyContainers: It has more than ``CONTAINERS_MAX``, densely packed.
        TooManyMembers: A map has more than ``MEMBERS_MAX``.
        NestedTooDeeply, InvalidFrame: As ``codec.decode``.
    """
    if len(body) <= WINDOW_BYTES:
        return decode(bytes(body))
    reader = _Reader(body)
    root: list[Any] = []
    stack = [_Open(root, 1)]
    is_too_deep = False
    excess: Callable[[object], BeyondBounds] | None = None
    found = 0
    while stack:
        top = stack[-1]
        if not top.left:
            yield from top.close()
            stack.pop()
            continue
        if excess and (len(stack) > 2 or isinstance(top.value, list)):
            yield from reader.skip(top.left)
            top.left = 0
            continue
        count = reader.run(top.left)
        if count:
            raw = reader.take()
            try:
                items = decode(
                    b"\xdd" + count.to_bytes(4, "big") + raw, outer=max(0, len(stack) - 2)
                )
            except NestedTooDeeply as error:
                is_too_deep = True  # go on: the answer needs the reqId
                items = error.value
            top.add(items, excess is not None)
            # At most so many; the marks stand inside text and numbers as well.
            containers = len(raw) - len(raw.translate(None, CONTAINER_MARKS))
            if containers > len(raw) // SPARSE_BYTES:
                found += _containers_in(items)
                if found > CONTAINERS_MAX:
                    excess = TooManyContainers
            yield count * ITEM_US + len(raw) // BYTES_PER_US + containers // CONTAINERS_PER_US
            continue
        value, inside = yield from reader.open()
        yield STEP_US
        if inside and len(stack) > DEPTH_MAX:
            is_too_deep = True
            yield from reader.skip(inside)
            inside = 0
        top.add([value], excess is not None)
        if isinstance(value, dict) and inside > 2 * MEMBERS_MAX:
            excess = TooManyMembers
        if inside > AGED_ITEMS_MIN and isinstance(value, list):
            gc.collect(1)
            yield AGED_US
        if isinstance(value, (list, dict)):
            opened.append(value)
            stack.append(_Open(value, inside))
    reader.end()
    value = root[0]
    if is_too_deep or excess:
        raise (excess or NestedTooDeeply)(naming(value))
    return value


def _containers_in(items: list[Any]) -> int:
    """Count the lists and maps inside a list, at any level."""
    count = 0
    left: list[Iterable[Any]] = [items]
    while left:
        for item in left.pop():
            if item.__class__ is list:
                left.append(item)
                count += 1
            elif item.__class__ is dict:
                left.append(item.values())
                count += 1
    return count


class _Reader:
    """Finds out where the values of a frame end."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0
        self._run_end = 0

    def run(self, most: int) -> int:
        """Look how many whole values come next, not more than what one run may have."""
        window = self._body[self._at : self._at + WINDOW_BYTES]
        unpacker = msgpack.Unpacker(read_size=WINDOW_BYTES, max_buffer_size=FRAME_BYTES_MAX)
        unpacker.feed(window)
        count = 0
        try:
            while count < most and count < RUN_LENGTH_MAX:
                unpacker.skip()
                self._run_end = self._at + unpacker.tell()
                count += 1
        except OutOfData:
            if not count and len(window) < WINDOW_BYTES:
                raise InvalidFrame("the value is not complete") from None
        except ValueError as error:  # msgpack's are
            raise InvalidFrame(str(error)) from error
        return count

    def take(self) -> bytes:
        """Return the bytes of what was found by ``run``."""
        begin, self._at = self._at, self._run_end
        return bytes(self._body[begin : self._at])

    def open(self) -> Steps:
        """Go into the container that comes next, or read the one long string.

        Returns:
            The empty container and how many values stand inside; or the string or bytes, and 0.
        """
        body, at = self._body, self._at
        mark = body[at]
        if mark & 0xF0 == 0x90:
            self._at = at + 1
            return [], mark & 15
        if mark & 0xF0 == 0x80:
            self._at = at + 1
            return {}, 2 * (mark & 15)
        width = 1 << (mark - _WIDE[mark])
        size = int.from_bytes(body[at + 1 : at + 1 + width], "big")
        self._at = at + 1 + width
        if mark >= 0xDE:
            return {}, 2 * size
        if mark >= 0xDC:
            return [], size
        if mark in _EXTENSIONS:
            size += 1  # the type comes first
        raw = body[self._at : self._at + size]
        if len(raw) < size:
            raise InvalidFrame("the value is not complete")
        self._at += size
        if mark in _EXTENSIONS:
            if raw[0]:
                raise InvalidFrame(f"extension type {raw[0]}")
            return UNDEFINED, 0
        if mark > 0xC6:
            text, decoder = "", _utf8("replace")
            for begin in range(0, size, COPIED_PER_STEP):
                end = min(size, begin + COPIED_PER_STEP)
                text += decoder.decode(raw[begin:end], end == size)  # grows in its place
                yield (end - begin) // TEXT_BYTES_PER_US
            return text, 0
        copy = BytesIO()  # gives what was written without copying it once more
        for begin in range(0, size, COPIED_PER_STEP):
            end = min(size, begin + COPIED_PER_STEP)
            copy.write(raw[begin:end])
            yield (end - begin) // TEXT_BYTES_PER_US
        return copy.getvalue(), 0

    def skip(self, count: int) -> Steps:
        """Skip so many values."""
        unpacker = msgpack.Unpacker(read_size=WINDOW_BYTES, max_buffer_size=FRAME_BYTES_MAX)
        fed = begin = self._at
        left = count
        while count:
            try:
                unpacker.skip()
                count -= 1
            except OutOfData:
                if fed >= len(self._body):
                    raise InvalidFrame("the value is not complete") from None
                unpacker.feed(self._body[fed : fed + WINDOW_BYTES])
                fed += WINDOW_BYTES
                yield WINDOW_BYTES // BYTES_PER_US + (left - count) // SKIPPED_PER_US
                left = count
            except ValueError as error:
                raise InvalidFrame(str(error)) from error
        self._at = begin + unpacker.tell()

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._at != len(self._body):
            raise InvalidFrame("something follows the value")


class _Widths(dict[int, int]):
    """Mark -> the mark of the same kind whose length is one byte."""

    def __missing__(self, mark: int) -> int:
        raise InvalidFrame(f"a value that cannot be so long, mark {mark}")


_EXTENSIONS: Final = (0xC7, 0xC8, 0xC9)
# bin, ext and str 8 .. 32; the shortest list and map with a length of their own have two bytes.
_WIDE: Final = _Widths(
    {0xC4: 0xC4, 0xC5: 0xC4, 0xC6: 0xC4, 0xC7: 0xC7, 0xC8: 0xC7, 0xC9: 0xC7}
    | {0xD9: 0xD9, 0xDA: 0xD9, 0xDB: 0xD9}
    | {0xDC: 0xDB, 0xDD: 0xDB, 0xDE: 0xDD, 0xDF: 0xDD}
)


# -- packing ---------------------------------------------------------------------------------------


def pack_payloads(request: Any, opened: list[Container]) -> Steps:
    """Put ``Packed`` in the place of every payload of a request that was opened."""
    name = request.get("cmd") if isinstance(request, dict) else None
    where = PAYLOADS.get(name) if isinstance(name, str) else None
    if where is None:
        return
    known = {id(value) for value in opened}
    name_key = "jobName" if name == "Cron" else "name"  # of the job
    for number, (holder, key) in enumerate(where(request), 1):
        if not number % FREED_PER_STEP:
            yield FREED_PER_STEP // PASSED_PER_US
        payload: Any = _NONE if key is None else holder[key]
        if id(payload) in known or is_long(payload):
            packed = yield from pack_large(payload, known)
            holder[key] = packed
            is_named = isinstance(holder, dict) and holder.get(name_key) is not None
            if isinstance(payload, dict):
                packed.marks = {key: payload[key] for key in _MARKS if key in payload}
            if not is_named and isinstance(payload, dict):
                inner = payload.get("name")
                if isinstance(inner, str):
                    packed.name = inner
                    del payload["name"]  # nobody reads it any more
                    packed.nameless = yield from pack_large(payload, known)


# A container, and the key or the number in it; the key is None where there is no payload.
Place = tuple[Any, Any]


def _at(key: str) -> Callable[[dict[str, Any]], Iterable[Place]]:
    return lambda request: [(request, key)] if key in request else []


def _of_jobs(request: dict[str, Any]) -> Iterator[Place]:
    jobs = request.get("jobs")
    for entry in jobs if isinstance(jobs, list) else ():
        yield entry, "data" if isinstance(entry, dict) and "data" in entry else None


def _of_flow(request: dict[str, Any]) -> Iterator[Place]:
    jobs = request.get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        entry = job.get("input") if isinstance(job, dict) else None
        yield entry, "data" if isinstance(entry, dict) and "data" in entry else None


def _of_results(request: dict[str, Any]) -> Iterator[Place]:
    results = request.get("results")
    if isinstance(results, list):
        for number in range(len(results)):
            yield results, number


# Where commands have payloads, which they pack and do not look into.
PAYLOADS: Final = {
    "PUSH": _at("data"),
    "PUSHB": _of_jobs,
    "PUSHF": _of_flow,
    "ACK": _at("result"),
    "ACKB": _of_results,
    "Update": _at("data"),
    "Cron": _at("data"),
}


def pack_large(value: Any, opened: set[int]) -> Steps:
    """Pack a container that was opened, or a long text; return a ``Packed``.

    Args:
        opened: The ids of all containers that were.
    """
    out = BytesIO()
    for items, container in _walk(value, opened):
        if len(items) == 1 and is_long(items[0]):
            yield from _write_long(items[0], out)
        elif items:
            packed = pack(items)
            out.write(packed[1:] if len(items) < 16 else packed[3:])
            yield _cost_us(items, len(packed), COPIED_BYTES_PER_US)
        if container is not None:
            out.write(_header(container, len(container)))
            yield STEP_US
    packed = out.getvalue()
    chars = None
    if len(packed) > COUNTED_BYTES_MIN:
        chars = yield from count_json(value, opened)
    return Packed(packed, chars)


def is_long(value: Any) -> bool:
    """Say whether a value is a text, or bytes, to be dealt with piece by piece."""
    return (value.__class__ is str or value.__class__ is bytes) and len(value) > COPIED_PER_STEP


def _write_long(value: str | bytes, out: BytesIO) -> Steps:
    """Pack a long text, or bytes, whose size in bytes is known when all is written."""
    size_at = out.tell() + 1
    out.write((b"\xdb" if isinstance(value, str) else b"\xc6") + bytes(4))
    for begin in range(0, len(value), COPIED_PER_STEP):
        piece = value[begin : begin + COPIED_PER_STEP]
        out.write(piece.encode() if isinstance(piece, str) else piece)
        yield COPIED_PER_STEP // TEXT_BYTES_PER_US
    end = out.tell()
    out.seek(size_at)
    out.write((end - size_at - 4).to_bytes(4, "big"))
    out.seek(end)


def count_json(value: Any, opened: set[int]) -> Steps:
    """Return how many characters the JSON form of a container has that was opened, or a text."""
    chars = 0
    for items, container in _walk(value, opened):
        if len(items) == 1 and is_long(items[0]):
            text = items[0]
            for begin in range(0, len(text), COPIED_PER_STEP):
                # Without the quotes of the piece, or its brackets but with the comma behind it.
                chars += json_chars(text[begin : begin + COPIED_PER_STEP]) - 2
                chars += isinstance(text, bytes)
                yield COPIED_PER_STEP // TEXT_BYTES_PER_US
            chars += 2 - isinstance(text, bytes)
        elif items:
            # Their brackets and commas are counted with the container.
            more = json_chars(items)
            chars += more - len(items) - 1
            yield _cost_us(items, more, TEXT_BYTES_PER_US)
        if container is not None:
            # Two brackets, commas between the items, a colon in each pair.
            size = len(container)
            chars += 2 + max(0, size - 1) + (size if isinstance(container, dict) else 0)
            yield STEP_US
    return chars


def _walk(value: Any, opened: set[int]) -> Iterator[tuple[list[Any], Container | None]]:
    """Yield some items that were not opened, and the container that was and comes next, if any."""
    stack: list[Iterator[list[Any]]] = [iter([[value]])]
    while stack:
        items = next(stack[-1], None)
        if items is None:
            stack.pop()
            continue
        at = 0
        while at < len(items) and id(items[at]) not in opened:
            at += 1
        if at == len(items):
            yield items, None
        else:
            container = items[at]
            yield items[:at], container
            stack += (iter([items[at + 1 :]]), _in_parts(container))


def _cost_us(items: list[Any], size: int, text_bytes_per_us: int) -> int:
    """Return what it costs to pack or count items whose form has a size."""
    text = _text_in(items)
    return STEP_US + text // text_bytes_per_us + max(0, size - text) // PACKED_BYTES_PER_US


def json_chars(value: Any) -> int:
    """Return how many characters the JSON form of a value has."""
    if isinstance(value, Packed):
        if value.json_chars is None:
            value = unpack(value.packed)
        else:
            return value.json_chars
    if value.__class__ is bytes:  # a list of their numbers
        short = len(value) - len(value.translate(None, _ONE_DIGIT))
        long = len(value.translate(None, _TWO_DIGITS))
        return 2 * len(value) - short + long + max(0, len(value) - 1) + 2
    return len(dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_form))


def _json_form(value: Any) -> Any:
    return list(value) if isinstance(value, bytes) else str(value)


def _in_parts(container: Container) -> Iterator[list[Any]]:
    flat = (
        chain.from_iterable(container.items()) if isinstance(container, dict) else iter(container)
    )
    while part := list(islice(flat, ITEMS_PER_STEP)):
        if _text_in(part) <= COPIED_PER_STEP:
            yield part
        else:
            yield from ([item] for item in part)


def _text_in(items: list[Any]) -> int:
    return sum([len(item) for item in items if item.__class__ is str or item.__class__ is bytes])


def _header(container: Container, size: int) -> bytes:
    is_map = isinstance(container, dict)
    if size < 16:
        return bytes(((0x80 if is_map else 0x90) | size,))
    if size < 65_536:
        return (b"\xde" if is_map else b"\xdc") + size.to_bytes(2, "big")
    return (b"\xdf" if is_map else b"\xdd") + size.to_bytes(4, "big")


# -- freeing ---------------------------------------------------------------------------------------


def let_go(opened: list[Container], each_bytes: int = 1) -> Steps:
    """Free containers that were opened, but for those that somebody has kept.

    Args:
        each_bytes: What an item of theirs takes in the frame, on average: it may hold so many more.
    """
    most = freed_per_step(each_bytes)
    step_us = max(most // FREED_PER_US, most * each_bytes // FREED_BYTES_PER_US)
    left = deque(opened)
    opened.clear()
    while left:
        container = left.popleft()
        while container and sys.getrefcount(container) == _OURS:
            if isinstance(container, list):
                del container[-most:]
            else:
                for _ in range(min(most, len(container))):
                    container.popitem()
            yield step_us


def freed_per_step(each_bytes: int) -> int:
    """Return how many items of about so many bytes of a frame are freed together."""
    return max(1, min(FREED_PER_STEP, FREED_BYTES_PER_STEP // max(1, each_bytes)))


def _count_ours() -> Iterator[int]:
    """Count as ``let_go`` does, of a container that nobody else has."""
    left: deque[Container] = deque([[]])
    container = left.popleft()
    yield sys.getrefcount(container)


# Of a container in a local variable; it depends on the Python whether the call that asks has one.
_OURS: Final = next(_count_ours())
