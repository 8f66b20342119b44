"""The executor ``process``: a thread or greenlet per slot waits for its child.

To the rest of the worker that thread or greenlet is the handler's: what the child says there it
does here, so events, outcomes and leases are those of every other executor.
"""

from __future__ import annotations

import logging
from typing import Any

from bunqueue.client.executors import Executor
from bunqueue.client.job import Job
from bunqueue.client.sandbox.messages import KINDS, Message
from bunqueue.client.sandbox.process import ChildDied, ChildDiedBefore, ChildTooSlow
from bunqueue.client.sandbox.slots import Slot, Slots
from bunqueue.errors import (
    BunqueueError,
    DelayedError,
    JobTimeoutError,
    UnrecoverableError,
)

log = logging.getLogger("bunqueue.worker")


class HandlerFailed(Exception):
    """A handler raised in its child.

    Attributes:
        stack_lines: The traceback there, for the job.
    """

    def __init__(self, text: str, stack_lines: list[str] | None) -> None:
        super().__init__(text)
        self.stack_lines = stack_lines


class WorkerCrashed(BunqueueError):
    """The child ended in the middle of the job."""


class Abandoned(BunqueueError):
    """The waiting side of a job was interrupted, and its child killed."""


class SandboxExecutor:
    """Runs deliveries in the children of ``slots``.

    Args:
        slots: The children.
        tasks: Runs the waiting side of each delivery.
        timeout_ms: How long a job may run; 0 for ever.
    """

    def __init__(self, slots: Slots, tasks: Executor, timeout_ms: float) -> None:
        self.slots = slots
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._running: dict[str, Slot] = {}

    def submit(self, delivery: Any) -> None:
        """Run a delivery soon."""
        self._tasks.submit(delivery)

    def interrupt(self, delivery: Any) -> bool:
        """Kill the child that runs a delivery."""
        slot = self._running.get(delivery.id)
        if slot is None:
            return False
        self.slots.kill(slot)
        return True

    def close(self) -> None:
        """End the children. Waits."""
        self.slots.close()
        self._tasks.close()

    # -- the handler, as the worker calls it ----------------------------------------------------

    def handle(self, job: Job[Any], _context: Any) -> Any:
        """Run a job in a child. Waits.

        Raises:
            HandlerFailed: The handler raised.
            WorkerCrashed: The child died.
            JobTimeoutError: It took too long.
        """
        while (slot := self.slots.take()) is not None:
            try:
                return outcome(self._run_in(slot, job))
            except ChildDiedBefore:
                continue  # it ended while it was idle: the next one
        job.move_to_wait()  # no child will come any more: the job is for somebody else
        return None

    def _run_in(self, slot: Slot, job: Job[Any]) -> Message:
        died: BunqueueError | None = None
        self._running[job.id] = slot
        try:
            job.signal.raise_if_aborted()
            return self._run(slot, job)
        except (JobTimeoutError, WorkerCrashed, Abandoned, ChildDiedBefore) as error:
            died = error
            raise
        finally:
            self._running.pop(job.id, None)
            self.slots.give_back(slot, died)

    def _run(self, slot: Slot, job: Job[Any]) -> Message:
        child = slot.child
        assert child is not None
        try:
            return child.run(
                job.raw, self._timeout_ms, job.signal, lambda message: self._hear(job, message)
            )
        except ChildTooSlow:
            raise JobTimeoutError(f"job exceeded {self._timeout_ms:g} ms") from None
        except ChildDiedBefore:
            raise
        except ChildDied as error:
            raise WorkerCrashed(f"Worker crashed: {error}") from None
        except BaseException as error:
            # This side was interrupted, or cannot speak of the job: the child is of no use now.
            child.kill()
            raise Abandoned(f"{type(error).__name__}: {error}") from error

    def _hear(self, job: Job[Any], message: Message) -> None:
        try:
            if "progress" in message:
                job.update_progress(message["progress"], message["message"])
            else:
                job.log(message["log"], message["level"])
        except BunqueueError as error:
            log.warning("message of a sandboxed job lost job=%s error=%s", job.id, error)


def outcome(answer: Message) -> Any:
    """Return the result that a child tells, or raise what its handler raised."""
    if "done" in answer:
        return answer["done"]
    kind = KINDS.get(answer["kind"] or "")
    if kind is DelayedError:
        raise DelayedError(answer["delay_ms"])
    if kind is UnrecoverableError:
        error: BaseException = UnrecoverableError(answer["failed"])
        error.stack_lines = answer["stack"]  # type: ignore[attr-defined]  # read by requests.failed
        raise error
    if kind is not None:
        raise kind(answer["failed"])
    raise HandlerFailed(answer["failed"], answer["stack"])
