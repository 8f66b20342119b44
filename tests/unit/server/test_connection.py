"""Bytes in, commands in order, answers out; without a socket."""

import tracemalloc
from collections import deque
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import msgpack
import pytest

from bunqueue.broker import Clock
from bunqueue.commands.registry import dispatch
from bunqueue.protocol import large as large_module
from bunqueue.protocol.codec import DEPTH_MAX
from bunqueue.server import connection as connection_module
from bunqueue.server.connection import (
    COMMANDS_WAITING_MAX,
    KEPT_BYTES_MAX,
    STRANGER_FRAME_BYTES_MAX,
    TURN_BYTES_MAX,
    Connection,
)
from bunqueue.server.rate import RequestRate
from tests.support.wire import HoldingStorage, frame, frame_of, make_broker, ping, push, values


class Line:
    """Collects what would have been sent; ``turn`` plays the end of a loop's turn."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_finished = False
        self.wakes = 0
        self._soon: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def finish(self) -> None:
        self.is_finished = True

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def wake(self) -> None:
        self.wakes += 1

    def wake_next_turn(self) -> None:
        self.wakes += 1

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def take(self) -> list[Any]:
        """Return the values of all frames written since the last call."""
        self.turn()
        data, self.writes = b"".join(self.writes), []
        return values(data)


class Talk:
    """A connection with its line, and others to the same broker."""

    def __init__(self, tokens: tuple[str, ...] = (), rate: RequestRate | None = None) -> None:
        self.storage = HoldingStorage()
        self.broker = make_broker(self.storage, tokens)
        self.line = Line()
        self.connection = Connection(self.broker, self.line, "peer", rate)

    def say(self, data: bytes) -> list[Any]:
        self.connection.received(data)
        return self.line.take()

    def other(self) -> tuple[Connection, Line]:
        line = Line()
        return Connection(self.broker, line, "other", None), line


@pytest.fixture
def talk() -> Talk:
    return Talk()


def errors(replies: list[Any]) -> list[Any]:
    return [(reply.get("error"), reply.get("reqId")) for reply in replies]


# -- frames ----------------------------------------------------------------------------------------


def test_all_frames_of_one_read_leave_in_one_write(talk: Talk) -> None:
    talk.connection.received(ping(1) + ping(2) + ping(3))

    assert 1 == len(talk.line.writes)
    assert [1, 2, 3] == [reply["reqId"] for reply in talk.line.take()]


def test_commands_that_came_together_are_told_one_time(talk: Talk) -> None:
    wall_ns = count(1_700_000_000_000_000_000, 5_000_000).__next__
    talk.broker.clock = Clock(wall_ns, lambda: 0.0)
    connection, _ = talk.other()

    connection.received(push(reqId=1) + push(reqId=2))
    connection.received(push(reqId=3))

    first, second, third = sorted(job.created_at for job in talk.broker.engine.index)
    assert first == second < third
    assert third < connection.now() < connection.now()


@pytest.mark.parametrize(("took_ms", "expected_ms"), [(0, [0, 0, 0]), (700, [0, 700, 1400])])
def test_commands_behind_a_long_one_are_told_the_time_after_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, took_ms: int, expected_ms: list[int]
) -> None:
    """Leases, delays and TTLs of a read that took seconds began when it did."""
    past_ms = 0
    began_ms = 1_700_000_000_000
    talk.broker.clock = Clock(lambda: (began_ms + past_ms) * 1_000_000, lambda: past_ms / 1000)
    connection, line = talk.other()

    def slow(*args: Any, **kwargs: Any) -> Any:
        nonlocal past_ms
        reply = dispatch(*args, **kwargs)
        past_ms += took_ms
        return reply

    monkeypatch.setattr(connection_module, "dispatch", slow)
    connection.received(ping(1) + ping(2) + ping(3) + push())

    *told, _ = [reply.get("data", {}).get("time") for reply in line.take()]
    assert expected_ms == [time - began_ms for time in told]
    (job,) = talk.broker.engine.index
    assert 3 * took_ms == job.created_at - began_ms


def test_time_goes_on_after_a_read_that_failed(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.broker.clock = Clock(count(1_700_000_000_000_000_000, 5_000_000).__next__)
    connection, _ = talk.other()

    def fail(*_args: Any, **_kwargs: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(connection_module, "dispatch", fail)
    with pytest.raises(MemoryError):
        connection.received(ping(1))

    assert connection.now() < connection.now()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 100])
def test_frames_may_come_in_pieces_of_any_size(talk: Talk, size: int) -> None:
    data = ping("a") + push(reqId="b", data={"text": "x" * 300}) + ping("c")
    replies = []
    for begin in range(0, len(data), size):
        replies += talk.say(data[begin : begin + size])

    assert ["a", "b", "c"] == [reply["reqId"] for reply in replies]
    assert talk.connection.partial_at is None


def test_silence_inside_a_frame_is_noted_and_between_frames_it_is_not(talk: Talk) -> None:
    talk.say(ping(1))
    assert talk.connection.partial_at is None

    talk.say(ping(2)[:3])
    assert talk.connection.partial_at is not None

    talk.say(ping(2)[3:])
    assert talk.connection.partial_at is None


def test_a_frame_larger_than_any_read_is_gathered(talk: Talk) -> None:
    data = push(data={"text": "x" * 1_000_000}, reqId=1)
    for begin in range(0, len(data), 262_144):
        replies = talk.say(data[begin : begin + 262_144])

    assert [True] == [reply["ok"] for reply in replies]


def test_a_large_frame_is_decoded_in_slices_and_what_follows_waits_for_it(talk: Talk) -> None:
    jobs = [{"data": {"n": n}} for n in range(20_000)]
    data = frame({"cmd": "PUSHB", "queue": "emails", "jobs": jobs, "reqId": 1}) + ping(2)
    assert [] == talk.say(data)
    assert talk.broker.engine.works.ring

    turns = 0
    while talk.broker.engine.works.ring and not talk.line.writes:
        turns += 1
        talk.broker.engine.tick(talk.connection.now())
        talk.connection.resume()
    replies = talk.line.take()
    while talk.broker.engine.works.ring:
        talk.broker.engine.tick(talk.connection.now())
        replies += talk.line.take()

    assert 0 < turns
    assert [2, 1] == [reply["reqId"] for reply in replies]  # decoded in order; the batch takes long
    assert 20_000 == len(replies[1]["ids"])


def settled(talk: Talk) -> list[Any]:
    """Return the answers once all that is done in slices is through."""
    while talk.broker.engine.works.ring:
        talk.broker.engine.tick(talk.connection.now())
        talk.connection.resume()
    return talk.line.take()


@pytest.mark.parametrize("command", ["PUSH", "PUSHB"])
def test_a_child_with_large_data_is_linked_to_its_parent(talk: Talk, command: str) -> None:
    """Its data was packed by then, and nobody saw the parent's id in it: that did not wait."""
    engine = talk.broker.engine
    (reply,) = talk.say(push(data={"kind": "parent"}, name="n"))
    data = {"x": [1] * 200_000, "__parentId": reply["id"], "__parentQueue": "emails"}
    entry = {"name": "n", "parentId": reply["id"], "data": data}
    fields = entry if command == "PUSH" else {"jobs": [entry]}

    answers = talk.say(frame({"cmd": command, "queue": "emails", **fields})) + settled(talk)
    (child_id,) = answers[0].get("ids") or (answers[0]["id"],)

    assert "waiting-children" == engine.state(reply["id"], talk.connection.now())
    assert [child_id] == list(engine.index.get(reply["id"]).extra.children_ids)


