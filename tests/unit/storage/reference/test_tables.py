"""Settings, schedulers, proofs and figures of the original server as rows of ours."""

from __future__ import annotations

import gzip
import json

import apsw
import msgpack
import pytest

from bunqueue.storage.reference.importing import import_file
from tests.system.import_db.record import FILE


@pytest.fixture
def run(tmp_path):
    """Change the recorded file with statements, import it, return the report and a reader."""
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    source.write_bytes(gzip.decompress(FILE.read_bytes()))

    def run(*statements):
        theirs = apsw.Connection(str(source))
        for statement, *values in statements:
            theirs.execute(statement, values)
        theirs.close()
        report = import_file(str(source), str(target))
        ours = apsw.Connection(str(target))
        return report, lambda query, *values: list(ours.execute(query, values))

    return run


def changed(report):
    return [(told.table, told.key, told.why) for told in report.changed]


def refused(report):
    return [(told.table, told.key, told.why) for told in report.refused]


def test_settings_that_are_the_default_take_no_room(run):
    _, rows = run()

    assert [(1, None, None)] == rows("SELECT paused, stall, dlq FROM queues WHERE name = 'paused'")


def test_settings_of_a_queue_come_over(run):
    _, rows = run()

    ((limit, duration, concurrency, stall),) = rows(
        "SELECT rate_limit, rate_duration_ms, concurrency, stall FROM queues WHERE name = 'limited'"
    )
    assert (5, 60_000, 3) == (limit, duration, concurrency)
    assert {
        "enabled": False,
        "stallInterval": 12_000,
        "maxStalls": 8,
        "gracePeriod": 1,
    } == json.loads(stall)


def test_a_rate_without_a_span_is_per_second(run):
    _, rows = run(("UPDATE queue_state SET rate_limit_duration = NULL WHERE name = 'limited'",))

    assert [(1_000,)] == rows("SELECT rate_duration_ms FROM queues WHERE name = 'limited'")


def test_a_dlq_configuration_that_cannot_be_read_is_the_default_and_told(run):
    report, rows = run(("UPDATE queue_state SET dlq_config = x'c1' WHERE name = 'dead'",))

    assert [(None,)] == rows("SELECT dlq FROM queues WHERE name = 'dead'")
    assert [
        ("queue_state", "dead", "dlq_config cannot be read: no msgpack: the default holds")
    ] == changed(report)


def test_half_a_rate_of_a_group_is_none(run):
    _, rows = run(("UPDATE group_state SET rate_duration = NULL WHERE group_id = 'red'",))

    assert [(None, None, 2)] == rows(
        "SELECT rate_limit, rate_duration_ms, concurrency FROM groups WHERE group_id = 'red'"
    )


def test_a_group_without_a_label_is_refused(run):
    report, _ = run(("UPDATE group_state SET group_id = '' WHERE group_id = 'red'",))

    assert [("group_state", "", "groupId must be a non-empty string")] == refused(report)


def test_schedulers_come_over_with_their_options(run):
    _, rows = run()

    assert [(7, "cron-key", '{"ttl": 5000}', 1, 1, 0)] == rows(
        "SELECT json_extract(job_options, '$.maxAttempts'), unique_key, dedup, skip_missed,"
        " skip_if_no_worker, prevent_overlap FROM crons WHERE name = 'optioned'"
    )


def test_an_option_that_no_schedulers_job_may_have_is_left_out_and_told(run):
    options = msgpack.packb({"maxAttempts": 0, "jobId": "x", "timeout": 5, "ttl": None})
    report, rows = run(("UPDATE cron_jobs SET job_options = ? WHERE name = 'no-data'", options))

    assert [('{"timeout": 5}',)] == rows("SELECT job_options FROM crons WHERE name = 'no-data'")
    assert [
        ("cron_jobs", "no-data", "maxAttempts must be at least 1: left out"),
        ("cron_jobs", "no-data", "jobId is no option of a scheduler's jobs: left out"),
    ] == changed(report)


