"""The bench, with a handful of jobs of each workload: every one of them runs on our broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests import stalls
from loadtests.bench import HALF_BUSY, IDLE, QUEUED
from loadtests.workloads import WORKLOADS
from tests.support.broker_process import clean_environment

ROOT = Path(__file__).parents[2]
JOBS = 12
QUEUED_JOBS = 1_000
RUN_S_MAX = 120.0

pytestmark = pytest.mark.slow


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtests.bench", *map(str, arguments)],
        cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )


def test_every_workload_runs(tmp_path):
    file = tmp_path / "bench.json"
    sizes = [f"--jobs={JOBS}", f"--queued={QUEUED_JOBS}", "--repeats=1"]

    done = bench("--engines=pure", "--places=memory", *sizes, f"--json={file}")

    assert 0 == done.returncode, done.stderr
    told = json.loads(file.read_text())["workloads"]
    assert {*WORKLOADS, IDLE, HALF_BUSY, QUEUED} == set(told)
    for name, row in told.items():
        (figures,) = row["pure-memory"]
        assert figures["jobs"] > 0, name
        assert "p99_us" in figures if name in (IDLE, HALF_BUSY) else figures["server_us"] > 0, name
    assert told[QUEUED]["pure-memory"][0]["memory_bytes"] > 0
    assert "| cycle-10k | absent |" in done.stdout


def test_figures_are_shown_again_from_their_file(tmp_path):
    file = tmp_path / "bench.json"
    first = bench("--engines=pure", "--places=file", "--repeats=1", "--jobs=6", f"--json={file}",
                  "ping-64x1")  # fmt: skip
    again = bench(f"--from={file}")

    assert 0 == first.returncode, first.stderr
    assert "| ping-64x1 | absent |" in first.stdout
    assert first.stdout == again.stdout


def test_a_workload_that_is_unknown_is_named():
    done = bench("push-64x1", "pull-the-plug")

    assert 2 == done.returncode
    assert "unknown workload: pull-the-plug\n" == done.stderr


def test_the_stopwatch_beside_queued_jobs_tells_a_step():
    assert 0 < stalls.worst(500, 64, {"BUNQUEUE_PURE": "1"}, watched_s=0.1)
