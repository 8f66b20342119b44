"""The words of ``import-db``; what it does is tested with the storage."""

from __future__ import annotations

import base64
import gzip
import json

import apsw
import pytest

from bunqueue.cli import import_db
from bunqueue.cli.dispatch import dispatch
from tests.system.import_db.record import FILE


@pytest.fixture
def source(tmp_path, monkeypatch):
    for name in ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "theirs.db"
    path.write_bytes(gzip.decompress(FILE.read_bytes()))
    return path


def spoil(source):
    connection = apsw.Connection(str(source))
    connection.execute("UPDATE jobs SET data = x'c1' WHERE id = 'plain'")
    connection.execute("UPDATE jobs SET stall_timeout = -1 WHERE id = 'negative'")
    connection.close()


def test_it_tells_what_came_over(source, capsys):
    assert 0 == dispatch(["import-db", "--data-path", "ours.db", "theirs.db"])

    out = capsys.readouterr().out
    assert out.startswith("Imported theirs.db into ours.db\n")
    assert "jobs waiting-children   6\n" in out
    assert "\nRefused: 0\n" in out
    assert "Never in such a file: webhooks, logs of jobs, leases, registered workers\n" in out
    assert (source.parent / "ours.db").exists()


def test_the_target_may_come_from_the_environment(source, monkeypatch, capsys):
    monkeypatch.setenv("BUNQUEUE_DATA_PATH", "from-environment.db")

    assert 0 == dispatch(["import-db", "--dry-run", str(source)])
    assert "Would import" in capsys.readouterr().out
    assert not (source.parent / "from-environment.db").exists()


@pytest.mark.usefixtures("source")
def test_without_a_target_it_says_how_to_name_one(capsys):
    assert 2 == dispatch(["import-db", "theirs.db"])
    assert "--data-path or BUNQUEUE_DATA_PATH" in capsys.readouterr().err


@pytest.mark.usefixtures("source")
def test_an_error_is_json_too_if_asked_for(capsys):
    assert 1 == dispatch(["import-db", "--json", "-d", "ours.db", "nowhere.db"])
    assert {"ok": False, "error": "there is no file nowhere.db"} == json.loads(
        capsys.readouterr().err
    )


def test_rows_that_are_refused_or_changed_are_told_and_the_status_is_3(source, capsys):
    spoil(source)

    assert 3 == dispatch(["import-db", "-d", "ours.db", "theirs.db"])

    out = capsys.readouterr().out
    assert "Refused: 1\n  jobs plain: data cannot be read: no msgpack\n" in out
    assert "Changed: 1\n  jobs negative: stallTimeout must be between" in out


def test_the_figures_as_json(source, capsys):
    spoil(source)

    assert 3 == dispatch(["import-db", "--json", "-d", "ours.db", "theirs.db"])

    told = json.loads(capsys.readouterr().out)
    assert (True, "theirs.db", "ours.db", False) == (
        told["ok"],
        told["source"],
        told["target"],
        told["dryRun"],
    )
    assert (30, 1, 1) == (told["jobs"]["waiting"], told["refusedTotal"], told["changedTotal"])
    refused = {"table": "jobs", "key": "plain", "reason": "data cannot be read: no msgpack"}
    assert [refused] == told["refused"]


def test_refused_rows_are_kept_whole_in_a_file(source, capsys):
    spoil(source)

    dispatch(["import-db", "-d", "ours.db", "--refused", "refused.jsonl", "theirs.db"])

    (line,) = (source.parent / "refused.jsonl").read_text("utf-8").splitlines()
    kept = json.loads(line)
    assert ("jobs", "plain", "pending", "waiting") == (
        kept["table"],
        kept["key"],
        kept["row"]["queue"],
        kept["row"]["state"],
    )
    assert b"\xc1" == base64.b64decode(kept["row"]["data"]["base64"])
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["theirs.db", "linked.db", "theirs.db-wal", "ours.db", "ours.db-wal"]
)
def test_refused_rows_are_not_written_over_a_database(source, capsys, name):
    (source.parent / "linked.db").hardlink_to(source)
    before = source.read_bytes()

    assert 1 == dispatch(["import-db", "-d", "ours.db", "--refused", name, "theirs.db"])

    assert "name another file with --refused" in capsys.readouterr().err
    assert before == source.read_bytes()
    assert {"theirs.db", "linked.db"} == {path.name for path in source.parent.iterdir()}


def test_an_import_that_is_refused_leaves_the_refused_rows_of_the_one_before(source, capsys):
    spoil(source)
    command = ["import-db", "-d", "ours.db", "--refused", "refused.jsonl", "theirs.db"]
    dispatch(["import-db", "--dry-run", *command[1:]])
    dispatch(command)
    kept = (source.parent / "refused.jsonl").read_text("utf-8")

    assert 1 == dispatch(command)

    assert "ours.db is not empty" in capsys.readouterr().err
    assert 1 == len(kept.splitlines())
    assert kept == (source.parent / "refused.jsonl").read_text("utf-8")


def test_a_hard_link_to_the_source_is_no_target(source, capsys):
    (source.parent / "linked.db").hardlink_to(source)

    assert 1 == dispatch(["import-db", "-d", "linked.db", "theirs.db"])
    assert "cannot be imported into itself" in capsys.readouterr().err


@pytest.mark.usefixtures("source")
def test_a_file_for_refused_rows_that_cannot_be_written_stops_it_before_it_begins(capsys):
    assert 1 == dispatch(["import-db", "-d", "ours.db", "--refused", "no/where", "theirs.db"])
    assert "cannot write no/where: No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("source")
def test_long_work_tells_on_standard_error_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(import_db, "LONG_JOBS_MIN", 60)

    dispatch(["import-db", "--json", "-d", "ours.db", "theirs.db"])

    told = capsys.readouterr()
    assert "     67 of 67 jobs read\n" == told.err
    assert json.loads(told.out)["ok"]


@pytest.mark.usefixtures("source")
def test_many_refused_rows_are_not_all_shown(source, monkeypatch, capsys):
    spoil(source)
    monkeypatch.setattr(import_db, "SHOWN_MAX", 0)

    dispatch(["import-db", "-d", "ours.db", "theirs.db"])

    assert "Refused: 1\n  and 1 more: see --json and --refused\n" in capsys.readouterr().out
