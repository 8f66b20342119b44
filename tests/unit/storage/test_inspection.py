"""Looking at a data file without touching it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from bunqueue.protocol.findings import Finding
from bunqueue.storage import inspection
from bunqueue.storage.inspection import beside, inspect, is_in_use
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import make_job

Look = Callable[[], Any]

UID_OF_NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file with a job, closed well."""
    path = tmp_path / "data.db"
    storage = opened(path)
    storage.added(make_job(1))
    storage.close()
    return path


def opened(path: Path) -> SqliteStorage:
    return SqliteStorage.open(path, PollLoop(), writer="thread", lock_wait_ms=0)


def found(path: Path) -> dict[str, Finding]:
    return {one["check"]: one for one in inspect(str(path))}


def contents(path: Path) -> dict[str, bytes]:
    """Return all that lies in the directory."""
    return {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)}


def test_a_sound_file_is_fine_and_nothing_is_made_beside_it(path: Path) -> None:
    before = contents(path)

    told = found(path)

    assert {"file", "disk", "log", "permissions"} == set(told)
    assert {"ok"} == {one["level"] for one in told.values()}
    assert told["file"]["text"].endswith("is sound (schema 1), holds 1 job, was closed well")
    assert before == contents(path)


def test_a_file_in_use_is_read_as_it_is(path: Path) -> None:
    storage = opened(path)
    storage.added(make_job(2))
    storage.flush()
    assert is_in_use(str(path))

    told = found(path)["file"]

    assert "holds 2 jobs, is in use by a broker" in told["text"]
    storage.close()
    assert not is_in_use(str(path))
    assert "holds 2 jobs, was closed well" in found(path)["file"]["text"]


def killed(path: Path, has_index: bool = False, jobs: int = 1) -> None:
    """Leave the file as a broker does that was killed: jobs are in the log alone.

    Args:
        has_index: The index of the log lies there too, not only the log.
        jobs: How many; each is a commit.
    """
    storage = opened(path)
    for seq in range(2, 2 + jobs):
        storage.added(make_job(seq))
        storage.flush()
    kept = contents(path)
    storage.close()
    for name, content in kept.items():
        if has_index or not name.endswith("-shm"):
            (path.parent / name).write_bytes(content)


@pytest.mark.parametrize("has_index", [False, True])
def test_what_a_killed_broker_left_in_the_log_counts_and_stays_there(
    path: Path, has_index: bool
) -> None:
    killed(path, has_index)
    before = contents(path)
    assert before["data.db-wal"]

    told = found(path)

    assert "holds 2 jobs, was not closed: its broker was killed" in told["file"]["text"]
    assert before == contents(path)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_log_without_its_file_is_told_and_left_as_it_is(path: Path, what: str) -> None:
    killed(path, has_index=True)
    if what == "empty":
        os.truncate(path, 0)
    else:
        path.unlink()
    before = contents(path)

    told = found(path)["file"]

    assert ("problem", True) == (told["level"], f"data.db is {what}, but its log" in told["text"])
    assert "bring back the file or a backup" in told["cure"]
    assert before == contents(path)


def test_a_log_that_cannot_be_read_is_told(path: Path) -> None:
    (path.parent / "data.db-wal").mkdir()

    told = found(path)["file"]

    assert ("problem", f"cannot read {path}-wal: Is a directory") == (told["level"], told["text"])
    assert "who owns it" in told["cure"]


def test_a_file_and_a_log_that_may_only_be_read_are_looked_at_all_the_same(path: Path) -> None:
    killed(path)
    with tempfile.TemporaryDirectory() as name:  # in which others get to the files, too
        copy = Path(name) / "data.db"
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
            os.chmod(f"{copy}{suffix}", 0o444)
        os.chmod(name, 0o555)
        own_uid = os.geteuid()
        if own_uid == 0:
            os.seteuid(UID_OF_NOBODY)
        try:
            told = found(copy)
        finally:
            os.seteuid(own_uid)
            os.chmod(name, 0o755)

    assert "ok" == told["file"]["level"]
    assert "is sound (schema 1), holds 2 jobs" in told["file"]["text"]
    assert "warning" == told["file log"]["level"]
    assert "may not be written by this user" in told["file log"]["text"]