def test_a_flow_of_large_data_is_packed_in_slices_and_checked_all_the_same(talk: Talk) -> None:
    many = [1] * 200_000
    link = {"__parentId": "p", "__parentQueue": "emails", "x": many}
    own = {"data": {"__childrenIds": ["c"], "x": many}, "childrenIds": ["c"], "dependsOn": ["c"]}
    jobs = [
        {"id": "p", "queue": "emails", "input": own},
        {"id": "c", "queue": "emails", "input": {"data": link, "parentId": "p"}},
    ]
    (taken,) = talk.say(frame({"cmd": "PUSHF", "jobs": jobs})) + settled(talk)
    jobs[1]["id"] = jobs[0]["id"] = "other"
    link["__parentId"] = "q"
    (refused,) = talk.say(frame({"cmd": "PUSHF", "jobs": jobs[1:]})) + settled(talk)

    assert taken["ok"], taken
    assert many == taken["data"]["jobs"][1]["data"]["x"]
    assert not refused["ok"]


def test_a_peer_that_goes_while_its_frame_is_decoded_pushes_nothing(talk: Talk) -> None:
    jobs = [{"data": {"n": n}} for n in range(50_000)]
    talk.say(frame({"cmd": "PUSHB", "queue": "emails", "jobs": jobs}))
    talk.connection.close()
    for _ in range(3):
        talk.broker.engine.tick(talk.connection.now())

    assert not talk.broker.engine.works.ring
    assert 0 == talk.broker.engine.count("emails")


