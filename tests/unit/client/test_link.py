"""One pipelined link, seen through a Connection and a server under the test's hand."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import CommandError, CommandTimeoutError, Connection, ConnectionClosedError
from bunqueue.client.worlds import is_patched
from bunqueue.errors import LockLostError, RateLimitedError
from tests.support.fake_server import FakeConnection, FakeServer, Message
from tests.support.interrupts import LEAVES_LOCKS, Interrupted, interrupted_at


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def connection(server: FakeServer) -> Iterator[Connection]:
    with Connection("127.0.0.1", server.port, negotiate=False) as connection:
        yield connection


class Call:
    """A call in another thread (or greenlet), and what became of it."""

    def __init__(self, connection: Connection, command: Message, timeout: float = 10) -> None:
        self.outcome: Any = None
        self._run = lambda: connection.call(command, timeout)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self.outcome = self._run()
        except BaseException as error:
            self.outcome = error

    def result(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.outcome


class Held:
    """Keeps commands named ``Hold`` unanswered until told; answers all others."""

    def __init__(self) -> None:
        self.held: list[tuple[FakeConnection, Message]] = []

    def __call__(self, connection: FakeConnection, message: Message) -> None:
        if message["cmd"] == "Hold":
            self.held.append((connection, message))
        else:
            connection.reply(message, echo=message.get("n"))

    def release(self, index: int) -> None:
        connection, message = self.held[index]
        connection.reply(message, echo=message.get("n"))


def test_a_command_is_answered(server: FakeServer, connection: Connection) -> None:
    server.answer = lambda peer, message: peer.reply(message, pong=message["n"])

    reply = connection.call({"cmd": "Ping", "n": 7})

    assert ({"ok": True, "reqId": "1", "pong": 7}) == reply
    assert [{"cmd": "Ping", "n": 7, "reqId": "1"}] == server.received


def test_replies_find_their_callers_in_any_order(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = held = Held()
    calls = []
    for number in range(5):
        calls.append(Call(connection, {"cmd": "Hold", "n": number}))
        server.wait_for("Hold", number + 1)

    for index in (3, 0, 4, 2, 1):
        held.release(index)

    assert list(range(5)) == [call.result()["echo"] for call in calls]
    assert 1 == len(server.connections)


def test_a_command_overtakes_one_that_waits(server: FakeServer, connection: Connection) -> None:
    server.answer = held = Held()
    waiting = Call(connection, {"cmd": "Hold", "n": 1})
    server.wait_for("Hold")

    assert 2 == connection.call({"cmd": "Quick", "n": 2})["echo"]

    held.release(0)
    assert 1 == waiting.result()["echo"]


def test_the_reader_passes_its_role_on_when_its_time_is_up(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = held = Held()
    reader = Call(connection, {"cmd": "Hold", "n": 0}, timeout=0.05)
    server.wait_for("Hold")
    follower = Call(connection, {"cmd": "Hold", "n": 1})
    server.wait_for("Hold", 2)

    assert isinstance(reader.result(), CommandTimeoutError)
    held.release(1)

    assert 1 == follower.result()["echo"]
    assert {} == connection._pending


def test_a_frame_may_come_in_pieces(server: FakeServer, connection: Connection) -> None:
    def answer(peer: FakeConnection, message: Message) -> None:
        body = b"\x82\xa2ok\xc3\xa5reqId\xa1" + message["reqId"].encode()
        frame = struct.pack(">I", len(body)) + body
        for byte in frame[:-3]:
            peer.send_bytes(bytes([byte]))
        peer.send_bytes(frame[-3:])

    server.answer = answer

    assert connection.call({"cmd": "Ping"})["ok"]


def test_several_frames_may_come_in_one_piece(server: FakeServer, connection: Connection) -> None:
    held: list[Message] = []

    def answer(peer: FakeConnection, message: Message) -> None:
        held.append(message)
        if len(held) == 3:
            frames = b""
            for one in held:
                body = b"\x82\xa2ok\xc3\xa5reqId\xa1" + one["reqId"].encode()
                frames += struct.pack(">I", len(body)) + body
            peer.send_bytes(frames)

    server.answer = answer
    calls = [Call(connection, {"cmd": "Ping"}) for _ in range(3)]

    assert [True, True, True] == [call.result()["ok"] for call in calls]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Job not found", CommandError),
        ("Rate limit exceeded", RateLimitedError),
        ("Invalid or expired lock token for job 7", LockLostError),
        ("Lock token required for job 7", LockLostError),
        ("Job not found or not in processing state: 7", LockLostError),
    ],
)
def test_a_refusal_is_raised_with_its_text(
    text: str, kind: type[CommandError], server: FakeServer, connection: Connection
) -> None:
    server.answer = lambda peer, message: peer.reply(message, ok=False, error=text)

    with pytest.raises(CommandError) as refused:
        connection.call({"cmd": "ACK"})

    assert (text, kind, "ACK") == (str(refused.value), type(refused.value), refused.value.command)


def test_a_lost_link_fails_what_is_in_flight_and_sends_nothing_again(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = Held()
    calls = [Call(connection, {"cmd": "Hold"}) for _ in range(3)]
    server.wait_for("Hold", 3)

    server.connections[0].close()

    assert [ConnectionClosedError] * 3 == [type(call.result()) for call in calls]
    connection.call({"cmd": "Next"})
    assert ["Hold", "Hold", "Hold", "Next"] == server.commands
    assert 2 == connection.generation


def test_a_link_that_died_while_idle_is_replaced_before_the_next_call(
    server: FakeServer, connection: Connection
) -> None:
    connection.call({"cmd": "First"})
    server.connections[0].close()
    server.connections[0].sock.close()

    assert connection.call({"cmd": "Second"})["ok"]
    assert 2 == len(server.connections)


def test_a_link_that_ended_with_a_late_answer_while_idle_is_replaced_as_well(
    server: FakeServer, connection: Connection
) -> None:
    connection.call({"cmd": "First"})
    server.connections[0].send({"ok": True, "reqId": "of nobody"})
    server.connections[0].close()

    assert connection.call({"cmd": "Second"})["ok"]
    assert 2 == len(server.connections)


@pytest.mark.parametrize(
    "rubbish",
    [
        struct.pack(">I", 67_108_865),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 1) + b"\x01",
        struct.pack(">I", 5) + b"\x81\xa2ok\xc2",
    ],
    ids=["a length above the limit", "no msgpack", "no map", "a reply without reqId"],
)
def test_what_cannot_be_understood_ends_the_link(
    rubbish: bytes, server: FakeServer, connection: Connection
) -> None:
    server.answer = lambda peer, _message: peer.send_bytes(rubbish)

    with pytest.raises(ConnectionClosedError, match="connection lost"):
        connection.call({"cmd": "Ping"})

    assert not connection.connected


def test_late_replies_are_dropped(server: FakeServer, connection: Connection) -> None:
    server.answer = held = Held()
    with pytest.raises(CommandTimeoutError, match="no response for Hold within timeout"):
        connection.call({"cmd": "Hold", "n": 1}, timeout=0.02)

    held.release(0)

    assert 2 == connection.call({"cmd": "Quick", "n": 2})["echo"]


def test_the_third_timeout_in_a_row_ends_the_link(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = Held()
    for expected in (True, True, False):
        with pytest.raises(CommandTimeoutError):
            connection.call({"cmd": "Hold"}, timeout=0.02)
        assert expected == connection.connected


def test_any_reply_starts_the_count_of_timeouts_afresh(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = Held()
    for _ in range(4):
        with pytest.raises(CommandTimeoutError):
            connection.call({"cmd": "Hold"}, timeout=0.02)
        connection.call({"cmd": "Quick"})

    assert 1 == connection.generation


def test_commands_in_flight_are_bounded_and_let_in_by_arrival(server: FakeServer) -> None:
    server.answer = held = Held()
    with Connection("127.0.0.1", server.port, negotiate=False, max_in_flight=1) as connection:
        first = Call(connection, {"cmd": "Hold", "n": 1})
        server.wait_for("Hold")
        with pytest.raises(CommandTimeoutError, match="no free slot"):
            connection.call({"cmd": "Quick"}, timeout=0.02)
        second = Call(connection, {"cmd": "Hold", "n": 2})

        held.release(0)
        assert 1 == first.result()["echo"]
        server.wait_for("Hold", 2)
        held.release(1)
        assert 2 == second.result()["echo"]
        # Waiting for a slot is no evidence of a dead link.
        assert 0 == connection.health()["links"][0]["consecutive_timeouts"]


def test_closing_wakes_everybody(server: FakeServer, connection: Connection) -> None:
    server.answer = Held()
    calls = [Call(connection, {"cmd": "Hold"}) for _ in range(3)]
    server.wait_for("Hold", 3)

    connection.close()

    assert [ConnectionClosedError] * 3 == [type(call.result()) for call in calls]
    with pytest.raises(ConnectionClosedError, match="connection closed by client"):
        connection.call({"cmd": "Ping"})


def test_many_callers_share_one_socket(server: FakeServer, connection: Connection) -> None:
    server.answer = lambda peer, message: peer.reply(message, echo=message["n"])
    answers: list[int] = []

    def call(start: int) -> None:
        for number in range(start, start + 20):
            answers.append(connection.call({"cmd": "Echo", "n": number})["echo"] - number)

    threads = [threading.Thread(target=call, args=(start,)) for start in range(0, 2000, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [0] * 400 == answers
    assert 1 == len(server.connections)


# -- interrupted callers ---------------------------------------------------------------------------


@pytest.mark.skipif(is_patched(), reason="a hub does not run Python's handlers while it waits")
def test_a_reader_interrupted_by_a_signal_leaves_nothing_behind(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = held = Held()

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    connection.connect()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            connection.call({"cmd": "Hold", "n": 1})
    finally:
        signal.signal(signal.SIGALRM, before)

    assert {} == connection._pending
    assert connection.connected
    held.release(0)
    assert 2 == connection.call({"cmd": "Quick", "n": 2})["echo"]
    assert 1 == connection.generation


@pytest.mark.skipif(LEAVES_LOCKS, reason="a signal may leave a lock held")
@pytest.mark.skipif(is_patched(), reason="a hub does not run Python's handlers while it waits")
def test_a_call_interrupted_anywhere_holds_no_lock(server: FakeServer) -> None:
    point, stuck = 1, []
    while True:
        with Connection("127.0.0.1", server.port, negotiate=False, max_in_flight=1) as connection:
            connection.connect()
            (link,) = connection._links()
            if not interrupted_at(point, lambda: connection.call({"cmd": "Quick"}, 10)):  # noqa: B023
                break
            locks = (link._write_lock, link._role, link._ending, link._slots._lock)
            if link.pending or any(lock.locked() for lock in locks):
                stuck.append(point)
        point += 1

    assert point > 50
    assert [] == stuck


@pytest.mark.skipif(is_patched(), reason="a hub does not run Python's handlers while it waits")
def test_an_interrupted_reader_passes_the_role_on(
    server: FakeServer, connection: Connection
) -> None:
    server.answer = held = Held()
    followers: list[Call] = []

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    def follow() -> None:
        server.wait_for("Hold")
        followers.append(Call(connection, {"cmd": "Hold", "n": 2}))
        server.wait_for("Hold", 2)
        os.kill(os.getpid(), signal.SIGALRM)

    helper = threading.Thread(target=follow)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        helper.start()
        with pytest.raises(Interrupted):
            connection.call({"cmd": "Hold", "n": 1})
    finally:
        signal.signal(signal.SIGALRM, before)
    helper.join()

    held.release(1)
    assert 2 == followers[0].result()["echo"]


@pytest.mark.skipif(not is_patched(), reason="threads cannot be killed")
def test_a_killed_reader_passes_the_role_on(server: FakeServer, connection: Connection) -> None:
    import gevent

    server.answer = held = Held()
    reader = gevent.spawn(connection.call, {"cmd": "Hold", "n": 1})
    server.wait_for("Hold")
    follower = Call(connection, {"cmd": "Hold", "n": 2})
    server.wait_for("Hold", 2)

    reader.kill()

    assert 1 == len(connection._pending)
    held.release(1)
    assert 2 == follower.result()["echo"]
    assert 1 == connection.generation


@pytest.mark.skipif(not is_patched(), reason="a timeout of gevent")
def test_a_caller_may_be_timed_out_from_outside(server: FakeServer, connection: Connection) -> None:
    import gevent

    server.answer = Held()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.02):
        connection.call({"cmd": "Hold"})

    assert {} == connection._pending
    assert connection.call({"cmd": "Quick"})["ok"]


@pytest.mark.skipif(not is_patched(), reason="in a plain process all threads are native")
def test_a_native_thread_of_a_patched_process_has_links_of_its_own(
    server: FakeServer, connection: Connection
) -> None:
    import gevent

    connection.call({"cmd": "Here"})

    reply = gevent.get_hub().threadpool.apply(connection.call, ({"cmd": "There"},))

    assert reply["ok"]
    assert 2 == len(server.connections)


def test_callers_that_have_left_are_not_kept(server: FakeServer, connection: Connection) -> None:
    """Somebody who waits for long reads for all; those he has served must not pile up."""
    server.answer = held = Held()
    waiting = Call(connection, {"cmd": "Hold", "n": 1})
    server.wait_for("Hold")

    for number in range(20):
        connection.call({"cmd": "Quick", "n": number})

    (link,) = connection._links()
    assert len(link._parked) <= 1
    held.release(0)
    assert 1 == waiting.result()["echo"]


def test_an_end_that_is_interrupted_is_told_all_the_same(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under gevent a refused lock lets others run, and a kill or a time-out may come there."""
    connection.call({"cmd": "Ping"})
    (link,) = connection._pool_here().links

    def thrown() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(link, "_close_stream", thrown)
    with pytest.raises(KeyboardInterrupt):
        link.end("connection lost")
    monkeypatch.undo()

    assert connection.call({"cmd": "Ping"})["ok"]
    link.stream.close()
