"""Looking at a data file, its disk and what lies beside it, without touching any of it.

``beside`` costs a few calls of ``stat``, so a broker tells it of its own file. ``inspect`` reads
the whole file, on a connection that cannot write: beside a running broker it sees one commit, and
keeps SQLite from emptying the log for as long as it reads. A file that no broker has open is read
without locks, and the index of its log is kept in memory; SQLite would else make or change files
beside it.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import apsw

from bunqueue.errors import StorageFailed
from bunqueue.protocol.findings import (
    OK,
    PROBLEM,
    WARNING,
    Finding,
    Note,
    counted,
    finding,
    size_text,
    span_text,
    summed_up,
    worst,
)
from bunqueue.storage import schema, wal
from bunqueue.storage.sqlite import BUSY_MS, WAL_BYTES_KEPT, check_origin

BESIDE: Final = ("", "-wal", "-shm", ".lock")
FREE_BYTES_MIN: Final = 64 << 20  # what a log may grow by before it is emptied
FREE_BYTES_FEW: Final = 1 << 30
LOG_BYTES_MANY: Final = 4 * WAL_BYTES_KEPT  # somebody keeps it from being emptied
ERRORS_MAX: Final = 3  # of a damaged file, told in words
AHEAD_MS: Final = 60_000  # jobs from later than that were made under another clock

OPENS_NOTHING_MORE: Final = "look at who owns it, and run this as the broker's user"


def sqlite_version() -> str:
    """Return the version of the library."""
    return apsw.sqlite_lib_version()


def beside(path: str) -> list[Finding]:
    """Look at a file from outside: room on its disk, its log, who may read it.

    Raises:
        OSError: There is no such file, or it must not be looked at.
    """
    return [_disk(path), _log(path), _permissions(path)]


def inspect(path: str) -> list[Finding]:
    """Waits until the whole file was read; looks at it from outside too.

    Nothing is raised: what keeps it from being read is a finding.
    """
    path = os.path.realpath(path)
    was_in_use = is_in_use(path)
    cure = "name the file with --data-path"
    try:
        if not was_in_use:
            wal.check_log(path)
        outside = beside(path)
    except StorageFailed as error:  # opened now, SQLite would delete the log
        return [_refused(error)]
    except OSError as error:
        text = f"cannot read {error.filename or path}: {error.strerror}"
        is_missing = isinstance(error, FileNotFoundError)
        return [finding("file", PROBLEM, text, cure if is_missing else OPENS_NOTHING_MORE)]
    if not os.path.isfile(path):
        return [finding("file", PROBLEM, f"{path} is no file", cure)]
    inside = _inside(path, was_in_use)
    if worst(inside) != OK and not was_in_use and is_in_use(path):
        inside = _inside(path, True)  # a broker has begun to change it under our eyes
    return [*inside, *outside]


def is_in_use(path: str) -> bool:
    """Say whether a broker has the file open."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# -- from outside ----------------------------------------------------------------------------------


def _disk(path: str) -> Finding:
    size = os.stat(path).st_size
    room = os.statvfs(os.path.dirname(path) or ".")
    free = room.f_bavail * room.f_frsize
    text = f"{path} is {size_text(size)}, and {size_text(free)} of its disk are free"
    cure = "make room on the disk, or drop what is kept: completed jobs, dead letters"
    if free < FREE_BYTES_MIN:
        return finding("disk", PROBLEM, text, cure)
    return finding("disk", WARNING if free < FREE_BYTES_FEW else OK, text, cure)


def _log(path: str) -> Finding:
    size = _size(f"{path}-wal")
    text = f"the log beside it has {size_text(size)}" if size else "no log lies beside it"
    cure = "end whatever reads the file for long: a backup, a shell with an open transaction"
    return finding("log", WARNING if size > LOG_BYTES_MANY else OK, text, cure)


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_size
    return 0


def _permissions(path: str) -> Finding:
    notes = list(_lax(path))
    modes = " ".join(f"{path}{suffix}" for suffix in BESIDE if os.path.exists(path + suffix))
    return summed_up(
        "permissions", notes, "only their owner may read the file and what lies beside it",
        f"chmod 600 {modes}",
    )  # fmt: skip