def test_a_log_whose_head_is_damaged_is_told_and_left_as_it_is(path: Path) -> None:
    killed(path)
    damage(path, 0, 8)
    before = contents(path)

    told = found(path)["file"]

    assert ("problem", True) == (told["level"], "its head cannot be read" in told["text"])
    assert before == contents(path)


def test_a_log_that_is_damaged_before_its_last_commits_is_told_and_left_as_it_is(
    path: Path,
) -> None:
    killed(path, jobs=5)
    damage(path, 5_000, 8)
    before = contents(path)

    told = found(path)["file log"]

    assert ("problem", True) == (told["level"], "with commits in them" in told["text"])
    assert before == contents(path)


def damage(path: Path, place: int, count: int) -> None:
    """Overwrite bytes of the log."""
    with (path.parent / "data.db-wal").open("r+b") as log:
        log.seek(place)
        log.write(b"\xa5" * count)


@pytest.mark.parametrize("has_log", [False, True])
def test_a_damaged_file_is_told_and_left_as_it_is(path: Path, has_log: bool) -> None:
    if has_log:
        killed(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    before = contents(path)

    told = found(path)["file"]

    assert "problem" == told["level"]
    assert "is damaged" in told["text"]
    assert ".recover" in told["cure"]
    assert before == contents(path)


def test_what_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    path.write_bytes(b"x" * 5000)

    assert "is damaged (file is not a database)" in found(path)["file"]["text"]


def test_a_database_of_another_program_is_told(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE t (x)")
    connection.close()

    told = found(path)["file"]

    assert ("problem", True) == (told["level"], "another program" in told["text"])
    assert "import-db" in told["cure"]


def test_a_file_of_a_newer_version_is_told(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()

    told = found(path)["file"]

    assert ("problem", True) == (told["level"], "newer bunqueue (schema 99" in told["text"])
    assert "upgrade" in told["cure"]


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    path.touch(0o600)

    assert "is sound and empty" in found(path)["file"]["text"]


@pytest.mark.parametrize("name", ["none.db", "."])
def test_what_is_no_file_is_told(tmp_path: Path, name: str) -> None:
    told = inspect(str(tmp_path / name))

    assert [("file", "problem")] == [(one["check"], one["level"]) for one in told]


def test_jobs_from_the_future_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_s = make_job(1).created_at / 1000
    monkeypatch.setattr(time, "time", lambda: made_s - 61)

    told = found(path)["file time"]

    assert "problem" == told["level"]
    assert "is from 1 min after this machine's time" in told["text"]


def test_a_file_that_a_broker_begins_to_use_meanwhile_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as one that does not change, it could look damaged."""
    broker = None
    look = inspection._look

    def start_and_fail(*args: Any) -> list[Finding]:
        nonlocal broker
        if broker is None:
            broker = opened(path)
            raise apsw.CorruptError("changed under our eyes")
        return look(*args)

    monkeypatch.setattr(inspection, "_look", start_and_fail)
    try:
        assert "ok" == found(path)["file"]["level"]
    finally:
        assert broker is not None
        broker.close()


@pytest.mark.parametrize(
    ("mode", "level"), [(0o600, "ok"), (0o640, "warning"), (0o604, "problem"), (0o666, "problem")]
)
def test_who_may_read_it(path: Path, mode: int, level: str) -> None:
    path.chmod(mode)

    told = found(path)["permissions"]

    assert level == told["level"]
    assert (level != "ok") == (f"{path}" in told.get("cure", ""))


def test_a_log_that_others_may_read_is_told(path: Path) -> None:
    killed(path)
    (path.parent / "data.db-wal").chmod(0o644)

    assert f"{path}-wal is open to every user (mode 0644)" in found(path)["permissions"]["text"]


@pytest.mark.parametrize(("free", "level"), [(2 << 30, "ok"), (1 << 29, "warning"), (1, "problem")])
def test_room_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    disk = SimpleNamespace(f_bavail=free, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)

    assert level == next(one for one in beside(str(path)) if one["check"] == "disk")["level"]


def test_a_log_that_nobody_empties(path: Path) -> None:
    log = path.parent / "data.db-wal"
    log.touch()
    os.truncate(log, inspection.LOG_BYTES_MANY + 1)

    told = next(one for one in beside(str(path)) if one["check"] == "log")

    assert ("warning", "the log beside it has 256 MiB") == (told["level"], told["text"])
