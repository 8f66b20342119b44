"""Values between Python and the wire: what may be sent, how integers travel, what comes back.

Integers outside int32 travel as float64, as with every official client, unless both sides of the
link listed ``int64``: a JavaScript peer turns 64-bit integers into big integers that break its
arithmetic. The guard costs nothing in the usual case: msgpack marks wide integers with three byte
values, so only a packed command that holds one of them is looked at in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgpack

from bunqueue.errors import SerializationError
from bunqueue.protocol.codec import DEPTH_MAX
from bunqueue.protocol.frames import FRAME_BYTES_MAX, pack_length

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1
EXACT_MAX = 2**53  # beyond, a float64 no longer tells neighbours apart
IntegerPolicy = Literal["auto", "float", "strict", "string", "tag"]
INTEGER_POLICIES = ("auto", "float", "strict", "string", "tag")
INTEGER_TAG = "$bunqueue:int"

_WIDE_MARKS = (0xCE, 0xCF, 0xD3)  # uint32, uint64, int64
_TAG_MARK = INTEGER_TAG.encode()
_UNDEFINED = object()
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_EXTENSION_TEXT = "msgpack extension types cannot be sent"
_TIMESTAMP_AS_DATETIME = 3  # msgpack's name for it

OnLoss = Callable[[str], object]


class QueueName(str):
    """A queue's logical name that knows its place on the server.

    Attributes:
        prefix: Namespace in front of the name.
        key: ``prefix + name``, what the server is told.
    """

    prefix: str
    key: str

    __slots__ = ("key", "prefix")

    def __new__(cls, name: str, prefix: str = "") -> QueueName:
        """Return ``name`` as it reads, carrying its prefix."""
        self = super().__new__(cls, name)
        self.prefix = prefix
        self.key = prefix + str(name)
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __copy__(self) -> str:
        return str(self)

    def __deepcopy__(self, _memo: dict[int, Any]) -> str:
        return str(self)


def queue_key(name: str) -> str:
    """Return what the server is told for a queue's ``name``."""
    return name.key if isinstance(name, QueueName) else name


def encode(
    command: dict[str, Any],
    *,
    int64: bool = False,
    policy: str = "auto",
    on_loss: OnLoss | None = None,
) -> bytes:
    """Encode a command as one frame; see ``encode_body``."""
    body = encode_body(command, int64=int64, policy=policy, on_loss=on_loss)
    return bytes(pack_length(len(body))) + body


def encode_body(
    command: dict[str, Any],
    *,
    int64: bool = False,
    policy: str = "auto",
    on_loss: OnLoss | None = None,
) -> bytes:
    """Encode a command.

    Args:
        command: The whole request, ``reqId`` included.
        int64: Both sides of the link take exact 64-bit integers.
        policy: What becomes of integers beyond 2^53 otherwise (client.md 5.3).
        on_loss: Called with the path of each integer that goes out as a float it is not.

    Raises:
        SerializationError: It has no form on the wire; nothing was sent.
    """
    queue = command.get("queue")
    if queue.__class__ is QueueName:
        command = {**command, "queue": queue.key}
    try:
        for item in command.values():
            if item.__class__ not in _SCALARS:
                if isinstance(item, (dict, list, tuple)):
                    _check_keys(item, 1)
                elif item.__class__ is msgpack.Timestamp:
                    raise SerializationError(_EXTENSION_TEXT)
        try:
            body: bytes = msgpack.packb(command)
        except OverflowError:
            body = msgpack.packb(_told_narrowed(command, policy, int64, on_loss))
        else:
            if not int64 and (
                _WIDE_MARKS[1] in body or _WIDE_MARKS[2] in body or _WIDE_MARKS[0] in body
            ):
                body = msgpack.packb(_told_narrowed(command, policy, int64, on_loss))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # The last: too deep, or somebody else changes the payload meanwhile.
        raise SerializationError(
            f"cannot msgpack-serialize {command.get('cmd')} payload: {error}"
        ) from error
    if len(body) > FRAME_BYTES_MAX:
        raise SerializationError(f"frame size {len(body)} exceeds maximum {FRAME_BYTES_MAX}")
    return body


def _told_narrowed(
    command: dict[str, Any], policy: str, int64: bool, on_loss: OnLoss | None
) -> Any:
    if on_loss is not None and policy in ("auto", "float"):
        for path in lossy_paths(command, int64):
            on_loss(path)
    return _narrowed(command, policy, int64)


