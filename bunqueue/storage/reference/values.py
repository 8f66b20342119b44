"""Values of the original server's columns, read or refused.

Its blobs are msgpack without records; "undefined" is extension 0 and means absent, dates are
timestamps, and numbers are floats wherever JavaScript had no reason to keep them whole.
"""

import math
from typing import Any

from bunqueue.engine.cron_times import MOMENT_MS_MAX
from bunqueue.protocol.codec import UNDEFINED, InvalidFrame, decode
from bunqueue.storage.reference.report import Unfit


def value_of(blob: object, name: str) -> Any:
    """Return what a blob holds; None if it is NULL or "undefined".

    Raises:
        Unfit: It holds nothing that can be read.
    """
    if blob is None:
        return None
    if not isinstance(blob, bytes):
        raise Unfit(f"{name} is no msgpack")
    try:
        value = decode(blob)
    except InvalidFrame as error:
        raise Unfit(f"{name} cannot be read: {str(error) or 'no msgpack'}") from None
    return None if value is UNDEFINED else value


def moment(value: object, name: str) -> int:
    """Return epoch ms, 0 for none.

    Raises:
        Unfit: It is none.
    """
    return 0 if value is None else whole(value, name, 0, MOMENT_MS_MAX)


def whole(value: object, name: str, least: int, most: int) -> int:
    """Return a number of a range, without its fraction.

    Raises:
        Unfit: It is none.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        raise Unfit(f"{name} is no number between {least} and {most}: {value!r}")
    return int(value)


def text(value: object, name: str) -> str | None:
    """Return text, None for NULL and for the empty one.

    Raises:
        Unfit: It is none.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Unfit(f"{name} is no text")
    return value


def map_of(value: object, name: str) -> dict[str, Any]:
    """Return a map, empty for None.

    Raises:
        Unfit: It is none.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unfit(f"{name} is no map")
    return value


def list_of(value: object, kind: type, name: str) -> list[Any]:
    """Return a list of things of one kind, empty for None.

    Raises:
        Unfit: It is none.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Unfit(f"{name} is no list of {kind.__name__}")
    return value
