"""Stand-ins around a storage: queues, jobs, a loop and a writer under the test's hand."""

from collections.abc import Callable
from typing import Any

from bunqueue.engine.job import Job
from bunqueue.engine.states import QUEUED
from bunqueue.protocol.options import DEFAULT_OPTIONS, JobOptions
from bunqueue.storage.rows import images

NOW = 1_700_000_000_000


class NamedQueue:
    """As much of the engine's queue as the storage reads."""

    def __init__(self, name: str = "emails") -> None:
        self.name = name


def make_job(
    seq: int,
    data: bytes = b"\xc0",
    options: JobOptions = DEFAULT_OPTIONS,
    place: str = QUEUED,
    queue: Any = None,
) -> Job:
    """Return a job as a push makes it."""
    queue = queue or NamedQueue()
    return Job(f"job-{seq}", seq, queue, "welcome", data, options, 0, NOW, NOW, place)


class HandLoop:
    """Fulfils ``Loop``; nothing runs until the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, fn: Callable[[], None]) -> None:
        self.soon.append(fn)

    def call_later(self, delay_ms: float, fn: Callable[[], None]) -> Callable[[], None]:
        timer = (delay_ms, fn)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def watch_readable(self, *_: Any) -> Callable[[], None]:
        raise AssertionError("a writer of the tests has no descriptor")

    watch_writable = watch_readable

    def end_turn(self) -> None:
        """Run what was to run at the end of the turn."""
        soon, self.soon = self.soon, []
        for fn in soon:
            fn()

    def ring(self) -> list[float]:
        """Let all timers go off; returns their delays."""
        timers, self.timers = self.timers, []
        for _, fn in timers:
            fn()
        return [delay for delay, _ in timers]


class HandWriter:
    """Fulfils ``ports.Writer``; the test answers each batch."""

    kind = "hand"
    images = staticmethod(images)

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.listener: Any = None

    def start(self, listener: Any) -> None:
        self.listener = listener

    def submit(self, batch: Any) -> None:
        self.batches.append(batch)

    def wait(self, timeout_ms: float) -> None:  # noqa: ARG002  # it answers at once
        self.commit()

    def close(self, timeout_ms: float) -> None:
        pass

    def commit(self, dropped: list[tuple[Any, str]] | None = None) -> None:
        """Say that the newest batch has been committed."""
        self.listener.on_outcome((self.batches[-1][0], None, "", dropped or []))

    def fail(self, kind: str = "other", text: str = "IOError: disk I/O error") -> None:
        """Say that the newest batch could not be committed."""
        self.listener.on_outcome((self.batches[-1][0], kind, text, []))

    def rows(self, table: str) -> list[list[Any]]:
        """Return the rows of the newest batch for a table."""
        _, _, upserts, _, _ = self.batches[-1]
        found = []
        for head, width, values in upserts:
            if head.split("(")[0].split()[-1] == table or f" {table} " in head:
                found += [values[at : at + width] for at in range(0, len(values), width)]
        return found

    @property
    def removed(self) -> list[int]:
        """Admission numbers that the newest batch removes."""
        return list(self.batches[-1][4])
