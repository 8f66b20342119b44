"""The socket of one connection: a greenlet that reads, and a queue of what could not be sent yet.

One read watcher lives as long as the connection; its callback is the greenlet's own ``switch``, so
that a wait costs neither a failing ``recv`` nor a watcher's start and stop (an echo at one request
in flight: 19 us, against 31 us through ``gevent.socket``). The greenlet waits in one place only;
whoever else wants something of it (go on, finish, give up) sets a flag and wakes it.

Endings. A peer that closes, or closes one direction, is gone: its jobs go back at once, answers
that are ready or wait for a commit are still sent. ``finish`` closes from our side: what is unsent
leaves, then FIN, then whatever the peer still sends is thrown away for a moment, because closing
with unread bytes would reset the connection and could take the answer with it. ``abort`` resets.
"""

import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import gevent
from gevent.ssl import SSLWantReadError, SSLWantWriteError

from bunqueue import compiled
from bunqueue.broker import Broker
from bunqueue.server.connection import Connection
from bunqueue.server.rate import RequestRate

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 262_144  # performance.md 5.1
# What one read brought should be done within this, or others wait for it: a busy connection reads
# less at a time. A read with its send costs some 15 us, so that little is lost.
SLICE_S: Final = 0.001
RUN_S_MAX: Final = 2 * SLICE_S  # then it is cut short; rarely, since what is left is copied
SLICE_BYTES_MIN: Final = 16_384
COUNTED_BYTES_MIN: Final = 4_096  # a shorter read is soon done: 0.3 ms of pushes in pure Python
LINGER_S_MAX: Final = 5.0  # how long an ending connection may take to send what it owes
DISCARD_S_MAX: Final = 1.0  # how long a refused peer may go on sending
STRANGER_UNSENT_BYTES_MAX: Final = 1_048_576  # left unread by a peer that has shown no token
TURN_S: Final = 0.001  # what busy connections may do in a turn of the loop, all together
ENDINGS_PER_TURN: Final = 20  # some ms
WRITE_BYTES: Final = 262_144  # unsent pieces are joined up to this before the next try

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_NOT_NOW: Final = (BlockingIOError, SSLWantReadError, SSLWantWriteError)

READ: Final = 1
WRITE: Final = 2

_line: Any = compiled.part("line")


def next_size(size: int, received: int, took_s: float) -> int:
    """Return how many bytes to read next, after so many were handled in so long."""
    if took_s > SLICE_S:
        return max(SLICE_BYTES_MIN, min(size, int(received * SLICE_S / took_s)))
    if received == size and took_s < SLICE_S / 2:
        return min(RECEIVE_BYTES, size * 2)
    return size


class Endings:
    """Lets a few connections end in a turn of the loop, the others in the next ones.

    Thousands that end together would keep all others waiting for 0.1 s and more.
    """

    def __init__(self, loop: Any) -> None:
        self._timer = loop.timer(0)
        self._left = ENDINGS_PER_TURN
        self._line: deque[Ending] = deque()

    def enter(self, ending: "Ending") -> None:
        """Put one into the line, or tell it at once that it may go on."""
        if self._left:
            ending.may_go = True
            self._left -= 1
        else:
            self._line.append(ending)
        if not self._timer.active:
            self._timer.start(self._next_turn)

    def _next_turn(self) -> None:
        self._left = ENDINGS_PER_TURN
        while self._line and self._left:
            self._left -= 1
            ending = self._line.popleft()
            ending.may_go = True
            ending.switch()
        if self._left < ENDINGS_PER_TURN:
            self._timer.start(self._next_turn)


