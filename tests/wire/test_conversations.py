"""Every golden conversation, once without and once with a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.socket import create_connection

from bunqueue.commands.registry import COMMANDS
from bunqueue.config import Settings
from bunqueue.server.connection import Connection
from bunqueue.server.tcp import TcpServer
from tests.support.wire import Reader, make_broker, values
from tests.wire.conversation import Conversation, Replay, conversations

WAIT_S_MAX = 5.0
EVERY = pytest.mark.parametrize(
    "conversation", conversations(), ids=lambda each: f"{each.file}: {each.name}"
)


def test_every_command_is_in_some_conversation() -> None:
    sent = {
        step["send"].get("cmd")
        for conversation in conversations()
        for step in conversation.says
        if isinstance(step.get("send"), dict)
    }

    assert set() == set(COMMANDS) - sent


class Direct:
    """A connection without a socket: answers are there as soon as the request is handed over."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self.connection = Connection(make_broker(tokens=tokens), self, "peer", None)
        self._answers: list[Any] = []
        self._is_finished = False
        self._soon: list[Callable[[], None]] = []

    def send(self, data: bytes) -> None:
        self.connection.received(data)
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def value(self) -> Any:
        return self._answers.pop(0)

    def is_at_end(self) -> bool:
        return self._is_finished and not self._answers

    def write(self, data: bytes) -> None:
        self._answers += values(data)

    def finish(self) -> None:
        self._is_finished = True

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def wake(self) -> None:
        self.connection.resume()


@EVERY
def test_through_dispatch(conversation: Conversation) -> None:
    Replay(Direct(conversation.tokens)).run(conversation.says)


class OverTcp(Reader):
    """A socket to a server in this process."""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)


@EVERY
def test_through_a_socket(conversation: Conversation) -> None:
    settings = Settings(host="127.0.0.1", tcp_port=0)
    server = TcpServer(make_broker(tokens=conversation.tokens), settings)
    server.start()
    try:
        with gevent.Timeout(WAIT_S_MAX), create_connection(server.address) as sock:
            Replay(OverTcp(sock)).run(conversation.says)
    finally:
        server.stop()
        server.finish()
        while server.links:
            gevent.sleep(0.001)
