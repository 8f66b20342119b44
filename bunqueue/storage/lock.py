"""One process per file: an exclusive lock on a file beside it.

The lock belongs to the descriptor, not to the process, and the writer process inherits it. So a
file stays locked until the last write of a killed broker is done, whoever dies first, and no lock
outlives its holders. The lock file names its holder for people; its text decides nothing.
"""

import contextlib
import fcntl
import os
import time
import weakref
from typing import Final

from bunqueue.errors import StorageFailed
from bunqueue.storage import cures
from bunqueue.storage.native import close_fd, original

WAIT_MS: Final = 5000  # a killed broker's writer has only its last batches to commit
POLL_S: Final = 0.02
FD_MIN: Final = 10  # above the descriptors that the writer process is given

_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()
_has_fork_hook = False


class FileLock:
    """The lock of one data file."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def take(cls, data_path: str, wait_ms: float = WAIT_MS) -> "FileLock":
        """Waits for the lock if its holder's process is gone and only its writer is still at work.

        Raises:
            StorageFailed: Another process has the file, or the lock file cannot be written.
        """
        path = f"{data_path}.lock"
        try:
            first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FD_MIN)
            close_fd(first)
        except OSError as error:
            raise StorageFailed(f"cannot write {path}: {cures.of_system(error)}") from error
        end = time.monotonic() + wait_ms / 1000
        while not _try_lock(fd):
            holder = _holder(fd)
            if time.monotonic() >= end or _is_alive(holder):
                close_fd(fd)
                raise StorageFailed(
                    f"{data_path} is in use by another process"
                    f" (pid {holder or 'unknown'}, lock file {path});"
                    " stop it or choose another file"
                )
            original("time", "sleep")(POLL_S)
        with contextlib.suppress(OSError):  # a full disk; only people miss it
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        lock = cls(path, fd)
        _held.add(lock)
        _add_fork_hook()
        return lock

    def release(self) -> None:
        """Let go; the lock ends with the last descriptor of it."""
        if self.fd >= 0:
            close_fd(self.fd)
            self.fd = -1
        _held.discard(self)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _is_alive(pid: int | None) -> bool:
    """Say whether waiting is in vain: the holder lives on, and may be this very process."""
    if pid is None:
        return False
    if any(lock.fd >= 0 for lock in _held) and pid == os.getpid():
        return True
    if pid == os.getpid():
        return False  # left by a process of the same number, as in a restarted container
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _add_fork_hook() -> None:
    """Have forked children close their copies, or a lock would live as long as they do."""
    global _has_fork_hook
    if not _has_fork_hook:
        _has_fork_hook = True
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for lock in tuple(_held):
        lock.release()
