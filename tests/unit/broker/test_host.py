"""What a broker's process tells the doctor of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bunqueue.broker.clock import Clock
from bunqueue.broker.host import BACKLOG_ROWS_MANY, JUMP_TOLD_MS, LocalHost
from bunqueue.engine.latency import Latencies
from bunqueue.storage.memory import MemoryStorage

NOW = 1_700_000_000_000


class FakeStorage:
    """As much of a storage with a file as is looked at."""

    is_persistent = True
    is_refusing = False
    written_by = "thread"
    backlog_rows = 0

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.state: dict[str, Any] = {"diskFull": False, "error": None, "since": None}

    def status(self) -> dict[str, Any]:
        """Return what the test says."""
        return self.state


@pytest.fixture
def storage(tmp_path: Path) -> FakeStorage:
    path = tmp_path / "data.db"
    path.touch(0o600)
    return FakeStorage(path)


def host(storage: Any, clock: Clock | None = None) -> LocalHost:
    return LocalHost(storage, Latencies(), clock or Clock())


def found(host: LocalHost, check: str) -> tuple[str, str]:
    return next((one["level"], one["text"]) for one in host.findings() if one["check"] == check)


def test_a_broker_with_a_file_is_well(storage: FakeStorage) -> None:
    told = host(storage)

    checks = ["storage", "disk", "log", "permissions", "clock steps"]
    assert checks == [one["check"] for one in told.findings()]
    assert ("ok", "it writes; 0 rows unwritten") == found(told, "storage")
    assert (storage.path, "thread") == (told.facts()["dataPath"], told.facts()["writer"])
    assert told.facts()["sqlite"].startswith("3.")


def test_a_broker_in_memory_says_that_its_jobs_end_with_it() -> None:
    told = host(MemoryStorage())

    assert ["storage", "clock steps"] == [one["check"] for one in told.findings()]
    assert "warning" == found(told, "storage")[0]
    assert (None, None) == (told.facts()["dataPath"], told.facts()["sqlite"])


def test_a_storage_that_cannot_write(storage: FakeStorage) -> None:
    storage.state = {"diskFull": False, "error": "disk I/O error", "since": NOW}
    storage.backlog_rows = 1
    assert ("problem", "it cannot write: disk I/O error; 1 row unwritten") == found(
        host(storage), "storage"
    )

    storage.state = {"diskFull": True, "error": "database or disk is full", "since": NOW}
    assert "the disk is full" in found(host(storage), "storage")[1]


def test_a_backlog_of_unwritten_rows(storage: FakeStorage) -> None:
    storage.backlog_rows = BACKLOG_ROWS_MANY - 1
    assert "ok" == found(host(storage), "storage")[0]

    storage.backlog_rows = BACKLOG_ROWS_MANY
    assert "warning" == found(host(storage), "storage")[0]

    storage.is_refusing = True
    assert "problem" == found(host(storage), "storage")[0]


def test_a_file_that_was_taken_away(storage: FakeStorage) -> None:
    Path(storage.path).unlink()

    level, text = found(host(storage), "disk")
    assert ("problem", True) == (level, "is gone" in text)


def test_a_clock_that_was_set(storage: FakeStorage) -> None:
    wall_ms, steady_ms = NOW, 0
    clock = Clock(lambda: wall_ms * 1_000_000, lambda: steady_ms / 1000)
    told = host(storage, clock)
    assert "ok" == found(told, "clock steps")[0]

    wall_ms -= 3_600_000
    text = "the clock was set 1 time since the start, last back by 1 h, 0 ms ago"
    clock.look()
    assert ("warning", text) == found(told, "clock steps")

    wall_ms += JUMP_TOLD_MS
    steady_ms += JUMP_TOLD_MS
    assert "ok" == found(told, "clock steps")[0]
