"""QueueEvents and what can happen to its link."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import AuthError, BunqueueError, CommandError, ConnectionClosedError, QueueEvents
from bunqueue.client import queue_events, subscription
from tests.support.fake_server import FakeConnection, FakeServer, Message, answer_ok
from tests.support.heard import Heard

WAIT_S = 10.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "RETRY_S", (0.01,))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def pushed(job_id: str) -> Message:
    event = {"eventType": "pushed", "queue": "q", "jobId": job_id, "timestamp": 1.0}
    return {"type": "event", "event": event}


def test_it_subscribes_once_and_before_it_is_ready(server: FakeServer) -> None:
    with QueueEvents("q", port=server.port, prefix_key="p:") as events:
        events.wait_until_ready()

    assert ["Hello", "SubscribeEvents"] == server.commands
    assert "p:q" == server.received[1]["queue"]


def test_nothing_is_dialled_before_it_runs(server: FakeServer) -> None:
    with QueueEvents("q", port=server.port, autorun=False) as events:
        assert [] == server.connections
        running = threading.Thread(target=events.run)
        running.start()
        server.wait_for("SubscribeEvents")
    running.join(WAIT_S)

    assert not running.is_alive()


def test_after_a_loss_it_subscribes_again_and_says_so(server: FakeServer) -> None:
    with QueueEvents("q", port=server.port) as events:
        heard = Heard(events, "waiting", "error", "resubscribed")
        events.wait_until_ready()
        server.connections[0].send(pushed("1"))
        heard.wait_for("waiting")
        server.connections[0].close()
        heard.wait_for("resubscribed")
        server.connections[1].send(pushed("2"))
        heard.wait_for("waiting", 2)

    assert ["waiting", "error", "resubscribed", "waiting"] == heard.names
    assert isinstance(heard.events[1][1], ConnectionClosedError)


def test_a_silent_broker_is_found_out(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "PING_PERIOD_S", 0.02)
    monkeypatch.setattr(subscription, "PING_TIMEOUT_S", 0.02)

    def answer(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] != "Ping" or connection is not server.connections[0]:
            connection.reply(message)

    server.answer = answer
    with QueueEvents("q", port=server.port) as events:
        heard = Heard(events, "resubscribed")
        heard.wait_for("resubscribed")

    assert 2 <= len(server.connections)


@pytest.mark.parametrize(
    ("refused", "kind"), [("Auth", AuthError), ("SubscribeEvents", CommandError)]
)
def test_a_refusal_is_told_to_who_waits_and_tried_again(
    server: FakeServer, refused: str, kind: type[BunqueueError]
) -> None:
    def answer(connection: FakeConnection, message: Message) -> None:
        is_first = [one["cmd"] for one in server.received].count(refused) == 1
        if message["cmd"] == refused and is_first:
            connection.reply(message, ok=False, error="not you")
        else:
            answer_ok(connection, message)

    server.answer = answer
    with QueueEvents("q", port=server.port, token="t", autorun=False) as events:
        heard = Heard(events, "error")
        with pytest.raises(kind, match="not you"):
            events.wait_until_ready()
        assert isinstance(heard.wait_for("error")[1], kind)
        server.wait_for("SubscribeEvents", 1 if refused == "Auth" else 2)


def test_an_unreachable_broker_is_a_timeout(server: FakeServer) -> None:
    port = server.port
    server.close()

    with (
        QueueEvents("q", port=port) as events,
        pytest.raises(TimeoutError, match="no subscription to 'q'"),
    ):
        events.wait_until_ready(0.02)


def test_a_slow_listener_loses_the_oldest_and_hears_of_it_once(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_events, "BACKLOG_MAX", 3)
    go_on = threading.Event()
    with QueueEvents("q", port=server.port) as events:
        busy = threading.Event()

        def listen(_event: Any) -> None:
            busy.set()
            assert go_on.wait(WAIT_S)

        heard = Heard(events, "waiting", "error")
        events.on("waiting", listen)
        events.wait_until_ready()
        for number in range(8):
            server.connections[0].send(pushed(str(number)))
            if number == 0:
                assert busy.wait(WAIT_S)
        while events._lost < 4:
            threading.Event().wait(0.001)
        go_on.set()
        heard.wait_for("waiting", 4)

    assert ["waiting", "error", "waiting", "waiting", "waiting"] == heard.names
    assert ["0", "5", "6", "7"] == [one[1].job_id for one in heard.events if one[0] == "waiting"]


def test_a_frame_that_tells_nothing_is_passed_over(server: FakeServer) -> None:
    with QueueEvents("q", port=server.port) as events:
        heard = Heard(events, "waiting", "error")
        events.wait_until_ready()
        for strange in ({"type": "event"}, {"type": "event", "event": 7}, pushed("1")):
            server.connections[0].send(strange)
        heard.wait_for("waiting")

    assert ["waiting"] == heard.names
