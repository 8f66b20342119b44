"""The bench, with a handful of jobs of each workload: every one of them runs on our broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.bench import HALF_BUSY, IDLE, QUEUED, SAME_LOAD
from loadtests.workloads import WORKLOADS
from tests.support.broker_process import clean_environment

ROOT = Path(__file__).parents[2]
JOBS = 12
QUEUED_JOBS = 1_000
RUN_S_MAX = 120.0

pytestmark = pytest.mark.slow


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return tool("bench", *arguments)


def tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"loadtests.{name}", *map(str, arguments)],
        cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )


def test_every_workload_runs(tmp_path):
    file = tmp_path / "bench.json"
    sizes = [f"--jobs={JOBS}", f"--queued={QUEUED_JOBS}", "--repeats=1"]

    done = bench("--engines=pure", "--places=file", *sizes, f"--json={file}")

    assert 0 == done.returncode, done.stderr
    told = json.loads(file.read_text())["workloads"]
    assert {*WORKLOADS, IDLE, SAME_LOAD, HALF_BUSY, QUEUED, "stall"} == set(told)
    assert told.pop("stall")["pure-file"][0]["stall_ms"] > 0
    for name, row in told.items():
        (figures,) = row["pure-file"]
        assert figures["jobs"] > 0, name
        assert (
            "p99_us" in figures
            if name in (IDLE, SAME_LOAD, HALF_BUSY)
            else figures["server_us"] > 0
        ), name
    assert told[QUEUED]["pure-file"][0]["memory_bytes"] > 0
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


def test_a_curve_of_scale_has_its_points(tmp_path):
    file = tmp_path / "scale.json"

    done = tool("scale", "--pure", "--repeats=1", "--most=1", "--jobs=20", f"--json={file}",
                "queues", "shards")  # fmt: skip

    assert 0 == done.returncode, done.stderr
    curves = json.loads(file.read_text())["curves"]
    assert {"queues": ["1"], "shards": ["1"]} == {n: list(costs) for n, costs in curves.items()}
    assert "| shards | 1 |" in done.stdout


def test_the_hub_the_writer_and_a_front_have_their_costs():
    done = tool("limits", "--pure", "--repeats=1", "--jobs=200", "push-64x1")

    assert 0 == done.returncode, done.stderr
    assert "| push-64x1 | " in done.stdout
    assert "| - |" not in done.stdout


def test_pushes_and_deliveries_at_a_rate_are_timed():
    done = tool("latency", "--engines=pure", "--connections=20", "--rate=50", "--ours-rate=100",
                "--seconds=1", "--repeats=1")  # fmt: skip

    assert 0 == done.returncode, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if " | pure | " in line]
    assert ["| 50", "| 100"] == [row[0] for row in rows]
    for row in rows:
        assert all(float(cell.strip(" |").replace(",", "")) > 0 for cell in row[2:]), row
