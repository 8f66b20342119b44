"""The one connection that writes, and the process that owns it beside a server.

A batch is one transaction. It comes as plain tuples and lists with a number; the SQL was sent ahead
(``Setup``), so this module knows no table and imports nothing else of the package: the process
stays small. Run as a file it reads frames from its standard input, a socket: a length and a
marshalled value, first the set-up, then batches, and answers each by its number (the set-up has 0).
Neither side ever reads what somebody else could have written.

If the broker dies, what has been received is committed, then the input ends and so does the
process. Until then it holds the inherited descriptor of the file's lock, so no successor opens the
file early. A terminal's ^C reaches it with SIGINT blocked: the broker decides when it is over.

Why not a thread: a thread with a busy one beside it gets the interpreter lock back too late after
each row (950 of 75,000 rows in 1.5 s). The embedded engine, whose process is the application's,
uses ``Database`` in a native thread all the same, with many rows in each statement.
"""

import _socket  # without what the module around it brings
import marshal
import os
import select
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final

import apsw

# What is asked and what is answered; both must stay of marshal's types. Rows lie flat, one behind
# the other: (statement, up to VALUES or with its own placeholders; columns; values of all rows).
Rows = list[tuple[str, int, list[Any]]]
# (number, is_durable, upserts, deletes, removed seqs)
Batch = tuple[int, bool, Rows, Rows, list[int]]
# (number, kind of the error or None, its text, [(first column, text) of rows left out])
Outcome = tuple[int, str | None, str, list[tuple[Any, str]]]

LENGTH: Final = struct.Struct("<Q")
TIMEVAL: Final = struct.Struct("@ll")
READ_BYTES_MAX: Final = 1 << 20
# Of a small batch: room that malloc has at hand, not a mapping made and given back for each.
READ_BYTES: Final = 1 << 16

FULL: Final = "full"  # no room on the disk
OTHER: Final = "other"  # everything else that may go away by itself
DAMAGED: Final = "damaged"  # the file cannot be trusted; nothing more may be written to it

WAL_PAGES_IDLE: Final = 256  # 2 MiB: worth a checkpoint when nothing else is to be done
# 8 MiB: a checkpoint between two batches, which wait for it: 60-70 ms; with 64 MiB 250-430 ms at
# the same CPU per row (loadtests/micro_storage.py checkpoint).
WAL_PAGES_MAX: Final = 1024
WAL_PAGES_STEP: Final = 512  # next try, if a reader kept the log from being emptied
IDLE_MS: Final = 200
VALUES_BEFORE_REST: Final = 100_000  # some 10,000 rows: below it there is little to hand back
# Rows bound at once, 0.4 us a row less than one by one; and see above for a thread.
ROWS_PER_STATEMENT: Final = (512, 64, 8, 1)

# Rows that no repetition will make acceptable.
BAD_ROW: Final = (
    apsw.ConstraintError,
    apsw.TooBigError,
    apsw.MismatchError,
    OverflowError,
    UnicodeError,
    TypeError,
)


