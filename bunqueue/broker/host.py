"""The process around an engine, as its commands see it: one without ports."""

import gc
import os
from pathlib import Path
from typing import Any

from bunqueue.commands.targets import AllowedTargets
from bunqueue.engine.latency import Latencies
from bunqueue.errors import Refused


class LocalHost:
    """Fulfils ``commands.peer.Host`` inside any program."""

    def __init__(self, storage: Any, latencies: Latencies) -> None:
        self.targets = AllowedTargets()
        self.latencies = latencies
        self._storage = storage

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
