"""A data file: opened, read once, then only written to.

Opening takes the file's lock, checks it, brings its tables up to date and starts the writer. What
the file holds is read through a connection of its own, before anything is written. A file that is
damaged, foreign or of a newer version is refused and left exactly as it is.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import apsw

from bunqueue.errors import StorageFailed
from bunqueue.storage import cures, schema, wal
from bunqueue.storage.lock import WAIT_MS, FileLock
from bunqueue.storage.log import FLUSH_MS_MAX, MutationLog
from bunqueue.storage.loop import Loop
from bunqueue.storage.mounts import network_type
from bunqueue.storage.native import close_fd
from bunqueue.storage.native_thread import NativeWriter, twin
from bunqueue.storage.ports import Writer
from bunqueue.storage.process import WriterProcess
from bunqueue.storage.rows import SELECT_JOBS, jobs_of
from bunqueue.storage.thread import WriterThread

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 8192  # 7 to 19 % less CPU than 4096, performance.md 6.1
CACHE_KIB: Final = 8192  # batches append: more buys nothing
WAL_BYTES_KEPT: Final = 64 << 20  # what a log file may keep once it has been emptied
BUSY_MS: Final = 5000  # a shell or a backup may be reading
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_SETUP: Final = {
    "pragmas": {
        "synchronous": "NORMAL",
        "cache_size": -CACHE_KIB,
        "temp_store": "MEMORY",
        "journal_size_limit": WAL_BYTES_KEPT,
    },
    "remove": list(schema.REMOVE_RANGE),
    "busy_ms": BUSY_MS,
}


class SqliteStorage(MutationLog):
    """A mutation log with a file behind it.

    Attributes:
        written_by: Names the kind of its writer.
    """

    def __init__(
        self, path: str, loop: Loop, writer: Writer, lock: FileLock, reader: apsw.Connection
    ) -> None:
        """Use ``open``."""
        self.path = path
        self.written_by: str | None = writer.kind
        self._lock = lock
        self._reader: apsw.Connection | None = reader
        self._saved = SavedFile(reader, self)
        super().__init__(writer, loop, seq_reserved=self._saved.seq)
        writer.start(self)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        loop: Loop,
        writer: Literal["process", "thread", "native"] = "process",
        lock_wait_ms: float = WAIT_MS,
    ) -> "SqliteStorage":
        """Waits until the file is ours, and opens it; it is made if there is none.

        Args:
            path: The file; missing directories above it are made.
            loop: Calls back; must not run meanwhile.
            writer: Who writes: a child process, a thread of this one, or its thread of C.
            lock_wait_ms: How long the last writes of a broker that was killed may take.

        Raises:
            StorageFailed: It cannot be used; the text says why and what to do.
        """
        path, lock = take_file(path, lock_wait_ms)
        try:
            reader = open_checked(path)
            return cls(path, loop, _writer(writer, path, loop, lock), lock, reader)
        except BaseException:
            lock.release()
            raise

    @staticmethod
    def best_writer(is_embedded: bool = False) -> Literal["process", "thread", "native"]:
        """Return who writes best here."""
        if twin() is not None:
            return "native"
        return "thread" if is_embedded else "process"

    def with_cure(self, text: str) -> str:
        """See ``MutationLog``."""
        return cures.of_sqlite(self.path, text)

    def is_disk_full(self) -> bool:
        """See ``MutationLog``."""
        return cures.is_full(self.path)

    def load(self) -> "SavedFile":
        """Read what is in the file. Only before the first note."""
        return self._saved

    def close(self, timeout_ms: float = FLUSH_MS_MAX) -> None:
        """Waits until everything is written and the file is closed and marked as clean.

        Raises:
            StorageFailed: Something could not be written; the file is closed all the same.
        """
        self._close_reader()
        try:
            self.flush(timeout_ms)
            if self._is_marked_unclean or not self._saved.was_clean:
                self._is_marked_unclean = True  # so that this batch does not begin with the mark
                self.put(schema.META.name, schema.META_SEQ, (self._seq_highest,))
                self.put(schema.META.name, schema.META_CLEAN, (1,))
                self.flush(timeout_ms)
        finally:
            try:
                self._writer.close(timeout_ms)
            finally:
                self._lock.release()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class SavedFile:
    """Fulfils ``ports.Saved`` from a file; the small tables at once, the jobs when asked for.

    Attributes:
        seq, tables, was_clean: See ``ports.Saved``.
    """

    def __init__(self, reader: apsw.Connection, storage: SqliteStorage) -> None:
        self._reader = reader
        self._storage = storage
        meta = dict(reader.execute(f"SELECT key, value FROM {schema.META.name}"))
        highest = reader.execute(f"SELECT max(seq) FROM {schema.JOBS.name}").get
        self.seq: int = max(meta.get(schema.META_SEQ, 0), highest or 0)
        self.was_clean: bool = meta.get(schema.META_CLEAN, 1) == 1
        self.tables: dict[str, dict[str, tuple[Any, ...]]] = {
            table.name: {row[0]: row[1:] for row in reader.execute(f"SELECT * FROM {table.name}")}
            for table in schema.SMALL_TABLES
            if table is not schema.META
        }

    def jobs(self, queue_of: Callable[[str], Any]) -> Iterator["Job"]:
        """Yield all jobs by ascending ``seq``, each in the place it was saved in, delivery None.

        Raises:
            StorageFailed: The file turns out to be damaged.
        """
        now = time.time_ns() // 1_000_000
        try:
            rows = self._reader.execute(SELECT_JOBS)
            yield from jobs_of(rows, queue_of, now, self._storage.changed)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise StorageFailed(_damaged(self._storage.path, error)) from error
        except apsw.Error as error:
            path = self._storage.path
            text = cures.of_sqlite(path, f"{type(error).__name__}: {error}")
            raise StorageFailed(f"cannot read {path}: {text}") from error
        self._storage._close_reader()


def _writer(kind: str, path: str, loop: Loop, lock: FileLock) -> Writer:
    if kind == "native":
        return NativeWriter(path, loop, _SETUP, lock.fd)
    if kind == "thread":
        return WriterThread(path, loop, _SETUP)
    return WriterProcess(path, loop, _SETUP, lock.fd)


# -- opening --------------------------------------------------------------------------------------


def take_file(path: str | os.PathLike[str], lock_wait_ms: float = WAIT_MS) -> tuple[str, FileLock]:
    """Waits until the file is ours, whether it exists yet or not; returns its path and its lock.

    Raises:
        StorageFailed: It is somebody else's, or lies where no database can.
    """
    # The lock and SQLite's log lie beside the file itself, by whatever link it is reached.
    path = os.path.realpath(os.fspath(path))
    try:
        os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        text = cures.of_system(error)
        raise StorageFailed(f"cannot make the directory of {path}: {text}") from error
    remote = network_type(path)
    if remote is not None:
        raise StorageFailed(
            f"{path} lies on a network file system ({remote}), where a database cannot"
            " be locked safely; choose a local path"
        )
    return path, FileLock.take(path, lock_wait_ms)


def open_checked(path: str) -> apsw.Connection:
    """Return a connection to a sound file with all tables.

    Raises:
        StorageFailed: It cannot be used; it and its log are as they were.
    """
    connection = None
    try:
        wal.check_log(path)
        close_fd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        _check(path, connection)
        _warn_of_second_name(path)
        _warn_of_open_mode(path)
        _bring_up_to_date(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, OSError):
            text = f"cannot write {path}: {cures.of_system(error)}"
        elif isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
            text = _damaged(path, error)
        elif isinstance(error, apsw.Error):
            told = cures.of_sqlite(path, f"{type(error).__name__}: {error}")
            text = f"cannot open {path}: {told}"
        else:
            raise
        raise StorageFailed(text) from error
    return connection


def _check(path: str, connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MS)
    # Until it is known to be sound: to close it would else bring what its log holds into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(wal.has_log(path)))
    check_origin(path, connection)
    _check_integrity(path, connection)
    if wal.has_log(path):
        _keep_unread(path, connection)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def _keep_unread(path: str, connection: apsw.Connection) -> None:
    """Keep a copy of a log that has commits which SQLite is about to overwrite unread.

    What can be read is brought into the file then, and the log emptied: commits that are
    overwritten in part only would be found again by the next start, whose copy would replace this.
    """
    frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    unread = wal.unread_bytes(path, max(frames, 0))
    if unread:
        log.error(
            "the log %s-wal is damaged: its last %d bytes, with commits in them, cannot be read,"
            " and what they changed is lost; a copy is kept as %s: restore a backup, or look"
            " through what is missing",
            path,
            unread,
            wal.keep_copy(path),
        )
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _warn_of_second_name(path: str) -> None:
    """A hard link shares the data, but neither the lock nor the log beside it."""
    names = os.stat(path).st_nlink
    if names > 1:
        log.warning(
            "%s has %d names (hard links): opened by another of them while in use, or copied"
            " by it, it will be damaged; give copies a file of their own",
            path,
            names,
        )


def _warn_of_open_mode(path: str) -> None:
    """A file that was brought here, or made by another program; the log beside it follows it."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        log.warning("%s is open to every user (mode %04o); chmod 600 %s", path, mode, path)


