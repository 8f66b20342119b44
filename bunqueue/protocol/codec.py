"""msgpack as bunqueue speaks it: what may come in, what may go out.

Inbound: extension type 0 is JavaScript's "undefined" and means absent (a map loses the key, a list
keeps the position as ``UNDEFINED``); the timestamp extension is kept; any other extension makes the
frame invalid. Map keys that are no strings become strings, ill-formed UTF-8 is replaced.

Outbound: integers outside -2^31 .. 2^32-1 leave as float64, because JavaScript decoders turn 64-bit
integers into big integers that break arithmetic; a peer that announced ``int64`` gets them exactly.

The common frame pays for none of this: it goes through one strict ``unpackb``, and only what that
refuses, or what holds the first byte of an "undefined" or of bytes, is looked at again.

Nesting is limited in one place, where a frame comes in: a reply wraps its jobs in further levels,
and what msgpack could just take in, no client could read any more, nor could ``narrow`` walk it.
"""

from collections.abc import Callable
from typing import Any, Final

import msgpack

INT32_MIN: Final = -(2**31)
UINT32_MAX: Final = 2**32 - 1
DEPTH_MAX: Final = 512  # containers inside each other in a frame, its own map included
_MSGPACK_DEPTH_MAX: Final = 1_024  # where msgpack itself ends, at any level it is called with

# Looked for as numbers: 0.02 us each, where one of type bytes takes 0.15.
_EXT1: Final = 0xD4  # an "undefined" begins so
_BIN8: Final = 0xC4  # a map key may be bytes
_UINT64: Final = 0xCF
_INT64: Final = 0xD3
CONTAINER_MARKS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
_LEVELS: Final = _MSGPACK_DEPTH_MAX - DEPTH_MAX
_CONTAINERS: Final = frozenset((dict, list))
_OPEN_LEVEL: Final = b"\x91"
_OPEN_LEVELS: Final = _OPEN_LEVEL * _LEVELS


NAMING: Final = ("cmd", "reqId")  # what an answer needs of a request


class Undefined:
    """The type of ``UNDEFINED``: a list element that its sender left undefined."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNDEFINED"

    def __bool__(self) -> bool:
        return False


UNDEFINED: Final = Undefined()


class InvalidFrame(ValueError):
    """The bytes are not exactly one acceptable msgpack value."""


class BeyondBounds(InvalidFrame):
    """The value would be fine but for a bound, which the text tells.

    Attributes:
        value: What was decoded.
        request: What names the command to its sender: ``cmd`` and ``reqId``, as far as there.
    """

    def __init__(self, text: str, value: object) -> None:
        super().__init__(text)
        self.value = value
        self.request = naming(value)


def naming(value: object) -> dict[str, Any]:
    """Return the members of a request that an answer needs, as far as they are there and plain."""
    found = {}
    if isinstance(value, dict):
        for key in NAMING:
            if isinstance(value.get(key), (str, int, float)):
                found[key] = value[key]
    return found


class NestedTooDeeply(BeyondBounds):
    """The value has too many levels."""

    def __init__(self, value: object) -> None:
        super().__init__(f"nested too deeply: more than {DEPTH_MAX} levels", value)


def _extension(code: int, data: bytes) -> object:
    if code == 0 and len(data) == 1:
        return UNDEFINED
    raise InvalidFrame(f"extension type {code}")


def _any_undefined(code: int, _data: bytes) -> object:
    if code == 0:
        return UNDEFINED
    raise InvalidFrame(f"extension type {code}")


def decode(body: bytes, outer: int = 0) -> Any:
    """Decode one frame's body, or a part of it.

    Args:
        outer: Levels of the frame that the part stands in.

    Raises:
        NestedTooDeeply: It has more levels than ``DEPTH_MAX``.
        InvalidFrame: Not exactly one acceptable msgpack value.
    """
    try:
        value = msgpack.unpackb(body, ext_hook=_extension)
    except (ValueError, TypeError, RecursionError):
        value = _decode_leniently(body)
        is_odd = True
    else:
        is_odd = _EXT1 in body or _BIN8 in body
    # A frame has no more levels than bytes, nor than bytes that may begin a container.
    if len(body) > DEPTH_MAX - outer and _may_be_deep(body, outer) and _is_deep(body, outer):
        raise NestedTooDeeply(value)
    return _cleaned(value) if is_odd and _needs_cleaning(value) else value


def _may_be_deep(body: bytes, outer: int) -> bool:
    return len(body) - len(body.translate(None, CONTAINER_MARKS)) > DEPTH_MAX - outer


def _is_deep(body: bytes, outer: int) -> bool:
    """Tell by msgpack's own limit, with so many levels opened before; it has been decoded."""
    unpacker = msgpack.Unpacker(max_buffer_size=_LEVELS + outer + len(body))
    unpacker.feed(_OPEN_LEVELS + _OPEN_LEVEL * outer)
    unpacker.feed(body)
    try:
        unpacker.skip()
    except msgpack.StackError:
        return True
    return False


