"""The compiled reads and writes of a socket beside Python's own: same bytes, same errors."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import compiled

line: Any = compiled.part("line")
pytestmark = pytest.mark.skipif(not compiled.IS_COMPILED, reason="the compiled core is not built")

ROOM = 65_536  # beyond which Python's own is asked
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection that do not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    own.setblocking(False)
    return own, peer


@pytest.fixture
def ends() -> Iterator[tuple[Any, socket.socket, socket.socket]]:
    own, peer = connected()
    yield line.PlainSocket(own), own, peer
    own.close()
    peer.close()


@pytest.mark.parametrize("size", [1, 7, ROOM - 1, ROOM, ROOM + 1, 4 * ROOM])
def test_as_much_is_read_as_was_asked_for(ends: Any, size: int) -> None:
    plain, _, peer = ends
    sent = bytes(range(256)) * 256
    peer.sendall(sent)
    got = b""
    while len(got) < len(sent):
        try:
            piece = plain.recv(size)
        except BlockingIOError:
            continue
        assert 0 < len(piece) <= size
        got += piece

    assert sent == got


def test_nothing_to_read_and_the_end_are_told_apart(ends: Any) -> None:
    plain, _, peer = ends
    with pytest.raises(BlockingIOError):
        plain.recv(10)
    peer.close()

    assert b"" == wait_for(plain)


def wait_for(plain: Any) -> bytes:
    while True:
        try:
            return bytes(plain.recv(10))
        except BlockingIOError:
            continue


def test_a_reset_is_the_error_that_it_is(ends: Any) -> None:
    plain, _, peer = ends
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    peer.close()

    with pytest.raises(ConnectionResetError):
        wait_for(plain)
    with pytest.raises(BrokenPipeError):
        plain.send(b"more")


def test_what_is_sent_arrives_whatever_holds_it(ends: Any) -> None:
    plain, _, peer = ends
    for data in (b"bytes", bytearray(b"array"), memoryview(b"a view")[2:]):
        assert len(data) == plain.send(data)

    assert b"bytesarrayview" == peer.recv(100)


def test_what_does_not_fit_is_left(ends: Any) -> None:
    plain, _, _ = ends
    much = b"x" * 50_000_000

    assert 0 < plain.send(much) < len(much)
    with pytest.raises(BlockingIOError):
        send_on(plain, much)


def send_on(plain: Any, data: bytes) -> None:
    """Send until the peer, which reads nothing, has no room."""
    while True:
        plain.send(data)


@pytest.mark.parametrize("data", ["text", 5, None])
def test_only_bytes_can_be_sent(ends: Any, data: Any) -> None:
    plain, own, _ = ends
    with pytest.raises(TypeError):
        plain.send(data)
    with pytest.raises(TypeError):
        own.send(data)
