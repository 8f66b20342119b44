"""The writer as a process of its own: what a server uses.

Batches go through a socket pair as frames of ``writer.py``. The broker never waits for it: what the
socket does not take at once is sent when there is room. A writer that dies is replaced and gets the
batch again that it did not answer; every row of a batch replaces or removes, so that a second time
changes nothing. One that keeps dying is given up, and the broker has to end.
"""

import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from bunqueue.errors import StorageFailed
from bunqueue.storage import writer
from bunqueue.storage.loop import Callback, Loop
from bunqueue.storage.native import close_fd, original
from bunqueue.storage.ports import Listener
from bunqueue.storage.rows import images

log = logging.getLogger(__name__)

RESTARTS_MAX: Final = 3  # writers in a row that die without having answered a batch
RESTART_MS: Final = 100  # pause before the second of them; doubles
# What a process may lack to start another, and have again in a moment: descriptors, memory.
SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)
SPAWN_RETRY_MS: Final = 500
SPAWN_TRIES_MAX: Final = 60  # half a minute of refused pushes; then a restart may help
SOCKET_BYTES: Final = 1 << 20  # what we ask of the kernel; it gives what it allows
READ_BYTES: Final = 1 << 16
LOCK_FD: Final = 3  # where the writer holds the file's lock
REAP_MS: Final = 2000  # a process whose socket has ended is gone within moments


