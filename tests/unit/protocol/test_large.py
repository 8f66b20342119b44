"""Large frames decode as small ones do, piece by piece."""

from __future__ import annotations

import gc
import json
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol import large
from bunqueue.protocol.codec import DEPTH_MAX, InvalidFrame, NestedTooDeeply, decode, pack
from bunqueue.protocol.large import CONTAINERS_MAX, TooManyContainers, decode_large, json_chars
from bunqueue.protocol.options import DATA_CHARS_MAX
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
    """Decode with a window so small that nearly everything is opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", 40)
        patch.setattr(large, "RUN_LENGTH_MAX", 3)
        patch.setattr(large, "COPIED_PER_STEP", 7)
        return done(decode_large(memoryview(body), []))


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


@given(st.binary(min_size=41, max_size=60) | st.text(min_size=20, max_size=60).map(str.encode))
def test_a_long_text_comes_out_as_decoded_in_one_go(raw: bytes) -> None:
    """Also one that is ill-formed, wherever a piece of it ends."""
    body = b"\x91\xda" + len(raw).to_bytes(2, "big") + raw

    assert [raw.decode("utf-8", "replace")] == decode(body) == decoded(body)


@pytest.mark.parametrize("value", ["x" * 5_000_000, "\u0400" * 2_500_000, b"x" * 5_000_000])
def test_a_long_text_is_decoded_in_steps(value: Any) -> None:
    costs = list(decode_large(memoryview(msgpack.packb([value])), []))

    assert 5 <= len(costs)
    assert max(costs) <= large.COPIED_PER_STEP // large.TEXT_BYTES_PER_US


@given(st.dictionaries(st.text(max_size=3), st.lists(VALUES, max_size=4), max_size=4))
def test_frames_of_lists_come_out_whole(value: dict[str, Any]) -> None:
    body = msgpack.packb(value)

    assert decode(body) == decoded(body)


@pytest.mark.parametrize("window_bytes", [40, 47, 100])
def test_it_does_not_matter_where_the_window_ends(window_bytes: int) -> None:
    value = {
        "cmd": "PUSHB",
        "jobs": [{"data": {"n": n, "list": [n] * 20}} for n in range(50)],
        "x" * 40: [],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", window_bytes)
        assert value == done(decode_large(memoryview(msgpack.packb(value)), []))


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
        b"\xdf\x7f\x00",
        b"\x82\xa1a\x01\xa1a\xd4\x00\x00",  # a key twice, in the end undefined
        b"\x83\xa1a\xd4\x00\x00\xa1b\x01\xa1a\x02",  # in the end not
        b"\x82\x01\xa1x\xc3\xa1y",  # 1 and true are one key before they are strings
        b"\x82\x01\xa1x\xa11\xa1y",
        b"\x81\xd4\x00\x00\x01",  # an undefined key
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_odd_frames_are_taken_or_refused_alike(body: bytes, is_last: bool) -> None:
    filling = b"\xdc\x00\x64" + b"\x05" * 100
    body = b"\x92" + (filling + body if is_last else body + filling)

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


# -- bounds ----------------------------------------------------------------------------------------


def refusal(value: Any, containers_max: int) -> TooManyContainers | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "CONTAINERS_MAX", containers_max)
        try:
            assert value == decoded(msgpack.packb(value))
        except TooManyContainers as error:
            return error
        return None


DENSE: dict[str, Any] = {
    "lists": [[]] * 300,
    "maps": [{}] * 300,
    "lists in lists": [[[], [[]]]] * 75,
    "lists in maps": [{"a": []}] * 150,
    "members": {f"{n:02d}": [] for n in range(300)},
}


@pytest.mark.parametrize("what", DENSE)
def test_too_many_lists_and_maps_are_refused_by_the_request_id(what: str) -> None:
    """Wherever the request id stands, and whatever follows."""
    dense = DENSE[what]
    for request in (
        {"cmd": "PUSH", "reqId": "7", "data": dense},
        {"data": dense, "more": [1] * 100, "reqId": "7", "last": [dense], "cmd": "PUSH"},
    ):
        told = refusal(request, 250)
        assert told is not None
        assert {"cmd": "PUSH", "reqId": "7"} == told.request
        assert told.request == told.value
        assert "holds too many lists and maps: more than 250" == str(told)


@pytest.mark.parametrize("what", DENSE)
def test_as_many_as_may_be_are_taken(what: str) -> None:
    assert refusal({"cmd": "PUSH", "data": DENSE[what]}, 300) is None


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_map_of_too_many_members_is_refused_by_the_request_id(
    monkeypatch: pytest.MonkeyPatch, is_inside: bool
) -> None:
    """It is copied whole as it grows: for eight million members that took 0.3 s."""
    monkeypatch.setattr(large, "MEMBERS_MAX", 3_000)
    members = {f"{number:06d}": number for number in range(3_000)}
    named = {"cmd": "PUSH", "reqId": "7"}
    taken = {**named, "data": [members]} if is_inside else {**members, **named}
    if not is_inside:
        del taken["000000"], taken["000001"]
    assert taken == decoded(msgpack.packb(taken))

    members["more"] = 1
    refused = {"data": [members], **named} if is_inside else {**members, **named}
    with pytest.raises(large.TooManyMembers) as told:
        decoded(msgpack.packb(refused))

    assert named == told.value.request == told.value.value
    assert "holds too large a map: more than 3000 members" == str(told.value)


def test_a_long_list_is_old_before_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector went through all of it when it was young: 70 ms for eight million items."""
    monkeypatch.setattr(large, "AGED_ITEMS_MIN", 4_000)
    opened: list[Any] = []
    value = list(range(10_000))
    assert value == done(decode_large(memoryview(msgpack.packb(value)), opened))

    assert any(opened[0] is each for each in gc.get_objects(generation=2))


