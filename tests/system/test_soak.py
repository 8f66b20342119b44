"""A minute of each soak: nothing grows. The long forms are in ``loadtests``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bunqueue.client.worlds import is_patched
from loadtests.soak_gauges import GAUGES, growth, read
from tests.support.broker_process import clean_environment

ROOT = Path(__file__).parents[2]
MINUTES, RESTART_S = 1, 20
RUN_S_MAX = 200

ROUNDS = 100
THREADS = [gauge.name for gauge in GAUGES].index("threads")


@pytest.mark.slow
def test_a_minute_of_misuse_leaves_nothing_behind() -> None:
    start = ["-m", "gevent.monkey", "--module"] if is_patched() else ["-m"]
    command = [sys.executable, *start, "loadtests.soak_client"]
    command += ["--minutes", str(MINUTES), "--restart-s", str(RESTART_S)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert 0 == done.returncode, done.stdout


@pytest.mark.slow
def test_a_broker_that_has_seen_many_jobs_holds_no_more_than_before() -> None:
    command = [sys.executable, "-m", "loadtests.soak_broker", "--jobs=20000", "--rounds=20"]
    command += ["--names=400", "--completed=800", "--minutes-kept=300"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
    )

    assert 0 == done.returncode, done.stdout


def test_figures_that_go_up_and_down_do_not_grow() -> None:
    assert [] == growth(series([10 + number % 3 for number in range(ROUNDS)]))


def test_a_thread_left_behind_now_and_then_is_growth() -> None:
    threads = [10 + number % 2 + number // 10 for number in range(ROUNDS)]

    assert ["threads: at most 14.0 before, at least 18.0 after"] == growth(series(threads))


def test_every_gauge_is_read() -> None:
    figures, classes = read()

    assert len(GAUGES) == len(figures)
    assert 1 <= figures[THREADS]
    assert 1 <= classes["builtins.dict"]


def series(threads: list[float]) -> list[list[float]]:
    """Return figures that stay, but for the number of threads."""
    return [threads if gauge.name == "threads" else [5.0] * ROUNDS for gauge in GAUGES]