class Database:
    """The writing connection."""

    def __init__(self, path: str, setup: dict[str, Any]) -> None:
        """Open the file, whose tables exist already.

        Args:
            path: The file.
            setup: ``{"pragmas": {str: str | int}, "remove": [statements that take a range of seqs],
                "busy_ms": int}``.

        Raises:
            apsw.Error: It cannot be opened.
        """
        self._path = path
        self._remove: list[str] = setup["remove"]
        self._statements: dict[tuple[str, int, int], str] = {}
        self._is_full_sync = self._is_damaged = False
        self._wal_pages = 0
        self._checkpoint_at = WAL_PAGES_MAX
        self._values_written = 0  # since the last rest
        self._connection = connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(setup["busy_ms"])
        for name, value in setup["pragmas"].items():
            connection.pragma(name, value)
        self._execute = connection.cursor().execute  # of a new cursor each time: 1 us more
        self._view: apsw.Cursor | None = None
        # Replaces SQLite's own automatic checkpoint.
        connection.set_wal_hook(self._on_commit)

    def _on_commit(self, connection: apsw.Connection, name: str, pages: int) -> int:  # noqa: ARG002  # SQLite's call
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def write(self, batch: Batch) -> Outcome:
        """Commit the batch or nothing of it; rows that can never be stored are left out."""
        number, is_durable, _, _, _ = batch
        try:
            if is_durable != self._is_full_sync:
                self._connection.pragma("synchronous", "FULL" if is_durable else "NORMAL")
                self._is_full_sync = is_durable
            try:
                self._transact(batch, None)
            except BAD_ROW:
                self._roll_back()
                dropped: list[tuple[Any, str]] = []
                self._transact(batch, dropped)
                return number, None, "", dropped
        except (apsw.Error, MemoryError) as error:
            self._roll_back()
            return number, self._kind(error), f"{type(error).__name__}: {error}", []
        return number, None, "", []

    def _transact(self, batch: Batch, dropped: list[tuple[Any, str]] | None) -> None:
        """Run the batch; row by row, noting those left out, if there is a list for them."""
        _, _, upserts, deletes, removed = batch
        connection = self._connection
        self._begin()
        # Removals first: what they free is used by what comes.
        if removed:
            runs = _runs(removed)
            for statement in self._remove:
                connection.executemany(statement, runs)
        for statement, width, values in deletes:
            if dropped is None:
                connection.executemany(statement, _split(values, width))
            else:
                self._run_row_by_row(statement, width, values, dropped)
        for head, width, values in upserts:
            if dropped is None:
                self._write_rows(head, width, values)
            else:
                self._run_row_by_row(self._statement(head, width, 1), width, values, dropped)
            self._values_written += len(values)
        self._values_written += len(removed)
        self._execute("COMMIT")

    def _begin(self) -> None:
        """Begin a transaction, with a view of the file that is kept from one batch to the next.

        With a reading transaction open, SQLite takes two of its locks for a commit, where it else
        takes six. It goes before a checkpoint, which could not pass it, and when there is nothing
        to write.
        """
        if self._view is None:
            self._view = self._connection.execute("SELECT 1 FROM sqlite_schema")
        try:
            self._execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            # Another has written since, or is about to: only who has no view waits for that.
            self._end_view()
            self._execute("BEGIN IMMEDIATE")

    def _end_view(self) -> None:
        if self._view is not None:
            self._view.close(True)  # or the error that it met comes a second time
            self._view = None

    def _write_rows(self, head: str, width: int, values: list[Any]) -> None:
        start, end = 0, len(values)
        for rows in ROWS_PER_STATEMENT:
            size = rows * width
            if end - start < size:
                continue
            statement = self._statement(head, width, rows)
            while end - start >= size:
                self._execute(statement, values[start : start + size])
                start += size

    def _run_row_by_row(
        self, statement: str, width: int, values: list[Any], dropped: list[tuple[Any, str]]
    ) -> None:
        for row in _split(values, width):
            try:
                self._connection.execute(statement, row)
            except BAD_ROW as error:
                dropped.append((_told(row[0]), f"{type(error).__name__}: {error}"))

    def _statement(self, head: str, width: int, count: int) -> str:
        key = head, width, count
        statement = self._statements.get(key)
        if statement is None:
            one = f"({','.join('?' * width)})"
            statement = self._statements[key] = head + ",".join([one] * count)
        return statement

    def _roll_back(self) -> None:
        self._end_view()
        # After some errors SQLite has done so itself; a second one would hide the cause.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _kind(self, error: BaseException) -> str:
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            # The log is not brought into what cannot be trusted, now or at the end.
            self._is_damaged = True
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            return DAMAGED
        if isinstance(error, apsw.FullError):
            return FULL
        if isinstance(error, apsw.IOError):
            # Growing the log's index on a full disk is told as an I/O error.
            room = os.statvfs(os.path.dirname(self._path) or ".")
            if room.f_bavail == 0:
                return FULL
        return OTHER

    def checkpoint_if_due(self, is_idle: bool) -> None:
        """Bring the log into the file if it is long, or if there is time.

        A failure costs nothing but a longer log; the next commit meets the same disk and tells.
        """
        if is_idle:
            self._end_view()
        if self._is_damaged or self._wal_pages < (
            WAL_PAGES_IDLE if is_idle else self._checkpoint_at
        ):
            return
        self._end_view()
        try:
            pages, done = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            pages, done = self._wal_pages, 0
        is_empty = done >= pages
        self._wal_pages = 0 if is_empty or is_idle else pages
        self._checkpoint_at = WAL_PAGES_MAX if is_empty else pages + WAL_PAGES_STEP

    def rest(self) -> None:
        """After much has been written: drop the page cache and hand free memory back."""
        if self._values_written < VALUES_BEFORE_REST:
            return
        self._values_written = 0
        self._statements.clear()
        self._connection.release_memory()
        _trim()

    def close(self) -> None:
        """Close the file; the last to do so empties the log."""
        self._end_view()
        self._connection.close()