@pytest.mark.parametrize(
    ("policy", "kept", "told"),
    [
        ({"extend": True, "ttl": 5, "note": b"x"}, '{"ttl": 5, "extend": true}', []),
        ({"ttl": "x"}, None, ["dedup.ttl must be a number: left out"]),
    ],
)
def test_of_a_schedulers_policy_comes_over_what_it_may_have(run, policy, kept, told):
    """One with bytes ended the import in a traceback."""
    report, rows = run(
        ("UPDATE cron_jobs SET dedup = ? WHERE name = 'no-data'", msgpack.packb(policy))
    )

    assert [(kept,)] == rows("SELECT dedup FROM crons WHERE name = 'no-data'")
    assert [("cron_jobs", "no-data", text) for text in told] == changed(report)


def test_figures_of_a_minute_that_is_none_are_refused(run):
    report, _ = run(("UPDATE queue_metric_buckets SET minute = x'' WHERE rowid = 1",))

    assert ["queue_metric_buckets"] == [table for table, _, _ in refused(report)]


@pytest.mark.parametrize(
    ("column", "value", "key", "why"),
    [
        ("name", "", "", "it has no name"),
        ("job_name", "x" * 257, "no-data", "Job name must be a non-empty string of at most 256"),
        ("schedule", None, "no-data", "Cron job must have either schedule or repeatEvery"),
        ("data", b"\xc1", "no-data", "data cannot be read: no msgpack"),
    ],
)
def test_a_scheduler_that_cannot_run_is_refused(run, column, value, key, why):
    report, rows = run((f"UPDATE cron_jobs SET {column} = ? WHERE name = 'no-data'", value))

    ((table, told_key, told_why),) = refused(report)
    assert ("cron_jobs", key) == (table, told_key)
    assert told_why.startswith(why)
    assert [] == rows("SELECT 1 FROM crons WHERE name = 'no-data'")


def test_proofs_come_over_but_those_of_jobs_that_are_kept(run):
    report, rows = run(
        ("INSERT INTO dependency_completions VALUES (NULL, 'done-map', 'done', 1, 0)",),
        ("INSERT INTO dependency_completions VALUES (NULL, 'odd', 'a b', 1, 0)",),
    )

    assert [("gone", "done"), ("proof-a", "children-c")] == rows(
        "SELECT id, queue FROM proofs ORDER BY id"
    )
    assert [("dependency_completions", "4", "Queue name contains invalid characters")] == refused(
        report
    )


def test_figures_come_over_by_the_minute_as_far_as_they_are_told(run):
    """The newest minute goes on in the row of totals; what has left the window stays behind."""
    _, rows = run(
        ("UPDATE queue_metric_buckets SET minute = 100000 WHERE queue = 'done'",),
        ("INSERT INTO queue_metric_buckets VALUES ('done', 'failed', 100000, 2)",),
        ("INSERT INTO queue_metric_buckets VALUES ('done', 'completed', 99999, 3)",),
        ("INSERT INTO queue_metric_buckets VALUES ('done', 'completed', 1, 4)",),
    )

    assert [(7, 0, 100_000, 7, 2)] == rows(
        "SELECT completed, failed, minute, minute_completed, minute_failed FROM metrics_total"
        " WHERE queue = 'done'"
    )
    assert [("done|99999", 3, 0)] == rows("SELECT * FROM metrics_minute")


def test_figures_without_any_minute_are_totals_only(run):
    _, rows = run(("DELETE FROM queue_metric_buckets WHERE queue = 'done'",))

    assert [(7, 0, 0, 0)] == rows(
        "SELECT completed, minute, minute_completed, minute_failed FROM metrics_total"
        " WHERE queue = 'done'"
    )


def test_figures_that_are_none_are_refused(run):
    report, _ = run(
        ("UPDATE queue_metrics_meta SET total_count = -1 WHERE queue = 'dead'",),
        ("UPDATE queue_metric_buckets SET count = -1 WHERE queue = 'done'",),
    )

    assert ["dead", "done"] == [key.split()[0] for _, key, _ in refused(report)]
    assert {"queue_metrics_meta", "queue_metric_buckets"} == {each[0] for each in refused(report)}
