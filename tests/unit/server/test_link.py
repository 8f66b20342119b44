"""The socket of a connection, over pairs of connected sockets."""

import gc
import socket
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gevent
import pytest
from gevent.socket import socketpair

from bunqueue.broker import Broker
from bunqueue.protocol.options import DEFAULT_OPTIONS
from bunqueue.server import connection as connection_module
from bunqueue.server import link as link_module
from bunqueue.server.connection import Connection
from bunqueue.server.link import Link
from tests.support.wire import HoldingStorage, Reader, frame, frame_of, make_broker, ping, push

WAIT_S_MAX = 5.0


class Ends:
    """Links with their peers' ends, to one broker."""

    def __init__(self, unsent_bytes_max: int = 67_108_864, tokens: tuple[str, ...] = ()) -> None:
        self.storage = HoldingStorage()
        self.broker: Broker = make_broker(self.storage, tokens)
        self.unsent_bytes_max = unsent_bytes_max
        self.endings = link_module.Endings(gevent.get_hub().loop)
        self.turns = link_module.Turns(gevent.get_hub().loop)
        self.links: list[Link] = []
        self.greenlets: list[Any] = []
        self.sockets: list[Any] = []

    def open(self, send_bytes: int | None = None) -> Reader:
        """Return the peer's end of a new link, which is served already."""
        ours, theirs = socketpair()
        if send_bytes is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        plain = ours._sock
        plain.setblocking(False)
        link = Link(
            self.broker,
            plain,
            "peer",
            unsent_bytes_max=self.unsent_bytes_max,
            endings=self.endings,
            turns=self.turns,
        )
        self.links.append(link)
        self.greenlets.append(gevent.spawn(link.run))
        self.sockets += [ours, theirs]
        return Reader(theirs)

    def await_end(self, number: int = 0) -> None:
        """Waits until a link has ended."""
        self.greenlets[number].get(timeout=WAIT_S_MAX)

    def close(self) -> None:
        gevent.killall(self.greenlets)
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    with gevent.Timeout(WAIT_S_MAX):
        yield made
    made.close()


def until(is_so: Callable[[], object]) -> None:
    """Waits until something has become so; the fixture's time limit bounds it."""
    while not is_so():
        gevent.sleep(0.001)


def poll(req_id: object) -> bytes:
    return frame({"cmd": "PULL", "queue": "emails", "timeout": 60_000, "reqId": req_id})


def test_a_link_answers_what_comes(ends: Ends) -> None:
    peer = ends.open()

    assert peer.call({"cmd": "Ping", "reqId": 1})["ok"]
    assert 2 == peer.call({"cmd": "Ping", "reqId": 2})["reqId"]


def test_frames_in_pieces_are_put_together(ends: Ends) -> None:
    peer = ends.open()
    for byte in ping(7):
        peer.sock.sendall(bytes([byte]))
        gevent.sleep(0)

    assert 7 == peer.value()["reqId"]


