"""Frames: a length and a body."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    frame,
    too_large_text,
    unpack_length,
)


@given(st.binary(max_size=1000))
def test_a_frame_is_a_big_endian_length_and_the_body(body: bytes) -> None:
    framed = frame(body)

    assert (len(body),) == unpack_length(framed)
    assert len(body) == int.from_bytes(framed[:HEADER_BYTES], "big")
    assert body == framed[HEADER_BYTES:]


def test_the_limit_is_64_mebibytes() -> None:
    assert 67_108_864 == FRAME_BYTES_MAX


def test_too_large_is_said_in_the_words_of_the_wire() -> None:
    assert "Frame too large: 99999999 bytes exceeds maximum 67108864" == too_large_text(99_999_999)