class WriterProcess:
    """Fulfils ``ports.Writer`` with a child process."""

    kind = "process"
    images = staticmethod(images)

    def __init__(self, path: str, loop: Loop, setup: dict[str, Any], lock_fd: int) -> None:
        """Args: lock_fd: descriptor that holds the lock of the file; the child inherits it."""
        self._path = path
        self._loop = loop
        self._setup = writer.frame(setup)
        self._lock_fd = lock_fd
        self._listener: Listener | None = None
        self._fd = -1
        self.pid = 0
        self._frames = writer.Frames()
        self._outbox: list[memoryview] = []
        self._stop_reading: Callback | None = None
        self._stop_writing: Callback | None = None
        self._restart: Callback | None = None
        self._unanswered: tuple[bytes, bytes] | None = None
        self._deaths = 0  # since the last answer
        self._failed_spawns = 0  # in a row
        self._is_replacement = False
        self._complaint = ""  # why it could not open the file
        self._waitpid = original("os", "waitpid")

    def start(self, listener: Listener) -> None:
        """Begin."""
        self._listener = listener
        self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        # Plain descriptors from here on: gevent's sockets would wait in their own way.
        self._fd = ours.detach()
        os.set_blocking(self._fd, False)
        os.set_blocking(theirs.fileno(), True)
        try:
            self.pid = original("os", "posix_spawn")(
                sys.executable,
                [sys.executable, "-P", writer.__file__, self._path],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._lock_fd, LOCK_FD),
                ],
                # A terminal's ^C reaches the whole group; the broker decides when it is over.
                setsigmask=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            )
        finally:
            theirs.close()
        self._frames = writer.Frames()
        self._complaint = ""
        self._stop_reading = self._loop.watch_readable(self._fd, self._on_readable)
        self._send(self._setup)

    # -- out ---------------------------------------------------------------------------------------

    def submit(self, batch: writer.Batch) -> None:
        """Have the batch committed; the listener is told by its number."""
        try:
            self._unanswered = writer.frame_pieces(batch)
        except ValueError:
            self._unanswered = writer.frame_pieces(_plain(batch))
        if self._fd >= 0:
            self._send(*self._unanswered)

    def _send(self, *packed: bytes) -> None:
        is_idle = not self._outbox
        self._outbox += map(memoryview, packed)
        if is_idle:
            self._on_writable()

    def _on_writable(self) -> None:
        """Send what the socket takes; what breaks here is told by the reading side."""
        outbox = self._outbox
        try:
            while outbox:
                # At once: a length that came alone would wake the writer only to wait for the rest.
                sent = os.writev(self._fd, outbox)
                while outbox and len(outbox[0]) <= sent:
                    sent -= len(outbox.pop(0))
                if sent:
                    outbox[0] = outbox[0][sent:]
        except BlockingIOError:
            if self._stop_writing is None:
                self._stop_writing = self._loop.watch_writable(self._fd, self._on_writable)
            return
        except OSError:
            outbox.clear()
        if self._stop_writing is not None:
            self._stop_writing()
            self._stop_writing = None

    # -- in ----------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        listener = self._listener
        assert listener is not None
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""
        if not chunk:
            self._died()
            return
        for outcome in self._frames.feed(chunk):
            number, kind, text, _ = outcome
            if number == 0:
                if kind is not None:
                    self._complaint = f" ({text})"
                elif self._is_replacement:
                    listener.on_writer_up()
                continue
            self._unanswered = None
            self._deaths = 0
            listener.on_outcome(outcome)

    # -- when it dies ------------------------------------------------------------------------------

    def _died(self) -> None:
        assert self._listener is not None
        self._hang_up()
        why = f"writer process {self.pid} ended, {self._reap()}{self._complaint}"
        self._deaths += 1
        if self._deaths > RESTARTS_MAX:
            self._listener.on_writer_lost(f"{why}, as did {RESTARTS_MAX} before it")
            return
        self._listener.on_writer_down(why)
        pause_ms = RESTART_MS * 2 ** (self._deaths - 2) if self._deaths > 1 else 0
        self._restart = self._loop.call_later(pause_ms, self._replace)

    def _replace(self) -> None:
        assert self._listener is not None
        self._restart = None
        self._is_replacement = True
        try:
            self._spawn()
        except OSError as error:
            self._hang_up()
            self._failed_spawns += 1
            if error.errno in SCARCE and self._failed_spawns < SPAWN_TRIES_MAX:
                if self._failed_spawns == 1:
                    log.error("no writer process can be started now: %s", error.strerror)
                self._restart = self._loop.call_later(SPAWN_RETRY_MS, self._replace)
            else:
                self._listener.on_writer_lost(f"no writer process can be started: {error}")
            return
        self._failed_spawns = 0
        if self._unanswered is not None:
            self._send(*self._unanswered)

    def _hang_up(self) -> None:
        for stop in (self._stop_reading, self._stop_writing, self._restart):
            if stop is not None:
                stop()
        self._stop_reading = self._stop_writing = self._restart = None
        self._outbox.clear()
        if self._fd >= 0:
            close_fd(self._fd)
            self._fd = -1

    def _reap(self, timeout_ms: float = REAP_MS) -> str:
        """Waits for the end of a process that is ending; returns how it ended."""
        end = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                pid, status = self._waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return "its exit status is unknown"  # somebody else waited for it
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
            if time.monotonic() >= end:
                return "and has not gone yet"
            original("time", "sleep")(0.001)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, timeout_ms: float) -> None:
        """Waits until the submitted batch has been answered, at most that long."""
        end = time.monotonic() + timeout_ms / 1000
        while self._unanswered is not None:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                return
            if self._restart is not None:
                self._restart()
                self._replace()
            if self._fd < 0:
                return
            self._poll(left_ms)

    def _poll(self, timeout_ms: float) -> None:
        poll = original("select", "poll")()
        in_, out = original("select", "POLLIN"), original("select", "POLLOUT")
        poll.register(self._fd, in_ | (out if self._outbox else 0))
        for _, event in poll.poll(timeout_ms):
            if event & out:
                self._on_writable()
            if event & ~out:
                self._on_readable()

    def close(self, timeout_ms: float) -> None:
        """Waits until the process has closed the file and ended.

        Raises:
            StorageFailed: It has not ended in time.
        """
        if self._fd < 0:
            self._hang_up()
            return
        self._hang_up()
        how = self._reap(timeout_ms)
        if how not in ("exit status 0", "its exit status is unknown"):
            raise StorageFailed(f"the writer process {self.pid} did not end well: {how}")


def _plain(value: Any) -> Any:
    """Return a copy of a batch with values of subclasses (an enum's, say) as their plain kind.

    What is of no kind that a row may have becomes None, which the tables refuse where it matters.
    """
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    return None


_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (bool, bool),
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, bytes),
)
