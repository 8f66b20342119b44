"""Opening a file: what is made, what is refused and left alone."""

import os
import stat

import apsw
import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage import schema, sqlite
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.stores import NamedQueue, make_job


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "data.db"


def opened(path):
    return SqliteStorage.open(path, PollLoop(), writer="thread", lock_wait_ms=0)


def sql(path, *statements):
    connection = apsw.Connection(str(path))
    found = [list(connection.execute(statement)) for statement in statements]
    connection.close()
    return found


def refusal(path):
    before = path.read_bytes()
    with pytest.raises(StorageFailed) as caught:
        opened(path)
    assert before == path.read_bytes()
    assert [path.name, f"{path.name}.lock"] == sorted(os.listdir(path.parent))
    return str(caught.value)


def test_a_new_file_and_its_directory_belong_to_the_owner_alone(path):
    opened(path).close()

    assert 0o600 == stat.S_IMODE(os.stat(path).st_mode)
    assert 0o700 == stat.S_IMODE(os.stat(path.parent).st_mode)


def test_a_new_file_carries_its_kind_and_version(path):
    opened(path).close()

    assert [[(schema.APPLICATION_ID,)], [(schema.SCHEMA_VERSION,)], [("wal",)]] == sql(
        path, "PRAGMA application_id", "PRAGMA user_version", "PRAGMA journal_mode"
    )


def test_the_hot_tables_have_no_second_index(path):
    opened(path).close()

    assert [[]] == sql(
        path, "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name != 'meta'"
        " AND tbl_name IN ('jobs', 'state')"
    )  # fmt: skip


def test_the_file_is_readable_for_people(path):
    storage = opened(path)
    storage.added(make_job(1, b"\xc0"))
    storage.close()

    assert [[("job-1", "emails", "welcome", None)]] == sql(
        path, "SELECT id, queue, name, state FROM jobs LEFT JOIN state USING (seq)"
    )


def test_a_file_is_one_by_whatever_link_it_is_opened(path, tmp_path):
    storage = opened(path)
    for name, target in (("file.db", path), ("directory", path.parent)):
        (tmp_path / name).symlink_to(target)
    for other in (tmp_path / "file.db", tmp_path / "directory" / path.name):
        with pytest.raises(StorageFailed, match="in use by another process"):
            opened(other)
    storage.close()

    assert ["data.db", "data.db.lock"] == sorted(os.listdir(path.parent))


def test_a_second_name_of_the_file_is_warned_of(path, tmp_path, caplog):
    opened(path).close()
    (tmp_path / "second.db").hardlink_to(path)
    opened(path).close()

    assert "has 2 names (hard links)" in caplog.text


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o666])
def test_a_file_that_every_user_may_open_is_warned_of(path, mode, caplog):
    opened(path).close()
    path.chmod(mode)
    opened(path).close()

    text = f"{path} is open to every user (mode {mode:04o}); chmod 600 {path}"
    assert (mode in (0o604, 0o666)) == (text in caplog.text)


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path):
    opened(path).close()
    sql(path, "PRAGMA user_version = 99")

    assert (
        f"{path} was written by a newer bunqueue (schema 99, this one knows"
        f" {schema.SCHEMA_VERSION}); it was left as it is: upgrade bunqueue to open it"
    ) == refusal(path)


def test_a_file_of_another_program_is_refused_and_left_alone(path):
    path.parent.mkdir()
    sql(path, "CREATE TABLE jobs (id TEXT)")

    assert "is a database of another program" in refusal(path)


@pytest.mark.parametrize("content", [b"not a database at all, " * 50, b"SQLite format 3\0" * 99])
def test_a_damaged_file_is_refused_and_left_alone(path, content):
    path.parent.mkdir()
    path.write_bytes(content)

    assert "is damaged" in (text := refusal(path))
    assert "restore it from a backup, save what" in text
    assert "or move it" in text


def test_a_damaged_page_is_found_before_anything_is_written(path):
    storage = opened(path)
    for seq in range(1, 2000):
        storage.added(make_job(seq, b"x" * 100))
    storage.close()
    with open(path, "r+b") as file:
        file.seek(10 * 8192)
        file.write(b"\xff" * 4096)

    assert "is damaged" in refusal(path)


def test_an_older_file_is_migrated_step_by_step(path, monkeypatch):
    opened(path).close()
    steps = {1: ("CREATE TABLE a (b)",), 2: ("ALTER TABLE a ADD COLUMN c",)}
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    opened(path).close()

    assert [[(3,)], []] == sql(path, "PRAGMA user_version", "SELECT b, c FROM a")