def test_members_of_the_request_itself_are_counted() -> None:
    assert refusal({f"{n:02d}": [] for n in range(300)} | {"reqId": 1}, 250) is not None


def test_what_is_passed_over_in_a_refused_frame_has_its_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large, "CONTAINERS_MAX", 0)
    costs: list[int] = []
    with pytest.raises(TooManyContainers):
        costs.extend(decode_large(memoryview(msgpack.packb([[]] * LISTS)), []))

    assert LISTS / large.SKIPPED_PER_US <= sum(costs)


def test_a_list_of_too_many_is_no_request() -> None:
    told = refusal([[]] * 300, 250)

    assert told is not None
    assert {} == told.request


@pytest.mark.parametrize(
    "value",
    ["\u0400" * 5_000, [129] * 5_000, [["x" * 20]] * 300],
    ids=["text", "numbers", "far apart"],
)
def test_what_only_looks_like_lists_is_not_counted(value: Any) -> None:
    assert refusal({"cmd": "PUSH", "data": value}, 250) is None


def test_the_densest_payload_that_may_be_stored_is_taken() -> None:
    assert DATA_CHARS_MAX // len("[],") < CONTAINERS_MAX


def test_a_long_list_is_decoded_in_many_steps() -> None:
    body = msgpack.packb({"jobs": [{"n": n} for n in range(30_000)]})
    costs = list(decode_large(memoryview(body), []))

    assert 5 < len(costs)
    assert max(costs) <= STEP_US_MAX


STEP_US_MAX = 5_000  # what one slice of a work may take
LISTS = 200_000


@pytest.mark.parametrize(
    "value",
    [
        [[] for _ in range(LISTS)],
        {"data": {"x": [[] for _ in range(LISTS)]}},
        {"jobs": [{"data": [{} for _ in range(LISTS)]}]},
        {"data": [[[[[] for _ in range(LISTS)]]]]},
        {"data": {str(number): {} for number in range(LISTS)}},
    ],
    ids=["no map", "in a map", "in a job", "deep", "members"],
)
def test_no_step_makes_many_containers(value: Any) -> None:
    """Lists of 5 million empty lists, wherever they stood, kept the hub for more than a second."""
    body = msgpack.packb(value)
    opened: list[Any] = []
    work = decode_large(memoryview(body), opened)
    costs = list(work)

    assert max(costs) <= STEP_US_MAX
    assert sum(costs) >= LISTS // large.CONTAINERS_PER_US
    assert opened


@given(VALUES, st.integers(0, 9), st.integers(40, 80))
def test_what_was_opened_is_packed_and_counted_as_in_one_go(
    value: Any, copies: int, window_bytes: int
) -> None:
    value = {"a": [value] * copies, "b": {"c": value, "d": "e" * 50}}
    opened: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", window_bytes)
        patch.setattr(large, "ITEMS_PER_STEP", 3)
        again = done(decode_large(memoryview(msgpack.packb(value)), opened))
        ids = {id(container) for container in opened}
        packed = done(large.pack_large(again, ids))
        count = done(large.count_json(again, ids))

    assert pack(again) == packed.packed
    assert json_chars(again) == count


@pytest.mark.parametrize("name", [{}, {"name": "n"}])
@pytest.mark.parametrize(
    ("request_", "of"),
    [
        ({"cmd": "PUSH", "data": ...}, lambda request: request["data"]),
        ({"cmd": "ACK", "result": ...}, lambda request: request["result"]),
        ({"cmd": "ACKB", "results": [1, ...]}, lambda request: request["results"][1]),
        ({"cmd": "PUSHB", "jobs": [5, {"data": ...}]}, lambda request: request["jobs"][1]["data"]),
        (
            {"cmd": "PUSHF", "jobs": [5, {"input": 5}, {"input": {"data": ...}}]},
            lambda request: request["jobs"][2]["input"]["data"],
        ),
        ({"cmd": "Cron", "name": "c", "data": ...}, lambda request: request["data"]),
    ],
    ids=["PUSH", "ACK", "ACKB", "PUSHB", "PUSHF", "Cron"],
)
def test_a_large_payload_is_packed_before_its_command_runs(
    request_: Any, of: Any, name: dict[str, str]
) -> None:
    payload = {**name, "x": [[] for _ in range(large.WINDOW_BYTES)]}
    body = msgpack.packb(request_, default=lambda _ellipsis: payload)
    opened: list[Any] = []
    request = done(decode_large(memoryview(body), opened))
    done(large.pack_payloads(request, opened))
    packed = of(request)

    assert pack(payload) == packed.packed
    assert name.get("name") == packed.name
    if name:
        assert pack({"x": payload["x"]}) == packed.nameless.packed


