"""An import as a whole, from a file that the original server wrote."""

from __future__ import annotations

import gzip
import os

import apsw
import msgpack
import pytest

from bunqueue.errors import StorageFailed
from bunqueue.storage import schema
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.reference.importing import import_file
from bunqueue.storage.reference.report import TOLD_MAX
from bunqueue.storage.sqlite import SqliteStorage
from tests.system.import_db.record import FILE

JOBS = 67  # rows of jobs and dead letters in the recorded file


@pytest.fixture(scope="module")
def packed():
    return gzip.decompress(FILE.read_bytes())


@pytest.fixture
def source(tmp_path, packed):
    path = tmp_path / "source.db"
    path.write_bytes(packed)
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.db"


def change(path, *statements):
    """Change a closed file, and close it again."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def count(path, table):
    connection = apsw.Connection(str(path))
    number = connection.execute(f"SELECT count(*) FROM {table}").get
    connection.close()
    return number


def ids(path):
    connection = apsw.Connection(str(path))
    found = {row[0] for row in connection.execute("SELECT id FROM jobs")}
    connection.close()
    return found


def test_everything_of_a_sound_file_comes_over(source, target):
    report = import_file(str(source), str(target))

    assert JOBS == sum(report.jobs.values()) == count(target, "jobs")
    assert (0, 0) == (report.refused_total, report.changed_total)
    assert {
        "queues": 11,
        "groups": 3,
        "crons": 5,
        "proofs": 2,
        "flow_failures": 2,
        "metrics_total": 11,
    } == {
        table: count(target, table)
        for table in ("queues", "groups", "crons", "proofs", "flow_failures", "metrics_total")
    }


def test_an_imported_file_opens_as_one_that_was_closed_in_good_order(source, target):
    import_file(str(source), str(target))

    storage = SqliteStorage.open(target, PollLoop(), writer="thread")
    saved = storage.load()
    assert (JOBS, True) == (saved.seq, saved.was_clean)
    storage.close()


def test_progress_is_told(source, target):
    told = []

    import_file(str(source), str(target), tell=lambda *numbers: told.append(numbers))

    assert [(JOBS, JOBS)] == told


def test_a_dry_run_reports_the_same_and_makes_no_file(source, target, tmp_path):
    report = import_file(str(source), str(target), is_dry=True)

    assert [source.name] == os.listdir(tmp_path)
    assert report == import_file(str(source), str(target))


def test_a_second_import_is_refused(source, target):
    import_file(str(source), str(target))

    for is_dry in (False, True):
        with pytest.raises(StorageFailed, match=rf"is not empty \(jobs: {JOBS}\)"):
            import_file(str(source), str(target), is_dry=is_dry)
    assert JOBS == count(target, "jobs")


def test_a_file_of_ours_that_holds_nothing_yet_is_a_target(source, target):
    SqliteStorage.open(target, PollLoop(), writer="thread").close()

    import_file(str(source), str(target))

    assert JOBS == count(target, "jobs")


def test_a_target_with_a_setting_is_not_empty(source, target):
    SqliteStorage.open(target, PollLoop(), writer="thread").close()
    change(target, "INSERT INTO queues VALUES ('q', 1, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0)")

    with pytest.raises(StorageFailed, match=r"is not empty \(jobs: 0\)"):
        import_file(str(source), str(target))


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_database_of_another_program_is_no_target(source, target, is_dry):
    change(target, "CREATE TABLE theirs (x)")

    with pytest.raises(StorageFailed, match="is a database of another program"):
        import_file(str(source), str(target), is_dry=is_dry)


class Stopped(Exception):
    """Something unforeseen on the way."""


def stop(_done, _total):
    raise Stopped


def test_an_import_that_fails_on_the_way_leaves_no_file(source, target, tmp_path):
    with pytest.raises(Stopped):
        import_file(str(source), str(target), tell=stop)

    assert {source.name, f"{target.name}.lock"} == set(os.listdir(tmp_path))


def test_an_import_that_fails_on_the_way_leaves_an_empty_target_empty(source, target):
    SqliteStorage.open(target, PollLoop(), writer="thread").close()

    with pytest.raises(Stopped):
        import_file(str(source), str(target), tell=stop)

    assert (0, 0) == (count(target, "jobs"), count(target, "queues"))
    import_file(str(source), str(target))
    assert JOBS == count(target, "jobs")


def test_a_source_that_is_written_to_meanwhile_fails_the_import(source, target):
    def write(_done, _total):
        change(source, "UPDATE jobs SET priority = 9")

    with pytest.raises(StorageFailed, match="has changed while it was read"):
        import_file(str(source), str(target), tell=write)
    assert not target.exists()


@pytest.mark.parametrize(
    ("table", "statement", "key", "why"),
    [
        ("jobs", "UPDATE jobs SET state = 'odd' WHERE id = 'plain'", "plain", "unknown state"),
        ("jobs", "UPDATE jobs SET data = x'c1' WHERE id = 'plain'", "plain", "data cannot"),
        (
            "jobs",
            "UPDATE jobs SET queue = 'a b' WHERE id = 'plain'",
            "plain",
            "Queue name contains",
        ),
        (
            "dlq",
            "UPDATE dlq SET entry = x'c1' WHERE job_id = 'discarded'",
            "discarded",
            "entry can",
        ),
        ("dlq", "UPDATE dlq SET job_id = 'plain' WHERE job_id = 'discarded'", "plain", "a live or"),
        (
            "cron_jobs",
            "UPDATE cron_jobs SET schedule = 'L * * * *' WHERE name = 'no-data'",
            "no-data",
            "Invalid cron expression",
        ),
        (
            "cron_jobs",
            "UPDATE cron_jobs SET timezone = 'Mars/Base' WHERE name = 'no-data'",
            "no-data",
            "Invalid cron expression",
        ),
        (
            "cron_jobs",
            "UPDATE cron_jobs SET next_run = 'x' WHERE name = 'no-data'",
            "no-data",
            "next_run is no number",
        ),
        (
            "queue_state",
            "UPDATE queue_state SET name = 'a b' WHERE name = 'paused'",
            "a b",
            "Queue name contains",
        ),
        (
            "group_state",
            "UPDATE group_state SET concurrency_limit = 0 WHERE group_id = 'red'",
            "red",
            "concurrency_limit is no number between 1",
        ),
        (
            "flow_failures",
            "UPDATE flow_failures SET mode = 'odd' WHERE child_id = 'contin-bad'",
            "contin-bad",
            "unknown mode",
        ),
    ],
)
def test_a_row_that_cannot_come_over_is_refused_and_the_rest_comes(
    source, target, table, statement, key, why
):
    change(source, statement)
    refused = []

    report = import_file(str(source), str(target), on_refused=lambda *each: refused.append(each))

    assert [(table, key)] == [(told.table, told.key) for told in report.refused]
    assert report.refused[0].why.startswith(why)
    ((told, columns),) = refused
    assert told == report.refused[0]
    assert key in columns.values()
    assert JOBS - (table in ("jobs", "dlq")) == count(target, "jobs")


def test_a_broker_opens_what_came_over_beside_refused_rows(source, target):
    change(source, "UPDATE jobs SET state = 'odd' WHERE rowid % 2")

    report = import_file(str(source), str(target))

    assert report.refused_total > 20
    assert {told.key for told in report.refused}.isdisjoint(ids(target))
    storage = SqliteStorage.open(target, PollLoop(), writer="thread")
    assert JOBS - report.refused_total == storage.load().seq
    storage.close()


def test_who_waits_for_a_job_that_was_refused_is_told(source, target):
    change(source, "UPDATE jobs SET data = x'c1' WHERE id IN ('tree-b', 'step-1', 'step-2')")

    report = import_file(str(source), str(target))

    assert {
        ("tree", "waits for tree-b, which was refused"),
        ("step-3", "waits for step-2, which was refused"),
    } == {(told.key, told.why) for told in report.changed}


def test_of_several_dead_letters_of_a_job_the_newest_comes_over(source, target):
    old = msgpack.packb({"job": {"id": "discarded"}, "reason": "stalled"}).hex()
    change(
        source,
        "INSERT INTO dlq (id, job_id, queue, entry, entered_at)"
        f" VALUES (-1, 'discarded', 'dead', x'{old}', 1)",
    )

    report = import_file(str(source), str(target))

    assert (10, 1) == (report.jobs["failed"], report.left_out["older dead letters of a job"])


def test_an_option_that_is_left_out_is_told_with_the_jobs_id(source, target):
    change(source, "UPDATE jobs SET stall_timeout = -1 WHERE id = 'plain'")

    report = import_file(str(source), str(target))

    assert [("jobs", "plain")] == [(told.table, told.key) for told in report.changed]


def test_refusals_beyond_a_limit_are_only_counted(source, target):
    change(
        source,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
        " INSERT INTO jobs (id, queue, name, data, created_at, run_at, state)"
        " SELECT 'bad-' || i, 'q', 'n', x'c1', 1, 1, 'waiting' FROM n",
    )

    report = import_file(str(source), str(target))

    assert (1500, TOLD_MAX) == (report.refused_total, len(report.refused))
    assert JOBS == count(target, "jobs")


def test_a_full_disk_is_told(source, target):
    connection = apsw.Connection(str(target))
    connection.pragma("journal_mode", "WAL")
    for table in schema.TABLES:
        connection.execute(table.create())
    connection.pragma("application_id", schema.APPLICATION_ID)
    connection.pragma("user_version", schema.SCHEMA_VERSION)
    connection.close()

    def fill(_done, _total):
        raise apsw.FullError

    with pytest.raises(StorageFailed, match="no room for .*: nothing was imported"):
        import_file(str(source), str(target), tell=fill)
    assert 0 == count(target, "jobs")
