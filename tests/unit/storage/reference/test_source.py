"""What is, and what is not, a file to import from."""

from __future__ import annotations

import gzip
import os

import apsw
import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.reference.importing import import_file
from bunqueue.storage.reference.source import Source
from bunqueue.storage.sqlite import SqliteStorage
from tests.system.import_db.record import FILE


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "source #1?.db"  # no name that could be a part of a URI
    path.write_bytes(gzip.decompress(FILE.read_bytes()))
    return path


def refusal(path):
    with pytest.raises(StorageFailed) as refused:
        Source(str(path))
    return str(refused.value)


def run(path, statement):
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


def test_a_closed_file_is_read_without_a_trace(path):
    before = path.read_bytes()

    source = Source(str(path))
    assert 57 == source.count("jobs")
    source.check_unchanged()
    source.close()

    assert before == path.read_bytes()
    assert [path.name] == os.listdir(path.parent)


def test_an_empty_log_that_a_reader_left_is_no_hindrance(path):
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).touch()

    source = Source(str(path))
    assert 57 == source.count("jobs")
    source.close()


def test_a_file_that_is_not_there(tmp_path):
    assert f"there is no file {tmp_path}/other" == refusal(tmp_path / "other")
    assert f"there is no file {tmp_path}" == refusal(tmp_path)


def test_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()

    assert refusal(tmp_path / "empty").endswith(
        "is empty: it is no database of the original server"
    )


def killed(path):
    """Leave commits in the log alone, as a server does that was killed; returns the log."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "WAL")
    for number in range(5):
        connection.execute("UPDATE jobs SET priority = ? WHERE rowid = 1", (number,))
    names = [path.name + suffix for suffix in ("", "-wal", "-shm")]
    kept = {name: path.with_name(name).read_bytes() for name in names}
    connection.close()
    for name, content in kept.items():
        path.with_name(name).write_bytes(content)
    return path.with_name(path.name + "-wal")


def contents(path):
    return {name: path.with_name(name).read_bytes() for name in os.listdir(path.parent)}


def test_an_empty_file_beside_its_log_is_refused_and_the_log_kept(path):
    killed(path)
    os.truncate(path, 0)
    before = contents(path)

    assert "is empty, but its log" in refusal(path)
    assert before == contents(path)


def test_a_log_is_read_with_its_file_and_kept(path):
    killed(path)
    before = contents(path)

    source = Source(str(path))
    assert [(4,)] == list(source.rows("SELECT priority FROM jobs WHERE rowid = 1"))
    source.check_unchanged()
    source.close()

    assert before == contents(path)


@pytest.mark.parametrize(("place", "text"), [(0, "its head cannot"), (100, "with commits in")])
def test_a_log_that_cannot_be_read_to_its_end_is_refused_and_kept(path, place, text):
    log = killed(path)
    content = bytearray(log.read_bytes())
    content[place : place + 8] = b"\xa5" * 8
    log.write_bytes(content)
    before = contents(path)

    assert text in refusal(path)
    assert before == contents(path)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "text").write_text("hello " * 1000)

    assert "is damaged, or no SQLite database" in refusal(tmp_path / "text")


def test_a_database_of_another_program(tmp_path):
    run(tmp_path / "other.db", "CREATE TABLE jobs (id)")

    assert "is no database of the original server" in refusal(tmp_path / "other.db")


def test_a_file_of_ours(tmp_path):
    SqliteStorage.open(tmp_path / "ours.db", PollLoop(), writer="thread").close()

    assert "is a data file of this bunqueue already" in refusal(tmp_path / "ours.db")


@pytest.mark.parametrize(
    ("version", "cure"),
    [(36, "start that server on a copy of it once"), (38, "a newer bunqueue may know it")],
)
def test_another_version_of_the_schema(path, version, cure):
    run(path, f"UPDATE migrations SET version = {version}")

    told = refusal(path)

    assert f"has version {version} of the original server's schema" in told
    assert cure in told


def test_a_file_without_one_of_its_tables(path):
    run(path, "DROP TABLE dlq")

    assert refusal(path).endswith("is not whole: it has no table dlq")


def test_a_table_without_one_of_its_columns(path, tmp_path):
    run(path, "ALTER TABLE jobs DROP COLUMN progress_msg")

    with pytest.raises(StorageFailed, match="no such column: jobs.progress_msg"):
        import_file(str(path), str(tmp_path / "target.db"))
    assert not (tmp_path / "target.db").exists()


def test_a_damaged_file(path):
    content = bytearray(path.read_bytes())
    for page in range(2, 40):
        content[page * 4096 : page * 4096 + 2048] = b"\xff" * 2048
    path.write_bytes(content)

    assert "is damaged" in refusal(path)


def test_an_unfinished_change_beside_it(path):
    path.with_name(path.name + "-journal").write_bytes(b"x" * 512)

    assert "has an unfinished change beside it" in refusal(path)


def test_a_log_without_its_index(path):
    path.with_name(path.name + "-wal").write_bytes(b"x" * 512)

    assert "without its index (-shm)" in refusal(path)


def test_a_file_that_may_not_be_read(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bunqueue.storage.reference.source.os.open", refuse)

    assert f"cannot read {path}: Permission denied" == refusal(path)


def test_a_file_into_itself(path):
    with pytest.raises(StorageFailed, match="cannot be imported into itself"):
        import_file(str(path), str(path))
