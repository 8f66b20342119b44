"""The file that tells the id of a running process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
    file = Path(path)
    owner = _owner(file)
    if owner is not None:
        raise BunqueueError(f"{path} belongs to process {owner}, which is running")
    try:
        file.write_text(f"{os.getpid()}\n")
    except OSError as error:
        raise BunqueueError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        if _written(file) == os.getpid():
            file.unlink(missing_ok=True)


def _owner(file: Path) -> int | None:
    """Return the process that the file names, if it runs and is another one."""
    pid = _written(file)
    if pid is None or pid == os.getpid():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return pid
    return pid


def _written(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
