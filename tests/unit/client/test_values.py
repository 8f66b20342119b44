"""What may be sent, how integers travel, what comes back."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue import SerializationError
from bunqueue.client.values import QueueName, decode, encode, encode_body, js_safe, restored
from bunqueue.protocol.codec import DEPTH_MAX

payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.integers(-(2**31), 2**31 - 1),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(payloads)
def test_what_fits_the_wire_comes_back_as_it_was(value: Any) -> None:
    assert {"cmd": "X", "data": value} == decode(encode_body({"cmd": "X", "data": value}))


@given(st.integers(-(2**63), 2**64 - 1))
def test_wide_integers_are_floats_for_a_peer_that_does_not_list_int64(value: int) -> None:
    sent = decode(encode_body({"cmd": "X", "data": [value]}))["data"][0]

    assert float(value) == sent
    assert (int if -(2**31) <= value < 2**31 else float) is type(sent)


@given(st.integers(-(2**63), 2**64 - 1))
def test_wide_integers_are_exact_for_a_peer_that_lists_int64(value: int) -> None:
    assert [value] == decode(encode_body({"cmd": "X", "data": [value]}, int64=True))["data"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("auto", float(2**53 + 1)),
        ("float", float(2**53 + 1)),
        ("string", "9007199254740993"),
        ("tag", {"$bunqueue:int": "9007199254740993"}),
    ],
)
def test_the_policy_decides_over_integers_that_are_not_exact(policy: str, expected: Any) -> None:
    body = encode_body({"cmd": "X", "data": 2**53 + 1}, policy=policy)

    assert expected == msgpack.unpackb(body)["data"]


def test_the_strict_policy_refuses_integers_that_are_not_exact() -> None:
    assert 2.0**53 == decode(encode_body({"cmd": "X", "data": 2**53}, policy="strict"))["data"]
    with pytest.raises(SerializationError, match="not exact"):
        encode_body({"cmd": "X", "data": 2**53 + 1}, policy="strict")


@pytest.mark.parametrize("int64", [False, True])
def test_integers_beyond_64_bits_follow_the_policy(int64: bool) -> None:
    assert 2.0**70 == decode(encode_body({"cmd": "X", "data": 2**70}, int64=int64))["data"]
    with pytest.raises(SerializationError):
        encode_body({"cmd": "X", "data": 2**70}, int64=int64, policy="strict")


def test_a_tagged_integer_comes_back_as_one() -> None:
    body = encode_body({"cmd": "X", "data": {"n": 2**60}}, policy="tag")

    assert {"n": 2**60} == decode(body)["data"]


def test_somebody_elses_tag_stays_as_it_is() -> None:
    data = {"$bunqueue:int": "no digits"}

    assert data == decode(encode_body({"cmd": "X", "data": data}))["data"]


def test_integral_floats_are_restored_when_asked() -> None:
    assert {"n": [2**31, 1.5, 1.0, 2.0**60]} == restored(
        {"n": [2.0**31, 1.5, 1.0, 2.0**60]}, floats=True
    )
    assert int is type(restored(2.0**40, floats=True))


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    "data",
    [object(), {1: "x"}, {"a": [{"b": {None: 1}}]}, _cycle(), {"s": {1, 2}}, datetime.now(UTC)],
    ids=["an object", "a key", "a deep key", "a cycle", "a set", "a datetime"],
)
def test_what_has_no_form_on_the_wire_is_refused(data: Any) -> None:
    with pytest.raises(SerializationError):
        encode({"cmd": "PUSH", "data": data})


def test_a_payload_that_changes_while_it_is_packed_has_no_form() -> None:
    """The error was another one, and whoever sent the payload did not come to its end."""

    class Changing(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(SerializationError, match="changed size"):
        encode_body({"cmd": "ACK", "result": Changing(a=1)})


def test_what_the_server_would_find_too_deep_is_refused_here() -> None:
    deep: list[Any] = []
    for _ in range(DEPTH_MAX - 2):
        deep = [deep]

    encode({"cmd": "PUSH", "data": deep})
    with pytest.raises(SerializationError, match=f"deeper than {DEPTH_MAX} levels"):
        encode({"cmd": "PUSH", "data": [deep]})


def test_a_frame_above_the_limit_is_refused() -> None:
    with pytest.raises(SerializationError, match="exceeds maximum 67108864"):
        encode({"cmd": "PUSH", "data": b"x" * 67_108_864})


def test_shared_containers_and_tuples_pass() -> None:
    shared = [1]

    assert [[1], [1], [2, 3]] == decode(encode_body({"data": [shared, shared, (2, 3)]}))["data"]


def test_undefined_of_javascript_is_absent_and_timestamps_are_datetimes() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    undefined = msgpack.ExtType(0, b"\x00")
    body = msgpack.packb({"gone": undefined, "list": [undefined, 1], "at": moment}, datetime=True)

    assert {"list": [None, 1], "at": moment} == decode(body)


def test_a_queue_name_stands_for_its_key() -> None:
    name = QueueName("emails", "app:")

    assert ("emails", "app:emails") == (name, name.key)
    assert {"queue": "app:emails"} == decode(encode_body({"queue": name}))
    assert str is type(copy.copy(name))
    assert str is type(f"{name}")


def test_js_safe_is_what_a_javascript_peer_can_take() -> None:
    assert {"n": 2.0**40, "l": [1, 2.0**31]} == js_safe({"n": 2**40, "l": (1, 2**31)})
    with pytest.raises(SerializationError):
        js_safe({1: 2})


@pytest.mark.parametrize(
    "data",
    [msgpack.ExtType(5, b"x"), [msgpack.Timestamp(1, 0)], {"a": {"b": msgpack.ExtType(1, b"")}}],
)
def test_extension_types_are_never_sent(data: Any) -> None:
    with pytest.raises(SerializationError, match="extension"):
        encode_body({"cmd": "X", "data": data})


def test_the_paths_of_integers_that_get_lost_are_told() -> None:
    told: list[str] = []
    data = {"a": [1, 2**60, {"b": -(2**60)}], "c": 2**53, "d": True, "e": 2**63 - 1}

    encode_body({"cmd": "X", "data": data}, on_loss=told.append)
    assert ["$.data.a[]", "$.data.a[].b", "$.data.e"] == told
    encode_body({"cmd": "X", "data": data}, policy="tag", on_loss=told.append)
    encode_body({"cmd": "X", "data": data}, int64=True, on_loss=told.append)
    assert 3 == len(told)
    encode_body({"cmd": "X", "data": {"big": 2**70}}, int64=True, on_loss=told.append)
    assert "$.data.big" == told[-1]
