"""Names that programs written for the PyPI client import from here."""

from collections.abc import Mapping
from typing import Any

from bunqueue.client import values
from bunqueue.client.options import compact as _compact
from bunqueue.client.values import js_safe as _js_safe
from bunqueue.errors import SerializationError
from bunqueue.protocol.frames import FRAME_BYTES_MAX as MAX_FRAME_SIZE

__all__ = ["MAX_FRAME_SIZE", "SerializationError", "_compact", "_js_safe", "encode_command"]


def encode_command(command: Mapping[str, Any], req_id: str) -> bytes:
    """Return a command as one frame, without the fields that are None."""
    return values.encode({**_compact(command), "reqId": req_id})