class Turns:
    """Shares each turn of the loop among the connections that have much to do.

    Each of them does what takes a millisecond or two; a dozen of them in one turn would keep all
    others, and the clock, waiting a dozen times as long. So what they do is counted. Who comes when
    the time of a turn is used up stands in line, and the next turn begins with the line. Those with
    little to do are neither counted nor held up.

    Attributes:
        is_over: The time of this turn is used up, or some stand in line already.
    """

    __slots__ = ("is_over", "_loop", "_timer", "_line", "_number", "_spent_s")

    def __init__(self, loop: Any) -> None:
        self.is_over = False
        self._loop = loop
        self._timer = loop.timer(0)
        self._line: deque[Callable[[], None]] = deque()
        self._number = -1  # of the turn in which the time was spent
        self._spent_s = 0.0

    def spend(self, took_s: float) -> None:
        """Count what was done in this turn."""
        number = self._loop.iteration
        if number != self._number:
            self._number = number
            self._spent_s = 0.0
        self._spent_s += took_s
        if self._spent_s >= TURN_S:
            self._end()

    def enter(self, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called in a later turn, after the loop has looked at all sockets."""
        self._line.append(go_on)
        self._end()

    def _end(self) -> None:
        self.is_over = True
        if not self._timer.active:
            self._timer.start(self._next_turn)

    def _next_turn(self) -> None:
        line = self._line
        self.spend(0.0)
        for _ in range(len(line)):
            line.popleft()()
            if self._spent_s >= TURN_S:
                break
        self.is_over = False
        if line or self._spent_s >= TURN_S:
            self._end()


class Ending:
    """A connection that is about to end; ``switch`` wakes its greenlet when it ``may_go``."""

    __slots__ = ("switch", "may_go")

    def __init__(self, switch: Callable[[], None]) -> None:
        self.switch = switch
        self.may_go = False


class Link:
    """Serves one accepted socket until it is closed.

    Attributes:
        connection: What it carries.
    """

    __slots__ = (
        "connection",
        "_socket",
        "_is_tls",
        "_endings",
        "_turns",
        "_hub",
        "_receive",
        "_send",
        "_unsent",
        "_unsent_bytes",
        "_unsent_bytes_max",
        "_greenlet",
        "_reader",
        "_writer",
        "_is_woken",
        "_is_in_line",
        "_is_next",
        "_is_finishing",
        "_is_lost",
        "_discard_s",
    )

    def __init__(
        self,
        broker: Broker,
        sock: Any,
        name: str,
        *,
        unsent_bytes_max: int,
        rate: RequestRate | None = None,
        is_tls: bool = False,
        endings: Endings | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Take over a connected socket that does not block.

        Args:
            broker: What commands act on.
            sock: A plain socket, or a TLS one past its handshake.
            name: Names the peer in logs.
            unsent_bytes_max: The connection ends when more than this is left unread by the peer.
            rate: Counts its requests, or None.
            is_tls: The socket buffers decrypted bytes of its own.
            endings: The line in which connections end that end together.
            turns: The turns of the loop, as all connections share them.
        """
        self._socket = sock
        self._is_tls = is_tls
        self._endings = endings
        self._hub = gevent.get_hub()
        self._turns = turns or Turns(self._hub.loop)
        calls = sock if is_tls or _line is None else _line.PlainSocket(sock)
        self._receive = self._receive_tls if is_tls else calls.recv
        self._send = calls.send
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._unsent_bytes_max = unsent_bytes_max
        self._greenlet: Any = None
        self._reader: Any = None
        self._writer: Any = None
        self._is_woken = False
        self._is_in_line = False  # for its turn to read
        self._is_next = False  # it has come
        self._is_finishing = False
        self._is_lost = False
        self._discard_s = DISCARD_S_MAX
        self.connection = Connection(broker, self, name, rate, RUN_S_MAX)

    @property
    def unsent_bytes(self) -> int:
        """How much the peer has still to read."""
        return self._unsent_bytes

    def run(self) -> None:
        """Serve the connection in the current greenlet. Waits until it has ended."""
        connection = self.connection
        loop = self._hub.loop
        self._greenlet = gevent.getcurrent()
        self._reader = loop.io(self._socket.fileno(), READ)
        try:
            self._read(connection)
            self._await_turn()
            connection.close()
            if not self._is_lost:
                self._linger(connection)
        finally:
            connection.close()
            self._is_lost = self._is_woken = True  # nobody wakes it any more
            for watcher in (self._reader, self._writer):
                if watcher is not None:
                    watcher.stop()
                    watcher.close()
            self._reader = self._writer = None
            self._send = self._receive = self._socket.send  # which knows that it is closed
            self._greenlet = None
            self._socket.close()
            connection.leave()

    def _read(self, connection: Connection) -> None:
        """Waits for bytes and hands them over, until the peer has gone or must go."""
        wait = self._hub.switch
        receive = self._receive
        received = connection.received
        reader = self._reader
        switch = self._greenlet.switch
        turns = self._turns
        size = SLICE_BYTES_MIN  # room is taken for all of it: 64 KiB cost 3 % of a job's CPU
        is_busy = True  # until the first read tells
        is_at_end = False  # the peer has gone; what it sent before is still run
        reader.start(switch)
        while True:
            wait()
            if self._is_woken:
                self._is_woken = False
                if self._must_end():
                    return
                began_s = perf_counter()
                connection.resume()
                turns.spend(perf_counter() - began_s)
                if self._must_end() or (is_at_end and not connection.is_put_off):
                    return
                if (
                    connection.wants_more
                    and not reader.active
                    and not (self._is_in_line or self._is_lost or is_at_end)
                ):
                    reader.start(switch)
                continue
            if is_at_end or self._is_lost:
                reader.stop()
                continue
            if is_busy and turns.is_over and not self._is_next:
                if not self._is_in_line:
                    self._is_in_line = True
                    reader.stop()
                    turns.enter(self._go_on)
                continue
            if self._is_next:
                self._is_next = False
                if not connection.wants_more:
                    continue
                reader.start(switch)
            try:
                data = receive(size)
            except _NOT_NOW:
                continue
            except OSError:
                self._is_lost = True
                data = b""
            if not data:
                if not connection.is_put_off:
                    return
                is_at_end = True
                reader.stop()
                connection.cancel_waits()  # or jobs would go to a peer that is gone
                continue
            is_busy = len(data) >= COUNTED_BYTES_MIN
            if is_busy:
                began_s = perf_counter()
                received(data)
                took_s = perf_counter() - began_s
                turns.spend(took_s)
                size = next_size(size, len(data), took_s)
            else:
                received(data)
            if self._must_end():
                return
            if self._is_lost or not connection.wants_more:
                reader.stop()

    def _go_on(self) -> None:
        """Read: its turn has come."""
        self._is_in_line = False
        if self._reader is not None and not self._must_end():
            self._is_next = True
            self._greenlet.switch()

    def _await_turn(self) -> None:
        """Waits while many others end before this one."""
        if self._endings is None:
            return
        self._reader.stop()
        self.connection.cancel_waits()  # or jobs would go to a peer that is gone
        ending = Ending(self._greenlet.switch)
        self._endings.enter(ending)
        while not ending.may_go:
            self._hub.switch()
            self._is_woken = False

    def _must_end(self) -> bool:
        return self._is_finishing or (self._is_lost and not self.connection.is_put_off)

    def _receive_tls(self, size: int) -> bytes:
        """Read one TLS record, and the decrypted rest that no watcher would tell of."""
        data: bytes = self._socket.recv(size)
        pending = self._socket.pending()
        return data + self._socket.recv(pending) if data and pending else data

    # -- the line of the connection --

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent. Never waits."""
        if self._is_lost:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._send(data)
            except _NOT_NOW:
                sent = 0
            except OSError:
                self._lose()
                return
            if sent == len(data):
                if self._is_finishing:
                    self.wake()
                return
            if self._writer is None:
                self._writer = self._hub.loop.io(self._socket.fileno(), WRITE)
            self._writer.start(self._writable)
        self._unsent.append(memoryview(data)[sent:] if sent else data)
        self._unsent_bytes += len(data) - sent
        limit = self._unsent_bytes_max
        if not self.connection.is_authenticated:
            limit = min(limit, STRANGER_UNSENT_BYTES_MAX)
        if self._unsent_bytes > limit:
            log.warning(
                "connection closed: replies are not read peer=%s bytes=%d",
                self.connection.id,
                self._unsent_bytes,
            )
            self.abort()

    def _writable(self) -> None:
        """Send more of what is unsent; runs in the hub, so it must not wait."""
        unsent = self._unsent
        while unsent:
            data = unsent.popleft()
            if unsent and len(data) < WRITE_BYTES:
                pieces = [data]
                size = len(data)
                while unsent and size < WRITE_BYTES:
                    size += len(unsent[0])
                    pieces.append(unsent.popleft())
                data = b"".join(pieces)
            try:
                sent = self._send(data)
            except _NOT_NOW:
                sent = 0
            except OSError:
                self._lose()
                return
            self._unsent_bytes -= sent
            if sent < len(data):
                unsent.appendleft(memoryview(data)[sent:])
                return
        self._writer.stop()
        if self._is_finishing:
            self.wake()

    def finish(self, discard_s: float = DISCARD_S_MAX) -> None:
        """Close once everything written so far has been sent.

        Args:
            discard_s: How long to throw away what the peer still sends; 0: what is here already.
        """
        self._is_finishing = True
        self._discard_s = discard_s
        self.wake()

    def abort(self) -> None:
        """Reset the connection: nothing more is sent."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._lose()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back before the loop waits again."""
        self._hub.loop.run_callback(callback)

    def wake(self) -> None:
        """Let the greenlet look at its flags, soon."""
        if not self._is_woken and self._greenlet is not None:
            self._is_woken = True
            self._hub.loop.run_callback(self._greenlet.switch)

    def wake_next_turn(self) -> None:
        """The same, but only after the loop has looked at all sockets.

        It runs dozens of callbacks before it does; a timer comes behind the sockets.
        """
        self._turns.enter(self._wake_now)

    def _wake_now(self) -> None:
        if not self._is_woken and self._greenlet is not None:
            self._is_woken = True
            self._greenlet.switch()

    def _lose(self) -> None:
        self._is_lost = True
        self.connection.cancel_waits()  # or jobs would go to a peer that is gone
        unsent, self._unsent = self._unsent, deque()
        self.connection.drop(unsent)
        if self._writer is not None:
            self._writer.stop()
        self.wake()

    # -- the end --

    def _linger(self, connection: Connection) -> None:
        """Waits, but not long, until what is owed has been sent and the peer has taken it."""
        was_asked = self._is_finishing
        self._is_finishing = True
        self._reader.stop()
        with gevent.Timeout(LINGER_S_MAX, False):
            while (self._unsent or connection.owes_answers) and not self._is_lost:
                self._hub.switch()
                self._is_woken = False
        if self._is_lost:
            return
        self._say_end()
        if was_asked:
            with gevent.Timeout(self._discard_s or None, False):
                self._discard()

    def _say_end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._is_tls:
                self._socket.unwrap()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _discard(self) -> None:
        """Waits for the end of what the peer sends, if there is time for it."""
        sock = getattr(self._socket, "_sock", self._socket)
        self._reader.start(self._greenlet.switch)
        with contextlib.suppress(OSError):
            while True:
                with contextlib.suppress(BlockingIOError):
                    if not sock.recv(RECEIVE_BYTES):
                        return
                if not self._discard_s:
                    return
                self._hub.switch()
                self._is_woken = False
