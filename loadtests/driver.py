"""Drive a server as cheaply as Python can: one process, one epoll loop, plain sockets.

Request frames are encoded ahead of time. Answers are not decoded: they are counted by their
length prefixes, and the few bytes that a workload must send back (job ids, lock tokens) are cut
out of them. The driver so costs a few microseconds per job and keeps a server busy that runs on
another core.

What one connection says is a `Script`, see scripts.py: it begins, and goes on with every batch of
answers. A `Loop` moves the bytes between connections and their scripts until all scripts are done.
An answer that refuses anything ends the run, since its figures would mean nothing.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgpack

LENGTH = struct.Struct(">I")
RECEIVE_BYTES = 1 << 19
SILENCE_S_MAX = 60.0  # a server that says nothing for so long is not going to

REFUSED = b"\xa2ok\xc2"  # "ok": false
WITHOUT_EFFECT = b"already-finalized"
TAIL_BYTES_MAX = 400  # of a refused answer, shown to the user


class RunFailed(RuntimeError):
    """The server refused something, closed a connection or fell silent."""


class Connection:
    """A non-blocking socket, what waits to be sent on it, and the unfinished frame received."""

    __slots__ = ("socket", "tail", "unsent")

    def __init__(self, host: str, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent: list[bytes | memoryview] = []
        self.tail = b""


class Script(Protocol):
    """What one or several connections do in a workload."""

    def begin(self, send: Callable[[bytes | memoryview], None]) -> None:
        """Send the first requests on a connection."""

    def answered(
        self, send: Callable[[bytes | memoryview], None], data: bytes, ends: list[int]
    ) -> None:
        """Go on after some answers: whole frames in ``data``, the n-th ending at ``ends[n]``."""

    def is_done(self) -> bool:
        """Tell whether all its work is done, over all its connections."""


def frame(request: dict[str, object]) -> bytes:
    """Encode a request as a frame."""
    body: bytes = msgpack.packb(request)
    return LENGTH.pack(len(body)) + body


def body_frame(*parts: bytes) -> bytes:
    """Join encoded pieces to a frame."""
    body = b"".join(parts)
    return LENGTH.pack(len(body)) + body


def run(host: str, port: int, scripts: Sequence[Script]) -> None:
    """Open one connection per entry of ``scripts`` and serve them until all are done.

    Raises:
        RunFailed: The server refused a request, closed a connection or fell silent.
    """
    with Loop(host, port, scripts) as loop:
        loop.run()


class Loop:
    """Connections in one epoll loop, each with its script."""

    def __init__(self, host: str, port: int, scripts: Sequence[Script]) -> None:
        """Open one connection per entry of ``scripts``."""
        self.poll = select.epoll()
        self.scripts = scripts
        self.lines: dict[int, tuple[Connection, Script, Callable[[bytes | memoryview], None]]] = {}
        for script in scripts:
            connection = Connection(host, port)
            number = connection.socket.fileno()
            self.lines[number] = (connection, script, self._sender(connection))
            self.poll.register(number, select.EPOLLIN)

    def __enter__(self) -> Loop:
        """Give it out."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        for connection, _, _ in self.lines.values():
            connection.socket.close()
        self.poll.close()

    def run(self) -> None:
        """Serve the scripts until all are done.

        Raises:
            RunFailed: The server refused a request, closed a connection or fell silent.
        """
        self.begin()
        unique = list({id(script): script for script in self.scripts}.values())
        deadline = time.monotonic() + SILENCE_S_MAX
        while not all(script.is_done() for script in unique):
            if self.turn(1.0):
                deadline = time.monotonic() + SILENCE_S_MAX
            elif time.monotonic() > deadline:
                raise RunFailed(f"the server said nothing for {SILENCE_S_MAX:.0f} s")

    def begin(self) -> None:
        """Let every connection send its first requests."""
        for _, script, send in self.lines.values():
            script.begin(send)

    def turn(self, wait_s: float) -> bool:
        """Wait for bytes and move them, once; tell whether there were any."""
        events = self.poll.poll(wait_s)
        for number, event in events:
            connection, script, send = self.lines[number]
            if event & select.EPOLLOUT:
                self._flush(connection)
            if event & ~select.EPOLLOUT:
                self._receive(connection, script, send)
        return bool(events)

    def _receive(
        self, connection: Connection, script: Script, send: Callable[[bytes | memoryview], None]
    ) -> None:
        try:
            data = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise RunFailed("the server closed the connection")
        if connection.tail:
            data = connection.tail + data
        begin, size, ends = 0, len(data), []
        length_at = LENGTH.unpack_from
        while size - begin >= 4:
            end = begin + 4 + length_at(data, begin)[0]
            if end > size:
                break
            ends.append(end)
            begin = end
        connection.tail = data[begin:] if begin < size else b""
        for bad in (REFUSED, WITHOUT_EFFECT):
            if bad in data:
                at = data.index(bad)
                raise RunFailed(f"refused: {data[max(0, at - 40) : at + TAIL_BYTES_MAX]!r}")
        if ends:
            script.answered(send, data, ends)

    def _sender(self, connection: Connection) -> Callable[[bytes | memoryview], None]:
        def send(data: bytes | memoryview) -> None:
            if connection.unsent:
                connection.unsent.append(data)
                return
            try:
                sent = connection.socket.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                connection.unsent.append(memoryview(data)[sent:])
                self.poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

        return send

    def _flush(self, connection: Connection) -> None:
        unsent = connection.unsent
        while unsent:
            try:
                sent = connection.socket.send(unsent[0])
            except BlockingIOError:
                return
            if sent < len(unsent[0]):
                unsent[0] = memoryview(unsent[0])[sent:]
                return
            unsent.pop(0)
        self.poll.modify(connection.socket.fileno(), select.EPOLLIN)
