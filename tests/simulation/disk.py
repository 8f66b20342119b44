"""A file, its writer and the loop between, all under the hand of one history.

The file is what was committed, kept as rows by table; a batch is carried out as SQLite would, from
the very statements that the log has made. The writer answers when the history says: at the end of
the turn, late, or with an error. Nothing here knows the engine.
"""

from __future__ import annotations

import heapq
import marshal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bunqueue.storage import schema, writer
from bunqueue.storage.ports import Images
from bunqueue.storage.rows import PLAIN_COLUMNS, PLAIN_STATE_COLUMNS, images, jobs_of

Row = tuple[Any, ...]

# Statement -> its table, its columns.
UPSERTS = {
    schema.upsert(schema.JOBS, PLAIN_COLUMNS): (schema.JOBS, PLAIN_COLUMNS),
    schema.upsert(schema.JOBS): (schema.JOBS, schema.JOBS.names),
    schema.upsert(schema.STATE, PLAIN_STATE_COLUMNS): (schema.STATE, PLAIN_STATE_COLUMNS),
    schema.upsert(schema.STATE): (schema.STATE, schema.STATE.names),
} | {schema.upsert(table): (table, table.names) for table in schema.SMALL_TABLES}
DELETES = {
    f"DELETE FROM {table.name} WHERE {table.names[0]} = ?": table.name
    for table in schema.SMALL_TABLES
}
NOT_NULL = {
    table.name: {
        column.split()[0]
        for column in table.columns
        if "NOT NULL" in column or "PRIMARY KEY" in column
    }
    for table in schema.TABLES
}
NO_STATE = (None,) * (len(schema.STATE.names) - 1)