def _lax(path: str) -> Iterator[Note]:
    for suffix in BESIDE:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(path + suffix).st_mode)
            if mode & 0o007:
                yield PROBLEM, f"{path}{suffix} is open to every user (mode {mode:04o})"
            elif mode & 0o070:
                yield WARNING, f"{path}{suffix} is open to its group (mode {mode:04o})"


# -- from inside -----------------------------------------------------------------------------------


def _inside(path: str, is_in_use: bool) -> list[Finding]:
    try:
        connection = _open(path, is_in_use)
    except apsw.Error as error:
        return [finding("file", PROBLEM, f"cannot open {path}: {error}", OPENS_NOTHING_MORE)]
    try:
        return _look(path, connection, is_in_use)
    except StorageFailed as error:
        return [_refused(error)]
    except (apsw.NotADBError, apsw.CorruptError) as error:
        return [_damaged(path, [str(error)])]
    except apsw.Error as error:
        what = f"cannot read {path}: {type(error).__name__}: {error}"
        return [finding("file", PROBLEM, what, OPENS_NOTHING_MORE)]
    finally:
        connection.close()


def _open(path: str, is_in_use: bool) -> apsw.Connection:
    uri = f"file:{quote(path)}?mode=ro"
    if not is_in_use:
        uri += "&vfs=unix-none" if _size(f"{path}-wal") else "&immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(uri, flags=flags)
    connection.set_busy_timeout(BUSY_MS)
    if not is_in_use:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # the log stays as it is
        connection.pragma("locking_mode", "exclusive")  # an index in memory instead of a -shm
    return connection


def _look(path: str, connection: apsw.Connection, is_in_use: bool) -> list[Finding]:
    check_origin(path, connection)
    errors = [row[0] for row in connection.execute(f"PRAGMA quick_check({ERRORS_MAX})")]
    if errors != ["ok"]:
        return [_damaged(path, errors)]
    version = connection.pragma("user_version")
    if not version:
        return [finding("file", OK, f"{path} is sound and empty")]
    jobs = connection.execute(f"SELECT count(*) FROM {schema.JOBS.name}").get
    state = "is in use by a broker" if is_in_use else _end_of(connection)
    text = f"{path} is sound (schema {version}), holds {counted(jobs, 'job')}, {state}"
    told = [finding("file", OK, text), *_time(path, connection)]
    return told if is_in_use else [*told, *_unread(path, connection)]


def _unread(path: str, connection: apsw.Connection) -> Iterator[Finding]:
    try:
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.ReadOnlyError:  # SQLite asks for the right to write even where it writes nothing
        text = "its log may not be written by this user: whether all of it can be read is not known"
        yield finding("file log", WARNING, text, OPENS_NOTHING_MORE)
        return
    unread = wal.unread_bytes(path, max(frames, 0))
    if unread:
        text = f"the last {size_text(unread)} of its log, with commits in them, cannot be read"
        cure = "keep a copy of the file and the log; restore a backup, or start without them"
        yield finding("file log", PROBLEM, text, cure)


def _end_of(connection: apsw.Connection) -> str:
    clean = connection.execute(
        f"SELECT value FROM {schema.META.name} WHERE key = ?", (schema.META_CLEAN,)
    ).get
    return "was closed well" if clean in (None, 1) else "was not closed: its broker was killed"


def _time(path: str, connection: apsw.Connection) -> Iterator[Finding]:
    newest = connection.execute(
        f"SELECT created_at FROM {schema.JOBS.name} ORDER BY seq DESC LIMIT 1"
    ).get
    ahead_ms = (newest or 0) - time.time() * 1000
    if ahead_ms > AHEAD_MS:
        text = f"the newest job of {path} is from {span_text(ahead_ms)} after this machine's time"
        yield finding("file time", PROBLEM, text, "set the clock before the broker starts")


def _refused(error: StorageFailed) -> Finding:
    text, _, cure = str(error).partition("; ")
    return finding("file", PROBLEM, text, cure)


def _damaged(path: str, errors: list[str]) -> Finding:
    text = f"{path} is damaged ({'; '.join(' '.join(one.split()) for one in errors)})"
    cure = (
        "stop the broker and keep a copy; restore a backup, save what can be read with"
        f" 'sqlite3 {path} .recover', or move the file and those beside it (-wal, -shm) away to"
        " begin with an empty one"
    )
    return finding("file", PROBLEM, text, cure)