@pytest.mark.parametrize("name", [None, "n"])
def test_a_payload_is_packed_without_its_name_only_where_that_is_the_jobs(name: Any) -> None:
    data = {"name": "inner", "x": [[]] * large.WINDOW_BYTES}
    opened: list[Any] = []
    body = msgpack.packb({"cmd": "PUSH", "name": name, "data": data})
    request = done(decode_large(memoryview(body), opened))
    done(large.pack_payloads(request, opened))
    packed = request["data"]

    assert pack(data) == packed.packed
    if name is None:
        assert "inner" == packed.name
        assert pack({"x": data["x"]}) == packed.nameless.packed
    else:
        assert packed.name is packed.nameless is None


@pytest.mark.parametrize(
    "request_", [{"cmd": "ACKB", "results": ...}, {"cmd": "PUSHB", "jobs": ...}]
)
def test_elements_that_are_no_payloads_are_passed_in_steps(request_: Any) -> None:
    body = msgpack.packb(request_, default=lambda _ellipsis: list(range(LISTS)))
    opened: list[Any] = []
    request = done(decode_large(memoryview(body), opened))

    assert len(list(large.pack_payloads(request, opened))) >= LISTS // large.FREED_PER_STEP


def test_a_map_with_odd_keys_is_mended_in_steps_and_in_order() -> None:
    fixing = large._Open({}, 2 * LISTS)
    fixing.add([item for number in range(LISTS) for item in (number, number)])
    sizes = [len(fixing.value) for _cost in fixing.close()]

    assert list(fixing.value.items()) == [(str(number), number) for number in range(LISTS)]
    assert max(abs(b - a) for a, b in pairwise(sizes)) <= large.FREED_PER_STEP
    assert LISTS - sizes[0] <= large.FREED_PER_STEP  # it is not emptied at once


LONG = 2 * large.COPIED_PER_STEP + 7
LONG_TEXTS: dict[str, str | bytes] = {
    "ASCII": "x" * LONG,
    "escaped": ('x"\n\u0400\U0001f600' * LONG)[:LONG],
    "bytes": (bytes(range(256)) * LONG)[:LONG],
}


@pytest.mark.parametrize("what", LONG_TEXTS)
def test_a_long_text_is_packed_and_counted_in_steps(what: str) -> None:
    text = LONG_TEXTS[what]
    inner = [1, text, [], text]
    value = {"a": inner, "b": text}
    opened = {id(inner), id(value)}

    for payload in (text, value):
        assert msgpack.packb(payload) == done(large.pack_large(payload, opened)).packed
        assert json_chars(payload) == done(large.count_json(payload, opened))
    assert 6 <= len(list(large.pack_large(text, opened)))  # three to pack, three to count


@pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256)), b"\xff" * 50])
def test_bytes_are_counted_as_the_list_of_their_numbers(value: bytes) -> None:
    assert len(json.dumps(list(value), separators=(",", ":"))) == json_chars(value)


def test_a_long_text_as_payload_is_packed_in_steps() -> None:
    request = {"cmd": "PUSH", "data": LONG_TEXTS["ASCII"]}
    done(large.pack_payloads(request, []))

    assert msgpack.packb(LONG_TEXTS["ASCII"]) == request["data"].packed  # type: ignore[attr-defined]


def test_heavy_items_are_freed_a_few_at_a_time() -> None:
    """Each may be many lists, which together take as long as they are bytes."""
    heavy = [[[]] * 1_000 for _ in range(2_000)]
    opened: list[Any] = [heavy]
    del heavy
    steps = list(large.let_go(opened, each_bytes=1_000))

    assert 2_000 * 1_000 / large.FREED_BYTES_PER_STEP <= len(steps)
    assert 2_000 * 1_000 / large.FREED_BYTES_PER_US / 2 < sum(steps)


def test_what_was_opened_is_freed_in_steps_unless_somebody_has_it() -> None:
    body = msgpack.packb({"a": [[]] * LISTS, "b": {"c": [[]] * LISTS}})
    opened: list[Any] = []
    request = done(decode_large(memoryview(body), opened))
    kept = request.pop("b")
    request.clear()
    steps = list(large.let_go(opened))

    assert LISTS / large.FREED_PER_STEP <= len(steps)
    assert LISTS == len(kept["c"])
    assert not opened
