"""A TCP relay that can fall silent: connections stay open, bytes no longer pass."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK_BYTES = 65_536


class Relay:
    """Forwards connections to a server until told to stop forwarding.

    Runs in one thread, so that it also works in a process patched by gevent.

    Attributes:
        port: Where it listens.
        accepted: How many connections it has taken.
        said: What the client of each connection has sent.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self.said: list[bytearray] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._is_open:
            try:
                near, _address = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self.accepted += 1
                self._pairs.append((near, far))
                said = bytearray()
                self.said.append(said)
            for way in ((near, far, said), (far, near, None)):
                threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, copy: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if copy is not None:
                    copy += chunk
                if source not in self._silent:
                    sink.sendall(chunk)
        if source not in self._silent:
            for end in (source, sink):
                _shut(end)

    def fall_silent(self) -> None:
        """Drop every byte of the connections there are; new ones work."""
        with self._lock:
            for pair in self._pairs:
                self._silent.update(pair)

    def close(self) -> None:
        """End the relay and its connections."""
        self._is_open = False
        _shut(self._listener)
        self._listener.close()
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _shut(end)
                end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
