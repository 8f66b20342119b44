"""A server that speaks frames over a real socket and answers as the test says."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgpack

WAIT_S = 10.0

Message = dict[str, Any]


class FakeConnection:
    """One accepted connection.

    Attributes:
        received: Every message so far.
    """

    def __init__(self, server: FakeServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.received: list[Message] = []
        self._write_lock = threading.Lock()

    def reply(self, message: Message, **fields: Any) -> None:
        """Answer ``message``."""
        self.send({"ok": True, "reqId": message["reqId"], **fields})

    def send(self, value: Any) -> None:
        """Send one frame."""
        body = msgpack.packb(value)
        self.send_bytes(struct.pack(">I", len(body)) + body)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._write_lock:
            self.sock.sendall(data)

    def run(self) -> None:
        """Read frames and have the server answer them."""
        buffer = b""
        try:
            while chunk := self.sock.recv(65536):
                buffer += chunk
                while len(buffer) >= 4:
                    (size,) = struct.unpack_from(">I", buffer)
                    if len(buffer) < 4 + size:
                        break
                    message = msgpack.unpackb(buffer[4 : 4 + size], strict_map_key=False)
                    buffer = buffer[4 + size :]
                    self.received.append(message)
                    self.server.note(self, message)
        except OSError:
            return

    def close_in_order(self) -> None:
        """End a TLS connection as servers do: a close-notify, then a FIN."""
        assert isinstance(self.sock, ssl.SSLSocket)
        self.sock.settimeout(0)  # its own goodbye is not waited for
        with contextlib.suppress(OSError):
            self.sock.unwrap()
        self.close()

    def close(self) -> None:
        """End the connection with a FIN."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self.sock.close()


class FakeServer:
    """Answers each command with ``answer``; by default everything is well.

    Attributes:
        port: Where it listens.
        received: Every message of every connection, in order.
        connections: All connections so far.
        answer: Called with the connection and the message.
    """

    def __init__(
        self,
        answer: Callable[[FakeConnection, Message], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer or answer_ok
        self.received: list[Message] = []
        self.connections: list[FakeConnection] = []
        self._tls = tls
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def _spawn(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                sock, _address = self._listener.accept()
            except OSError:
                return
            self._spawn(lambda sock=sock: self._serve(sock))

    def _serve(self, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                sock.close()
                return
        connection = FakeConnection(self, sock)
        with self._changed:
            self.connections.append(connection)
            self._changed.notify_all()
        connection.run()
        sock.close()

    def note(self, connection: FakeConnection, message: Message) -> None:
        """Keep a message and answer it."""
        with self._changed:
            self.received.append(message)
            self._changed.notify_all()
        self.answer(connection, message)

    def wait_for(self, cmd: str, count: int = 1) -> Message:
        """Wait for the ``count``-th message with this command and return it."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while len(found := [one for one in self.received if one["cmd"] == cmd]) < count:
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no {cmd}, only {self.commands}"
                self._changed.wait(left_s)
            return found[count - 1]

    @property
    def commands(self) -> list[str]:
        """The names of all commands so far."""
        return [message["cmd"] for message in self.received]

    def close(self) -> None:
        """End every connection and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def answer_ok(connection: FakeConnection, message: Message) -> None:
    """Say that all is well."""
    connection.reply(message)
