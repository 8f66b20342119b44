"""One TCP or TLS byte stream with deadlines, whole frames out and chunks in.

A native socket waits inside the kernel (``SO_RCVTIMEO``), which saves the ``poll`` that Python puts
before each ``recv`` of a socket with a timeout; a cooperative one uses ``settimeout``.

TLS goes through ``ssl.SSLObject`` and two memory buffers instead of ``ssl.SSLSocket``. One thread
may then read while another writes (OpenSSL allows only one at a time, and CPython 3.11 does not see
to it), a fork can drop the stream without a close-notify, and one context serves every world.

What a frame's writer could not send before its deadline, or before it was killed, stays queued
and goes out ahead of the next frame: frames are never cut.
"""

import contextlib
import math
import os
import select
import socket
import ssl
import struct

from bunqueue.client.worlds import World, now
from bunqueue.errors import ConnectionClosedError

CHUNK_BYTES = 65_536  # more would be mapped and unmapped for each recv: 50 us instead of 1
UNSENT_BYTES_MAX = 67_108_864  # client.md 6, back-pressure
LATENESS_S = 0.05  # how late a native deadline may be noticed, to save a setsockopt per call
KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPALIVE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

_CHUNK = (CHUNK_BYTES,)
_DO_NOT_WAIT = (socket.MSG_DONTWAIT,)
_timeval = struct.Struct("@ll").pack


class Stream:
    """A connected socket. One reader and one writer at a time.

    Attributes:
        chunks: What ``receive`` has taken from the socket and nobody has parsed yet.
    """

    def __init__(self, sock: socket.socket, world: World) -> None:
        self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
        sock.settimeout(None)
        self.chunks: list[bytes] = []
        self._recv = sock.recv
        self._unsent = bytearray()
        self._is_native = world.is_native
        poller = world.poller()
        poller.register(sock.fileno(), select.POLLIN)
        self._look = poller.poll
        # What the kernel has been told, with the seconds it stands for; inf is no timeout.
        self._receive_timeout_s = self._send_timeout_s = math.inf

    # -- reading ------------------------------------------------------------------------------

    def receive(self, deadline: float | None) -> bool:
        """Wait for bytes and append them to ``chunks``; False at the end of the stream.

        Raises:
            TimeoutError: The deadline came first.
            OSError: The connection broke.
        """
        left_s = math.inf if deadline is None else deadline - now()
        if left_s <= 0:
            raise TimeoutError
        chunks = self.chunks
        if self._is_native:
            if not left_s <= self._receive_timeout_s <= left_s + LATENESS_S:
                self._receive_timeout_s = self._tell_kernel(socket.SO_RCVTIMEO, left_s)
            try:
                # In one C call, so that a signal handler that raises cannot come between taking
                # the bytes and keeping them.
                chunks.extend(map(self._recv, _CHUNK))
            except BlockingIOError:
                raise TimeoutError from None
        else:
            self._sock.settimeout(None if deadline is None else left_s)
            chunks.append(self._recv(CHUNK_BYTES))
        if chunks[-1]:
            return True
        chunks.pop()
        return False

    def _tell_kernel(self, option: int, left_s: float) -> float:
        """Set a timeout of the socket, a little late so that it serves the next call as well."""
        wanted_s = left_s + LATENESS_S / 2
        self._sock.setsockopt(socket.SOL_SOCKET, option, _timeval_of(wanted_s))
        return wanted_s

    # -- writing ------------------------------------------------------------------------------

    def write(self, frame: bytes, deadline: float | None) -> None:
        """Send ``frame`` behind whatever is still unsent.

        Raises:
            TimeoutError: The deadline came first; the rest stays queued.
            OSError: The connection broke.
        """
        if self._unsent:
            if len(self._unsent) + len(frame) > UNSENT_BYTES_MAX:
                raise ConnectionClosedError("write queue full")
            self._unsent += frame
            frame = b""
        self._send(frame, deadline)

    def _send(self, data: bytes, deadline: float | None) -> None:
        """Send all of ``data``, or of the unsent bytes when it is empty."""
        left_s = math.inf if deadline is None else deadline - now()
        counts: list[int] = []
        rest: bytes | memoryview = data or bytes(self._unsent)
        size = len(rest)
        try:
            if left_s <= 0:
                raise TimeoutError
            if not self._is_native:
                self._sock.settimeout(None if deadline is None else left_s)
            elif not left_s <= self._send_timeout_s <= left_s + LATENESS_S:
                self._send_timeout_s = self._tell_kernel(socket.SO_SNDTIMEO, left_s)
            send = self._sock.send
            # Counted in the same C call as sent, for the reason given in ``receive``.
            counts.extend(map(send, (rest,)))
            while sum(counts) < size:
                rest = memoryview(data or bytes(self._unsent))[sum(counts) :]
                counts.extend(map(send, (rest,)))
        except BlockingIOError:
            raise TimeoutError from None
        finally:
            sent = sum(counts)
            if not data:
                del self._unsent[:sent]
            elif sent < size:
                self._unsent += data[sent:]

    # -- the end ------------------------------------------------------------------------------

    def has_bytes(self) -> bool:
        """Tell, without waiting, whether there is anything to read, the end included."""
        return bool(self._look(0))  # 2 us, an exception from recv 10

    def take_ready(self) -> bool:
        """Append to ``chunks`` what has come, without waiting; False at the end of the stream.

        Raises:
            OSError: The connection broke.
        """
        raw = getattr(self._sock, "_sock", self._sock)  # gevent's recv would wait
        chunks = self.chunks
        with contextlib.suppress(BlockingIOError):
            while self._look(0):
                chunks.extend(map(raw.recv, _CHUNK, _DO_NOT_WAIT))  # as in ``receive``
                if not chunks[-1]:
                    chunks.pop()
                    return False
        return True

    def sever(self) -> None:
        """Shut the connection down; whoever reads it wakes. Callable from any native thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut down and give the descriptor back."""
        self.sever()
        self._sock.close()

    def __del__(self) -> None:
        """A connection that nobody closed goes with its last user, without a warning."""
        self._sock.close()

    def abandon(self) -> None:
        """Close a descriptor inherited by a fork; the parent's connection must not notice."""
        raw = getattr(self._sock, "_sock", self._sock)
        descriptor = raw.detach()
        if descriptor >= 0:
            os.close(descriptor)


