"""A program under test, in a process of its own, whose output can be waited for line by line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.support.broker_process import clean_environment

ROOT = Path(__file__).parents[2]
LINE_S_MAX = 20.0


class Program:
    """Runs a Python file and keeps what it prints.

    Args:
        file: The program.
        args: Its arguments.
        patched: Run it under gevent's monkey patching.
        directory: Where it runs and what it may write to.
    """

    def __init__(
        self, file: Path, args: Sequence[object], *, patched: bool = False, directory: Path
    ) -> None:
        start = [sys.executable, *(["-m", "gevent.monkey"] if patched else []), str(file)]
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*start, *map(str, args)],
            cwd=directory,
            env=clean_environment() | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, start: str, timeout_s: float = LINE_S_MAX, count: int = 1) -> str:
        """Wait for the ``count``-th line that begins with ``start`` and return it."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(found := self.starting_with(start)) < count:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise AssertionError(f"no {start!r} in {timeout_s} s, only {self.lines}")
            return found[count - 1]

    def starting_with(self, start: str) -> list[str]:
        """Return the lines so far that begin with ``start``."""
        return [line for line in self.lines if line.startswith(start)]

    def stop(self, timeout_s: float = LINE_S_MAX) -> int:
        """Ask it to stop and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(LINE_S_MAX)
        if self.process.stdout is not None:
            self.process.stdout.close()
