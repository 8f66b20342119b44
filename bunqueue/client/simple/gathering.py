"""Batches of Simple Mode: jobs that run side by side are handed to one call together.

Each job waits in its slot, so full batches need as many slots. Whoever completes a batch runs it;
the first of an incomplete one does once ``timeout`` is over, so no timer is needed and the user's
function runs where handlers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.job import Job
from bunqueue.client.simple.settings import Settings
from bunqueue.errors import JobCancelledError

KEYS = ("size", "timeout", "processor")
TIMEOUT_MS_DEFAULT = 5000

BatchProcessor = Callable[[list[Job[Any]]], Sequence[Any] | None]


class Member:
    """One job on its way into a batch."""

    __slots__ = ("error", "gate", "is_done", "job", "result", "since")

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        self.gate = worlds.current().gate()
        self.since = worlds.now()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False

    def settle(self, result: Any, error: BaseException | None = None) -> None:
        """Hand the outcome over and wake the job's handler."""
        self.result, self.error = result, error
        self.is_done = True
        self.gate.open()


class Gathering:
    """Collects jobs and runs them together.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings("batch", config, KEYS)
        if settings.value("size") is None:
            raise ValueError("batch size is required")
        self._size = settings.whole("size", 0)
        self._timeout_s = settings.number("timeout", TIMEOUT_MS_DEFAULT) / 1000
        processor = settings.function("processor")
        if processor is None:
            raise TypeError("batch processor must be callable")
        self._processor: BatchProcessor = processor
        self._lock = worlds.native_lock()  # nothing waits inside
        self._waiting: list[Member] = []
        self._is_closing = False

    def run(self, job: Job[Any], _context: Any) -> Any:
        """Return the job's part of its batch's results. Waits for the batch."""
        member = Member(job)
        batch: list[Member] = []
        with self._lock:
            self._waiting.append(member)
            if len(self._waiting) >= self._size or self._is_closing:
                batch = self._take_locked()
        try:
            if batch:
                self._run(batch)
            job.signal.on_abort(member.gate.open)
            while not member.is_done:
                self._wait(member)
        except BaseException:  # thrown into this task from outside
            self._take_back(member)
            raise
        if member.error is not None:
            raise member.error
        return member.result

    def _wait(self, member: Member) -> None:
        """Wait for the outcome; run what there is when it is time."""
        left_s = member.since + self._timeout_s - worlds.now()
        if left_s > 0:
            member.gate.wait(left_s)
        else:
            batch: list[Member] = []
            with self._lock:
                if member in self._waiting:
                    batch = self._take_locked()
            if batch:
                self._run(batch)
            elif not member.is_done:
                member.gate.wait()  # another one runs it
        if member.job.signal.aborted and not member.is_done and self._take_back(member):
            member.job.signal.raise_if_aborted()

    def _take_back(self, member: Member) -> bool:
        """Take out a job whose batch is not complete; False if it runs: its outcome is to come."""
        with self._lock:
            is_waiting = member in self._waiting
            if is_waiting:
                self._waiting.remove(member)
        return is_waiting

    def _take_locked(self) -> list[Member]:
        batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
        return batch

    def _run(self, batch: list[Member]) -> None:
        try:
            results = self._processor([member.job for member in batch])
            found = list(results) if results is not None else []
        except Exception as error:
            for member in batch:
                member.settle(None, error)
            return
        except BaseException:  # one job of it was interrupted, and with it the call for all
            for member in batch:
                member.settle(None, JobCancelledError("the batch was interrupted"))
            raise
        for index, member in enumerate(batch):
            member.settle(found[index] if index < len(found) else None)

    def hurry(self) -> None:
        """Wait for no further jobs: run what has gathered, and each later one at once."""
        with self._lock:
            self._is_closing = True
            for member in self._waiting:
                member.since -= self._timeout_s
                member.gate.open()
