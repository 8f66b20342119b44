"""Large frames decode as small ones do, piece by piece."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol import large
from bunqueue.protocol.codec import DEPTH_MAX, InvalidFrame, NestedTooDeeply, decode
from bunqueue.protocol.large import decode_large
from tests.support.engine import done

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=9)
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=10,
)


def decoded(body: bytes) -> Any:
    return done(decode_large(memoryview(body)))


def outcome(decoder: Any, body: bytes) -> Any:
    try:
        return decoder(body)
    except NestedTooDeeply as error:
        return "too deep", error.request
    except InvalidFrame:
        return "invalid"


@given(VALUES, st.binary(max_size=2), st.integers(0, 3))
def test_the_outcome_is_that_of_decoding_in_one_go(value: Any, behind: bytes, cut: int) -> None:
    body = msgpack.packb(value) + behind
    body = body[: len(body) - cut] or b"\xc1"

    assert outcome(decode, body) == outcome(decoded, body)


@given(st.dictionaries(st.text(max_size=3), st.lists(VALUES, max_size=4), max_size=4))
def test_frames_of_lists_come_out_whole(value: dict[str, Any]) -> None:
    body = msgpack.packb(value)

    assert decode(body) == decoded(body)


@pytest.mark.parametrize("fed_bytes", [1, 7, 100])
def test_it_does_not_matter_where_the_unpacker_has_to_be_fed(
    monkeypatch: pytest.MonkeyPatch, fed_bytes: int
) -> None:
    monkeypatch.setattr(large, "FED_BYTES", fed_bytes)
    monkeypatch.setattr(large, "RUN_LENGTH_MAX", 3)
    value = {
        "cmd": "PUSHB",
        "jobs": [{"data": {"n": n, "list": [n] * 20}} for n in range(50)],
        "x" * 40: [],
    }
    body = msgpack.packb(value)

    assert value == decoded(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa1a\x92\x01\xd4\x00\x00",  # an undefined element
        b"\x82\xa1a\xd4\x00\x00\xa1b\x01",  # an undefined member
        b"\x81\xa1a\x91\xa1\xff",  # ill-formed UTF-8
        b"\x81\x01\x91\x02",  # a key that is a number
        b"\x81\xc4\x01a\x91\x02",  # a key that is bytes
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        b"\x81\xa1a\x91\xd4\x05\x00",  # an extension nobody knows
        b"\x81\xa1a\x91\xc1",
        b"\x81\x91\x01\x02",  # a key that is a list
        b"\x81\xa1a",
        b"\x81\xa1a\x92\x01",
    ],
)
def test_odd_frames_are_taken_or_refused_alike(body: bytes) -> None:
    assert repr(outcome(decode, body)) == repr(outcome(decoded, body))


@pytest.mark.parametrize("levels", [DEPTH_MAX - 1, DEPTH_MAX])
@pytest.mark.parametrize("is_listed", [True, False])
def test_depth_is_counted_from_the_frame(levels: int, is_listed: bool) -> None:
    inner: Any = 1
    for _ in range(levels - 1 if is_listed else levels):
        inner = [inner]
    value = {"cmd": "PUSH", "data": [inner] if is_listed else {"": inner}, "reqId": "7"}
    body = msgpack.packb(value)

    assert outcome(decode, body) == outcome(decoded, body)


def test_a_long_list_is_decoded_in_many_steps() -> None:
    body = msgpack.packb({"jobs": [{"n": n} for n in range(30_000)]})
    costs = list(decode_large(memoryview(body)))

    assert 5 < len(costs)
    most = large.RUN_BYTES // large.LISTED_BYTES_PER_US + large.RUN_LENGTH_MAX * large.MEMBER_US
    assert max(costs) <= most + 10