def test_what_a_peer_has_not_read_is_freed_in_slices(talk: Talk) -> None:
    pieces: deque[bytes | memoryview] = deque(bytes(1_000_000) for _ in range(64))
    left = []
    talk.connection.drop(pieces)
    while pieces:
        left.append(len(pieces))
        talk.broker.engine.tick(talk.connection.now())

    assert 5 <= len(left)
    assert max(before - after for before, after in pairwise([64, *left, 0])) < 10


def test_a_large_frame_that_is_damaged_is_refused(talk: Talk) -> None:
    body = msgpack.packb({"cmd": "PUSHB", "jobs": [{}] * 200_000})[:-1] + b"\xc1"
    replies = talk.say(frame_of(body) + ping(2))
    for _ in range(2_000):  # it is decoded in slices
        if len(replies) == 2:
            break
        talk.broker.engine.tick(talk.connection.now())
        talk.connection.resume()
        replies += talk.line.take()

    assert [("Invalid command format", None), (None, 2)] == errors(replies)


def test_a_length_above_the_limit_is_answered_and_ends_the_connection(talk: Talk) -> None:
    replies = talk.say(ping(1) + b"\x04\x00\x00\x01" + b"rest")

    text = "Frame too large: 67108865 bytes exceeds maximum 67108864"
    assert [(None, 1), (text, None)] == errors(replies)
    assert talk.line.is_finished


def test_the_largest_length_is_waited_for(talk: Talk) -> None:
    assert [] == talk.say(b"\x04\x00\x00\x00")
    assert not talk.line.is_finished


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x82\xa3cmd",
        msgpack.packb({"cmd": "Ping"}) * 2,
        b'{"cmd":"Ping"}',
        b"\xc0",
        b"\xc2",
        b"\xd4\x05\x00",
        b"\x81\xa3cmd\xd4\x07\x00",
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_message_is_answered_without_req_id(talk: Talk, body: bytes) -> None:
    replies = talk.say(frame_of(body) + ping(2))

    assert [("Invalid command format", None), (None, 2)] == errors(replies)


@pytest.mark.parametrize(
    ("value", "req_id"),
    [
        ([1], None),
        ("Ping", None),
        (7, None),
        (True, None),
        ({}, None),
        ({"reqId": "a"}, "a"),
        ({"reqId": 5}, None),
        ({"cmd": "", "reqId": "a"}, "a"),
        ({"cmd": "", "reqId": 5}, None),
        ({"cmd": 5, "reqId": "a"}, "a"),
        ({"cmd": ["Ping"], "reqId": 5}, None),
        ({"cmd": {}, "reqId": 5}, None),
    ],
)
def test_what_is_no_command_gets_only_a_string_back(
    talk: Talk, value: object, req_id: object
) -> None:
    assert [("Invalid command", req_id)] == errors(talk.say(frame(value)))


def test_an_unknown_command_is_named(talk: Talk) -> None:
    assert [("Unknown command: ping", 3)] == errors(talk.say(frame({"cmd": "ping", "reqId": 3})))


@pytest.mark.parametrize(
    "req_id", ["a", "ü", "", 0, -1, 2**63, 2**64 - 1, 1.5, None, True, [1, "a"], {"a": {"b": 1}}]
)
def test_req_id_comes_back_as_it_was(talk: Talk, req_id: object) -> None:
    ok, refused = talk.say(ping(req_id) + frame({"cmd": "Nope", "reqId": req_id}))

    assert req_id == ok["reqId"]
    assert type(req_id) is type(ok["reqId"])
    assert req_id == refused["reqId"]


def test_a_request_without_req_id_is_answered_without_one(talk: Talk) -> None:
    missing, undefined = talk.say(
        frame({"cmd": "Ping"}) + frame_of(b"\x82\xa3cmd\xa4Ping\xa5reqId\xd4\x00\x00")
    )

    assert "reqId" not in missing
    assert "reqId" not in undefined