def test_what_comes_to_others_is_served_between_turns(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TURN_BYTES_MAX", 1)
    served: list[Link] = []
    resume, received = Connection.resume, Connection.received

    def resumed(connection: Connection) -> None:
        if not served:
            other.sock.sendall(ping(1))
        served.append(ends.links[0])
        resume(connection)

    def seen(connection: Connection, data: bytes) -> None:
        if served and connection is ends.links[1].connection:
            served.append(ends.links[1])
        received(connection, data)

    monkeypatch.setattr(Connection, "resume", resumed)
    monkeypatch.setattr(Connection, "received", seen)
    lists, other = ends.open(), ends.open()
    lists.call({"cmd": "PUSH", "queue": "emails", "data": "x" * 8_192, "jobId": "big"})
    other.call({"cmd": "Ping"})
    lists.sock.sendall(frame({"cmd": "GetJob", "id": "big"}) * 60)
    for _ in range(60):
        lists.value()

    assert 2 >= served.index(ends.links[1])


def test_one_link_wakes_the_poll_of_another(ends: Ends) -> None:
    waits, pushes = ends.open(), ends.open()
    waits.sock.sendall(poll(1) + ping(2))
    assert 2 == waits.value()["reqId"]

    pushes.call({"cmd": "PUSH", "queue": "emails", "data": {}, "name": "n"})

    assert waits.value()["job"]


def test_the_end_of_the_peer_hands_its_jobs_back(ends: Ends) -> None:
    leaves, stays = ends.open(), ends.open()
    leaves.call({"cmd": "PUSH", "queue": "emails", "data": {}, "name": "n"})
    job = leaves.call({"cmd": "PULL", "queue": "emails"})["job"]
    stays.sock.sendall(poll(1))

    leaves.sock.close()

    assert job["id"] == stays.value()["job"]["id"]
    ends.await_end(0)


def test_half_a_close_is_a_close_but_answers_still_leave(ends: Ends) -> None:
    peer = ends.open()
    job = peer.call({"cmd": "PUSH", "queue": "emails", "data": {}, "name": "n"})["id"]
    peer.call({"cmd": "PULL", "queue": "emails"})
    ends.storage.holds = True

    peer.sock.sendall(frame({"cmd": "ACK", "id": job, "reqId": 9}) + ping(10))
    peer.sock.shutdown(socket.SHUT_WR)
    assert 10 == peer.value()["reqId"]
    until(lambda: not ends.links[0].connection.is_open)
    ends.storage.commit()

    assert {"ok": True, "reqId": 9} == peer.value()
    assert peer.is_at_end()
    ends.await_end()


def test_a_poll_of_a_closed_peer_takes_no_job(ends: Ends) -> None:
    leaves, stays = ends.open(), ends.open()
    leaves.sock.sendall(poll(1))
    until(lambda: ends.links[0].connection.parked)
    leaves.sock.close()
    ends.await_end(0)
    stays.sock.sendall(push(reqId=1) + frame({"cmd": "PULL", "queue": "emails", "reqId": 2}))

    assert 1 == stays.value()["reqId"]
    assert stays.value()["job"]


def test_fifty_polls_do_not_hide_the_end_of_the_peer(ends: Ends) -> None:
    peer = ends.open()
    peer.sock.sendall(b"".join(poll(number) for number in range(50)) + ping("kept"))
    peer.sock.close()

    ends.await_end()
    assert not ends.links[0].connection.parked


def test_the_51st_command_runs_when_a_poll_ends(ends: Ends) -> None:
    peer, other = ends.open(), ends.open()
    peer.sock.sendall(b"".join(poll(number) for number in range(50)) + ping("kept"))
    other.call({"cmd": "PUSH", "queue": "emails", "data": {}, "name": "n"})

    assert {0, "kept"} == {peer.value()["reqId"], peer.value()["reqId"]}


def test_too_long_a_frame_is_answered_before_the_end_even_with_more_to_read(ends: Ends) -> None:
    peer = ends.open()

    peer.sock.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 100_000)

    assert peer.value()["error"].startswith("Frame too large: 1195725856 bytes")
    assert peer.is_at_end()
    peer.sock.close()
    ends.await_end()


def test_other_links_do_not_notice_garbage(ends: Ends) -> None:
    bad, good = ends.open(), ends.open()
    bad.sock.sendall(frame_of(b"\xc1") + b"\xff\xff\xff\xff")

    assert "Invalid command format" == bad.value()["error"]
    assert good.call({"cmd": "Ping"})["ok"]


def test_answers_that_do_not_fit_leave_as_the_peer_reads(ends: Ends) -> None:
    peer = ends.open(send_bytes=4096)
    peer.call({"cmd": "PUSH", "queue": "emails", "data": {"text": "x" * 100_000}, "jobId": "a"})
    asked = 40
    request = frame({"cmd": "GetJobByCustomId", "customId": "a"})

    writer = gevent.spawn(peer.sock.sendall, request * asked)
    answers = [peer.value() for _ in range(asked)]
    writer.get()

    assert [100_000] * asked == [len(answer["job"]["data"]["text"]) for answer in answers]
    assert peer.call({"cmd": "Ping"})["ok"]


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    ends = Ends(unsent_bytes_max=200_000)
    with gevent.Timeout(WAIT_S_MAX):
        peer = ends.open(send_bytes=4096)
        peer.call({"cmd": "PUSH", "queue": "emails", "data": {"text": "x" * 50_000}, "jobId": "a"})
        peer.sock.sendall(frame({"cmd": "GetJobByCustomId", "customId": "a"}) * 40)
        ends.await_end()
    ends.close()


