"""The file that tells the id of a running process.

A lock on it says whether that process runs, and ends with it however it ends. The number alone
would not: a killed process leaves it behind, and in a container or after a restart of the machine
another one soon has the same. The lock is one of POSIX, which forked children do not inherit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from bunqueue.errors import BunqueueError


@contextlib.contextmanager
def pid_file(path: str | None) -> Iterator[None]:
    """Hold this process's id in a file for as long as it lasts.

    Raises:
        BunqueueError: Another running process holds it, or it cannot be written.
    """
    if path is None:
        yield
        return
    try:
        fd = _taken(path)
    except OSError as error:
        raise BunqueueError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        if _is_at(path, fd):
            with contextlib.suppress(OSError):  # somebody else was faster, or the directory changed
                os.unlink(path)
        os.close(fd)


def _taken(path: str) -> int:
    """Return the descriptor that holds the file, with our id in it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        except (BlockingIOError, PermissionError):
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise BunqueueError(f"{path} belongs to process {pid}, which is running") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its holder has just removed it


def _is_at(path: str, fd: int) -> bool:
    """Tell whether the path still leads to the file that is held."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
