"""The source of an import: opened so that not a byte of it changes, and checked.

A file that its server has closed has no log beside it, or an empty one: it is opened as immutable,
without locks or helper files. Where the server was killed, its last writes stand in the log
(``-wal``) alone; then SQLite reads both, and indexes the log in memory instead of in the ``-shm``
file. In either case nobody may have the file open: SQLite's locks are asked for, none is taken,
and at the end the files must be what they were.
"""

import contextlib
import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import apsw

from bunqueue.errors import StorageFailed
from bunqueue.storage import schema, wal
from bunqueue.storage.native import close_fd

VERSION: Final = 37  # of the schema that server 2.9.5 writes
SERVER: Final = "2.9.5"
TABLES: Final = (
    "jobs",
    "job_results",
    "dlq",
    "cron_jobs",
    "queue_state",
    "group_state",
    "dependency_completions",
    "flow_failures",
    "queue_metrics_meta",
    "queue_metric_buckets",
    "queue_events",
)

# Where SQLite's locks lie (its file format, sections 1.3.1 and 2.3.1 of the WAL format): pending,
# reserved and shared in the file, the eight of the log and the one of its users in ``-shm``.
FILE_LOCKS: Final = (0x40000000, 512)
SHM_LOCKS: Final = (120, 9)
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class Source:
    """An open file of the original server."""

    def __init__(self, path: str) -> None:
        """Open and check it.

        Raises:
            StorageFailed: It is no such file, is in use, damaged or of another version.
        """
        self.path = path
        self._before = _seen(path)
        self._refuse_if_used()
        try:
            self._connection = apsw.Connection(
                _uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
        except apsw.Error as error:
            raise StorageFailed(f"cannot open {path}: {error}") from error
        try:
            with self._told_errors():
                self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        connection, path = self._connection, self.path
        if connection.pragma("application_id") == schema.APPLICATION_ID:
            raise StorageFailed(
                f"{path} is a data file of this bunqueue already: start a broker on it with"
                " --data-path"
            )
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        if not {"jobs", "migrations"} <= names:
            raise StorageFailed(f"{path} is no database of the original server: it has no jobs")
        version = connection.execute("SELECT max(version) FROM migrations").get
        if version != VERSION:
            is_older = isinstance(version, int) and version < VERSION
            raise StorageFailed(
                f"{path} has version {version} of the original server's schema, and only"
                f" {VERSION} can be read (that of server {SERVER}): "
                + (
                    "start that server on a copy of it once, stop it, and import the copy"
                    if is_older
                    else "a newer bunqueue may know it"
                )
            )
        missing = [name for name in TABLES if name not in names]
        if missing:
            raise StorageFailed(f"{path} is not whole: it has no table {missing[0]}")
        found = connection.execute("PRAGMA quick_check(1)").get
        if found != "ok":
            raise StorageFailed(f"{path} is damaged ({found}): restore it from a backup first")
        if wal.has_log(path):
            unread = wal.unread_bytes(path, _frames_read(path))
            if unread:
                raise StorageFailed(
                    f"the log {path}-wal is damaged: its last {unread} bytes, with commits in"
                    " them, cannot be read: restore both from a backup first; or, on a copy, start"
                    " the original server once and stop it, then import what is left"
                )

    def rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        Raises:
            StorageFailed: The file cannot be read to the end.
        """
        with self._told_errors():
            yield from self._connection.execute(statement)

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [row[1] for row in self.rows(f"PRAGMA table_info({table})")]

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        with self._told_errors():
            number: int = self._connection.execute(f"SELECT count(*) FROM {table}").get
            return number

    def check_unchanged(self) -> None:
        """Raise ``StorageFailed`` if somebody has used the file since it was opened."""
        self._refuse_if_used()
        if _seen(self.path) != self._before:
            raise StorageFailed(f"{self.path} has changed while it was read: stop who uses it")

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _refuse_if_used(self) -> None:
        pid = _user(self.path)
        if pid is not None:
            raise StorageFailed(
                f"{self.path} is in use by another process (pid {pid}): stop the original server,"
                " then import"
            )

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise StorageFailed(
                f"{self.path} is damaged, or no SQLite database ({error})"
            ) from error
        except (apsw.Error, UnicodeDecodeError) as error:
            raise StorageFailed(
                f"cannot read {self.path}: {type(error).__name__}: {error}"
            ) from error


def _seen(path: str) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what would change if the file or its log were written to.

    Raises:
        StorageFailed: There is no such file, or a half-done change of it.
    """
    file, log, journal = (_stat(path + suffix) for suffix in ("", "-wal", "-journal"))
    if file is None or not os.path.isfile(path):
        raise StorageFailed(f"there is no file {path}")
    if file[1] == 0 and not (log and log[1]):
        raise StorageFailed(f"{path} is empty: it is no database of the original server")
    if journal is not None and journal[1]:
        raise StorageFailed(
            f"{path} has an unfinished change beside it ({path}-journal): start the original server"
            " on it once and stop it, then import"
        )
    if log is not None and log[1] and _stat(path + "-shm") is None:
        raise StorageFailed(
            f"{path} has a log beside it ({path}-wal) without its index (-shm), as incomplete"
            " copies have: start the original server on it once and stop it, then import"
        )
    wal.check_log(path)  # of an empty file: opened, SQLite would delete it
    return file, log if log and log[1] else None


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _uri(path: str) -> str:
    log = _stat(path + "-wal")
    how = "mode=ro&readonly_shm=1" if log is not None and log[1] else "immutable=1"
    return f"file:{quote(os.path.abspath(path))}?{how}"


def _frames_read(path: str) -> int:
    """Return how much of its log SQLite reads; only a connection without locks is told."""
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro&vfs=unix-none"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("locking_mode", "exclusive")  # the index in memory, not in the -shm
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    finally:
        connection.close()
    return max(frames, 0)


def _user(path: str) -> int | None:
    """Return the process that has the database open, or None; only Linux can say."""
    if sys.platform != "linux":
        return None
    for name, (start, length) in ((path, FILE_LOCKS), (path + "-shm", SHM_LOCKS)):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageFailed(f"cannot read {name}: {error.strerror}") from error
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            close_fd(fd)
        if kind != fcntl.F_UNLCK:
            return int(pid)
    return None
