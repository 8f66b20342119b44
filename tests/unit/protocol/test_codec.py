"""msgpack as bunqueue speaks it (wire.md 1.2, 1.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.codec import (
    DEPTH_MAX,
    UNDEFINED,
    InvalidFrame,
    NestedTooDeeply,
    decode,
    narrow,
    narrowed,
    pack,
    pack_for,
    unpack,
)

UNDEFINED_BYTES = b"\xd4\x00\x00"


def body(*parts: object) -> bytes:
    """Join packed values; bytes are taken as they are."""
    return b"".join(part if isinstance(part, bytes) else msgpack.packb(part) for part in parts)


# -- undefined -----------------------------------------------------------------------------------


def test_an_undefined_value_of_a_map_is_absent() -> None:
    assert {"b": 1} == decode(body(b"\x82", "a", UNDEFINED_BYTES, "b", 1))


def test_an_undefined_element_keeps_its_position() -> None:
    assert [1, UNDEFINED, None] == decode(body(b"\x93", 1, UNDEFINED_BYTES, None))


def test_undefined_is_dropped_at_every_depth() -> None:
    inner = body(b"\x81", "x", UNDEFINED_BYTES)

    assert {"a": {}, "b": [{}]} == decode(body(b"\x82", "a", inner, "b", b"\x91", inner))


def test_the_bytes_of_undefined_inside_a_text_or_bin_mean_nothing() -> None:
    value = {"bin": b"\xd4\x00\x00", "list": [b"\xd4\x00"]}

    assert value == decode(msgpack.packb(value))


@pytest.mark.parametrize(
    "undefined",
    [b"\xc7\x00\x00", b"\xd5\x00\x00\x00", b"\xd6\x00\x00\x00\x00\x00"],
)
def test_undefined_in_another_length_is_absent_too(undefined: bytes) -> None:
    assert {"b": 1} == decode(body(b"\x82", "a", undefined, "b", 1))


def test_undefined_is_false_and_says_its_name() -> None:
    assert not UNDEFINED
    assert "UNDEFINED" == repr(UNDEFINED)


def test_undefined_inside_kept_data_is_packed_as_null() -> None:
    assert [None] == unpack(pack([UNDEFINED]))


# -- other extensions ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 5, 127, -2, -128])
def test_any_other_extension_makes_the_frame_invalid(code: int) -> None:
    frame = body(b"\x82", "cmd", "PUSH", "data", bytes((0xD4, code & 0xFF)) + b"x")

    with pytest.raises(InvalidFrame):
        decode(frame)


@pytest.mark.parametrize(
    "moment",
    [
        msgpack.Timestamp(1_700_000_000, 0),
        msgpack.Timestamp(1_700_000_000, 5),
        msgpack.Timestamp(-5, 999_999_999),
        msgpack.Timestamp(2**40, 0),
    ],
)
def test_a_timestamp_goes_through_unchanged(moment: msgpack.Timestamp) -> None:
    packed = msgpack.packb({"at": moment})

    assert packed == pack(decode(packed))


def test_a_date_is_no_timestamp_of_ours() -> None:
    with pytest.raises(TypeError):
        pack(datetime(2024, 1, 1, tzinfo=UTC))


# -- what else may come in -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text"),
    [(5, "5"), (-1, "-1"), (1.5, "1.5"), (True, "true"), (False, "false"), (None, "null")],
)
def test_map_keys_that_are_no_strings_become_strings(key: Any, text: str) -> None:
    assert {text: {text: 1}} == decode(msgpack.packb({key: {key: 1}}))


def test_bytes_as_a_map_key_become_a_string() -> None:
    assert {"a": 1, "b": {"c": 2}} == decode(msgpack.packb({b"a": 1, "b": {b"c": 2}}))


def test_ill_formed_text_is_replaced() -> None:
    assert ["\ufffd(", "ok"] == decode(body(b"\x92", b"\xa2\xc3\x28", "ok"))


def test_bytes_stay_bytes() -> None:
    assert {"data": b"\x00\xff"} == decode(msgpack.packb({"data": b"\x00\xff"}))


@pytest.mark.parametrize("value", [2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("inf"), 0.0])
def test_numbers_come_in_exactly(value: float) -> None:
    assert value == decode(msgpack.packb(value))


def test_float32_comes_in() -> None:
    assert 1.5 == decode(msgpack.packb(1.5, use_single_float=True))


def test_proto_is_an_ordinary_key() -> None:
    assert {"__proto__": {"a": 1}} == decode(msgpack.packb({"__proto__": {"a": 1}}))


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x02",
        b'{"cmd":"Ping"}',
        b"\x81\xa3cmd",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xc6\xff\xff\xff\xff",
    ],
)
def test_what_is_not_exactly_one_value_is_invalid(garbage: bytes) -> None:
    with pytest.raises(InvalidFrame):
        decode(garbage)


def test_deep_nesting_is_invalid_not_fatal() -> None:
    for depth in (600, 2_000, 100_000):
        for inner in (UNDEFINED_BYTES, b"\x01"):
            with pytest.raises(InvalidFrame):
                decode(b"\x91" * depth + inner)


def test_nesting_up_to_the_limit_comes_in() -> None:
    depth = DEPTH_MAX - 1
    value = decode(b"\x91" * depth + b"\x01")
    for _ in range(depth):
        value = value[0]

    assert 1 == value


@pytest.mark.parametrize("inner", [b"\x01", UNDEFINED_BYTES, b"\xc4\x01x", b"\xa1\xff"])
def test_the_limit_of_nesting_is_one_whatever_is_inside(inner: bytes) -> None:
    decode(b"\x91" * DEPTH_MAX + inner)
    with pytest.raises(NestedTooDeeply):
        decode(b"\x91" * (DEPTH_MAX + 1) + inner)


def test_many_containers_beside_each_other_are_not_deep() -> None:
    value = {"jobs": [{"data": [number, {}]} for number in range(DEPTH_MAX)]}

    assert value == decode(msgpack.packb(value))


def test_who_nests_too_deeply_is_told_by_the_request_id() -> None:
    deep = b"\x91" * (DEPTH_MAX + 1) + b"\x01"
    with pytest.raises(NestedTooDeeply) as told:
        decode(body(b"\x83", "cmd", "PUSH", "reqId", 7, "data", deep))

    assert {"cmd": "PUSH", "reqId": 7} == told.value.request


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_else(garbage: bytes) -> None:
    try:
        decode(garbage)
    except InvalidFrame:
        pass
    except RecursionError:
        pytest.fail("recursion")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_any_value_survives_the_round_trip(value: Any) -> None:
    assert value == decode(pack(value)) == unpack(pack(value))


# -- what goes out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**32 - 1, int),
        (2**32, float),
        (-(2**31), int),
        (-(2**31) - 1, float),
        (2**53, float),
        (2**64 - 1, float),
        (0, int),
        (True, bool),
    ],
)
def test_integers_beyond_32_bits_leave_as_floats(value: int, kind: type) -> None:
    out = unpack(pack_for({"n": [value]}, int64=False))["n"][0]

    assert (kind(value), kind) == (out, type(out))


def test_who_announced_int64_gets_exact_integers() -> None:
    exact = 2**53 + 1

    assert exact == unpack(pack_for({"n": exact}, int64=True))["n"]


def test_the_marks_of_wide_integers_inside_a_text_mean_nothing() -> None:
    packed = pack({"a": b"\xcf\xd3", "b": "\u00cf"})

    assert unpack(packed) == unpack(narrowed(packed))


def _has_wide(packed: bytes) -> bool:
    def wide(value: Any) -> bool:
        if isinstance(value, bool):
            return False
        if isinstance(value, int):
            return not -(2**31) <= value <= 2**32 - 1
        if isinstance(value, dict):
            return any(map(wide, value.values()))
        return isinstance(value, list) and any(map(wide, value))

    return wide(unpack(packed))


@given(JSON)
def test_nothing_wide_ever_leaves_for_others(value: Any) -> None:
    assert not _has_wide(pack_for(value, int64=False))
    assert narrow(value) == unpack(narrowed(pack(value)))


def test_a_value_that_could_not_be_packed_leaves_nothing_behind() -> None:
    nested: list[Any] = []
    for _ in range(2_000):
        nested = [nested]
    for bad in (["a", object()], ["a", 2**64], ["a", "\ud800"], nested):
        with pytest.raises((TypeError, OverflowError, ValueError)):
            pack(bad)

        assert b"\x91\xa1b" == pack(["b"])


def test_what_is_nested_as_deep_as_it_may_be_can_be_narrowed() -> None:
    value: Any = 2**40
    for number in range(DEPTH_MAX - 2):
        value = [value] if number % 2 else {"a": value}

    assert narrow(value) == unpack(pack_for(value, int64=False))


@pytest.mark.parametrize("value", [object(), 2**64, -(2**63) - 1, {1, 2}])
def test_what_has_no_form_is_refused(value: object) -> None:
    with pytest.raises((TypeError, OverflowError, ValueError)):
        pack(value)
