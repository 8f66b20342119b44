"""The Python files below a directory, and which of them has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOK_S = 0.5  # how often the files are looked at
SKIPPED = {"__pycache__", "node_modules", "venv"}


class Sources:
    """Watches ``*.py`` by their times of change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = self._times()
        self._looked_at = time.monotonic()

    def changed(self) -> str | None:
        """Return a file that was changed, added or removed since the last answer; None if none."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return None
        self._looked_at = time.monotonic()
        before, self._seen = self._seen, self._times()
        if before == self._seen:
            return None
        names = before.keys() | self._seen.keys()
        return min(name for name in names if before.get(name) != self._seen.get(name))

    def _times(self) -> dict[str, int]:
        times = {}
        for place, directories, files in os.walk(self._directory):
            directories[:] = [
                name for name in directories if name not in SKIPPED and not name.startswith(".")
            ]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(place, name)
                    try:
                        times[path] = os.stat(path).st_mtime_ns
                    except FileNotFoundError:
                        continue  # an editor moves it about
        return times