def test_a_step_that_fails_leaves_the_steps_before_it(path, monkeypatch):
    opened(path).close()
    steps = {1: ("CREATE TABLE a (b)",), 2: ("CREATE TABLE c (d)", "nonsense")}
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    with pytest.raises(StorageFailed, match="cannot open .*SQLError"):
        opened(path)

    assert [[(2,)], [("a",)]] == sql(
        path, "PRAGMA user_version", "SELECT name FROM sqlite_schema WHERE name IN ('a', 'c')"
    )


def test_a_file_that_lacks_a_small_table_gets_it(path, monkeypatch):
    opened(path).close()
    more = schema.Table("extras", ("name TEXT PRIMARY KEY", "value TEXT"))
    monkeypatch.setattr(schema, "TABLES", (*schema.TABLES, more))
    monkeypatch.setattr(schema, "SMALL_TABLES", (*schema.SMALL_TABLES, more))
    storage = opened(path)

    assert {} == storage.load().tables["extras"]
    assert {} == storage.load().tables["crons"]
    assert {} == storage.load().tables["queues"]
    storage.close()


def test_a_directory_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot make the directory of .*Not a directory"):
        opened(tmp_path / "file" / "deep" / "data.db")


def test_a_file_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "data.db").mkdir()
    with pytest.raises(StorageFailed, match="cannot write .*data.db: Is a directory"):
        opened(tmp_path / "data.db")


def test_a_network_file_system_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite, "network_type", lambda _: "nfs4")
    with pytest.raises(StorageFailed, match=r"network file system \(nfs4\)"):
        opened(path)

    assert [] == os.listdir(path.parent)


def test_a_refused_file_is_not_kept_locked(path):
    path.parent.mkdir()
    path.write_bytes(b"x" * 2000)
    refusal(path)
    path.unlink()

    opened(path).close()


def test_an_error_met_while_reading_is_told_with_the_path(path):
    storage = opened(path)
    storage.added(make_job(1))
    storage.flush()
    saved = storage.load()
    saved._reader.close()
    with pytest.raises(StorageFailed, match="cannot read .*data.db"):
        list(saved.jobs(NamedQueue))
    storage._reader = None
    storage.close()


def test_a_damaged_file_and_the_log_beside_it_stay_as_they_are(path, tmp_path):
    opened(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO meta VALUES ('old', zeroblob(200000))")
    connection.wal_checkpoint()
    connection.execute("INSERT INTO meta VALUES ('new', zeroblob(50000))")
    left = tmp_path / "left.db"  # as a broker that was killed leaves it
    log = tmp_path / "left.db-wal"
    left.write_bytes(path.read_bytes())
    log.write_bytes((path.parent / "data.db-wal").read_bytes())
    connection.close()
    with left.open("r+b") as file:
        file.seek(sqlite.PAGE_BYTES)
        file.write(b"\xff" * sqlite.PAGE_BYTES)
    before = left.read_bytes(), log.read_bytes()

    with pytest.raises(StorageFailed, match=r"(?s)is damaged.*\.recover") as refused:
        opened(left)
    assert str(left) in str(refused.value)
    del refused

    assert before == (left.read_bytes(), log.read_bytes())


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_log_without_its_file_is_refused_and_kept(path, what):
    path.parent.mkdir()
    log = path.parent / "data.db-wal"
    log.write_bytes(b"the newest jobs")
    if what == "empty":
        path.touch()

    with pytest.raises(StorageFailed, match=f"data.db is {what}, but its log .*data.db-wal is not"):
        opened(path)

    assert b"the newest jobs" == log.read_bytes()
    assert (what == "empty") == path.exists()


def test_an_empty_file_with_an_empty_log_is_a_new_one(path):
    path.parent.mkdir()
    path.touch()
    (path.parent / "data.db-wal").touch()

    opened(path).close()


def test_a_file_whose_last_page_is_cut_off_is_refused_and_left_alone(path):
    storage = opened(path)
    for seq in range(1, 200):
        storage.added(make_job(seq, b"x" * 100))
    storage.close()
    os.truncate(path, path.stat().st_size - 100)

    assert "is damaged (" in (text := refusal(path))
    assert "\n" not in text


def test_what_sqlite_finds_is_told_in_one_line(path):
    storage = opened(path)
    for seq in range(1, 2000):
        storage.added(make_job(seq, b"x" * 100))
    storage.close()
    os.truncate(path, path.stat().st_size // 2 // 8192 * 8192)

    assert "is damaged (" in (text := refusal(path))
    assert "\n" not in text
