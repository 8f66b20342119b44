"""Dialling: the order on a new link, sharing, the fast-fail window, several links."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bunqueue import AuthError, Connection, ConnectionClosedError
from bunqueue.client import pool as pool_module
from tests.support.broker_process import free_port
from tests.support.fake_server import FakeConnection, FakeServer, Message


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def test_nothing_is_dialled_before_the_first_call(server: FakeServer) -> None:
    connection = Connection("127.0.0.1", server.port)

    assert not connection.connected
    assert [] == server.connections
    connection.close()


def test_a_new_link_authenticates_then_greets_then_works(server: FakeServer) -> None:
    with Connection("127.0.0.1", server.port, token="secret") as connection:
        connection.call({"cmd": "Ping"})

    assert ["Auth", "Hello", "Ping"] == server.commands
    assert "secret" == server.received[0]["token"]
    assert ["pipelining", "separate-job-name", "int64"] == server.received[1]["capabilities"]


def test_a_refused_token_is_an_auth_error_and_opens_no_window(server: FakeServer) -> None:
    server.answer = lambda peer, message: peer.reply(message, ok=False, error="Invalid token")
    with Connection("127.0.0.1", server.port, token="wrong") as connection:
        for _ in range(2):
            with pytest.raises(AuthError, match="Invalid token"):
                connection.call({"cmd": "Ping"})
        assert not connection.connected

    assert ["Auth", "Auth"] == server.commands


def test_a_refused_hello_is_ignored(server: FakeServer) -> None:
    def answer(peer: FakeConnection, message: Message) -> None:
        if message["cmd"] == "Hello":
            peer.reply(message, ok=False, error="Unknown command: Hello")
        else:
            peer.reply(message)

    server.answer = answer
    with Connection("127.0.0.1", server.port) as connection:
        assert connection.call({"cmd": "Ping"})["ok"]


def test_silence_during_the_greeting_is_a_closed_connection(server: FakeServer) -> None:
    server.answer = lambda _peer, _message: None
    with (
        Connection("127.0.0.1", server.port, command_timeout=0.05) as connection,
        pytest.raises(ConnectionClosedError, match="handshake failed"),
    ):
        connection.call({"cmd": "Ping"})


def test_callers_share_one_attempt(server: FakeServer) -> None:
    with Connection("127.0.0.1", server.port, token="t") as connection:
        threads = [
            threading.Thread(target=connection.call, args=({"cmd": "Ping"},)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert 1 == len(server.connections)
    assert "Auth" == server.commands[0]
    assert 8 == server.commands.count("Ping")


def test_after_a_failed_dial_calls_fail_fast_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [100.0]
    monkeypatch.setattr(pool_module, "now", lambda: moment[0])
    connection = Connection("127.0.0.1", free_port())

    windows = []
    for _ in range(7):
        with pytest.raises(ConnectionClosedError, match="connect failed"):
            connection.call({"cmd": "Ping"})
        windows.append(connection._next_attempt_at - moment[0])
        with pytest.raises(ConnectionClosedError, match=r"server unreachable, retry in \d+ms"):
            connection.call({"cmd": "Ping"})
        moment[0] += windows[-1]

    assert [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0] == [round(window, 3) for window in windows]
    connection.close()


def test_success_ends_the_window(server: FakeServer) -> None:
    with Connection("127.0.0.1", server.port) as connection:
        connection.call({"cmd": "Ping"})

        assert (0, 0.0) == (connection._failed_attempts, connection._next_attempt_at)


def test_a_second_link_is_dialled_when_the_first_is_busy(server: FakeServer) -> None:
    held: list[Any] = []

    def answer(peer: FakeConnection, message: Message) -> None:
        if message["cmd"] == "Hold":
            held.append((peer, message))
        else:
            peer.reply(message)

    server.answer = answer
    with Connection("127.0.0.1", server.port, pool_size=2, negotiate=False) as connection:
        waiting = threading.Thread(target=connection.call, args=({"cmd": "Hold"},))
        waiting.start()
        server.wait_for("Hold")

        for _ in range(5):
            connection.call({"cmd": "Ping"})

        assert 2 == len(server.connections)
        assert 2 == connection.generation
        peer, message = held[0]
        peer.reply(message)
        waiting.join()


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_timeout_that_cannot_work_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="command_timeout must be above 0"):
        Connection(command_timeout=value)


@pytest.mark.parametrize("value", [None, float("inf")])
def test_no_timeout_means_no_bound(value: float | None) -> None:
    assert Connection(command_timeout=value).command_timeout is None


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[FakeServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with FakeServer(tls=context) as server:
        yield server


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def test_tls_with_the_right_authority(tls_server: FakeServer, ca_file: str) -> None:
    tls = {"ca_file": ca_file, "server_hostname": "localhost"}
    with Connection("127.0.0.1", tls_server.port, token="t", tls=tls) as connection:
        big = "x" * 300_000
        tls_server.answer = lambda peer, message: peer.reply(message, echo=message.get("text"))

        assert big == connection.call({"cmd": "Echo", "text": big})["echo"]

    assert ["Auth", "Hello", "Echo"] == tls_server.commands


def test_a_tls_link_that_was_closed_in_order_while_idle_is_replaced(
    tls_server: FakeServer, ca_file: str
) -> None:
    with Connection("localhost", tls_server.port, tls={"ca_file": ca_file}) as connection:
        connection.call({"cmd": "First"})
        tls_server.connections[0].close_in_order()

        assert connection.call({"cmd": "Second"})["ok"]

    assert 2 == len(tls_server.connections)


def test_tls_takes_a_context(tls_server: FakeServer, ca_file: str) -> None:
    context = ssl.create_default_context(cafile=ca_file)
    with Connection("localhost", tls_server.port, tls=context) as connection:
        assert connection.call({"cmd": "Ping"})["ok"]


def test_tls_without_the_authority_is_refused(tls_server: FakeServer) -> None:
    with (
        Connection("localhost", tls_server.port, tls=True) as connection,
        pytest.raises(ConnectionClosedError, match="TLS handshake failed"),
    ):
        connection.call({"cmd": "Ping"})


def test_tls_for_another_host_is_refused(tls_server: FakeServer, ca_file: str) -> None:
    tls = {"ca_file": ca_file, "server_hostname": "elsewhere"}
    with (
        Connection("127.0.0.1", tls_server.port, tls=tls) as connection,
        pytest.raises(ConnectionClosedError, match="TLS handshake failed"),
    ):
        connection.call({"cmd": "Ping"})


def test_tls_without_verification_is_possible_when_asked_for(tls_server: FakeServer) -> None:
    with Connection("127.0.0.1", tls_server.port, tls={"verify": False}) as connection:
        assert connection.call({"cmd": "Ping"})["ok"]


def test_an_unknown_tls_option_is_refused() -> None:
    with pytest.raises(TypeError, match="cafile"):
        Connection(tls={"cafile": "x"})