def test_who_has_shown_no_token_is_cut_off_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "STRANGER_UNSENT_BYTES_MAX", 10_000)
    ends = Ends(tokens=("secret",))
    with gevent.Timeout(WAIT_S_MAX):
        peer = ends.open(send_bytes=4096)
        peer.sock.sendall(ping(1) * 5_000)
        ends.await_end()
    ends.close()


def test_finish_ends_the_link_after_what_was_written(ends: Ends) -> None:
    peer = ends.open(send_bytes=4096)
    peer.call({"cmd": "PUSH", "queue": "emails", "data": {"text": "x" * 300_000}, "jobId": "a"})
    peer.sock.sendall(frame({"cmd": "GetJobByCustomId", "customId": "a"}))
    until(lambda: ends.links[0]._unsent_bytes)

    ends.links[0].finish()

    assert 300_000 == len(peer.value()["job"]["data"]["text"])
    assert peer.is_at_end()
    peer.sock.close()
    ends.await_end()


def test_abort_ends_the_link_at_once(ends: Ends) -> None:
    peer = ends.open()
    peer.call({"cmd": "Ping"})

    ends.links[0].abort()

    ends.await_end()
    assert peer.is_at_end()


def test_a_congested_storage_stops_the_reading_and_relief_resumes_it(ends: Ends) -> None:
    peer = ends.open()
    ends.storage.is_congested = True
    peer.sock.sendall(push(reqId=1) + b"".join(push(reqId=n, data="x" * 9_000) for n in range(40)))
    until(lambda: not ends.links[0].connection.wants_more)

    ends.storage.relieve()

    assert 1 == peer.value()["reqId"]
    assert list(range(40)) == [peer.value()["reqId"] for _ in range(40)]


@pytest.mark.parametrize(
    ("expected", "size", "received", "took_s"),
    [
        (262_144, 262_144, 262_144, 0.0001),  # quick: as much as may be
        (131_072, 65_536, 65_536, 0.0004),  # quick with all it asked for: more
        (65_536, 65_536, 5_000, 0.0004),  # there was no more
        (65_536, 65_536, 65_536, 0.0008),  # about right
        (26_214, 262_144, 262_144, 0.010),  # as much as fits
        (20_000, 20_000, 60_000, 0.002),  # with what was kept before: no more than now
        (16_384, 65_536, 65_536, 5.0),  # never less than some commands
    ],
)
def test_a_busy_connection_reads_what_is_done_in_a_millisecond(
    expected: int, size: int, received: int, took_s: float
) -> None:
    assert expected == link_module.next_size(size, received, took_s)


# -- many that end together ------------------------------------------------------------------------


def test_connections_that_end_together_end_a_few_in_a_turn() -> None:
    """Thousands in one turn of the loop kept everybody else waiting for 0.1 s."""
    hub = gevent.get_hub()
    endings = link_module.Endings(hub.loop)
    most = link_module.ENDINGS_PER_TURN
    line = [link_module.Ending(lambda: None) for _ in range(3 * most)]
    for ending in line:
        endings.enter(ending)

    gone = [sum(ending.may_go for ending in line)]
    while gone[-1] < len(line):
        gevent.sleep(0.000_001)
        gone.append(sum(ending.may_go for ending in line))

    assert most == gone[0]
    assert all(later - before <= 2 * most for before, later in pairwise(gone))


# -- many that are busy ----------------------------------------------------------------------------


class Loop:
    """A loop whose turns the test makes."""

    def __init__(self) -> None:
        self.iteration = 0
        self.active = False
        self._fire: Callable[[], None] = lambda: None

    def timer(self, _after_s: float) -> Any:
        return self

    def start(self, fire: Callable[[], None]) -> None:
        self._fire, self.active = fire, True

    def turn(self) -> None:
        self.iteration += 1
        if self.active:
            self.active = False
            self._fire()


