"""The writer as a native thread: what an embedded engine uses, whose process is the application's.

No child to start and nothing to copy; the price is the interpreter lock, so that many rows go into
each statement (``writer.py`` tells why). The thread is a real one in a process that gevent has
patched, too, and shares nothing with the loop's thread but two deques and two pipes that say
"look".
"""

import os
import time
from collections import deque
from typing import Any

import apsw

from bunqueue.errors import StorageFailed
from bunqueue.storage import writer
from bunqueue.storage.loop import Callback, Loop
from bunqueue.storage.native import close_fd, original
from bunqueue.storage.ports import Listener
from bunqueue.storage.rows import images


class WriterThread:
    """Fulfils ``ports.Writer`` with a thread."""

    kind = "Python thread"
    images = staticmethod(images)

    def __init__(self, path: str, loop: Loop, setup: dict[str, Any]) -> None:
        self._path = path
        self._loop = loop
        self._setup = setup
        self._listener: Listener | None = None
        self._batches: deque[writer.Batch] = deque()
        self._outcomes: deque[writer.Outcome] = deque()
        self._has_unanswered = False
        self._work_in, self._work_out = os.pipe()
        self._done_in, self._done_out = os.pipe()
        self._stop_reading: Callback | None = None
        self._ending = "it has not ended"
        self._is_over = False

    def start(self, listener: Listener) -> None:
        """Begin."""
        self._listener = listener
        self._stop_reading = self._loop.watch_readable(self._done_in, self._on_done)
        original("_thread", "start_new_thread")(self._run, ())

    # -- in the writer's thread --------------------------------------------------------------------

    def _run(self) -> None:
        poll = original("select", "poll")()
        poll.register(self._work_in, original("select", "POLLIN"))
        self._ending = "it broke"
        try:
            database = writer.Database(self._path, self._setup)
            while True:
                if not poll.poll(writer.IDLE_MS):
                    database.checkpoint_if_due(is_idle=True)
                if not os.read(self._work_in, 4096):
                    break
                while self._batches:
                    self._outcomes.append(database.write(self._batches.popleft()))
                    os.write(self._done_out, b"\0")
                    database.checkpoint_if_due(is_idle=False)
            database.close()
            self._ending = ""
        except apsw.Error as error:
            self._ending = f"{type(error).__name__}: {error}"
        finally:
            close_fd(self._done_out)

    # -- in the loop's thread ----------------------------------------------------------------------

    def submit(self, batch: writer.Batch) -> None:
        """Have the batch committed; the listener is told by its number."""
        self._has_unanswered = True
        self._batches.append(batch)
        if not self._is_over:
            os.write(self._work_out, b"\0")

    def _on_done(self) -> None:
        assert self._listener is not None
        is_over = not os.read(self._done_in, 4096)
        while self._outcomes:
            self._has_unanswered = False
            self._listener.on_outcome(self._outcomes.popleft())
        if is_over:
            self._is_over = True
            self._unwatch()
            if self._work_out >= 0:
                self._listener.on_writer_lost(f"the writer thread ended: {self._ending}")

    def _unwatch(self) -> None:
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = None

    def wait(self, timeout_ms: float) -> None:
        """Waits until the submitted batch has been answered, at most that long."""
        end = time.monotonic() + timeout_ms / 1000
        poll = original("select", "poll")()
        poll.register(self._done_in, original("select", "POLLIN"))
        while self._has_unanswered and not self._is_over:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                return
            if poll.poll(left_ms):
                self._on_done()

    def close(self, timeout_ms: float) -> None:
        """Waits until the thread has closed the file and ended.

        Raises:
            StorageFailed: It has not ended in time.
        """
        if self._work_out < 0:
            return
        self._unwatch()
        close_fd(self._work_out)
        self._work_out = -1
        end = time.monotonic() + timeout_ms / 1000
        poll = original("select", "poll")()
        poll.register(self._done_in, original("select", "POLLIN"))
        while not self._is_over:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0:
                raise StorageFailed(f"the writer thread did not end within {timeout_ms:.0f} ms")
            if poll.poll(left_ms):
                self._on_done()
        close_fd(self._done_in)
        close_fd(self._work_in)
