"""The joint: engine, storage, clock and ticker of one broker, in a server or inside a program."""

import os
import random
from typing import Any

from bunqueue.broker.clock import Clock
from bunqueue.broker.host import LocalHost
from bunqueue.broker.ticker import Alarm, Ticker
from bunqueue.broker.tokens import Tokens
from bunqueue.commands.peer import Host
from bunqueue.engine.engine import Engine
from bunqueue.engine.job import Job
from bunqueue.engine.locks import LockFactory, no_lock
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.unstorable import drop
from bunqueue.storage.loop import Loop
from bunqueue.storage.memory import MemoryStorage


class Broker:
    """One engine on one storage, with its time.

    Attributes:
        engine, storage, clock, tokens, ticker: Its parts.
        host: What its commands may tell of the process; a server puts its own in place.
    """

    def __init__(
        self,
        storage: Any,
        settings: EngineSettings,
        *,
        alarm: Alarm,
        gate: Any,
        locks: LockFactory = no_lock,
        tokens: Tokens | None = None,
    ) -> None:
        """Load what the storage holds and make it a running engine, but for its timed work.

        Args:
            storage: Opened, not read yet.
            settings: The engine's.
            alarm: How the ticker waits.
            gate: Context manager that excludes everyone else from the engine while it ticks.
            locks: Makes the engine's own locks.
            tokens: Who may come in; None lets everyone in.
        """
        self.storage = storage
        self.clock = Clock()
        self.tokens = tokens or Tokens()
        self.engine = Engine(storage, settings, locks, rng=random.Random(), random_bytes=os.urandom)
        self.clock.on_jump = self.engine.clock_jumped
        storage.on_dropped = self._drop
        self.host: Host = LocalHost(storage, self.engine.latencies, self.clock)
        self._started_s = self.clock.steady()
        self.engine.recover(self.clock.now())
        self.ticker = Ticker(self.engine, self.clock, alarm, gate)

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return self.clock.steady() - self._started_s

    def _drop(self, job: Job, _why: str) -> list[Job]:
        """Let a job that no disk will take leave memory too; return those that rely on it."""
        return drop(self.engine, job)

    def close(self) -> None:
        """Hand back what is still active, uncharged, and write everything. Waits.

        Raises:
            StorageFailed: Not everything could be written.
        """
        self.ticker.stop()
        self.engine.release_all(self.clock.now())
        self.storage.close()


def open_storage(path: str | None, loop: Loop, is_embedded: bool = False) -> Any:
    """Open the storage of a broker.

    Args:
        path: The file; None keeps the jobs in memory only.
        loop: Where its callbacks run.
        is_embedded: No child process is started, whoever writes.

    Raises:
        BunqueueError: The file is used by another process, or cannot be opened.
    """
    if path is None:
        return MemoryStorage()
    from bunqueue.storage import sqlite  # late: a broker in memory needs no SQLite

    by = sqlite.SqliteStorage.best_writer(is_embedded)
    return sqlite.SqliteStorage.open(path, loop, by)