def check_origin(path: str, connection: apsw.Connection) -> None:
    """Refuse what is no file of ours, or of a version to come.

    Raises:
        StorageFailed: It is one; the text says what to do.
    """
    version = connection.pragma("user_version")
    application = connection.pragma("application_id")
    is_empty = not connection.execute("SELECT count(*) FROM sqlite_schema").get
    if is_empty and application == 0:
        return
    if application != schema.APPLICATION_ID:
        raise StorageFailed(
            f"{path} is a database of another program; choose another file for bunqueue's data,"
            f" or bring one of the original server over with 'bunqueue import-db {path}'"
        )
    if version > schema.SCHEMA_VERSION:
        raise StorageFailed(
            f"{path} was written by a newer bunqueue (schema {version}, this one knows"
            f" {schema.SCHEMA_VERSION}); it was left as it is: upgrade bunqueue to open it"
        )


def _check_integrity(path: str, connection: apsw.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").get
    if found != "ok":
        raise StorageFailed(_damaged(path, found))
    # What is cut off of the last page reads as zeros. Beside a log it may be a checkpoint that was
    # cut off, whose pages the log still has.
    cut_off = os.path.getsize(path) % connection.pragma("page_size")
    if cut_off and not wal.has_log(path):
        raise StorageFailed(_damaged(path, "its last page is cut off"))


def _damaged(path: str, what: object) -> str:
    told = " ".join(str(what).split())  # SQLite's words may be of several lines
    return (
        f"{path} is damaged ({told}); it was left as it is: restore it from a backup,"
        f" save what can be read with 'sqlite3 {path} .recover',"
        f" or move it and the files beside it (-wal, -shm) away to begin with an empty one"
    )


def _bring_up_to_date(connection: apsw.Connection) -> None:
    if not connection.pragma("application_id"):
        connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "WAL")
    version = connection.pragma("user_version")
    if version == 0:
        version = schema.SCHEMA_VERSION
    while version < schema.SCHEMA_VERSION:
        log.info("migrating the data file from=%d to=%d", version, version + 1)
        _in_transaction(connection, schema.MIGRATIONS[version], version + 1)
        version += 1
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    missing = [table.create() for table in schema.TABLES if table.name not in names]
    if missing:
        _in_transaction(connection, missing, version)


def _in_transaction(
    connection: apsw.Connection, statements: "list[str] | tuple[str, ...]", version: int
) -> None:
    with connection:
        for statement in statements:
            connection.execute(statement)
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", version)
