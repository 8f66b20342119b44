"""What parent and child say to each other: msgpack behind four bytes of length.

The parent sends ``{"setup": ...}`` once and then jobs, ``{"job": raw, "number": n}``. The child
says ``{"ready": true}`` or ``{"refused": text}``, and of a job ``progress``, ``log`` and in the end
``done`` or ``failed``. A second channel carries the numbers of jobs that are called off, eight
bytes each; its end tells a child that its parent is gone.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from bunqueue.errors import DelayedError, RateLimitError, UnrecoverableError, WaitingChildrenError
from bunqueue.protocol.frames import HEADER_BYTES, frame, unpack_length

Message = dict[str, Any]

NUMBER = struct.Struct(">Q")
_TIMESTAMP_AS_DATETIME = 3

# Exceptions that mean more than a failure, by the word that tells the parent.
KINDS: dict[str, type[BaseException]] = {
    "unrecoverable": UnrecoverableError,
    "delayed": DelayedError,
    "rate-limit": RateLimitError,
    "waiting-children": WaitingChildrenError,
}


def encode(message: Message) -> bytes:
    """Return a message as one frame.

    Raises:
        TypeError, ValueError, OverflowError: It holds what msgpack has no form for.
        RuntimeError: It changes while it is packed.
    """
    return frame(msgpack.packb(message, datetime=True))


class Inbox:
    """Bytes on their way to becoming messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what has been received."""
        self._bytes += data

    def next(self) -> Message | None:
        """Return the next complete message, or None."""
        if len(self._bytes) < HEADER_BYTES:
            return None
        (size,) = unpack_length(self._bytes)
        end = HEADER_BYTES + size
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[HEADER_BYTES:end])
        del self._bytes[:end]
        message: Message = msgpack.unpackb(
            body, strict_map_key=False, timestamp=_TIMESTAMP_AS_DATETIME
        )
        return message