class TlsStream(Stream):
    """A stream in TLS."""

    def __init__(
        self,
        sock: socket.socket,
        world: World,
        context: ssl.SSLContext,
        server_hostname: str | None,
        deadline: float | None,
    ) -> None:
        super().__init__(sock, world)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname
        )
        self._tls_lock = world.lock()
        self._is_over = False
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float | None) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._take_ciphertext(deadline)
            else:
                self._flush(deadline)
                return

    def _flush(self, deadline: float | None) -> None:
        self._unsent += self._outgoing.read()
        if self._unsent:
            self._send(b"", deadline)

    def _take_ciphertext(self, deadline: float | None) -> None:
        if not super().receive(deadline):
            raise ConnectionResetError("closed during the TLS handshake")
        self._feed_ciphertext()

    def _feed_ciphertext(self) -> None:
        for chunk in self.chunks:
            self._incoming.write(chunk)
        self.chunks.clear()

    def receive(self, deadline: float | None) -> bool:
        """Wait for bytes and append them to ``chunks`` in the clear; False at the end."""
        while True:
            with self._tls_lock:
                plain = self._decrypt()
            if plain:
                self.chunks.append(plain)
                return True
            if not super().receive(deadline):
                return False
            with self._tls_lock:
                self._feed_ciphertext()

    def take_ready(self) -> bool:
        """Append to ``chunks`` in the clear what has come, without waiting; False at the end."""
        with self._tls_lock:
            is_open = super().take_ready()
            self._feed_ciphertext()
            plain = self._decrypt()
        if plain:
            self.chunks.append(plain)
        return is_open and not self._is_over

    def _decrypt(self) -> bytes:
        parts = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self._tls.read(CHUNK_BYTES):
                parts.append(part)
            self._is_over = True  # a close-notify: nothing comes after it
        return b"".join(parts)

    def write(self, frame: bytes, deadline: float | None) -> None:
        """Send ``frame`` behind whatever is still unsent."""
        with self._tls_lock:
            self._tls.write(frame)
            self._unsent += self._outgoing.read()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise ConnectionClosedError("write queue full")
        self._send(b"", deadline)


def _timeval_of(seconds: float) -> bytes:
    """Return a C timeval; infinity is the kernel's zero, no timeout."""
    if seconds == math.inf:
        return _timeval(0, 0)
    whole = int(seconds)
    return _timeval(whole, int((seconds - whole) * 1_000_000) or 1)


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel probe a silent peer, as far as this system offers it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
