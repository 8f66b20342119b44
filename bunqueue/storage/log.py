"""The mutation log: what changed since the last batch, and who waits for it to be written.

The engine notes jobs, not rows. A noted job stands once in ``_dirty``, however often it changes,
and its bits say what the file lacks of it; when the writer is free, a *cut* turns all of it into
one numbered batch, the image of every job as it is at that moment. One batch is in flight at a
time: whatever comes meanwhile is the next one. So a busy broker writes few large transactions and
an idle one writes at once, without a knob.

When is a cut? At the end of the loop's turn if an answer waits for it, or if 100 rows do; else 10
ms after the first note. While a batch is in flight, when it is answered.

If a commit fails, nothing of that batch is in the file. All operations since then are undone,
newest first, those of later batches too: they acted on what is not there. Their answers are told
so. The jobs of the batch become dirty again and are tried again, as they are after the undoing,
with growing pauses. Plain pushes, whose answer has left, survive in memory that way.

A row that the file refuses, and always will, is left out of a commit that succeeds; its job is
dropped. The answers of that batch are told its id, and so are those of the next one that were
given while it was in flight: they could rely on it as well.

Nothing here waits; the writer (``process.py`` or ``thread.py``) does.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.ports import BODY, NEW, NO_WAIT, REMOVED, Committed
from bunqueue.errors import StorageFailed
from bunqueue.storage import cures, schema, writer
from bunqueue.storage.batch import (
    NO_IMAGE,
    Puts,
    small_statements,
    upsert_small,
    without_image,
)
from bunqueue.storage.loop import Callback, Loop
from bunqueue.storage.notes import Notes, Op, bits_of, clear_bits
from bunqueue.storage.ports import Writer

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

log = logging.getLogger(__name__)

FLUSH_MS: Final = 10  # how long a plain push may stay in memory alone, engine.md 11.1
FLUSH_ROWS: Final = 100  # rows that need not wait that long, engine.md 11.2
CONGESTED_ROWS: Final = 10_000  # a batch of them takes the hub some ms to cut and to send
CONGESTED_BYTES: Final = 64 << 20  # performance.md 6.3
CONGESTED_MS: Final = 1000  # age of a batch in flight from which the disk counts as slow
SUBMITTED_AT_ONCE_ROWS: Final = 2_500  # a larger batch goes to the writer a turn after it was cut
SILENT_MS: Final = 5000  # age of a batch in flight from which no work should be sent here
REFUSED_ROWS: Final = 100_000  # engine.md 11.2
REFUSED_BYTES: Final = 512 << 20  # the same for large payloads, so that a full disk cannot end us
RETRY_MS: Final = 100  # doubles with every failure, engine.md 11.2
RETRY_MS_MAX: Final = 30_000  # engine.md 11.2
RETRY_MS_ASKED: Final = 250  # while an answer waits: its client gives up after seconds
SEQ_BLOCK: Final = 100_000  # admission numbers reserved in the file at a time
FLUSH_MS_MAX: Final = 30_000  # how long a shutdown waits for the disk

_ALL_BUT_REMOVED: Final = ~REMOVED
_WHOLE: Final = NEW | BODY
_ANYTHING: Final = 1  # the first note decides when to write
_NOTHING: Final = sys.maxsize


class _InFlight:
    """A batch that has been submitted, and all that depends on it."""

    __slots__ = (
        "number", "jobs", "bits", "puts", "ops", "has_thens", "held", "size_bytes", "meta", "at",
        "dropped",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        jobs: "list[Job]",
        puts: Puts,
        ops: list[Op],
        has_thens: bool,
        held: list[Callable[[Committed], None]],
        size_bytes: int,
        meta: tuple[bool, int],
    ) -> None:
        """Args: meta: what the log knew to be in ``meta`` before this batch."""
        self.number = number
        self.jobs = jobs
        self.bits = bits_of(jobs)
        self.puts = puts
        self.ops = ops
        self.has_thens = has_thens
        self.held = held
        self.size_bytes = size_bytes
        self.meta = meta
        self.at = time.monotonic()
        self.dropped: list[str] = []  # ids of the jobs whose rows no file takes


class MutationLog(Notes):
    """Fulfils ``ports.Storage`` but for ``load``, in front of a ``Writer``.

    Attributes:
        answer_waits, is_persistent, is_refusing, before_cut: See ``ports.Storage``.
        on_dropped: Told of a job whose row no disk will ever take; it must leave memory too.
            Returns those that were admitted on the strength of it, and must go with it.
        on_fatal: Told that nothing can be written any more; the broker has to end.
    """

    is_persistent = True
    _unsubmitted: Any = None  # a batch that was cut, and not with the writer yet

    def __init__(
        self,
        writer: Writer,
        loop: Loop,
        seq_reserved: int = 0,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Args: seq_reserved: no admission number above it is known to the file."""
        super().__init__(_ANYTHING, REFUSED_BYTES)
        self.before_cut: Callable[[], None] | None = None
        self.on_dropped: Callable[[Job, str], Iterable[Job]] | None = None
        self.on_fatal: Callable[[str], None] | None = None
        self._writer = writer
        self._images = writer.images
        self._loop = loop
        self._clock_ms = clock_ms
        # What has been noted and is not in flight.
        self._puts: Puts = {}
        self._held: list[Callable[[Committed], None]] = []
        # When to write it.
        self._has_timer = False
        self._is_due = False  # the timer went off while a batch was in flight
        # What became of it.
        self._in_flight: _InFlight | None = None  # read by the notes
        self._number = 0
        self._seq_reserved = self._seq_highest = seq_reserved
        self._is_marked_unclean = False
        self._failures = 0
        self._retry: Callback | None = None
        self._is_retry_quick = False
        self._error: str | None = None
        self._error_kind: str | None = None
        self._error_since: int | None = None
        self._full_since: int | None = None  # a commit found no room, and there was none since
        self._is_lost = False
        self._relief: list[Callback] = []

    # -- notes: once per job and move, so flat -----------------------------------------------------

    def rewritten(self, job: "Job") -> None:
        """Note a change of what was given at admission: payload, options, priority, keys, edges."""
        dirty = job.dirty
        job.dirty = dirty & _ALL_BUT_REMOVED | BODY
        if not dirty:
            self._dirty.append(job)
        if not dirty & _WHOLE:  # else its payload is counted: an undo may note it once more
            self._size_bytes += len(job.data)
        if len(self._dirty) >= self._rows_mark:
            self._reached()

    def put(self, table: str, key: str, values: tuple[Any, ...]) -> None:
        """Note a row of a small table."""
        assert len(values) + 1 == schema.WIDTHS[table], f"{table} rows have other columns"
        self._puts[table, key] = values
        if self._rows_mark == _ANYTHING:
            self._reached()

    def delete(self, table: str, key: str) -> None:
        """Note that a row of a small table is gone."""
        self._puts[table, key] = None
        if self._rows_mark == _ANYTHING:
            self._reached()

    def hold(self, deliver: Callable[[Committed], None]) -> None:
        """Call ``deliver`` with what became of it after the commit of what was logged until now."""
        self._held.append(deliver)
        if not self._is_soon and self._in_flight is None:
            self._wake()

    def follow(self, deliver: Callable[[Committed], None]) -> None:
        """As ``hold``, without hurrying the commit."""
        self._held.append(deliver)
        if self._rows_mark == _ANYTHING:
            self._reached()

    # -- the backlog -------------------------------------------------------------------------------

    @property
    def backlog_rows(self) -> int:
        """Jobs noted and not committed."""
        in_flight = self._in_flight
        return len(self._dirty) + (len(in_flight.jobs) if in_flight is not None else 0)

    def sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return name -> entries of what waits for the disk, and name -> bytes."""
        in_flight = self._in_flight
        flying = ({}, [], [], 0) if in_flight is None else (
            in_flight.puts, in_flight.ops, in_flight.held, in_flight.size_bytes
        )  # fmt: skip
        puts, ops, held, size_bytes = flying
        entries = {
            "backlog_jobs": self.backlog_rows,
            "backlog_rows": len(self._puts) + len(puts),
            "backlog_operations": len(self._ops) + len(ops),
            "backlog_answers": len(self._held) + len(held),
            "backlog_readers": len(self._relief),
        }
        return entries, {"backlog": self._size_bytes + size_bytes}

    @property
    def is_congested(self) -> bool:
        """Whether connections should not be read from until ``on_relief`` calls.

        Not while commits fail: then plain pushes are served from memory, up to ``is_refusing``.
        """
        if self._failures or self._is_lost:
            return False
        rows, size_bytes = len(self._dirty), self._size_bytes
        in_flight = self._in_flight
        if in_flight is not None:
            rows += len(in_flight.jobs)
            size_bytes += in_flight.size_bytes
        return rows >= CONGESTED_ROWS or size_bytes >= CONGESTED_BYTES or self.is_hanging

    @property
    def is_hanging(self) -> bool:
        """Whether the congestion is that of a disk which does not answer."""
        in_flight = self._in_flight
        if in_flight is None or self._failures:
            return False
        return (time.monotonic() - in_flight.at) * 1000 >= CONGESTED_MS

    def on_relief(self, callback: Callback) -> None:
        """Call ``callback`` once, as soon as there is room in the backlog."""
        if self.is_congested:
            self._relief.append(callback)
        else:
            callback()

    def with_cure(self, text: str) -> str:
        """Return the text of a writer's error with what to do about it."""
        return text

    def is_disk_full(self) -> bool:
        """Say whether there is no room left where it is written."""
        return False

    def status(self) -> dict[str, Any]:
        """Return ``{"diskFull": bool, "error": str | None, "since": epoch ms | None}``.

        A disk that was full stays so until it has room: small commits may fit into what SQLite has
        of it already, but the next large one will not.
        """
        error, since = self._error, self._error_since
        if error is None and self._full_since is not None:
            if self.is_disk_full():
                text = f"no room is left, although small changes fit; {cures.ROOM}"
                return {"diskFull": True, "error": text, "since": self._full_since}
            self._full_since = None
        in_flight = self._in_flight
        if error is None and in_flight is not None:
            silent_ms = int((time.monotonic() - in_flight.at) * 1000)
            if silent_ms >= SILENT_MS:
                error = f"the disk has not answered for {silent_ms} ms"
                since = self._clock_ms() - silent_ms
        return {"diskFull": self._error_kind == writer.FULL, "error": error, "since": since}

    # -- when to write -----------------------------------------------------------------------------

    def _reached(self) -> None:
        """Look at a mark that the dirty jobs or their bytes have reached."""
        rows = len(self._dirty)
        if rows >= REFUSED_ROWS or self._size_bytes >= REFUSED_BYTES:
            if not self.is_refusing:
                self.is_refusing = True
                log.error("refusing pushes: too much waits for the disk rows=%d", rows)
            self._rows_mark = self._bytes_mark = _NOTHING
        elif self._in_flight is not None or self._is_soon or self._failures:
            self._rows_mark = REFUSED_ROWS
        elif rows >= FLUSH_ROWS:
            self._wake()
        else:
            self._rows_mark = FLUSH_ROWS
            if not self._has_timer:
                self._has_timer = True
                self._loop.call_later(FLUSH_MS, self._on_timer)

    def _on_timer(self) -> None:
        self._has_timer = False
        if self._in_flight is not None:
            self._is_due = True
        elif not self._failures:
            self._flush()

    def _wake(self) -> None:
        """Write at the end of the loop's turn, or soon after the present trouble."""
        if not self._failures:
            self._is_soon = True
            if self._rows_mark < REFUSED_ROWS:
                self._rows_mark = REFUSED_ROWS
            self._loop.call_soon(self._on_turn_end)
        elif self._is_lost:
            self._is_soon = True
            self._loop.call_soon(self._fail_all)
        elif not self._is_retry_quick:
            self._is_retry_quick = True
            self._retry_after(min(RETRY_MS_ASKED, self._retry_ms()))

    def _on_turn_end(self) -> None:
        if self._is_lost:
            self._fail_all()
            return
        self._is_soon = False
        self._flush()

    def _flush(self) -> None:
        """Cut a batch and submit it, unless one is in flight."""
        if self._in_flight is not None or self._is_lost:
            return
        while self._dirty or self._puts or self._ops or self._held:
            batch = self._cut()
            in_flight = self._in_flight
            assert in_flight is not None
            if batch is not None:
                self._rows_mark = REFUSED_ROWS if not self.is_refusing else _NOTHING
                if len(in_flight.jobs) < SUBMITTED_AT_ONCE_ROWS:
                    self._writer.submit(batch)
                else:
                    self._unsubmitted = batch
                    self._loop.call_later(0, self._submit)
                return
            # Nothing to write: what waited has nothing to wait for.
            self._in_flight = None
            self._finish(in_flight)
        if not self.is_refusing:
            self._rows_mark = _ANYTHING

    def _submit(self) -> None:
        """Submit the batch that was cut in an earlier turn."""
        batch, self._unsubmitted = self._unsubmitted, None
        if batch is not None:
            self._writer.submit(batch)

    def _cut(self) -> Any:
        """Move what has been noted into flight; returns the batch, or None if no row came of it."""
        if self.before_cut is not None:
            self.before_cut()
        jobs, ops, has_thens, is_durable, size_bytes = self.taken()
        self._number += 1
        in_flight = self._in_flight = _InFlight(
            self._number,
            jobs,
            self._puts,
            ops,
            has_thens,
            self._held,
            size_bytes,
            (self._is_marked_unclean, self._seq_reserved),
        )
        self._puts, self._held = {}, []
        self._is_due = False
        imageless: list[tuple[Job, str]] = []
        images = self._images
        try:
            made = images(jobs)
        except NO_IMAGE:
            imageless = without_image(images, jobs)
            made = images([job for job in jobs if all(job is not bad for bad, _ in imageless)])
        clear_bits(jobs)
        for job, text in imageless:
            self._drop(in_flight, job, text)
        upserts, deletes = small_statements(in_flight.puts) if in_flight.puts else ([], [])
        if made.is_empty and not upserts and not deletes:
            return None
        highest = made.highest_seq
        if highest > self._seq_highest:
            self._seq_highest = highest
        if highest > self._seq_reserved or not self._is_marked_unclean:
            self._add_meta(highest, upserts)
        return made.batch(self._number, is_durable, upserts, deletes)

    def _add_meta(self, highest: int, upserts: writer.Rows) -> None:
        """Mark the file as in use, and reserve admission numbers ahead of those it holds."""
        meta: list[Any] = []
        if not self._is_marked_unclean:
            self._is_marked_unclean = True
            meta += (schema.META_CLEAN, 0)
        if highest > self._seq_reserved:
            self._seq_reserved = highest + SEQ_BLOCK
            meta += (schema.META_SEQ, self._seq_reserved)
        if meta:
            upserts.append(upsert_small(schema.META.name, meta))

    # -- what became of it -------------------------------------------------------------------------

    def on_outcome(self, outcome: writer.Outcome) -> None:
        """Take the writer's answer to the batch in flight."""
        number, kind, text, dropped = outcome
        in_flight = self._in_flight
        if in_flight is None or in_flight.number != number:
            return  # a batch that was sent twice, to two writers
        if kind == writer.DAMAGED:
            self.on_writer_lost(self.with_cure(text))
            return
        if kind is not None:
            self._failed(in_flight, kind, text)
            return
        self._in_flight = None
        if self._error is not None:
            log.warning("storage works again since_ms=%s", self._error_since)
            self._failures = 0
            self._error = self._error_kind = self._error_since = None
            self._is_retry_quick = False
        if self.is_refusing:
            self.is_refusing = False
            self._bytes_mark = REFUSED_BYTES
        if dropped:
            self._drop_rows(in_flight, dropped)
        self._finish(in_flight)

    def _finish(self, in_flight: _InFlight) -> None:
        """Let everything that waited for a committed batch go on, and write what came meanwhile."""
        ops = iter(in_flight.ops if in_flight.has_thens else ())
        try:
            for _, args, then in ops:
                if then is not None:
                    then(*args)
        except BaseException:
            # One that raises must not cost the others their answer.
            in_flight.ops = list(ops)
            self._loop.call_soon(partial(self._finish, in_flight))
            raise
        self.answer_waits = NO_WAIT  # as after undos: the next answer is another's
        if self._in_flight is None:
            rows = len(self._dirty)
            if self._held or self._ops or self._is_due or rows >= FLUSH_ROWS:
                if not self._is_soon:
                    self._is_soon = True
                    self._loop.call_soon(self._on_turn_end)
            elif not self.is_refusing:
                self._rows_mark = _ANYTHING
                if rows or self._puts:
                    self._reached()
        dropped = in_flight.dropped
        self._deliver(in_flight.held, frozenset(dropped) if dropped else True)
        if self._relief and not self.is_congested:
            relief, self._relief = self._relief, []
            self._call_all(relief)

    def _failed(self, in_flight: _InFlight, kind: str, text: str) -> None:
        """Undo all that is not in the file, and try the rest again later."""
        self._in_flight = None
        text = self.with_cure(text)
        if self._error is None:
            self._error_since = self._clock_ms()
        if self._error != text:
            log.error("a commit failed: %s rows=%d", text, len(in_flight.jobs))
        self._error, self._error_kind = text, kind
        if kind == writer.FULL and self._full_since is None:
            self._full_since = self._error_since
        self._failures += 1
        self._is_retry_quick = False
        self._take_back(in_flight)
        self._rows_mark = REFUSED_ROWS if not self.is_refusing else _NOTHING
        self._retry_after(self._retry_ms())
        relief, self._relief = self._relief, []
        self._call_all(relief)

    def _take_back(self, in_flight: _InFlight) -> None:
        """Make everything of a failed batch dirty again, run the undos, tell the answers."""
        self._size_bytes += in_flight.size_bytes
        for job, bits in zip(in_flight.jobs, in_flight.bits, strict=True):
            since = job.dirty
            if not since:
                job.dirty = bits
                self._dirty.append(job)
            elif bits & REMOVED and not since & REMOVED:
                job.dirty = since | bits & _ALL_BUT_REMOVED
            else:
                job.dirty = since | bits
        self._puts = in_flight.puts | self._puts
        self._is_marked_unclean, self._seq_reserved = in_flight.meta
        self._undo(in_flight.ops + self._ops, in_flight.held + self._held)

    def _undo(self, ops: list[Op], held: list[Callable[[Committed], None]]) -> None:
        self._ops, self._held = [], []
        self._is_durable = False
        newest_first = reversed(ops)
        try:
            for undo, args, _ in newest_first:
                if undo is not None:
                    undo(*args)
        except BaseException:
            rest = list(newest_first)
            rest.reverse()
            self._loop.call_soon(partial(self._undo, rest, held))
            raise
        # An undo's own wish to be synced has no answer behind it.
        self._ops.clear()
        self.answer_waits = NO_WAIT
        self._deliver(held, False)

    def _retry_ms(self) -> float:
        return min(RETRY_MS_MAX, RETRY_MS * 2.0 ** (self._failures - 1))

    def _retry_after(self, delay_ms: float) -> None:
        if self._retry is not None:
            self._retry()
        self._retry = self._loop.call_later(delay_ms, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._is_retry_quick = False
        self._flush()
        if self._in_flight is None and not self._is_lost:
            # The undos have left no row to try again; only a write can tell that all is well.
            self._puts[schema.META.name, schema.META_CLEAN] = (0,)
            self._flush()

    def _drop_rows(self, in_flight: _InFlight, dropped: list[tuple[Any, str]]) -> None:
        jobs = {job.seq: job for job in in_flight.jobs}
        held, self._held = self._held, []
        for key, text in dropped:
            job = jobs.get(key)
            if job is not None:
                self._drop(in_flight, job, text)
            else:
                log.error("a row was refused by the file and left out key=%r: %s", key, text)
        # Answers that wait for the next batch may rely on them too; not on an id that is new again.
        lost = frozenset(in_flight.dropped) - _ids_to_come(self._dirty)
        if lost:
            held = [partial(_told_of, lost, deliver) for deliver in held]
        self._held = held + self._held
        # Who came and went within the batch may have made room for one that is refused.
        pairs = list(zip(in_flight.jobs, in_flight.bits, strict=True))
        there = {job.id for job, bits in pairs if not bits & REMOVED}
        gone = [job.id for job, bits in pairs if bits & REMOVED and bits & NEW]
        in_flight.dropped += [job_id for job_id in gone if job_id not in there]

    def _drop(self, in_flight: _InFlight, job: "Job", text: str) -> None:
        """Let go of a job that no disk will take; whatever the file has of it goes too.

        With it go those that were admitted on the strength of it.
        """
        log.error("a job cannot be stored and was dropped id=%s: %s", job.id, text)
        dropped = [job]
        for each in dropped:
            in_flight.dropped.append(each.id)
            if self.on_dropped is not None:
                dropped += self.on_dropped(each, text)
                self.answer_waits = NO_WAIT
            self.removed(each)
        if len(dropped) > 1:
            log.error("jobs that rely on it were dropped with it count=%d", len(dropped) - 1)

    def on_writer_down(self, why: str) -> None:
        """Refuse pushes until the next writer has answered."""
        log.error("the writer has died and is being replaced: %s", why)
        if self._error is None:
            self._error_since = self._clock_ms()
        self._error, self._error_kind = why, writer.OTHER
        self.is_refusing = True
        self._rows_mark = self._bytes_mark = _NOTHING

    def on_writer_up(self) -> None:
        """Take pushes again: the new writer has opened the file."""
        if self._failures:
            return
        self._error = self._error_kind = self._error_since = None
        self.is_refusing = False
        self._bytes_mark = REFUSED_BYTES
        self._rows_mark = REFUSED_ROWS
        if self._in_flight is None and not self._is_soon:
            self._rows_mark = _ANYTHING
            if self._dirty or self._puts:
                self._reached()

    def on_writer_lost(self, why: str) -> None:
        """Give up: nothing can be written any more."""
        log.critical("nothing can be written any more: %s", why)
        if self._error is None:
            self._error_since = self._clock_ms()
        self._error, self._error_kind = why, writer.OTHER
        self._is_lost = True
        self._failures += 1
        self.is_refusing = True
        self._rows_mark = self._bytes_mark = _NOTHING
        in_flight, self._in_flight = self._in_flight, None
        self._unsubmitted = None
        if in_flight is not None:
            self._take_back(in_flight)
        else:
            self._undo(self._ops, self._held)
        relief, self._relief = self._relief, []
        self._call_all(relief)
        if self.on_fatal is not None:
            self.on_fatal(why)

    def _fail_all(self) -> None:
        self._is_soon = False
        self._undo(self._ops, self._held)

    def _deliver(self, held: list[Callable[[Committed], None]], committed: Committed) -> None:
        rest = iter(held)
        try:
            for deliver in rest:
                deliver(committed)
        except BaseException:
            self._loop.call_soon(partial(self._deliver, list(rest), committed))
            raise

    def _call_all(self, callbacks: Iterable[Callback]) -> None:
        """Call all, also those behind one that raises."""
        rest = iter(callbacks)
        try:
            for callback in rest:
                callback()
        except BaseException:
            self._loop.call_soon(partial(self._call_all, list(rest)))
            raise

    # -- the end -----------------------------------------------------------------------------------

    def flush(self, timeout_ms: float = FLUSH_MS_MAX) -> None:
        """Waits until everything noted is in the file, held answers included.

        Raises:
            StorageFailed: It could not be written.
        """
        end = time.monotonic() + timeout_ms / 1000
        failures = self._failures
        while True:
            self._flush()
            self._submit()
            if self._in_flight is None and not self._is_lost:
                return
            left_ms = (end - time.monotonic()) * 1000
            if not self._is_lost and left_ms > 0:
                self._writer.wait(left_ms)
            if self._failures > failures or self._is_lost:
                raise StorageFailed(f"not everything could be written: {self._error}")
            if left_ms <= 0:
                raise StorageFailed(f"the disk did not answer within {timeout_ms:.0f} ms")


def _ids_to_come(jobs: "list[Job]") -> set[str]:
    """Return the ids of those of the noted jobs that are new."""
    return {job.id for job in jobs if job.dirty & NEW and not job.dirty & REMOVED}


def _told_of(
    ids: frozenset[str], deliver: Callable[[Committed], None], committed: Committed
) -> None:
    """Deliver what became of a commit, and which jobs the one before it has dropped."""
    if committed:
        deliver(ids if committed is True else ids | committed)
    else:
        deliver(False)