class SimulatedFile:
    """Rows by table and key, as the last commit left them."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Row]] = {table.name: {} for table in schema.TABLES}

    def commit(self, batch: writer.Batch) -> None:
        """Carry out one batch: removals first, as the writer does."""
        _, _, upserts, deletes, removed = batch
        for table in (schema.JOBS.name, schema.STATE.name):
            for seq in removed:
                self.tables[table].pop(seq, None)
        for statement, width, values in deletes:
            assert width == 1
            for key in values:
                self.tables[DELETES[statement]].pop(key, None)
        for head, width, values in upserts:
            table, columns = UPSERTS[head]
            assert width == len(columns)
            rows = self.tables[table.name]
            for at in range(0, len(values), width):
                given = dict(zip(columns, values[at : at + width], strict=True))
                for name in NOT_NULL[table.name]:
                    assert given.get(name) is not None, f"{table.name}.{name} is NULL: {given}"
                rows[values[at]] = tuple(given.get(name) for name in table.names)

    def job_rows(self) -> Iterator[Row]:
        """Yield what ``SELECT_JOBS`` would."""
        states = self.tables[schema.STATE.name]
        for seq, row in sorted(self.tables[schema.JOBS.name].items()):
            state = states.get(seq)
            yield row + (NO_STATE if state is None else state[1:])


class SimulatedSaved:
    """Fulfils ``ports.Saved``."""

    def __init__(self, file: SimulatedFile, on_repair: Callable[[Any], None], now: int) -> None:
        meta = {key: row[1] for key, row in file.tables[schema.META.name].items()}
        self._file = file
        self._on_repair = on_repair
        self._now = now
        self.seq: int = max(
            meta.get(schema.META_SEQ, 0), max(file.tables[schema.JOBS.name], default=0)
        )
        self.was_clean = meta.get(schema.META_CLEAN, 1) == 1
        self.tables = {
            table.name: {key: row[1:] for key, row in file.tables[table.name].items()}
            for table in schema.SMALL_TABLES
            if table is not schema.META
        }

    def jobs(self, queue_of: Callable[[str], Any]) -> Iterator[Any]:
        """Yield the jobs as the real file gives them back."""
        return jobs_of(self._file.job_rows(), queue_of, self._now, self._on_repair)


class SimulatedLoop:
    """Fulfils ``Loop`` in a time of its own, in ms; nothing runs until the history says so."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._soon: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, list[Callable[[], None] | None]]] = []
        self._number = 0

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` at the end of the turn."""
        self._soon.append(fn)

    def call_later(self, delay_ms: float, fn: Callable[[], None]) -> Callable[[], None]:
        """Call ``fn`` after ``delay_ms``; returns what calls it off."""
        cell: list[Callable[[], None] | None] = [fn]
        self._number += 1
        heapq.heappush(self._timers, (self.ms + delay_ms, self._number, cell))

        def cancel() -> None:
            cell[0] = None

        return cancel

    def watch_readable(self, *_: Any) -> Callable[[], None]:
        """Refuse: the writer has no descriptor."""
        raise AssertionError("a simulated writer has no descriptor")

    watch_writable = watch_readable

    @property
    def next_at(self) -> float:
        """When the next timer goes off."""
        while self._timers and self._timers[0][2][0] is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else float("inf")

    def turn(self) -> None:
        """End the turn: run what was to run then, and the timers that are due."""
        soon, self._soon = self._soon, []
        for fn in soon:
            fn()
        while self.next_at <= self.ms:
            fn = heapq.heappop(self._timers)[2][0]
            assert fn is not None
            fn()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done at the end of this turn."""
        return not self._soon

    # What the log reads of the module ``time``.

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.ms / 1000


class SimulatedWriter:
    """Fulfils ``ports.Writer``.

    Attributes:
        mode: What becomes of the batches that are submitted from now on: ``quick`` commits at the
            end of the turn, ``slow`` after ``delay_ms``, ``failing`` fails after ``delay_ms``,
            ``dying`` commits or not, dies, and its successor is given the batch again.
        on_committed: Called with the number of a batch once it is in the file.
        failures, deaths, late: How often that was done.
    """

    kind = "simulated"

    def __init__(self, file: SimulatedFile, loop: SimulatedLoop) -> None:
        self.file = file
        self.mode = "quick"
        self.delay_ms = 0
        self.in_flight: writer.Batch | None = None
        self.on_committed: Callable[[int], None] = lambda _number: None
        self.commits = self.failures = self.deaths = self.late = 0
        self._loop = loop
        self._listener: Any = None

    def start(self, listener: Any) -> None:
        """Begin."""
        self._listener = listener

    def images(self, jobs: Iterable[Any]) -> Images:
        """Return the rows that the jobs need now."""
        return images(jobs)

    def submit(self, batch: writer.Batch) -> None:
        """Take the batch, as it goes through the socket."""
        assert self.in_flight is None, "two batches in flight"
        self.in_flight = marshal.loads(marshal.dumps(batch))
        if self.mode == "quick":
            self._loop.call_soon(self._commit)
        elif self.mode == "slow":
            self.late += 1
            self._loop.call_later(self.delay_ms, self._commit)
        elif self.mode == "failing":
            self._loop.call_later(self.delay_ms, self._fail)
        else:
            self._loop.call_later(self.delay_ms, self._die)

    def _commit(self) -> None:
        batch, self.in_flight = self.in_flight, None
        assert batch is not None
        self.commits += 1
        self.file.commit(batch)
        self.on_committed(batch[0])
        self._listener.on_outcome((batch[0], None, "", []))

    def _fail(self) -> None:
        batch, self.in_flight = self.in_flight, None
        assert batch is not None
        self.failures += 1
        self._listener.on_outcome((batch[0], writer.FULL, "FullError: disk is full", []))

    def _die(self) -> None:
        assert self.in_flight is not None
        self.deaths += 1
        if self.deaths % 2:  # it was in the file, only nobody was told
            self.file.commit(self.in_flight)
            self.on_committed(self.in_flight[0])
        self._listener.on_writer_down("the writer was killed")
        self._loop.call_later(1, self._replace)

    def _replace(self) -> None:
        self._listener.on_writer_up()
        self._commit()

    def crash(self, commits_last: bool) -> None:
        """Let the broker be gone; what the writer has been given may still be committed."""
        batch, self.in_flight = self.in_flight, None
        if batch is not None and commits_last and self.mode != "failing":
            self.file.commit(batch)
            self.on_committed(batch[0])

    def wait(self, timeout_ms: float) -> None:
        """Let time pass until the batch is answered."""
        end = self._loop.ms + timeout_ms
        while self.in_flight is not None and self._loop.ms < end:
            if self._loop.is_idle:
                self._loop.ms = min(end, max(self._loop.ms, self._loop.next_at))
            self._loop.turn()

    def close(self, timeout_ms: float) -> None:
        """Do nothing: a file in memory needs no closing."""
