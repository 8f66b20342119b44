"""Reports of other queues about workers: A1, A4, A9, A10 and A25 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Job, Queue, Worker
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program
from tests.support.relay import Relay

pytestmark = pytest.mark.slow

WAIT_S = 20.0  # for what takes a moment, on a busy machine
DRAINED, FAILED, FORCED = 0, 1, 3  # exit statuses, docs/guide/shutdown.md
EXECUTORS = ("greenlet", "thread", "process")
MAIN = "import sys\nfrom bunqueue.cli.main import main\nsys.exit(main())\n"
HANDLERS = """
import os, time

def note(*words):
    with open("notes", "a") as notes:
        print(*words, file=notes)

def work(job):
    note("begins", job.id, os.getpid())
    time.sleep(job.data)
    note("ends", job.id)

def spin(job):
    note("begins", job.id, os.getpid())
    until = time.monotonic() + job.data
    while time.monotonic() < until:
        sum(range(100))
    note("ends", job.id)

def block(job):
    from gevent.monkey import get_original

    note("begins", job.id, os.getpid())
    get_original("time", "sleep")(job.data)
    note("ends", job.id)

def die(job):
    note("begins", job.id, os.getpid())
    if job.data == "die":
        os._exit(9)
"""

Start = Callable[..., Program]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Queue]:
    name = re.sub(r"\W+", "-", request.node.name)
    with Queue(name, host=broker.host, port=broker.port) as queue:
        yield queue


@pytest.fixture
def start(broker: BrokerProcess, queue: Queue, tmp_path: Path) -> Iterator[Start]:
    """Start ``bunqueue worker`` on a handler of the module ``shop``."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "main.py").write_text(MAIN)
    programs: list[Program] = []

    def begin(handler: str, *args: str) -> Program:
        words = ["worker", f"shop:{handler}", "-q", str(queue.name), "-p", str(broker.port), *args]
        programs.append(Program(tmp_path / "main.py", words, directory=tmp_path))
        return programs[-1]

    yield begin
    for program in programs:
        program.__exit__(None, None, None)


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[str], list[list[str]]]:
    """Return what handlers noted: the words of each line that begins with a word."""
    path = tmp_path / "notes"

    def read(first: str) -> list[list[str]]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(first)]

    return read


