"""A log that SQLite reads in part only: what was cut off is nothing, what was damaged is told."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage import wal
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import NamedQueue, make_job

HEAD_BYTES = 32
FRAME_BYTES = 24 + 8192
COMMITS = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file whose broker was killed: one job is in it, the others in its log alone."""
    made = tmp_path / "made" / "data.db"
    opened(made).close()
    storage = opened(made)
    ends = []
    for seq in range(1, 1 + COMMITS):
        storage.added(make_job(seq))
        storage.flush()
        ends.append(Path(f"{made}-wal").stat().st_size)
    kept = {name: (made.parent / name).read_bytes() for name in ("data.db", "data.db-wal")}
    storage.close()
    path = tmp_path / "data.db"
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert 0 == (ends[0] - HEAD_BYTES) % FRAME_BYTES
    return path


def opened(path: Path) -> SqliteStorage:
    return SqliteStorage.open(path, PollLoop(), writer="thread", lock_wait_ms=0)


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def damage(path: Path, place: int, content: bytes = b"\xa5" * 8) -> None:
    with log_of(path).open("r+b") as log:
        log.seek(place)
        log.write(content)


def frames(path: Path) -> int:
    return (log_of(path).stat().st_size - HEAD_BYTES) // FRAME_BYTES


def jobs_in(path: Path) -> int:
    storage = opened(path)
    count = sum(1 for _ in storage.load().jobs(NamedQueue))
    storage.close()
    return count


def test_a_sound_log_has_nothing_unread(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert 0 == wal.unread_bytes(str(path), frames(path))
    assert COMMITS == jobs_in(path)
    assert "damaged" not in caplog.text
    assert not Path(f"{path}-wal.unread").exists()


@pytest.mark.parametrize("part", ["page", "salt", "checksum"])
def test_commits_behind_a_damaged_one_are_told_and_a_copy_is_kept(
    path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(path, HEAD_BYTES + {"page": 24 + 100, "salt": 8, "checksum": 16}[part])
    before = log_of(path).read_bytes()

    assert jobs_in(path) < COMMITS

    copy = Path(f"{path}-wal.unread")
    assert before == copy.read_bytes()
    assert 0o600 == stat.S_IMODE(copy.stat().st_mode)
    assert (
        f"the log {path}-wal is damaged: its last {len(before) - HEAD_BYTES} bytes" in caplog.text
    )
    assert f"a copy is kept as {copy}" in caplog.text


def test_a_damaged_log_is_told_of_once_and_its_copy_stays(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands behind the damage is not found again by the next start after a kill."""
    damage(path, HEAD_BYTES + 2 * FRAME_BYTES + 100)
    before = log_of(path).read_bytes()
    storage = opened(path)
    storage.added(make_job(100))
    storage.flush()  # the reader is still open: the log is not brought in when it closes
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("data.db", "data.db-wal", "data.db-wal.unread"):
        (killed / name).write_bytes((tmp_path / name).read_bytes())
    storage.close()
    caplog.clear()

    assert jobs_in(killed / "data.db") < COMMITS
    assert "cannot be read" not in caplog.text
    assert before == (killed / "data.db-wal.unread").read_bytes()


def test_a_log_whose_copy_finds_no_place_is_left_as_it_is(path: Path) -> None:
    damage(path, HEAD_BYTES + 100)
    before = log_of(path).read_bytes(), path.read_bytes()
    Path(f"{path}-wal.unread").mkdir()

    with pytest.raises(
        StorageFailed, match="cannot copy the damaged log to .*data.db-wal.unread: Is a directory"
    ):
        opened(path)

    assert before == (log_of(path).read_bytes(), path.read_bytes())


@pytest.mark.parametrize("cut", [1, 100, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1])
def test_a_write_that_was_cut_off_is_nothing(
    path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the file, or what is behind it is of a log before."""
    log = log_of(path).read_bytes()
    os.truncate(log_of(path), len(log) - cut)
    with log_of(path).open("ab") as file:
        file.write(
            log[HEAD_BYTES : HEAD_BYTES + 3 * FRAME_BYTES].translate(bytes(range(256))[::-1])
        )

    assert 0 < jobs_in(path) < COMMITS
    assert "damaged" not in caplog.text


def test_the_last_commit_half_written_is_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(path, log_of(path).stat().st_size - 100)

    assert COMMITS - 1 == jobs_in(path)
    assert "damaged" not in caplog.text


def test_what_commits_that_failed_have_left_behind_is_nothing(path: Path) -> None:
    """Each was overwritten by the next, which was shorter: both end with a commit's mark."""
    log = log_of(path).read_bytes()
    marked = [
        number
        for number in range(frames(path))
        if log[HEAD_BYTES + number * FRAME_BYTES + 4 : HEAD_BYTES + number * FRAME_BYTES + 8].strip(
            b"\0"
        )
    ]
    last = log[HEAD_BYTES + marked[-1] * FRAME_BYTES :][:FRAME_BYTES]
    log_of(path).write_bytes(log + last + last)

    assert 0 == wal.unread_bytes(str(path), frames(path) - 2)


@pytest.mark.parametrize("place", [0, 4, 9, 16, 24])
def test_a_damaged_head_is_refused_and_left_alone(path: Path, place: int) -> None:
    damage(path, place)
    before = log_of(path).read_bytes(), path.read_bytes()

    with pytest.raises(StorageFailed, match="head cannot be read; it and its file were left"):
        opened(path)

    assert before == (log_of(path).read_bytes(), path.read_bytes())


@pytest.mark.parametrize("size", [1, HEAD_BYTES, HEAD_BYTES + 24])
def test_a_head_before_the_first_frame_is_nothing(path: Path, size: int) -> None:
    log_of(path).write_bytes(bytes(size))

    assert 0 == jobs_in(path)


def test_a_log_of_a_machine_with_the_other_order_of_bytes_is_read_alike(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = bytearray(log_of(path).read_bytes())
    log[3] |= 1
    sums = (0, 0)
    for start, parts in [
        (0, [(0, 24)]),
        *(
            (place, [(place, place + 8), (place + 24, place + FRAME_BYTES)])
            for place in range(HEAD_BYTES, len(log), FRAME_BYTES)
        ),
    ]:
        for begin, end in parts:
            sums = wal._sums(sums, bytes(log[begin:end]), is_big=True)
        behind = 24 if start == 0 else start + 16
        log[behind : behind + 8] = struct.pack(">2I", *sums)
    log_of(path).write_bytes(log)
    kept = path.read_bytes()
    assert COMMITS == jobs_in(path)

    path.write_bytes(kept)
    log[HEAD_BYTES + 100] ^= 1
    log_of(path).write_bytes(log)
    assert jobs_in(path) < COMMITS
    assert "cannot be read" in caplog.text
