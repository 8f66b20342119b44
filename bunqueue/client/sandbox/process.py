"""One child process, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal as signals
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bunqueue.client.cancel import CancelSignal
from bunqueue.client.sandbox.messages import NUMBER, Inbox, Message, encode
from bunqueue.client.sandbox.options import SandboxOptions
from bunqueue.client.worlds import now
from bunqueue.errors import BunqueueError

CHUNK_BYTES = 65_536
GOODBYE_S = 1.0  # what a child gets to end by itself once its parent has hung up
REAP_STEP_S = 0.005
PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])

# By -c, so that the first entry of the path is the directory it runs in; the package's own place
# stands last, for where it is not installed.
BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from bunqueue.client.sandbox.child import main; "
    "main()"
)


class ChildRefused(BunqueueError):
    """The child cannot import the processor."""


class ChildDied(BunqueueError):
    """The child has ended; the text says how."""


class ChildDiedBefore(ChildDied):
    """The child had ended before it took the job: nothing of the job has been done."""


class ChildTooSlow(BunqueueError):
    """The child did not answer in time; it has been killed."""


class ChildProcess:
    """A running child.

    Attributes:
        pid: Its process.
        jobs: How many it was given.
        is_killed: We have killed it; what it dies of is our doing.
    """

    def __init__(self, processor: str, options: SandboxOptions) -> None:
        """Start it; ``wait_until_ready`` tells whether it can be used."""
        ours, theirs = socket.socketpair()
        theirs_control, self._control = os.pipe()
        try:
            command = [sys.executable, "-c", BOOT, PACKAGE_PARENT]
            descriptors = (theirs.fileno(), theirs_control)
            self._process = subprocess.Popen(
                [*command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                cwd=options.cwd,
                env={**os.environ, **(options.env or {})},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(self._control)
            raise
        finally:
            theirs.close()
            os.close(theirs_control)
        os.set_blocking(self._control, False)
        self._channel = ours
        self._inbox = Inbox()
        self._is_closed = False
        self._is_reaped = False
        self.pid = self._process.pid
        self.jobs = 0
        self.is_killed = False
        setup = {
            "processor": processor,
            "path": sys.path,
            "max_memory_mb": options.max_memory_mb,
        }
        self._greeting = encode({"setup": setup})

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the import of the processor.

        Raises:
            ChildRefused: The import failed.
            ChildDied: It has ended.
            ChildTooSlow: It took too long.
        """
        deadline = now() + timeout_s
        self._send(self._greeting, deadline)
        message = self._receive(deadline)
        if "refused" in message:
            raise ChildRefused(message["refused"])

    def run(
        self,
        raw: dict[str, Any],
        timeout_ms: float,
        signal: CancelSignal,
        on_message: Callable[[Message], None],
    ) -> Message:
        """Run a job and return the child's last word on it. Waits.

        Args:
            raw: The job's map.
            timeout_ms: How long it may take; 0 for ever.
            signal: Calls the job off; the child is told.
            on_message: Told of progress and log lines.

        Raises:
            ChildDiedBefore: It has ended without taking the job.
            ChildDied: It has ended.
            ChildTooSlow: It took too long and was killed.
        """
        deadline = now() + timeout_ms / 1000 if timeout_ms else None
        frame = encode({"job": raw, "number": self.jobs + 1})
        self.jobs += 1
        try:
            self._send(frame, deadline)
            self._receive(deadline)  # that it has begun
        except ChildDied as error:
            raise ChildDiedBefore(str(error)) from None
        signal.on_abort(partial(self._cancel, self.jobs))
        while True:
            message = self._receive(deadline)
            if "done" in message or "failed" in message:
                return message
            on_message(message)

    def _cancel(self, number: int) -> None:
        """Call a job off, if it is still at hand. From any native thread; does not wait."""
        if not self._is_reaped:
            with contextlib.suppress(OSError):  # it may be gone, or may not have read for long
                os.write(self._control, NUMBER.pack(number))

    def kill(self) -> None:
        """End it with SIGKILL. From any native thread; does not wait."""
        self.is_killed = True
        self._signal(signals.SIGKILL)

    def is_alive(self) -> bool:
        """Tell whether it still runs."""
        return not self._is_closed and self._process.poll() is None

    def hang_up(self) -> None:
        """Let it end by itself. Does not wait."""
        if not self._is_closed:
            self._is_closed = True
            self._channel.close()

    def close(self) -> None:
        """Hang up, wait a little for its end, and kill it if it does not come. Waits."""
        self.hang_up()
        if self._is_reaped:
            return
        self._is_reaped = True
        if not self.is_killed and self._reap(GOODBYE_S) is None:
            self._signal(signals.SIGKILL)
        self._reap(None)
        os.close(self._control)

    def forget(self) -> None:
        """Let go of it in a fork of this process: it is the parent's, which it must not notice."""
        self._is_closed = self._is_reaped = True
        os.close(self._channel.detach())
        os.close(self._control)
        self._process.returncode = 0  # it is not ours to wait for

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reap(self, timeout_s: float | None) -> int | None:
        """Wait for the end and return the exit status; None when the time is over first."""
        deadline = None if timeout_s is None else now() + timeout_s
        while (status := self._process.poll()) is None:
            if deadline is not None and now() >= deadline:
                return None
            time.sleep(REAP_STEP_S)
        return status

    def _send(self, frame: bytes, deadline: float | None) -> None:
        try:
            self._channel.settimeout(_left(deadline))
            self._channel.sendall(frame)
        except TimeoutError:
            raise self._too_slow() from None
        except OSError:
            raise self._died() from None

    def _receive(self, deadline: float | None) -> Message:
        while (message := self._inbox.next()) is None:
            try:
                self._channel.settimeout(_left(deadline))
                data = self._channel.recv(CHUNK_BYTES)
            except TimeoutError:
                raise self._too_slow() from None
            except OSError:
                data = b""
            if not data:
                raise self._died()
            self._inbox.feed(data)
        return message

    def _too_slow(self) -> ChildTooSlow:
        self.kill()
        return ChildTooSlow("killed: out of time")

    def _died(self) -> ChildDied:
        status = self._reap(GOODBYE_S)
        if status is None:
            self._signal(signals.SIGKILL)
            status = self._reap(None)
        assert status is not None
        return ChildDied(ending(status))


def ending(status: int) -> str:
    """Return in words how a process with that status has ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signals.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - now())
