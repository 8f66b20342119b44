"""The Locust scenarios, each for a moment: nothing fails, and no job is missing at the broker.

Locust patches the process that imports it, so it runs in processes of its own, as its users start
it. The scenarios run side by side on one broker, each with queues of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Connection, Queue
from tests.support.broker_process import BrokerProcess, clean_environment, free_port

ROOT = Path(__file__).parents[2]
LOCUSTFILE = "loadtests/locustfile.py"
NO_BROKER, PAGE = "no broker", "page"
RUN_S_MAX = 120.0
PAGE_S_MAX = 60.0
POLL_S = 0.1

# Scenario -> what stands in its statistics, whatever else does.
SCENARIOS = {
    "Burst": {"PUSHB", "add to completion", "burst to empty queue"},
    "Cron": {"Cron", "due to started"},
    "Flow": {"PUSHF", "add to completion", "tree to completion"},
    "Mixed": {"PUSH", "PULLB (waits)", "add to completion"},
    "Producer": {"PUSH", "PUSHB"},
    "ReconnectStorm": {"PUSH", "connect and greet"},
    "SlowHandler": {"PUSHB", "add to completion"},
    "Worker": {"PUSH", "PULLB (waits)", "WaitJob (waits)", "add to completion"},
}

pytestmark = pytest.mark.slow


@dataclass
class Run:
    """What a scenario came to.

    Attributes:
        status: Exit status of Locust.
        log: What it printed.
        stats: Name -> its line of the statistics.
        jobs: How many jobs of it the broker has, in whatever state.
    """

    status: int
    log: str
    stats: dict[str, dict[str, Any]]
    jobs: int


@dataclass
class Started:
    """The broker and the processes of Locust, by scenario or purpose."""

    directory: Path
    broker: BrokerProcess
    processes: dict[str, subprocess.Popen[str]]
    page_url: str


def locust(*args: object) -> subprocess.Popen[str]:
    """Start Locust as the README says."""
    environment = clean_environment() | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", LOCUSTFILE, *map(str, args)],
        cwd=ROOT,
        env={name: text for name, text in environment.items() if not name.startswith("LOCUST_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Everything at once, since it spends most of its time waiting."""
    directory = tmp_path_factory.mktemp("load")
    processes: dict[str, subprocess.Popen[str]] = {}
    with BrokerProcess(directory) as broker:
        try:
            for name in SCENARIOS:
                processes[name] = locust(
                    *(name, "--headless", "--only-summary", "--users=2", "--spawn-rate=10"),
                    *("--run-time=2", "--host", broker.url, "--queue-prefix", f"{name}:"),
                    *("--pause-ms=20", "--batch-size=10", "--json-file", directory / name),
                )
            processes[NO_BROKER] = locust("Producer", "--headless", "--broker-port", free_port())
            page_port = free_port()
            processes[PAGE] = locust(
                "Producer", "--web-host=127.0.0.1", f"--web-port={page_port}", "--pause-ms=20"
            )
            page_url = f"http://127.0.0.1:{page_port}"
            yield Started(directory, broker, processes, page_url)
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()


@pytest.fixture(scope="module")
def runs(started: Started) -> dict[str, Run]:
    """Every scenario's run."""
    broker, processes = started.broker, started.processes
    logs = {name: processes[name].communicate(timeout=RUN_S_MAX)[0] for name in SCENARIOS}
    found = {}
    with Connection(broker.host, broker.port) as connection:
        keys = connection.call({"cmd": "ListQueues"})["queues"]
        for name in SCENARIOS:
            queues = [
                Queue(key, connection=connection) for key in keys if key.startswith(f"{name}:")
            ]
            file = started.directory / f"{name}.json"
            lines = json.loads(file.read_text("utf-8")) if file.exists() else []
            found[name] = Run(
                status=processes[name].returncode,
                log=logs[name],
                stats={line["name"]: line for line in lines},
                jobs=sum(sum(queue.get_job_counts().values()) for queue in queues),
            )
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_runs_without_a_failure(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]

    assert 0 == run.status, run.log
    assert [] == [line for line in run.stats.values() if line["num_failures"]]
    assert "Traceback" not in run.log
    for statistic in SCENARIOS[name]:
        assert run.stats[statistic]["num_requests"] > 0, statistic


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_job_of_a_scenario_is_missing_at_the_broker(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]

    told = re.search(r"jobs added=(\d+) completed=\d+ left=\d+ unknown=0 missing=0\n", run.log)
    assert told, run.log
    assert 0 < run.jobs
    assert int(told[1]) == run.jobs


def test_replies_have_a_length_in_the_statistics(runs: dict[str, Run]) -> None:
    push = runs["Producer"].stats["PUSH"]

    assert push["total_content_length"] > push["num_requests"]


def test_without_a_broker_it_ends_at_once_and_says_what_to_do(started: Started) -> None:
    process = started.processes[NO_BROKER]
    log = process.communicate(timeout=RUN_S_MAX)[0]

    assert 1 == process.returncode
    assert "no bunqueue broker answers at localhost:" in log
    assert "Traceback" not in log


def test_the_web_page_starts_a_run(started: Started) -> None:
    process, page = started.processes[PAGE], started.page_url
    assert "queue_prefix" in answer_of(process, page)
    form = f"user_count=1&spawn_rate=1&host={started.broker.url}&queue_prefix=page:".encode()

    assert json.loads(answer_of(process, f"{page}/swarm", form))["success"]

    deadline = time.monotonic() + PAGE_S_MAX
    while not any(
        line["name"] == "PUSH"
        for line in json.loads(answer_of(process, f"{page}/stats/requests"))["stats"]
    ):
        assert time.monotonic() < deadline, "no request in the statistics"
        time.sleep(POLL_S)
    process.terminate()
    log = process.communicate(timeout=RUN_S_MAX)[0]
    assert 0 == process.returncode, log
    assert re.search(r"jobs added=[1-9]\d* .* missing=0\n", log), log


def answer_of(process: subprocess.Popen[str], url: str, form: bytes | None = None) -> str:
    """Ask Locust's web server, as soon as it answers."""
    deadline = time.monotonic() + PAGE_S_MAX
    while True:
        try:
            with urllib.request.urlopen(url, form, timeout=10) as reply:
                return str(reply.read(), "utf-8")
        except OSError:
            assert process.poll() is None, "Locust has ended"
            assert time.monotonic() < deadline, "no web page"
            time.sleep(POLL_S)


def test_the_readme_tells_of_every_scenario_and_every_argument() -> None:
    readme = (ROOT / "loadtests/README.md").read_text("utf-8")
    arguments = re.findall(r'^    Argument\("([a-z-]+)"', _source("load/options.py"), re.MULTILINE)
    scenarios = re.findall(r'^    "(\w+)",$', _source("locustfile.py"), re.MULTILINE)

    assert list(SCENARIOS) == scenarios
    assert 5 < len(arguments)
    assert [] == [name for name in scenarios if f"| `{name}` |" not in readme]
    assert [] == [name for name in arguments if f"| `--{name}` |" not in readme]


def _source(name: str) -> str:
    return (ROOT / "loadtests" / name).read_text("utf-8")
