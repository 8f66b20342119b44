"""The child process: imports the processor once, then runs one job after the other.

Its main thread reads jobs and runs them; a second one listens for jobs that are called off, and
for the end of the parent. The channels are descriptors of their own, so a handler may print
whatever it likes. SIGINT and SIGTERM are the parent's affair: a terminal and a service manager send
them to the whole group, and the job at hand is to be finished.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from bunqueue.client import requests, worker_options
from bunqueue.client.sandbox.job import SandboxJob
from bunqueue.client.sandbox.messages import KINDS, NUMBER, Inbox, Message, encode
from bunqueue.errors import DelayedError

CHUNK_BYTES = 65_536
PARENT_IS_GONE = 1  # exit status
MIB = 1_048_576

Handler = Callable[[Any, Any], Any]


def main() -> None:
    """Serve the parent whose descriptors are named on the command line, until it hangs up."""
    channel, control = (int(word) for word in sys.argv[-2:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    for descriptor in (channel, control):
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, True)
    child = Child(channel, control)
    setup = child.receive()
    if setup is None or not child.set_up(setup["setup"]):
        return
    threading.Thread(target=child.listen, name="bunqueue-control", daemon=True).start()
    while (message := child.receive()) is not None:
        child.run(message["job"], message["number"])


class Child:
    """The far end of a parent's slot."""

    def __init__(self, channel: int, control: int) -> None:
        self._channel = channel
        self._control = control
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._current: tuple[int, SandboxJob] | None = None
        self._handler: Handler | None = None

    def receive(self) -> Message | None:
        """Return the parent's next message, or None when it has hung up. Waits."""
        while (message := self._inbox.next()) is None:
            data = os.read(self._channel, CHUNK_BYTES)
            if not data:
                return None
            self._inbox.feed(data)
        return message

    def send(self, message: Message) -> None:
        """Tell the parent something. May wait."""
        rest = memoryview(encode(message))
        with self._sending:
            self._write(rest)

    def _write(self, rest: memoryview) -> None:
        while rest:
            rest = rest[os.write(self._channel, rest) :]

    def _tell(self, number: int, message: Message) -> None:
        """Tell the parent something of a job; of one that has ended it wants to hear no more."""
        rest = memoryview(encode(message))
        with self._sending:
            if self._current is not None and self._current[0] == number:
                self._write(rest)

    def set_up(self, setup: dict[str, Any]) -> bool:
        """Bound the memory and import the processor; False when that is not possible."""
        limit = int(setup["max_memory_mb"] * MIB)
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        sys.path[:] = ["", *(place for place in setup["path"] if place)]
        try:
            self._handler = worker_options.handler(load(setup["processor"]))
        except BaseException as error:
            self.send({"refused": f"{type(error).__name__}: {error}"})
            return False
        self.send({"ready": True})
        return True

    def run(self, raw: dict[str, Any], number: int) -> None:
        """Run one job and tell how it went. Waits."""
        assert self._handler is not None
        job = SandboxJob(raw, partial(self._tell, number))
        self._current = (number, job)
        self.send({"begun": number})
        try:
            result = self._handler(job, job)
        except BaseException as error:  # the job fails, the child never does
            answer = failure(error, raw)
        else:
            wrong = job.failed_with
            answer = {"done": result} if wrong is None else failure(wrong, raw)
        with self._sending:
            self._current = None
        try:
            self.send(answer)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            self.send(failure(TypeError(f"the result cannot be sent: {error}"), raw))

    def listen(self) -> None:
        """Call jobs off as the parent says; end the process with it. Waits."""
        inbox = b""
        while data := os.read(self._control, CHUNK_BYTES):
            inbox += data
            while len(inbox) >= NUMBER.size:
                (number,) = NUMBER.unpack_from(inbox)
                inbox = inbox[NUMBER.size :]
                current = self._current
                if current is not None and current[0] == number:
                    current[1].signal.abort("job cancelled")
        os._exit(PARENT_IS_GONE)


def failure(error: BaseException | str, raw: dict[str, Any]) -> Message:
    """Return the message about a failure."""
    if isinstance(error, str):
        return {"failed": error, "kind": None, "stack": None}
    kind = next((word for word, one in KINDS.items() if isinstance(error, one)), None)
    return {
        "failed": requests.text_of(error),
        "kind": kind,
        "delay_ms": error.delay_ms if isinstance(error, DelayedError) else None,
        "stack": requests.stack_of(error, raw.get("stackTraceLimit")),
    }


def load(name: str) -> Any:
    """Import the processor that a name stands for."""
    place, _, path = name.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location("bunqueue_processor", place)
        assert spec is not None
        assert spec.loader is not None
        found: Any = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(place)
    for part in path.split("."):
        found = getattr(found, part)
    return found
