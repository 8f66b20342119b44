"""Replies on their way out; ``reqId`` comes back whatever it is (wire.md 1.4)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.codec import decode, pack
from bunqueue.protocol.replies import (
    ALREADY_FINALIZED,
    OK,
    encode_large,
    encode_reply,
    error_reply,
)

REQ_IDS: list[Any] = ["1", "", 0, 7, -1, 2**40, 2**64 - 1, 1.5, None, True, [1, {"a": None}], {}]


@pytest.mark.parametrize("req_id", REQ_IDS, ids=repr)
@pytest.mark.parametrize(
    "reply", [{"ok": True}, {"ok": True, "ids": [1, 2]}, OK, ALREADY_FINALIZED]
)
def test_the_req_id_is_echoed_whatever_its_type(reply: Any, req_id: Any) -> None:
    plain = reply if isinstance(reply, dict) else msgpack.unpackb(reply)

    body = encode_reply(reply, pack(req_id), int64=False)

    assert {**plain, "reqId": req_id} == msgpack.unpackb(body)
    assert body.endswith(pack(req_id))


@pytest.mark.parametrize("reply", [{"ok": True}, OK, ALREADY_FINALIZED, error_reply("no")])
def test_no_req_id_in_no_req_id_out(reply: Any) -> None:
    assert "reqId" not in msgpack.unpackb(encode_reply(reply, None, int64=False))


@pytest.mark.parametrize("count", [1, 13, 14, 15, 16, 17, 300])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_reply_of_any_width_takes_one_more_key(count: int, is_packed: bool) -> None:
    reply = {f"key-{number}": number for number in range(count)}

    body = encode_reply(pack(reply) if is_packed else reply, pack("r"), int64=False)

    assert {**reply, "reqId": "r"} == msgpack.unpackb(body)


def test_an_ok_is_nothing_but_an_ok() -> None:
    assert {"ok": True} == msgpack.unpackb(OK)


def test_an_ack_without_effect_is_a_success() -> None:
    assert {
        "ok": True,
        "data": {"applied": False, "reason": "already-finalized"},
    } == msgpack.unpackb(ALREADY_FINALIZED)


def test_wide_integers_of_a_reply_leave_as_floats_but_the_req_id_exactly() -> None:
    body = encode_reply({"ok": True, "at": 2**40}, pack(2**40), int64=False)

    decoded = msgpack.unpackb(body)
    assert (float, int) == (type(decoded["at"]), type(decoded["reqId"]))


@given(st.dictionaries(st.text(), st.integers(-(2**31), 2**32 - 1), max_size=40), st.text())
def test_any_map_and_any_req_id(reply: dict[str, int], req_id: str) -> None:
    reply.pop("reqId", None)

    assert {**reply, "reqId": req_id} == decode(encode_reply(reply, pack(req_id), int64=False))


@pytest.mark.parametrize("count", [1, 13, 14])
def test_a_large_reply_is_the_same_as_a_small_one(count: int) -> None:
    reply = pack({f"key-{number}": "x" * 1_000 for number in range(count)})

    assert encode_reply(reply, pack("7"), int64=False) == encode_large(reply, pack("7"))
