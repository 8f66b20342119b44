"""Frames: four bytes of big-endian length, then that many bytes of msgpack.

The length is judged before the body arrives, so a hostile announcement costs nothing.
"""

import struct

FRAME_BYTES_MAX = 67_108_864  # wire.md 1.1, both directions
HEADER_BYTES = 4

pack_length = struct.Struct(">I").pack
unpack_length = struct.Struct(">I").unpack_from


def frame(body: bytes) -> bytes:
    """Put the length in front of ``body``."""
    return pack_length(len(body)) + body


def too_large_text(size_bytes: int) -> str:
    """Return the refusal of an announced length beyond the limit."""
    return f"Frame too large: {size_bytes} bytes exceeds maximum {FRAME_BYTES_MAX}"