def until(claim: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    """Wait for something to be true and return it."""
    deadline = time.monotonic() + wait_s
    while not (said := claim()):
        assert time.monotonic() < deadline, f"did not come true in {wait_s} s"
        time.sleep(0.02)
    return said


# -- A1: a link that is dead without a word --------------------------------------------------------


def test_a01_fifty_workers_behind_a_dead_link_come_back_spread_out(broker: BrokerProcess) -> None:
    """No job is lost, none runs twice, and the broker is not stormed."""
    lease_ms, beat_s, count = 6_000, 2.0, 50
    runs: Counter[str] = Counter()
    waits_ms: list[float] = []

    def handle(job: Job) -> None:
        runs[job.id] += 1
        time.sleep(job.data)

    def hear(event: dict[str, Any]) -> None:
        if event["type"] == "worker_retry" and event["attempt"] == 1:
            waits_ms.append(event["delay_ms"])

    with Relay(broker.host, broker.port) as relay:
        place = {"host": broker.host, "port": relay.port, "extended_telemetry": True}
        workers = [
            Worker(
                "fifty",
                handle,
                connection={**place, "on_telemetry": hear},
                lock_ttl_ms=lease_ms,
                concurrency=1,
            )
            for _ in range(count)
        ]
        try:
            with Queue("fifty", host=broker.host, port=broker.port) as queue:
                # Given workers with jobs that run, and polls that wait
                until(lambda: queue.get_workers_count(scope="queue") == count)
                ids = [queue.add("long", 1.5).id for _ in range(count // 2)]
                until(lambda: sum(runs.values()) == count // 2)

                # When nothing passes any more, and jobs come
                relay.fall_silent()
                silent_at = time.monotonic()
                ids += [queue.add("short", 0).id for _ in range(count)]

                # Then all notice, within two beats and what an answer may take, and come back
                until(lambda: all(worker.stats()["reconnects"] for worker in workers))
                assert time.monotonic() - silent_at < 3 * beat_s
                until(lambda: queue.get_workers_count(scope="queue") == count)

                # And every job has run, once
                until(lambda: queue.get_job_counts()["completed"] == len(ids))
                assert dict.fromkeys(ids, 1) == runs
            # And they came back apart
            assert len(waits_ms) >= count // 2  # those that waited for a job
            assert max(waits_ms) - min(waits_ms) > 100
            assert len(set(waits_ms)) > count // 3
        finally:
            closers = [threading.Thread(target=worker.close, args=(WAIT_S,)) for worker in workers]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join()


# -- A4: stopping, and exit statuses ---------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a04_what_ends_within_the_grace_is_acknowledged(
    executor: str, start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    ids = [queue.add("work", 1.0).id for _ in range(6)]
    worker = start("work", "-x", executor, "-c", "4", "--grace", "10")
    until(lambda: len(notes("begins")) >= 4)

    assert DRAINED == worker.stop(WAIT_S)

    begun = [job_id for job_id, _ in notes("begins")]
    assert len(set(begun)) == len(begun)
    assert sorted(begun) == sorted(job_id for (job_id,) in notes("ends"))
    for job_id in ids:
        assert ("completed" if job_id in begun else "waiting") == queue.get_state(job_id)
        assert 0 == found(queue, job_id).attempts


def found(queue: Queue, job_id: str) -> Job:
    job = queue.get_job(job_id)
    assert job is not None
    return job


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("is_told_twice", [False, True], ids=["grace over", "second TERM"])
def test_a04_what_does_not_end_in_time_is_handed_back_at_once_and_uncharged(
    is_told_twice: bool,
    executor: str,
    start: Start,
    queue: Queue,
    notes: Callable[[str], list[list[str]]],
) -> None:
    ids = [queue.add("work", 60).id for _ in range(4)]
    grace = "60" if is_told_twice else "0.5"
    worker = start("work", "-x", executor, "-c", "4", "--grace", grace)
    until(lambda: len(notes("begins")) == 4)

    worker.process.send_signal(signal.SIGTERM)
    if is_told_twice:
        until(lambda: any("draining" in line for line in worker.lines))
        worker.process.send_signal(signal.SIGTERM)

    assert FORCED == worker.process.wait(WAIT_S)
    for job_id in ids:
        job = found(queue, job_id)
        assert ("waiting", 0, 0) == (job.state, job.attempts, job.stalled_counter)
    assert [] == notes("ends")


def test_a04_a_child_killed_during_the_stop_is_no_success(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    for _ in range(2):
        queue.add("work", 3)
    supervisor = start("work", "--processes", "2", "-c", "1")
    until(lambda: len(notes("begins")) == 2)
    supervisor.process.send_signal(signal.SIGTERM)
    until(lambda: sum("draining" in line for line in supervisor.lines) == 2)

    os.kill(int(notes("begins")[0][1]), signal.SIGKILL)

    assert FAILED == supervisor.process.wait(WAIT_S)


def test_a04_a_worker_that_is_killed_dies_of_the_signal(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    """And its job, never renewed, is with the next worker at once."""
    job = queue.add("work", 60)
    worker = start("work")
    until(lambda: notes("begins"))

    worker.process.kill()

    assert -signal.SIGKILL == worker.process.wait(WAIT_S)
    until(lambda: queue.get_state(job.id) == "waiting", 5)


def test_a04_a_pool_whose_child_is_killed_replaces_it_and_the_job_runs_again(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    job = queue.add("work", 3, backoff=0)
    worker = start("work", "-x", "process", "-c", "1")
    until(lambda: notes("begins"))

    os.kill(int(notes("begins")[0][1]), signal.SIGKILL)

    until(lambda: queue.get_state(job.id) == "completed")
    assert 1 == found(queue, job.id).attempts
    assert 2 == len({pid for _, pid in notes("begins")})
    assert DRAINED == worker.stop(WAIT_S)


def test_a04_a_pool_that_loses_its_last_child_during_the_stop_is_no_success(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    job = queue.add("work", 5, backoff=0, attempts=2)
    worker = start("work", "-x", "process", "-c", "1")
    until(lambda: notes("begins"))
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: any("draining" in line for line in worker.lines))

    os.kill(int(notes("begins")[0][1]), signal.SIGKILL)

    status = worker.process.wait(WAIT_S)
    assert ("waiting", 1) == (queue.get_state(job.id), found(queue, job.id).attempts)
    assert DRAINED != status


# -- A9: handlers that let nobody else run ---------------------------------------------------------


def test_a09_a_handler_that_holds_the_hub_keeps_its_lease_and_is_named(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    """It computes, or sleeps in C, for several leases; another worker waits for the job."""
    lease_ms, busy_s = 1_500, 6.5
    options = ("-x", "greenlet", "-c", "1", "--lock-ttl", str(lease_ms))
    jobs = [queue.add("busy", busy_s) for _ in range(2)]
    first = {handler: start(handler, *options) for handler in ("spin", "block")}
    until(lambda: len(notes("begins")) == 2)

    start("work", *options)

    until(lambda: len(notes("ends")) == 2)
    until(lambda: queue.get_job_counts()["completed"] == 2)
    assert 2 == len(notes("begins"))
    for job in jobs:
        assert (0, 0) == (found(queue, job.id).attempts, found(queue, job.id).stalled_counter)
    for handler, worker in first.items():
        assert any("the gevent hub has been blocked" in line for line in worker.lines)
        assert any("shop.py" in line and f"in {handler}" in line for line in worker.lines)


# -- A10: a job that kills its worker --------------------------------------------------------------


def test_a10_a_job_that_kills_its_process_ends_among_the_dead_letters(
    start: Start, queue: Queue, notes: Callable[[str], list[list[str]]]
) -> None:
    deadly = queue.add("deadly", "die", backoff=100)
    others = [queue.add("other").id for _ in range(50)]

    supervisor = start("die", "--processes", "1", "-c", "4")

    until(lambda: queue.get_state(deadly.id) == "failed")
    assert "stalled" == queue.get_dlq_entries()[0].reason
    until(lambda: queue.get_job_counts()["completed"] == len(others))
    assert 3 == sum(job_id == deadly.id for job_id, _ in notes("begins"))
    assert DRAINED == supervisor.stop(WAIT_S)
