"""Event frames over a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent import socket

from bunqueue.server.connection import Connection
from bunqueue.server.link import Link
from tests.support.wire import frame, make_broker, push, values

WAIT_S_MAX = 5.0


class Line:
    """Collects what would have been sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._soon: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        self.sent += values(data)

    def finish(self) -> None:
        raise AssertionError("nothing ends here")

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def wake(self) -> None:
        raise AssertionError("nothing waits here")

    def turn(self) -> list[Any]:
        """Play the end of a turn; return what was sent."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        sent, self.sent = self.sent, []
        return sent


class Talk:
    """A subscriber, and somebody who acts."""

    def __init__(self) -> None:
        self.broker = make_broker()
        self.line, self.other_line = Line(), Line()
        self.subscriber = Connection(self.broker, self.line, "subscriber", None)  # type: ignore[arg-type]
        self.other = Connection(self.broker, self.other_line, "other", None)  # type: ignore[arg-type]

    def subscribe(self, queue: str = "emails") -> None:
        self.subscriber.received(frame({"cmd": "SubscribeEvents", "queue": queue}))
        assert [{"ok": True}] == self.line.turn()

    def do(self, cmd: str, **fields: Any) -> Any:
        self.other.received(frame({"cmd": cmd, **fields}))
        return self.other_line.turn()[0]


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_an_event_is_a_frame_of_its_own(talk: Talk) -> None:
    talk.subscribe()
    job_id = talk.do("PUSH", queue="emails", name="n", data=1, reqId="7")["id"]

    (told,) = talk.line.turn()
    timestamp = told["event"].pop("timestamp")
    assert isinstance(timestamp, float)
    event = {"eventType": "pushed", "queue": "emails", "jobId": job_id}
    assert {"type": "event", "event": event} == told


def test_the_reply_leaves_before_the_first_event(talk: Talk) -> None:
    talk.subscriber.received(frame({"cmd": "SubscribeEvents", "queue": "emails"}) + push())

    first, *rest = talk.line.turn()
    assert {"ok": True} == first
    assert {"event", None} == {each.get("type") for each in rest}


def test_events_of_one_job_come_in_order(talk: Talk) -> None:
    talk.subscribe()
    for _ in range(20):
        job_id = talk.do("PUSH", queue="emails", name="n", data=1)["id"]
        talk.do("PULL", queue="emails")
        talk.do("ACK", id=job_id, result={"r": 1})
        kinds = [each["event"]["eventType"] for each in talk.line.turn()]
        assert ["pushed", "pulled", "completed"] == kinds


def test_a_result_is_told_as_it_was_given(talk: Talk) -> None:
    talk.subscribe()
    job_id = talk.do("PUSH", queue="emails", name="n", data=1)["id"]
    talk.do("PULL", queue="emails")
    talk.do("ACK", id=job_id, result={"small": 1, "wide": 2**40})

    data = talk.line.turn()[-1]["event"]["data"]
    assert {"small": 1, "wide": float(2**40)} == data
    assert isinstance(data["wide"], float)


def test_who_takes_wide_integers_gets_them(talk: Talk) -> None:
    talk.subscribe()
    third = Line()
    connection = Connection(talk.broker, third, "third", None)  # type: ignore[arg-type]
    connection.received(
        frame({"cmd": "Hello", "capabilities": ["int64"]})
        + frame({"cmd": "SubscribeEvents", "queue": "emails"})
    )
    third.turn()
    job_id = talk.do("PUSH", queue="emails", name="n", data=1)["id"]
    talk.do("PULL", queue="emails")
    talk.do("ACK", id=job_id, result=2**40)

    assert int is type(third.turn()[-1]["event"]["data"])
    assert float is type(talk.line.turn()[-1]["event"]["data"])


def test_an_unsubscribed_connection_gets_no_more_frames(talk: Talk) -> None:
    talk.subscribe()
    talk.subscriber.received(frame({"cmd": "UnsubscribeEvents"}))
    talk.line.turn()
    talk.do("PUSH", queue="emails", name="n")

    assert [] == talk.line.turn()
    assert [] == talk.broker.engine.listeners


def test_a_closed_connection_is_forgotten(talk: Talk) -> None:
    talk.subscribe()
    talk.subscriber.close()
    talk.do("PUSH", queue="emails", name="n")

    assert [] == talk.line.turn()
    assert [] == talk.broker.engine.listeners


def test_latencies_are_measured_by_what_happened(talk: Talk) -> None:
    job_id = talk.do("PUSH", queue="emails", name="n")["id"]
    talk.other.received(push() + push())
    talk.other_line.turn()
    talk.do("PULL", queue="emails")
    talk.do("ACK", id=job_id)
    talk.do("Ping")

    latencies = talk.broker.host.latencies
    assert (3, 1, 1) == (latencies.push.count, latencies.pull.count, latencies.ack.count)


def test_a_subscriber_that_does_not_read_is_cut_off_and_nobody_waits_for_it() -> None:
    broker = make_broker()
    near, far = socket.socketpair()
    near.setblocking(False)
    link = Link(broker, near._sock, "slow", unsent_bytes_max=1_000_000)
    greenlet = gevent.spawn(link.run)
    far.sendall(frame({"cmd": "SubscribeEvents", "queue": "emails"}))
    assert 4 == len(far.recv(4))
    other_line = Line()
    other = Connection(broker, other_line, "other", None)  # type: ignore[arg-type]
    data = "x" * 100_000
    for _ in range(60):
        other.received(push(data=data, maxAttempts=1))
        job_id = other_line.turn()[0]["id"]
        other.received(frame({"cmd": "PULL", "queue": "emails"}))
        other.received(frame({"cmd": "FAIL", "id": job_id, "error": "e"}))
        other_line.turn()
        gevent.sleep(0)

    with gevent.Timeout(WAIT_S_MAX):
        greenlet.join()
    assert not link.connection.is_open
    assert [] == broker.engine.listeners
    far.close()