def test_those_in_line_go_on_until_the_time_of_a_turn_is_used_up() -> None:
    """Twenty peers that asked for much had a megabyte each in every turn, before anybody else."""
    loop = Loop()
    turns = link_module.Turns(loop)
    gone: list[tuple[int, int]] = []

    def go_on(number: int) -> None:
        gone.append((loop.iteration, number))
        turns.spend(link_module.TURN_S / 2)

    for number in range(5):
        turns.enter(lambda number=number: go_on(number))
    assert turns.is_over
    for _ in range(4):
        loop.turn()

    assert [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)] == gone
    assert not turns.is_over


def test_who_enters_again_goes_on_in_a_later_turn() -> None:
    loop = Loop()
    turns = link_module.Turns(loop)
    gone: list[int] = []

    def again() -> None:
        gone.append(loop.iteration)
        turns.enter(again)

    turns.enter(again)
    for _ in range(3):
        loop.turn()

    assert [1, 2, 3] == gone


def test_the_time_of_a_turn_is_that_of_all_and_each_turn_has_its_own() -> None:
    loop = Loop()
    turns = link_module.Turns(loop)
    told = []
    for _ in range(2):
        turns.spend(link_module.TURN_S * 0.6)
        told.append(turns.is_over)
        loop.turn()
    turns.spend(link_module.TURN_S * 0.6)
    turns.spend(link_module.TURN_S * 0.6)
    told.append(turns.is_over)
    loop.turn()
    told.append(turns.is_over)

    assert [False, False, True, False] == told