def _decode_leniently(body: bytes) -> Any:
    """Decode what the strict pass refused: odd keys and ill-formed UTF-8 pass."""
    try:
        value = msgpack.unpackb(
            body, ext_hook=_any_undefined, strict_map_key=False, unicode_errors="replace"
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidFrame(str(error)) from error
    return value


def _needs_cleaning(value: Any) -> bool:
    """Tell whether a map has an undefined member or a key that is no string.

    The bytes that announce them stand inside numbers and text as well, 196 among them. To look is
    several times cheaper than to copy.
    """
    if value.__class__ is dict:
        for key, item in value.items():
            if key.__class__ is not str or item is UNDEFINED:
                return True
            if item.__class__ in _CONTAINERS and _needs_cleaning(item):
                return True
    elif value.__class__ is list:
        for item in value:
            if item.__class__ in _CONTAINERS and _needs_cleaning(item):
                return True
    return False


def _cleaned(value: Any) -> Any:
    """Return the value without undefined members, all map keys strings.

    Plain loops: with comprehensions a level would cost two frames of Python's recursion limit.
    """
    if isinstance(value, dict):
        clean = {}
        for key, item in value.items():
            if item is not UNDEFINED:
                clean[text_key(key)] = _cleaned(item)
        return clean
    if isinstance(value, list):
        items = []
        for item in value:
            items.append(_cleaned(item))
        return items
    return value


def text_key(key: object) -> str:
    """Return a map's key as a string."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)


def _replace(value: object) -> object:
    if value is UNDEFINED:
        return None
    raise TypeError(f"cannot encode {type(value).__name__}")


# One packer for all: 0.5 us for a small map, where packb makes a packer each time and takes 1.6
# (loadtests/micro.py pack). It runs no Python code of ours, so no thread can come in between.
# By itself it is for what can hold no UNDEFINED, such as a string.
pack_plain: Callable[[object], bytes] = msgpack.Packer().pack


def pack(value: object) -> bytes:
    """Encode a plain value, as ``decode`` makes them, with exact integers.

    Values of foreign classes (a user's own subclass of dict) go through ``pack_foreign``.

    Raises:
        ValueError, TypeError, OverflowError: It has no msgpack form.
    """
    try:
        return pack_plain(value)
    except TypeError:
        return pack_foreign(value)  # an UNDEFINED somewhere, or really nothing for msgpack


def pack_foreign(value: object) -> bytes:
    """Encode any value with a packer of its own, since its class may run code meanwhile."""
    packed: bytes = msgpack.packb(value, default=_replace)
    return packed


def unpack(packed: bytes) -> Any:
    """Decode bytes that this process (or its file) packed itself."""
    return msgpack.unpackb(packed, ext_hook=_extension, strict_map_key=False)


def pack_for(value: object, int64: bool) -> bytes:
    """Encode ``value`` for a peer: wide integers as float64 unless it announced ``int64``."""
    packed = pack(value)
    return packed if int64 else narrowed(packed)


def narrowed(packed: bytes) -> bytes:
    """Return ``packed`` with every integer beyond 32 bits turned into a float64.

    The two byte values that announce such an integer are looked for first; text may hold them too,
    so a hit only means that the value must be decoded to know.
    """
    if _UINT64 not in packed and _INT64 not in packed:
        return packed
    return pack(narrow(unpack(packed)))


def narrow(value: Any) -> Any:
    """Return a copy of ``value`` in which integers outside 32 bits are floats; loops as above."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if INT32_MIN <= value <= UINT32_MAX else float(value)
    if isinstance(value, dict):
        pairs = {}
        for key, item in value.items():
            pairs[key] = narrow(item)
        return pairs
    if isinstance(value, (list, tuple)):
        items = []
        for item in value:
            items.append(narrow(item))
        return items
    return value
