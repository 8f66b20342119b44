"""What observers of a connection are told, and never told (client.md 5.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue import (
    AuthError,
    CommandError,
    CommandTimeoutError,
    Connection,
    ConnectionClosedError,
    Queue,
    SerializationError,
)
from tests.support.broker_process import free_port
from tests.support.fake_server import FakeConnection, FakeServer, Message, answer_ok

Told = list[dict[str, Any]]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def kinds(told: Told) -> list[str]:
    return [one["type"] for one in told]


def first(told: Told, kind: str) -> dict[str, Any]:
    return next(one for one in told if one["type"] == kind)


def test_the_default_set_is_that_of_the_official_client(server: FakeServer) -> None:
    told: Told = []
    with Connection(port=server.port, token="s3cret", on_telemetry=told.append) as connection:
        connection.call({"cmd": "Stats"})

    assert ["command", "auth", "connect", "command", "disconnect"] == kinds(told)
    keys = {
        "auth": {"type", "ok"},
        "connect": {"type", "host", "port", "generation", "duration_ms"},
        "disconnect": {"type", "host", "port", "generation"},
        "command": {"type", "cmd", "req_id", "duration_ms", "ok"},
    }
    assert keys == {kind: set(first(told, kind)) for kind in keys}
    assert (["Auth", "Stats"], 1) == (
        [one["cmd"] for one in told if one["type"] == "command"],
        first(told, "connect")["generation"],
    )
    assert "s3cret" not in str(told)


def test_a_refusal_is_a_command_that_is_not_ok(server: FakeServer) -> None:
    def refuse(connection: FakeConnection, message: Message) -> None:
        connection.reply(message, ok=False, error="no")

    told: Told = []
    with Connection(port=server.port, negotiate=False, on_telemetry=told.append) as connection:
        server.answer = refuse
        with pytest.raises(CommandError):
            connection.call({"cmd": "Stats"})

    assert ("Stats", False) == (first(told, "command")["cmd"], first(told, "command")["ok"])


def test_a_refused_token_is_told_without_it(server: FakeServer) -> None:
    def refuse(connection: FakeConnection, message: Message) -> None:
        connection.reply(message, ok=False, error="not you")

    server.answer = refuse
    told: Told = []
    with (
        Connection(port=server.port, token="s3cret", on_telemetry=told.append) as connection,
        pytest.raises(AuthError),
    ):
        connection.call({"cmd": "Stats"})

    assert ["command", "auth"] == kinds(told)
    assert False is first(told, "auth")["ok"]
    assert "s3cret" not in str(told)


def test_a_timeout_names_the_request(server: FakeServer) -> None:
    def silence(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] == "Hello":
            answer_ok(connection, message)

    server.answer = silence
    told: Told = []
    with (
        Connection(port=server.port, on_telemetry=told.append) as connection,
        pytest.raises(CommandTimeoutError),
    ):
        connection.call({"cmd": "Stats"}, timeout=0.02)

    sent = server.wait_for("Stats")
    assert {"type": "command_timeout", "cmd": "Stats", "req_id": sent["reqId"]} == first(
        told, "command_timeout"
    )


def test_an_unreachable_broker_is_an_error_and_a_schedule() -> None:
    told: Told = []
    with (
        Connection("127.0.0.1", free_port(), on_telemetry=told.append) as connection,
        pytest.raises(ConnectionClosedError),
    ):
        connection.call({"cmd": "Stats"})

    assert ["reconnect_scheduled", "error"] == kinds(told)
    assert (1, 500, "connect") == (
        told[0]["attempt"],
        told[0]["delay_ms"],
        told[1]["operation"],
    )


def test_what_cannot_be_sent_is_an_error_that_does_not_quote_it(server: FakeServer) -> None:
    told: Told = []
    with (
        Connection(port=server.port, on_telemetry=told.append) as connection,
        pytest.raises(SerializationError),
    ):
        connection.call({"cmd": "PUSH", "data": {("s3cret",): 1}})

    assert "serialize" == first(told, "error")["operation"]
    assert "s3cret" not in str(told)


def test_an_observer_that_raises_disturbs_nobody(server: FakeServer) -> None:
    def broken(_event: dict[str, Any]) -> None:
        raise ValueError("mine")

    with Connection(port=server.port, on_telemetry=broken) as connection:
        assert connection.call({"cmd": "Stats"})["ok"]


def test_a_connection_can_be_listened_to_by_type(server: FakeServer) -> None:
    told: Told = []
    opened: Told = []
    with Connection(port=server.port) as connection:
        connection.on("command", told.append).once("connect", opened.append)

        @connection.on("disconnect")
        def note(event: dict[str, Any]) -> None:
            opened.append(event)

        connection.call({"cmd": "Stats"})
        connection.off("command", told.append)
        connection.call({"cmd": "Ping"})

    assert ["Stats"] == [one["cmd"] for one in told]
    assert ["connect", "disconnect"] == kinds(opened)


def test_health_counts_from_its_first_call_on(server: FakeServer) -> None:
    with Connection(port=server.port) as connection:
        assert (0, 0, 0.0) == tuple(
            connection.health()[key] for key in ("commands", "errors", "avg_latency_ms")
        )
        connection.call({"cmd": "Stats"})
        with pytest.raises(SerializationError):
            connection.call({"cmd": "PUSH", "data": object()})
        health = connection.health()

    assert (2, 1) == (health["commands"], health["errors"])
    assert 0 < health["avg_latency_ms"]
    assert [1] == [link["generation"] for link in health["links"]]


# -- the wider set --------------------------------------------------------------------------------


def test_the_wider_set_tells_of_capabilities_and_of_the_end(server: FakeServer) -> None:
    def answer(connection: FakeConnection, message: Message) -> None:
        connection.reply(message, server="x", version="1", capabilities=["int64"])

    server.answer = answer
    told: Told = []
    connection = Connection(port=server.port, on_telemetry=told.append, extended_telemetry=True)
    connection.connect()
    connection.close()
    connection.close()

    assert ["negotiated", "connect", "close", "disconnect"] == kinds(told)
    assert {"server": "x", "version": "1", "capabilities": ["int64"]} == {
        key: value for key, value in told[0].items() if key != "type"
    }


def test_lost_precision_is_told_once_per_path(server: FakeServer) -> None:
    told: Told = []
    with Connection(
        port=server.port, on_telemetry=told.append, extended_telemetry=True
    ) as connection:
        for _ in range(2):
            connection.call({"cmd": "PUSH", "data": {"n": [1, 2**60, 2**61], "exact": 2**40}})

    assert ["$.data.n[]"] == [one["path"] for one in told if one["type"] == "precision_loss"]


def test_callers_that_wait_for_a_slot_are_told(server: FakeServer) -> None:
    held: list[Callable[[], None]] = []
    came = threading.Event()

    def hold(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] == "Hold":
            held.append(lambda: answer_ok(connection, message))
            came.set()
        else:
            answer_ok(connection, message)

    server.answer = hold
    waits = threading.Event()
    told: Told = []

    def observe(event: dict[str, Any]) -> None:
        told.append(event)
        if event["type"] == "backpressure":
            waits.set()

    with Connection(
        port=server.port, max_in_flight=1, on_telemetry=observe, extended_telemetry=True
    ) as connection:
        first_call = threading.Thread(target=connection.call, args=({"cmd": "Hold"},))
        first_call.start()
        assert came.wait(10)
        second_call = threading.Thread(target=connection.call, args=({"cmd": "Stats"},))
        second_call.start()
        assert waits.wait(10)
        held[0]()
        first_call.join(10)
        second_call.join(10)

    assert [1] == [one["waiting"] for one in told if one["type"] == "backpressure"]


def test_batches_of_adds_are_told(server: FakeServer) -> None:
    first_came, go_on = threading.Event(), threading.Event()

    def answer(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] == "PUSH":
            first_came.set()
            assert go_on.wait(10)
            connection.reply(message, id="1")
        else:
            connection.reply(message, ids=[str(n) for n in range(len(message.get("jobs", ())))])

    server.answer = answer
    told: Told = []
    with Queue(
        "q",
        port=server.port,
        on_telemetry=told.append,
        extended_telemetry=True,
        auto_batch={"max_delay_ms": 10_000},
    ) as queue:
        adds = [threading.Thread(target=queue.add, args=("x",)) for _ in range(3)]
        adds[0].start()
        assert first_came.wait(10)
        for add in adds[1:]:
            add.start()
        while queue._batchers["standard"].waiting < 2:
            threading.Event().wait(0.001)
        go_on.set()
        for add in adds:
            add.join(10)

    flush = first(told, "batch_flush")
    assert (2, True) == (flush["size"], flush["ok"])
