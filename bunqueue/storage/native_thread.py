"""The writer as a thread of C: what the compiled core uses, in a server and embedded alike.

It never takes the interpreter lock, so it does not starve as a Python thread does, and there is no
child to start and nothing to send: rows are packed once, on the loop's side, and bound by the
thread (``compiled/disk.pyx``, ``compiled/disk_thread.h``). Its file has the same form as anybody's.

It uses the very copy of SQLite that apsw brings: apsw loads our module as one of SQLite's
extensions, and SQLite hands over the table of its functions. Two copies in one process would not
do, because POSIX forgets a process's locks on a file when any of its descriptors is closed. An
apsw that loads no extensions leaves the writing to the process.

If the broker dies, the batch that is being written dies with it: no answer has told of it.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import apsw

from bunqueue import compiled
from bunqueue.errors import StorageFailed
from bunqueue.storage import rows, writer
from bunqueue.storage.batch import STATEMENTS
from bunqueue.storage.loop import Callback, Loop
from bunqueue.storage.native import close_fd, original
from bunqueue.storage.ports import Images, Listener

log = logging.getLogger(__name__)

_KINDS: Final = (None, writer.FULL, writer.OTHER, writer.DAMAGED)


@cache
def twin() -> Any | None:
    """Return the compiled module, ready for use, or None; why not is logged once."""
    if not compiled.IS_COMPILED:
        return None
    try:
        disk = compiled.part("disk")
        assert disk is not None
        connection = apsw.Connection(":memory:")
        try:
            connection.enable_load_extension(True)
            connection.load_extension(disk.__file__, disk.SQLITE_ENTRY)
        finally:
            connection.close()
        major, minor, patch, *_ = map(int, apsw.sqlite_lib_version().split("."))
        if disk.sqlite_version() != major * 1_000_000 + minor * 1000 + patch:
            raise ImportError(f"SQLite says it is version {disk.sqlite_version()}")
        os.eventfd  # noqa: B018  # Linux has it
    except (apsw.Error, AttributeError, ImportError) as error:
        log.warning("a writer process is used, since a thread of C cannot be: %s", error)
        return None
    disk.take_rows(rows.FOR_TWIN, STATEMENTS)
    return disk


class NativeWriter:
    """Fulfils ``ports.Writer`` with a thread of C."""

    kind = "native thread"

    def __init__(self, path: str, loop: Loop, setup: dict[str, Any], lock_fd: int) -> None:
        """Args: lock_fd: descriptor that holds the lock of the file."""
        disk = twin()
        if disk is None:
            raise StorageFailed("the compiled core has no writer here")
        self._disk = disk
        self.images: Callable[[Any], Images] = disk.images
        self._path = path
        self._loop = loop
        self._setup = setup
        self._lock_fd = lock_fd
        self._listener: Listener | None = None
        self._thread: Any = None
        self._event_fd = -1
        self._stop_reading: Callback | None = None
        self._refused: list[tuple[Any, str]] = []  # rows of the batch that could not be packed
        self._has_unanswered = False
        self._is_over = False

    def start(self, listener: Listener) -> None:
        """Begin."""
        self._listener = listener
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        pragmas = "".join(
            f"PRAGMA {name}={value};" for name, value in self._setup["pragmas"].items()
        )
        try:
            self._thread = self._disk.DiskThread(
                self._path,
                pragmas,
                self._setup["busy_ms"],
                self._event_fd,
                writer.IDLE_MS,
                writer.WAL_PAGES_IDLE,
                writer.WAL_PAGES_MAX,
                writer.WAL_PAGES_STEP,
            )
        except OSError as error:
            close_fd(self._event_fd)
            raise StorageFailed(f"no writer thread can be started: {error.strerror}") from error
        self._stop_reading = self._loop.watch_readable(self._event_fd, self._on_event)

    def submit(self, batch: Any) -> None:
        """Have the batch committed; the listener is told by its number."""
        self._has_unanswered = True
        self._refused = batch.refused
        self._thread.submit(batch)

    def _on_event(self) -> None:
        assert self._listener is not None
        outcomes, ending = self._thread.news()
        for number, kind, text, dropped in outcomes:
            self._has_unanswered = False
            refused, self._refused = self._refused, []
            self._listener.on_outcome((number, _KINDS[kind], text, dropped + refused))
        if ending is not None and not self._is_over:
            self._is_over = True
            self._unwatch()
            if ending:
                self._listener.on_writer_lost(f"the writer thread ended: {ending}")

    def _unwatch(self) -> None:
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = None

    def wait(self, timeout_ms: float) -> None:
        """Waits until the submitted batch has been answered, at most that long."""
        end = time.monotonic() + timeout_ms / 1000
        while self._has_unanswered and not self._is_over:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                return
            self._poll(left_ms)

    def _poll(self, timeout_ms: float) -> None:
        poll = original("select", "poll")()
        poll.register(self._event_fd, original("select", "POLLIN"))
        if poll.poll(timeout_ms):
            self._on_event()

    def close(self, timeout_ms: float) -> None:
        """Waits until the thread has closed the file and ended.

        Raises:
            StorageFailed: It has not ended in time; the file's lock is kept until this process
                ends, since the thread may still write.
        """
        if self._event_fd < 0:
            return
        self._unwatch()
        self._thread.close()
        end = time.monotonic() + timeout_ms / 1000
        while not self._is_over:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                self._event_fd = -1  # stays open: the thread will write to it
                os.dup(self._lock_fd)
                raise StorageFailed(f"the writer thread did not end within {timeout_ms:.0f} ms")
            self._poll(left_ms)
        close_fd(self._event_fd)
        self._event_fd = -1
