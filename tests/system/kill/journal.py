"""What a producer or a worker knows for certain, in a file that outlives its SIGKILL.

Every entry is one line, written with one call and no buffer of ours: once ``note`` has returned,
the kernel has it. Times are of the machine's monotonic clock, so they compare across processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """At ``at_s`` its writer knew ``what`` about the job."""

    at_s: float
    what: str
    job_id: str


class Journal:
    """A journal being written; a restarted process goes on with the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, *job_ids: str) -> None:
        """Write that something is now known of some jobs."""
        now = time.monotonic()
        os.write(self._file, b"".join(f"{now} {what} {i}\n".encode() for i in job_ids))


def read(path: Path) -> Iterator[Entry]:
    """Read a journal; a last line cut short by a kill is no entry."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at_s, what, job_id = line.split()
                yield Entry(float(at_s), what, job_id)