def _trim() -> None:
    import ctypes  # late: most writers never need it

    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library; it does without


def _told(key: Any) -> Any:
    """Return what can be answered of a row's first column."""
    return key if isinstance(key, (int, str, type(None))) else repr(key)


def _split(values: list[Any], width: int) -> list[list[Any]]:
    """Return flat values as rows."""
    return [values[start : start + width] for start in range(0, len(values), width)]


def _runs(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return the numbers as closed ranges: 0.55 us a row instead of 1.3."""
    runs: list[tuple[int, int]] = []
    first = last = None
    for seq in sorted(seqs):
        if last is not None and seq == last + 1:
            last = seq
            continue
        if first is not None and last is not None:
            runs.append((first, last))
        first = last = seq
    if first is not None and last is not None:
        runs.append((first, last))
    return runs


def frame(value: Any) -> bytes:
    """Return ``value`` as it goes through the socket."""
    return b"".join(frame_pieces(value))


def frame_pieces(value: Any) -> tuple[bytes, bytes]:
    """The same in two pieces: a large one is not copied to be joined."""
    packed = marshal.dumps(value)
    return LENGTH.pack(len(packed)), packed


class Frames:
    """Puts what was read together to values again."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Any]:
        """Return the values that ``chunk`` completes."""
        buffer = self._buffer
        size = len(chunk)
        if not buffer and size > LENGTH.size and LENGTH.unpack_from(chunk)[0] == size - LENGTH.size:
            return [marshal.loads(memoryview(chunk)[LENGTH.size :])]  # as most come
        buffer += chunk
        values = []
        while len(buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                values.append(marshal.loads(view[LENGTH.size : end]))
            del buffer[:end]
        return values


def main(fd: int, path: str) -> None:
    """Serve one broker: waits for batches on ``fd`` until it closes its end."""
    frames = Frames()
    database: Database | None = None
    size = READ_BYTES
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    # A read that gives up: one call where a poll and a read were two.
    own = _socket.socket(fileno=fd)
    own.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, TIMEVAL.pack(0, IDLE_MS * 1000))
    own.detach()
    while True:
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            if database is not None:
                database.checkpoint_if_due(is_idle=True)
                database.rest()
            poll.poll()
            continue
        except ConnectionResetError:
            # Told once, when the broker went before it had read every answer; batches still come.
            continue
        if not chunk:
            break
        size = READ_BYTES_MAX if len(chunk) == size else READ_BYTES
        for value in frames.feed(chunk):
            if database is None:
                try:
                    database = Database(path, value)
                except apsw.Error as error:
                    _answer(fd, (0, OTHER, f"{type(error).__name__}: {error}", []))
                    return
                _answer(fd, (0, None, "", []))
                continue
            _answer(fd, database.write(value))
            database.checkpoint_if_due(is_idle=False)
    if database is not None:
        database.close()


def _answer(fd: int, outcome: Outcome) -> None:
    rest = memoryview(frame(outcome))
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        # The broker is gone. What it has sent is still in the socket and still gets written.
        return


if __name__ == "__main__":
    main(0, sys.argv[1])
