"""The process around an engine, as its commands see it: one without ports."""

import gc
import os
import platform
from pathlib import Path
from typing import Any, Final

from bunqueue import __version__
from bunqueue.broker.clock import Clock
from bunqueue.commands.targets import AllowedTargets
from bunqueue.compiled import CORE
from bunqueue.engine.latency import Latencies
from bunqueue.errors import Refused
from bunqueue.protocol.findings import OK, PROBLEM, WARNING, Finding, counted, finding, span_text

JUMP_TOLD_MS: Final = 86_400_000  # a clock that was set within the last day is worth a warning
BACKLOG_ROWS_MANY: Final = 5_000  # half of what stops the reading of connections


class LocalHost:
    """Fulfils ``commands.peer.Host`` inside any program."""

    def __init__(self, storage: Any, latencies: Latencies, clock: Clock) -> None:
        self.targets = AllowedTargets()
        self.latencies = latencies
        self._storage = storage
        self._clock = clock

    def prometheus(self) -> str:
        """Refuse: what Prometheus asks is about a server."""
        raise Refused("Prometheus figures come from a server")

    def compact(self) -> None:
        """Collect what is left in cycles and free lists."""
        gc.collect()

    def memory_bytes(self) -> dict[str, int]:
        """Return what the process uses: not shared, of its data, resident; 0 if it cannot tell."""
        try:
            fields = Path("/proc/self/statm").read_text().split()
        except OSError:
            return {"heapUsed": 0, "heapTotal": 0, "rss": 0}
        page = os.sysconf("SC_PAGE_SIZE")
        resident, shared, data = (int(fields[place]) * page for place in (1, 2, 5))
        return {"heapUsed": resident - shared, "heapTotal": data, "rss": resident}

    def connections(self) -> dict[str, int]:
        """Return that there is none."""
        return {"tcp": 0, "ws": 0, "sse": 0}

    def storage_status(self) -> dict[str, Any]:
        """Return ``{diskFull, error, since}``."""
        status: dict[str, Any] = self._storage.status()
        return status

    def file_bytes(self) -> int | None:
        """Return the size of the data file, None without one."""
        if not self._storage.is_persistent:
            return None
        try:
            return os.path.getsize(self._storage.path)
        except OSError:
            return 0

    def facts(self) -> dict[str, Any]:
        """Return ``{version, core, python, sqlite, writer, pid, dataPath}``."""
        return {
            "version": __version__,
            "core": CORE,
            "python": platform.python_version(),
            "sqlite": _sqlite_version() if self._storage.is_persistent else None,
            "writer": self._storage.written_by,
            "pid": os.getpid(),
            "dataPath": self._storage.path if self._storage.is_persistent else None,
        }

    def findings(self) -> list[Finding]:
        """Look at the storage, its file and the clock."""
        return [self._writing(), *self._file(), self._clock_steps()]

    def _writing(self) -> Finding:
        storage = self._storage
        if not storage.is_persistent:
            text = "jobs live in memory only and end with the process"
            return finding("storage", WARNING, text, "set BUNQUEUE_DATA_PATH if they must not")
        status, rows = storage.status(), storage.backlog_rows
        waits = f"{counted(rows, 'row')} unwritten"
        if status["error"]:
            why = "the disk is full" if status["diskFull"] else status["error"]
            cure = "see to the disk; the broker goes on by itself once it can write"
            return finding("storage", PROBLEM, f"it cannot write: {why}; {waits}", cure)
        if storage.is_refusing:
            return finding("storage", PROBLEM, f"pushes are refused: {waits}", _SLOW_DISK)
        if rows >= BACKLOG_ROWS_MANY:
            return finding("storage", WARNING, f"it writes; {waits}", _SLOW_DISK)
        return finding("storage", OK, f"it writes; {waits}")

    def _file(self) -> list[Finding]:
        if not self._storage.is_persistent:
            return []
        from bunqueue.storage import inspection  # late: a broker in memory needs no SQLite

        try:
            return inspection.beside(self._storage.path)
        except OSError as error:
            text = f"{self._storage.path} is gone or cannot be looked at: {error.strerror}"
            cure = "stop the broker in good order and see what has become of its file"
            return [finding("disk", PROBLEM, text, cure)]

    def _clock_steps(self) -> Finding:
        jump, now = self._clock.last_jump, self._clock.now()
        if jump is None:
            return finding("clock steps", OK, "the clock was not set since the start")
        at, delta_ms = jump
        sign = "back" if delta_ms < 0 else "forward"
        text = (
            f"the clock was set {counted(self._clock.jumps, 'time')} since the start,"
            f" last {sign} by {span_text(abs(delta_ms))}, {span_text(now - at)} ago"
        )
        cure = "have the time service slew the clock instead of setting it"
        return finding("clock steps", WARNING if now - at < JUMP_TOLD_MS else OK, text, cure)


_SLOW_DISK: Final = "the disk is slower than what comes in: see what else writes to it"


def _sqlite_version() -> str:
    from bunqueue.storage import inspection  # late, as above

    return inspection.sqlite_version()
