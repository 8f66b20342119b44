"""What to do about a file that cannot be used: the second half of each message about it.

A message names the cause in the system's own words, which can be searched for, and then the cure.
"""

import errno
import os
from typing import Final

ROOM: Final = "make room on its disk"
WRITABLE: Final = "make it, the files beside it and their directory writable, or choose another"
LOCKED: Final = "another program has it locked, a shell or a backup perhaps: end that"
DISK: Final = "look after its disk; the kernel's log says more"
RESTORE: Final = (
    "stop the broker, keep a copy of the file and those beside it, and restore a backup"
)

# Name of SQLite's error, as apsw has it -> the cure.
_OF_SQLITE: Final = {
    "FullError": ROOM,
    "IOError": DISK,
    "BusyError": LOCKED,
    "LockedError": LOCKED,
    "ReadOnlyError": WRITABLE,
    "PermissionsError": WRITABLE,
    "CantOpenError": WRITABLE,
    "CorruptError": RESTORE,
    "NotADBError": RESTORE,
}
_OF_SYSTEM: Final = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EACCES: WRITABLE,
    errno.EPERM: WRITABLE,
    errno.EROFS: WRITABLE,
    errno.EIO: DISK,
}


def of_sqlite(path: str, text: str) -> str:
    """Return an error of SQLite's with its cure.

    Args:
        path: The data file.
        text: ``"name of the error: message"``.
    """
    name = text.partition(":")[0]
    # What a full disk does to the log's index is told as an I/O error, or as one of opening.
    cure = ROOM if name in ("IOError", "CantOpenError") and is_full(path) else _OF_SQLITE.get(name)
    return text if cure is None else f"{text}; {cure}"


def of_system(error: OSError) -> str:
    """Return the system's words for an error with the cure."""
    cure = _OF_SYSTEM.get(error.errno or 0)
    return str(error.strerror) if cure is None else f"{error.strerror}; {cure}"


def is_full(path: str) -> bool:
    """Say whether there is no room beside the file."""
    try:
        return os.statvfs(os.path.dirname(path) or ".").f_bavail == 0
    except OSError:
        return False
