"""What has changed, as the engine notes it: once per job and move, so flat.

A noted job stands once in ``_dirty``, however often it changes, and its bits say what the file
lacks of it. ``_reached`` and ``_wake`` are the log's: they decide when to write.
Where the compiled core runs, ``Notes`` is its own with the same attributes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bunqueue import compiled
from bunqueue.engine.ports import BODY, MUST_COMMIT, NEW, NO_WAIT, REMOVED, SHOULD_COMMIT, STATE

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

Op = tuple[Callable[..., None] | None, tuple[Any, ...], Callable[..., None] | None]

_ALL_BUT_REMOVED: Final = ~REMOVED


class Notes:
    """The jobs that have been noted and are not in flight, and what waits for their commit.

    Attributes:
        answer_waits, is_refusing: See ``ports.Storage``.
    """

    def __init__(self, rows_mark: int, bytes_mark: int) -> None:
        """Args: at how many dirty jobs, or bytes of them, ``_reached`` has something to do."""
        self.answer_waits = NO_WAIT
        self.is_refusing = False
        self._dirty: list[Job] = []
        self._append = self._dirty.append
        self._ops: list[Op] = []
        self._has_thens = False  # among the ops
        self._is_durable = False
        self._is_soon = False
        self._in_flight: Any = None  # the batch that has been submitted; the next one follows it
        self._size_bytes = 0
        self._rows_mark = rows_mark
        self._bytes_mark = bytes_mark

    def added(self, job: "Job") -> None:
        """Note a job that was never written before.

        A job that is already noted as written (an undo may say so to be safe) stays written.
        """
        dirty = job.dirty
        if not dirty:
            job.dirty = NEW
            self._append(job)
        elif dirty & NEW:
            job.dirty = dirty & _ALL_BUT_REMOVED
        else:
            job.dirty = dirty & _ALL_BUT_REMOVED | BODY | STATE
        size_bytes = self._size_bytes = self._size_bytes + len(job.data)
        if len(self._dirty) >= self._rows_mark or size_bytes >= self._bytes_mark:
            self._reached()

    def changed(self, job: "Job") -> None:
        """Note a change of the job's state row."""
        dirty = job.dirty
        if not dirty:
            job.dirty = STATE
            self._append(job)
            if len(self._dirty) >= self._rows_mark:
                self._reached()
        elif not dirty & STATE or dirty & REMOVED:
            job.dirty = dirty & _ALL_BUT_REMOVED | STATE

    def removed(self, job: "Job") -> None:
        """Note that the job is gone from the file."""
        dirty = job.dirty
        job.dirty = dirty | REMOVED
        if not dirty:
            self._append(job)
            if len(self._dirty) >= self._rows_mark:
                self._reached()

    def sync(
        self,
        undo: Callable[..., None] | None = None,
        args: tuple[Any, ...] = (),
        then: Callable[..., None] | None = None,
        durable: bool = False,
    ) -> None:
        """Let the running operation's answer wait for the commit of what was logged until now."""
        self.answer_waits = MUST_COMMIT
        if undo is not None or then is not None:
            self._ops.append((undo, args, then))
            if then is not None:
                self._has_thens = True
        if durable:
            self._is_durable = True
        if not self._is_soon and self._in_flight is None:
            self._wake()

    def taken(self) -> "tuple[list[Job], list[Op], bool, bool, int]":
        """Return what has been noted until now, and begin anew.

        Returns:
            Jobs, ops, whether one of them has a ``then``, whether to sync, bytes of payload.
        """
        taken = self._dirty[:], self._ops, self._has_thens, self._is_durable, self._size_bytes
        self._dirty.clear()
        self._ops = []
        self._has_thens = self._is_durable = False
        self._size_bytes = 0
        return taken

    def claimed(self) -> None:
        """Let the running operation's answer wait for the commit, but leave even if that fails."""
        if not self.answer_waits:
            self.answer_waits = SHOULD_COMMIT
        if not self._is_soon and self._in_flight is None:
            self._wake()

    def _reached(self) -> None:
        """Look at a mark that the dirty jobs or their bytes have reached."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Write soon: an answer waits."""
        raise NotImplementedError


def bits_of(jobs: "list[Job]") -> bytes:
    """Return the dirty bits of jobs."""
    return bytes([job.dirty for job in jobs])


def clear_bits(jobs: "list[Job]") -> None:
    """Note jobs as written."""
    for job in jobs:
        job.dirty = 0


if not TYPE_CHECKING and compiled.IS_COMPILED:
    _records = compiled.part("records")
    Notes, bits_of, clear_bits = _records.Notes, _records.bits_of, _records.clear_bits