def test_a_packed_reply_carries_the_req_id_too(talk: Talk) -> None:
    reply = talk.say(push(reqId="a"))[0]
    without = talk.say(push())[0]

    assert {"ok", "id", "reqId"} == set(reply)
    assert {"ok", "id"} == set(without)


# -- who may ---------------------------------------------------------------------------------------


def test_what_is_nested_too_deeply_is_refused_by_its_request_id(talk: Talk) -> None:
    deep: list[Any] = []
    for _ in range(DEPTH_MAX):
        deep = [deep]

    replies = talk.say(
        frame({"cmd": "PUSH", "queue": "q", "data": deep, "reqId": 1})
        + frame({"cmd": "Ping", "reqId": deep})
        + ping(3)
    )

    too_deep = f"Command nested too deeply: more than {DEPTH_MAX} levels"
    assert [(too_deep, 1), (too_deep, None), (None, 3)] == errors(replies)


def test_what_holds_too_many_lists_is_refused_by_its_request_id(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_module, "CONTAINERS_MAX", 50_000)
    dense: list[Any] = [[]] * 150_000

    replies = talk.say(frame({"cmd": "PUSH", "queue": "q", "data": dense, "reqId": 1}) + ping(2))
    for _ in range(2_000):
        if len(replies) == 2:
            break
        talk.broker.engine.tick(talk.connection.now())
        talk.connection.resume()
        replies += talk.line.take()

    too_many = "Command holds too many lists and maps: more than 50000"
    assert [(too_many, 1), (None, 2)] == errors(replies)


def test_nothing_but_auth_is_answered_before_it() -> None:
    talk = Talk(tokens=("secret", "other"))

    replies = talk.say(
        ping(1)
        + frame({"cmd": "Hello", "reqId": 2})
        + frame_of(b"\xc1")
        + frame({"cmd": "Auth", "token": "wrong", "reqId": 3})
        + frame({"cmd": "Auth", "token": 7, "reqId": 4})
        + frame({"cmd": "Auth", "token": "other", "reqId": 5})
        + ping(6)
        + frame({"cmd": "Auth", "token": "wrong", "reqId": 7})
        + ping(8)
    )

    assert [
        ("Not authenticated", 1),
        ("Not authenticated", 2),
        ("Invalid command format", None),
        ("Invalid token", 3),
        ("Invalid token", 4),
        (None, 5),
        (None, 6),
        ("Invalid token", 7),
        (None, 8),
    ] == errors(replies)


def test_who_has_shown_no_token_cannot_have_memory_kept_for_a_large_frame() -> None:
    talk = Talk(tokens=("secret",))
    large = frame_of(bytes(STRANGER_FRAME_BYTES_MAX + 1))
    small = frame_of(b"\xc1" * STRANGER_FRAME_BYTES_MAX)
    assert [] == talk.say(small[:-1])
    assert [("Invalid command format", None)] == errors(talk.say(small[-1:]))

    replies = talk.say(large[:5])

    assert [("Not authenticated", None)] == errors(replies)
    assert talk.line.is_finished


def test_a_large_frame_right_behind_its_token_is_taken() -> None:
    talk = Talk(tokens=("secret",))
    large = push(data="x" * STRANGER_FRAME_BYTES_MAX, reqId=2)

    replies = talk.say(frame({"cmd": "Auth", "token": "secret", "reqId": 1}) + large[:100])
    replies += talk.say(large[100:])

    assert [(None, 1), (None, 2)] == errors(replies)


def test_a_frame_that_comes_in_tiny_pieces_takes_little_more_memory_than_its_bytes(
    talk: Talk,
) -> None:
    sent = push(data="x" * 300_000, reqId=1)
    head, rest = sent[:10], sent[10:]
    talk.say(head)
    tracemalloc.start()
    try:
        for begin in range(0, len(rest) - 2, 2):
            talk.connection.received(rest[begin : begin + 2])
        last = rest[begin + 2 :]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < 2 * len(sent)
    assert [(None, 1)] == errors(talk.say(last))


def test_a_stray_token_is_told(talk: Talk) -> None:
    replies = talk.say(frame({"cmd": "Auth", "token": "x", "reqId": 1}) + ping(2))

    assert [("Invalid token", 1), (None, 2)] == errors(replies)


