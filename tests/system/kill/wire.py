"""A connection of raw frames that is opened again whenever it breaks.

Deliberately not our client: what this test proves must not lean on it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

HOST = "127.0.0.1"
LENGTH = struct.Struct(">I")
RETRY_S = 0.05
ANSWER_S_MAX = 60.0

Message = dict[str, Any]


class Lost(ConnectionError):
    """The connection broke; what was not answered may or may not have happened."""


class Link:
    """One connection."""

    def __init__(self, port: int) -> None:
        """Waits until the broker can be reached."""
        self.port = port
        self._open()

    def exchange(self, requests: Sequence[Message]) -> Iterator[tuple[int, Message]]:
        """Send requests in one go and yield (index, answer) as answers come, in any order.

        Raises:
            Lost: It broke; the link is open again, the missing answers will never come.
        """
        frames = []
        for index, request in enumerate(requests):
            body = msgpack.packb({**request, "reqId": index})
            frames.append(LENGTH.pack(len(body)) + body)
        try:
            self._socket.sendall(b"".join(frames))
            for _ in requests:
                answer = self._read()
                yield int(answer["reqId"]), answer
        except OSError as error:
            self.close()
            self._open()
            raise Lost(str(error)) from error

    def call(self, request: Message) -> Message:
        """Send one request and return its answer.

        Raises:
            Lost: It broke; the link is open again.
        """
        return next(answer for _, answer in self.exchange([request]))

    def close(self) -> None:
        """Close it."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        while True:
            try:
                self._socket = socket.create_connection((HOST, self.port), timeout=ANSWER_S_MAX)
            except OSError:
                time.sleep(RETRY_S)
            else:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._stream = self._socket.makefile("rb")
                return

    def _read(self) -> Message:
        head = self._stream.read(4)
        body = self._stream.read(LENGTH.unpack(head)[0]) if len(head) == 4 else b""
        if len(head) < 4 or len(body) < LENGTH.unpack(head)[0]:
            raise ConnectionResetError("the broker closed the connection")
        answer: Message = msgpack.unpackb(body, strict_map_key=False)
        return answer
