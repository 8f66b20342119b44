"""``bunqueue import-db``: our broker on an imported file against the original server on its own.

Both start from the same rows and are asked the same, so what the original says is what ours must
say, but for what ``EXPLAINED`` names. Done with a file that was recorded once, and, where the
original can be had, with a fresh one too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from bunqueue.engine.cron_text import parse
from bunqueue.engine.cron_times import next_run, zone_of
from tests.support.broker_process import BrokerProcess, clean_environment
from tests.support.cli import bunqueue
from tests.system.import_db import record

pytestmark = pytest.mark.slow

RECORDED, FRESH = "recorded", "fresh"
SLACK_MS = 1_000  # a timeline that the job's moments tell within this is not kept
MANY = 21_000  # jobs from which on progress is told, and some
MISSING = "(missing)"

# path of an answer's member -> why the two may differ there
EXPLAINED = {
    r"\.lastHeartbeat$": "kept for running jobs only",
    r"\.job\._state$": "an inner name of the original's (wire.md 3.1)",
    r"^GetJob null-data\.job\.data$": "undefined is null here",
    r"^GetJob p-failPa\.job\.failedReason$": "the last error is kept by itself (wire.md 3.2)",
    r"^GetQueueLimits limited-for-long\..*\.rateLimitTtl$": "it runs",
    r"^GetDeduplicationJobId keys k2\.": "an end is not put off by a start",
    # Charged as interrupted, at the moment of each server's own start; ours is written down.
    r"^GetJob active-\S+\.job\.(runAt|startedAt|timeline|failedReason)$": "engine.md T15",
    r"^CronList\.crons\[\d\]\.nextRun$": "held against the calendar in a test of its own",
}


@dataclass
class Import:
    """One import, and what both servers told of the same rows."""

    source: Path
    target: Path
    report: dict[str, Any]
    source_was: str
    theirs: dict[str, Any]
    ours: dict[str, Any]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded_file(directory: Path) -> Path:
    file = directory / "reference.db"
    file.write_bytes(gzip.decompress(record.FILE.read_bytes()))
    return file


def run_import(source: Path, target: Path, *options: str) -> dict[str, Any]:
    done = bunqueue("import-db", "--json", "--data-path", str(target), *options, str(source))
    assert done.status in (0, 3), done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


@pytest.fixture(scope="module", params=[RECORDED, FRESH])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Import:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == RECORDED:
        source = recorded_file(directory)
        theirs = json.loads(record.TOLD.read_text("utf-8"))
    else:
        home = request.getfixturevalue("reference_home")
        source, theirs = record.record(directory, home=home)
    source_was = digest(source)
    target = directory / "ours.db"
    report = run_import(source, target)
    with BrokerProcess(directory, data_path=target) as broker:
        ours = record.tell(broker)
    return Import(source, target, report, source_was, theirs, ours)


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two answers differ; moments that are nearly the same do not."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs | ours:
            inner = f"{path}.{key}" if path else key
            yield from differences(theirs.get(key, MISSING), ours.get(key, MISSING), inner)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif theirs != ours and not is_near(theirs, ours, path):
        yield path, theirs, ours


def is_near(theirs: Any, ours: Any, path: str) -> bool:
    if not isinstance(theirs, (int, float)) or not isinstance(ours, (int, float)):
        return False
    if path.endswith(".runAt"):
        return int(theirs) == ours  # ours have no fraction
    return ".timeline[" in path and abs(theirs - ours) <= SLACK_MS


def test_all_that_is_told_of_jobs_queues_and_flows_is_what_the_original_tells(done: Import) -> None:
    unexplained = [
        difference
        for difference in differences(done.theirs["answers"], done.ours["answers"])
        if not any(re.search(path, difference[0]) for path in EXPLAINED)
    ]

    assert [] == unexplained


def test_active_jobs_were_charged_as_interrupted(done: Import) -> None:
    job = done.ours["answers"]["GetJob active-leased"]["job"]

    assert ("delayed", 1, 1, 12) == (
        job["state"],
        job["attempts"],
        job["stallCount"],
        job["progress"],
    )
    assert "failed" == done.ours["answers"]["GetJob active-last-run"]["job"]["state"]


def test_schedulers_go_on_where_they_were(done: Import) -> None:
    theirs, ours = (
        {cron["name"]: cron["nextRun"] for cron in told["answers"]["CronList"]["crons"]}
        for told in (done.theirs, done.ours)
    )
    now = done.ours["at"]
    schedules = {
        "by-schedule": ("30 9 * * *", "Europe/Rome"),
        "optioned": ("0 0 1 1 *", "UTC"),
        "no-data": ("@yearly", "UTC"),
    }
    expected = {
        name: at
        if at > now
        else next_run(parse(schedules[name][0]), zone_of(schedules[name][1]), now)
        for name, at in theirs.items()
    }

    assert expected == ours


def test_work_goes_on_as_it_does_with_the_original(done: Import) -> None:
    """Jobs come in the same order but for those of the same moment, and parents come loose."""
    run_at = {
        answer["job"]["id"]: answer["job"]["runAt"]
        for name, answer in done.ours["answers"].items()
        if name.startswith("GetJob ")
    }

    def told(work: dict[str, Any], by_moment: bool) -> dict[str, Any]:
        return {
            step: [run_at[job_id] for job_id in found] if by_moment else sorted(found)
            for step, found in work.items()
            if step.startswith("pulled from ")
        }

    theirs, ours = done.theirs["work"], done.ours["work"]

    assert told(theirs, by_moment=False) == told(ours, by_moment=False)
    assert told(theirs, by_moment=True) == told(ours, by_moment=True)
    others = [step for step in theirs if not step.startswith("pulled from ")]
    assert {step: theirs[step] for step in others} == {step: ours[step] for step in others}


def test_the_report_counts_what_the_source_holds(done: Import) -> None:
    rows = apsw.Connection(
        f"file:{done.source}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    states = dict(rows.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
    states["failed"] = rows.execute("SELECT count(DISTINCT job_id) FROM dlq").get

    assert states == done.report["jobs"]
    assert (
        rows.execute("SELECT count(*) FROM cron_jobs").get == done.report["imported"]["schedulers"]
    )
    assert (
        rows.execute("SELECT count(*) FROM job_results").get == done.report["imported"]["results"]
    )
    assert (0, 0) == (done.report["refusedTotal"], done.report["changedTotal"])
    rows.close()


def test_the_source_is_as_it_was(done: Import) -> None:
    assert done.source_was == digest(done.source)
    assert not list(done.source.parent.glob(f"{done.source.name}-*"))


def test_the_log_of_a_killed_server_is_read_and_left_alone(tmp_path: Path) -> None:
    source = recorded_file(tmp_path)
    script = (
        "import apsw, os, sys\n"
        "db = apsw.Connection(sys.argv[1])\n"
        'db.execute("INSERT INTO jobs (id, queue, name, data, created_at, run_at) VALUES'
        " ('late', 'late', 'late', x'c0', 1, 1)\")\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(source)], check=True)
    files = sorted(tmp_path.glob("reference.db*"))
    were = list(map(digest, files))
    assert [source.name, f"{source.name}-shm", f"{source.name}-wal"] == [
        each.name for each in files
    ]

    report = run_import(source, tmp_path / "ours.db")

    assert 32 == report["jobs"]["waiting"]
    assert were == list(map(digest, sorted(tmp_path.glob("reference.db*"))))


def test_a_source_that_a_server_has_open_is_refused(tmp_path: Path) -> None:
    source = recorded_file(tmp_path)
    script = (
        "import apsw, sys\n"
        "db = apsw.Connection(sys.argv[1])\n"
        "db.execute('SELECT 1 FROM jobs').get\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        refused = bunqueue("import-db", "-d", str(tmp_path / "ours.db"), str(source))
        user.communicate()

    assert 1 == refused.status
    assert f"in use by another process (pid {user.pid})" in refused.err
    assert not (tmp_path / "ours.db").exists()


def test_a_target_that_a_broker_serves_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    refused = bunqueue("import-db", "-d", str(broker.data_path), str(recorded_file(tmp_path)))

    assert 1 == refused.status
    assert f"in use by another process (pid {broker.pid}" in refused.err


def test_an_import_that_is_killed_leaves_nothing_and_can_be_run_again(tmp_path: Path) -> None:
    source, target = recorded_file(tmp_path), tmp_path / "ours.db"
    with apsw.Connection(str(source)) as rows:
        names = [row[1] for row in rows.execute("PRAGMA table_info(jobs)") if row[1] != "id"]
        rows.execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE"
            f" n < {MANY}) INSERT INTO jobs (id, {', '.join(names)}) SELECT 'many-' || n,"
            f" {', '.join(names)} FROM numbers, jobs WHERE jobs.id = 'plain'"
        )
    rows.close()
    command = [sys.executable, "-m", "bunqueue", "import-db", "-d", str(target), str(source)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=clean_environment()
    ) as killed:
        assert killed.stderr is not None
        assert b"jobs read" in killed.stderr.readline()  # it is under way
        killed.kill()
    assert -signal.SIGKILL == killed.returncode
    left = apsw.Connection(str(target))
    assert 0 == left.execute("SELECT count(*) FROM jobs").get
    left.close()

    report = run_import(source, target)

    assert MANY + 31 == report["jobs"]["waiting"]
    whole = apsw.Connection(str(target))
    assert MANY + 67 == whole.execute("SELECT count(*) FROM jobs").get
    whole.close()