def test_requests_above_the_rate_are_refused_malformed_ones_included() -> None:
    talk = Talk(rate=RequestRate(3, 60_000))

    replies = talk.say(ping(1) + frame_of(b"\xc1") + ping(2) + ping("a") + ping(4) + frame_of(b""))

    assert [
        (None, 1),
        ("Invalid command format", None),
        (None, 2),
        ("Rate limit exceeded", "a"),
        ("Rate limit exceeded", None),
        ("Rate limit exceeded", None),
    ] == errors(replies)


def test_large_answers_end_the_turn_so_that_others_get_theirs(talk: Talk) -> None:
    talk.say(push(data=b"x" * (TURN_BYTES_MAX // 2), jobId="big"))
    talk.connection.resume()
    wakes = talk.line.wakes

    reads = [frame({"cmd": "GetJob", "id": "big", "reqId": number}) for number in range(5)]
    turns = [talk.say(b"".join(reads) + ping("last"))]
    while talk.line.wakes > wakes:
        wakes += 1
        talk.connection.resume()
        turns.append(talk.line.take())

    assert [[0, 1], [2, 3], [4, "last"]] == [[r["reqId"] for r in turn] for turn in turns]


def test_a_long_run_of_commands_ends_the_turn_and_the_rest_follows_in_order(talk: Talk) -> None:
    connection = Connection(talk.broker, talk.line, "peer", None, run_s_max=0.0)

    connection.received(b"".join(push(reqId=number, data="x" * 100) for number in range(100)))
    turns = [talk.line.take()]
    while talk.line.wakes:
        talk.line.wakes -= 1
        connection.resume()
        turns.append(talk.line.take())

    assert list(range(100)) == [reply["reqId"] for turn in turns for reply in turn]
    assert len(turns) >= 3  # the compiled core looks at the clock every 4 KiB
    assert all(turns)


def test_what_comes_while_a_run_is_put_off_follows_it(talk: Talk) -> None:
    connection = Connection(talk.broker, talk.line, "peer", None, run_s_max=0.0)
    ticks = frame({"cmd": "Count", "queue": "emails", "reqId": 1})

    connection.received(ticks + ticks + ping(2)[:7])
    connection.received(ping(2)[7:] + ping(3))
    said = []
    while talk.line.wakes:
        talk.line.wakes -= 1
        connection.resume()
        said += talk.line.take()

    assert [1, 1, 2, 3] == [reply["reqId"] for reply in said]


# -- answers to come -------------------------------------------------------------------------------


def pull(req_id: object, timeout: int = 60_000) -> bytes:
    return frame({"cmd": "PULL", "queue": "emails", "timeout": timeout, "reqId": req_id})


def test_a_ping_overtakes_a_parked_pull(talk: Talk) -> None:
    assert [2] == [reply["reqId"] for reply in talk.say(pull(1) + ping(2))]

    replies = talk.say(push(reqId=3))

    assert {1, 3} == {reply["reqId"] for reply in replies}


def test_answers_that_become_ready_together_leave_in_one_write(talk: Talk) -> None:
    other, line = talk.other()
    other.received(pull(1) + pull(2) + pull(3))

    talk.say(push() + push() + push())

    line.turn()
    assert 1 == len(line.writes)
    assert [1, 2, 3] == [reply["reqId"] for reply in line.take()]


def test_the_51st_command_waits_until_one_ends(talk: Talk) -> None:
    polls = b"".join(pull(number) for number in range(COMMANDS_WAITING_MAX))
    assert [] == talk.say(polls + ping("a") + ping("b"))
    assert [] == talk.say(ping("c"))

    other, _ = talk.other()
    other.received(push())
    assert [0] == [reply["reqId"] for reply in talk.line.take()]
    assert 1 <= talk.line.wakes
    talk.connection.resume()

    assert ["a", "b", "c"] == [reply["reqId"] for reply in talk.line.take()]


def test_fifty_polls_leave_room_for_one_read_more(talk: Talk) -> None:
    talk.say(b"".join(pull(number) for number in range(COMMANDS_WAITING_MAX)))
    assert talk.connection.wants_more

    talk.say(b"x" * KEPT_BYTES_MAX)

    assert not talk.connection.wants_more


def test_no_frame_is_taken_while_the_storage_is_congested(talk: Talk) -> None:
    talk.storage.is_congested = True
    assert [] == talk.say(push(reqId=1) + ping(2)[:5])
    assert [] == talk.say(ping(2)[5:] + ping(3)[:5])
    assert talk.connection.partial_at is None

    talk.storage.relieve()
    assert 1 == talk.line.wakes
    talk.connection.resume()
    replies = talk.line.take() + talk.say(ping(3)[5:])

    assert [1, 2, 3] == [reply["reqId"] for reply in replies]


def ack_all(talk: Talk) -> bytes:
    """Pull three jobs and return the frames that acknowledge them."""
    talk.say(push() + push() + push())
    jobs = [reply["job"]["id"] for reply in talk.say(pull(1) + pull(2) + pull(3))]
    return b"".join(frame({"cmd": "ACK", "id": job, "reqId": job}) for job in jobs)


def test_an_answer_that_needs_a_commit_is_overtaken_until_then(talk: Talk) -> None:
    acks = ack_all(talk)
    talk.storage.holds = True

    assert ["p"] == [reply["reqId"] for reply in talk.say(acks + ping("p"))]
    assert talk.connection.owes_answers
    assert 1 == len(talk.storage.held)

    talk.storage.commit()
    assert [True] * 3 == [reply["ok"] for reply in talk.line.take()]
    assert not talk.connection.owes_answers


def test_a_failed_commit_is_told_instead_of_a_success(talk: Talk) -> None:
    acks = ack_all(talk)
    talk.storage.holds = True
    talk.say(acks)

    talk.storage.commit(False)

    assert ["Internal server error"] * 3 == [reply["error"] for reply in talk.line.take()]


def test_the_flag_of_one_command_does_not_hold_the_next(talk: Talk) -> None:
    acks = ack_all(talk)
    talk.storage.holds = True

    replies = talk.say(acks + ping("p") + ping("q"))

    assert ["p", "q"] == [reply["reqId"] for reply in replies]


# -- the end ---------------------------------------------------------------------------------------


def test_close_hands_back_jobs_and_ends_polls(talk: Talk) -> None:
    talk.say(push())
    talk.say(pull(1))
    talk.say(pull(2))
    other, line = talk.other()
    other.received(pull("other"))

    talk.connection.close()

    assert ["other"] == [reply["reqId"] for reply in line.take()]
    assert [] == talk.line.take()
    assert not talk.connection.parked
    talk.connection.close()


def test_what_was_acknowledged_before_the_end_is_still_answered(talk: Talk) -> None:
    acks = ack_all(talk)
    talk.storage.holds = True
    talk.say(acks)
    talk.connection.close()

    talk.storage.commit()

    assert 3 == len(talk.line.take())


def test_a_reply_that_cannot_be_encoded_is_an_internal_error(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bunqueue.server.connection.dispatch", lambda _peer, _request: {"ok": object()}
    )

    assert [("Internal server error", 1)] == errors(talk.say(ping(1)))


# -- a large frame in many pieces ------------------------------------------------------------------


def test_a_large_frame_in_small_pieces_runs_with_what_follows_it(talk: Talk) -> None:
    data = push(data={"text": "x" * 500_000}, reqId=1) + ping(2) + ping(3)
    replies = []
    for begin in range(0, len(data), 60_000):
        replies += talk.say(data[begin : begin + 60_000])
    talk.connection.resume()
    replies += talk.line.take()

    assert [1, 2, 3] == [reply["reqId"] for reply in replies]
    assert all(reply["ok"] for reply in replies)


def test_a_large_frame_waits_while_the_storage_is_congested(talk: Talk) -> None:
    data = push(data={"text": "x" * 500_000}, reqId=1)
    talk.say(data[:200_000])
    talk.storage.is_congested = True
    assert [] == talk.say(data[200_000:] + ping(2))
    talk.storage.relieve()
    talk.connection.resume()
    replies = talk.line.take()
    talk.connection.resume()

    assert [1, 2] == [reply["reqId"] for reply in replies + talk.line.take()]


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_run_of_refused_frames_is_cut_short_too(talk: Talk, is_limited: bool) -> None:
    talk.broker.clock = Clock(lambda: 1_700_000_000_000_000_000, count().__next__)
    rate = RequestRate(1 if is_limited else 1_000_000, 1_000_000_000)
    connection = Connection(talk.broker, talk.line, "peer", rate, 20)

    connection.received((ping(1) if is_limited else frame_of(b"\xc1")) * 1_000)

    assert 1 == talk.line.wakes
    assert len(talk.line.take()) < 100