def _check_keys(value: Any, depth: int) -> None:
    """Refuse what msgpack would send and no server may see.

    That is map keys that are no strings, which the server would change, and extension types, to
    which the reference server does not answer at all.
    """
    if depth >= DEPTH_MAX:  # the command's own map is a level too
        raise SerializationError(f"cyclic container, or nested deeper than {DEPTH_MAX} levels")
    if value.__class__ is msgpack.ExtType:
        raise SerializationError(_EXTENSION_TEXT)
    if isinstance(value, dict):
        for key, item in value.items():
            if key.__class__ is not str and not isinstance(key, str):
                raise SerializationError(f"map key {key!r} must be a string")
            if item.__class__ not in _SCALARS:
                # One frame per level, or the deepest allowed would not fit on the stack.
                if isinstance(item, (dict, list, tuple)):
                    _check_keys(item, depth + 1)
                elif item.__class__ is msgpack.Timestamp:
                    raise SerializationError(_EXTENSION_TEXT)
    else:
        for item in value:
            if item.__class__ not in _SCALARS:
                if isinstance(item, (dict, list, tuple)):
                    _check_keys(item, depth + 1)
                elif item.__class__ is msgpack.Timestamp:
                    raise SerializationError(_EXTENSION_TEXT)


def _narrowed(value: Any, policy: str, int64: bool) -> Any:
    """Return ``value`` with the integers the link cannot carry in the form the policy gives."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(value, policy, int64)
    if isinstance(value, dict):
        return {key: _narrowed(item, policy, int64) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_narrowed(item, policy, int64) for item in value]
    return value


def _integer(value: int, policy: str, int64: bool) -> object:
    if INT32_MIN <= value <= INT32_MAX or (int64 and INT64_MIN <= value <= UINT64_MAX):
        return value
    if -EXACT_MAX <= value <= EXACT_MAX or policy in ("auto", "float"):
        try:
            return float(value)
        except OverflowError as error:
            raise SerializationError("integer exceeds the range of a float64") from error
    if policy == "string":
        return str(value)
    if policy == "tag":
        return {INTEGER_TAG: str(value)}
    raise SerializationError(f"integer {value} is not exact on this connection")


def lossy_paths(value: Any, int64: bool, path: str = "$") -> Iterator[str]:
    """Yield where in a command there are integers that a float64 does not hold exactly."""
    if isinstance(value, int) and not isinstance(value, bool):
        is_carried = int64 and INT64_MIN <= value <= UINT64_MAX
        if not is_carried and not -EXACT_MAX <= value <= EXACT_MAX:
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from lossy_paths(item, int64, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from lossy_paths(item, int64, f"{path}[]")


def js_safe(value: Any) -> Any:
    """Return ``value`` as any JavaScript peer can take it: wide integers as floats.

    Raises:
        SerializationError: A map key is no string, or a container holds itself.
    """
    if isinstance(value, (dict, list, tuple)):
        _check_keys(value, 0)
    return _narrowed(value, "auto", False)


def decode(body: bytes) -> Any:
    """Decode a frame's body; JavaScript's "undefined" is dropped, timestamps are datetimes.

    Raises:
        ValueError: Not exactly one msgpack value, or an unknown extension.
    """
    extensions: list[int] = []

    def extension(code: int, _data: bytes) -> object:
        if code != 0:
            raise ValueError(f"extension type {code}")
        extensions.append(code)
        return _UNDEFINED

    value = msgpack.unpackb(
        body,
        ext_hook=extension,
        strict_map_key=False,
        unicode_errors="replace",
        timestamp=_TIMESTAMP_AS_DATETIME,
    )
    if extensions:
        value = _without_undefined(value)
    if _TAG_MARK in body:
        value = restored(value, tags=True)
    return value


def _without_undefined(value: Any) -> Any:
    if value is _UNDEFINED:
        return None
    if isinstance(value, dict):
        return {
            key: _without_undefined(item) for key, item in value.items() if item is not _UNDEFINED
        }
    if isinstance(value, list):
        return [_without_undefined(item) for item in value]
    return value


def restored(value: Any, *, tags: bool = False, floats: bool = False) -> Any:
    """Return a payload with tagged integers, or wide integral floats, as integers again."""
    if isinstance(value, dict):
        if tags and value.keys() == {INTEGER_TAG}:
            return _untagged(value)
        return {key: restored(item, tags=tags, floats=floats) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item, tags=tags, floats=floats) for item in value]
    if floats and value.__class__ is float and INT32_MAX < abs(value) <= EXACT_MAX:
        return int(value) if value.is_integer() else value
    return value


def _untagged(value: dict[str, Any]) -> Any:
    digits = value[INTEGER_TAG]
    try:
        return int(digits) if isinstance(digits, str) else value
    except ValueError:
        return value  # somebody's own data that happens to use the key