def test_busy_connections_have_their_turns_one_after_the_other(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each had in every turn of the loop added up: a dozen of them held everybody up."""
    monkeypatch.setattr(link_module, "TURN_S", 0.0)
    loop = gevent.get_hub().loop
    ends.turns = link_module.Turns(loop)
    received = Connection.received
    reads: list[tuple[int, int]] = []

    def seen(connection: Connection, data: bytes) -> None:
        if len(data) >= link_module.COUNTED_BYTES_MIN:
            number = [link.connection for link in ends.links].index(connection)
            reads.append((loop.iteration, number))
        received(connection, data)

    monkeypatch.setattr(Connection, "received", seen)
    monkeypatch.setattr(link_module, "RECEIVE_BYTES", 4 * link_module.COUNTED_BYTES_MIN)
    peers = [ends.open() for _ in range(4)]
    burst = ping(1) * 5_000
    writers = [gevent.spawn(peer.sock.sendall, burst) for peer in peers]
    readers = [gevent.spawn(lambda peer=peer: [peer.value() for _ in range(5_000)])
               for peer in peers]  # fmt: skip
    gevent.joinall(readers + writers, raise_error=True)

    turns = [turn for turn, _ in reads[len(peers) :]]  # nobody knows of the first ones yet
    assert len(turns) > 8
    assert len(set(turns)) > 0.8 * len(turns)
    assert 4 == len({number for _, number in reads[4 : len(reads) // 2]})  # nobody is passed over


def test_those_who_were_stopped_go_on_a_few_in_a_turn(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk had caught up, each had all that was kept of it run, in one turn."""
    monkeypatch.setattr(link_module, "TURN_S", 0.0)
    loop = gevent.get_hub().loop
    ends.turns = link_module.Turns(loop)
    resume = Connection.resume
    resumed: list[int] = []

    def seen(connection: Connection) -> None:
        resumed.append(loop.iteration)
        resume(connection)

    monkeypatch.setattr(Connection, "resume", seen)
    peers = [ends.open() for _ in range(5)]
    ends.storage.is_congested = True
    for peer in peers:
        peer.sock.sendall(push(reqId=1))
    until(lambda: all(link.connection.unread_bytes for link in ends.links))

    ends.storage.relieve()

    assert [1] * 5 == [peer.value()["reqId"] for peer in peers]
    assert 5 == len(set(resumed))


def test_who_has_little_to_say_is_not_held_up_by_busy_ones(ends: Ends) -> None:
    peer = ends.open()
    peer.call({"cmd": "Ping"})
    ends.turns.enter(lambda: None)

    assert ends.turns.is_over
    assert peer.call({"cmd": "Ping"})["ok"]


def test_a_link_that_waits_for_its_end_takes_no_job(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job that went to one counted as lost; after three it was given up."""
    monkeypatch.setattr(link_module, "ENDINGS_PER_TURN", 0)
    ends.endings = link_module.Endings(gevent.get_hub().loop)
    leaves, stays = ends.open(), ends.open()
    leaves.sock.sendall(
        frame({"cmd": "PULL", "queue": "emails", "timeout": 60_000, "owner": "worker"})
    )
    until(lambda: ends.links[0].connection.parked)
    leaves.sock.close()
    until(lambda: ends.endings._line)

    pushed = stays.call({"cmd": "PUSH", "queue": "emails", "data": {}, "name": "n"})["id"]
    pulled = stays.call({"cmd": "PULL", "queue": "emails"})["job"]
    assert pulled is not None
    assert pushed == pulled["id"]

    monkeypatch.setattr(link_module, "ENDINGS_PER_TURN", 1)
    gevent.get_hub().loop.run_callback(ends.endings._next_turn)
    ends.await_end(0)
    assert not ends.links[0].connection.is_open
    assert [0] == [job.extra.losses for job in ends.broker.engine.index]


def test_a_peer_that_is_lost_while_the_storage_is_full_takes_no_job(ends: Ends) -> None:
    """Its polls stayed until the storage had room, and jobs went to them meanwhile."""
    leaves, stays = ends.open(), ends.open()
    leaves.sock.sendall(
        frame({"cmd": "PULL", "queue": "emails", "timeout": 60_000, "owner": "worker"})
    )
    lost = ends.links[0]
    until(lambda: lost.connection.parked)
    ends.storage.is_congested = True
    leaves.sock.sendall(frame({"cmd": "PULL", "queue": "emails", "owner": "worker"}))
    until(lambda: lost.connection.is_put_off)

    lost.abort()  # as a send that fails does
    gevent.sleep(0.01)
    # A job that falls due, say; nobody is read from.
    now = ends.broker.clock.now()
    pushed = ends.broker.engine.push("emails", "n", b"\xc0", DEFAULT_OPTIONS, None, now)
    ends.storage.is_congested = False
    ends.storage.relieve()
    ends.await_end(0)

    pulled = stays.call({"cmd": "PULL", "queue": "emails"})["job"]
    assert pulled is not None
    assert pushed == pulled["id"]
    assert [0] == [job.extra.losses for job in ends.broker.engine.index]


@pytest.mark.parametrize("is_half", [True, False])
def test_commands_that_came_before_the_end_are_run_though_they_were_put_off(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, is_half: bool
) -> None:
    monkeypatch.setattr(link_module, "RUN_S_MAX", 0.0)
    peer = ends.open()
    peer.sock.sendall(b"".join(push(reqId=number) for number in range(200)))
    if is_half:
        peer.sock.shutdown(socket.SHUT_WR)
    else:
        peer.sock.close()

    ends.await_end()

    assert 200 == len(list(ends.broker.engine.index))


def test_commands_that_came_before_the_end_are_run_when_the_storage_has_room(ends: Ends) -> None:
    ends.storage.is_congested = True
    peer = ends.open()
    peer.sock.sendall(push(reqId=1) + push(reqId=2))
    peer.sock.shutdown(socket.SHUT_WR)
    gevent.sleep(0.05)
    ends.storage.is_congested = False
    ends.storage.relieve()

    ends.await_end()

    assert 2 == len(list(ends.broker.engine.index))


class SeenConnection(Connection):
    """One whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_a_link_that_has_ended_is_freed_without_the_collector(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pure Python looks at old objects only beside few jobs: memory.py."""
    monkeypatch.setattr(link_module, "Connection", SeenConnection)
    gc.disable()
    try:
        peer = ends.open()
        assert peer.call({"cmd": "Ping", "reqId": 1})["ok"]
        connection = weakref.ref(ends.links[0].connection)
        peer.sock.close()
        ends.await_end()
        ends.links.clear()
        ends.greenlets.clear()
        assert connection() is None
    finally:
        gc.enable()
