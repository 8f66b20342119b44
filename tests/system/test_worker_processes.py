"""``bunqueue worker`` as processes: a supervisor, its signals, and what replaces what."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue import JobFailedError, Queue
from bunqueue.cli.pid_file import pid_file
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program

SOME_LOOKS_S = 1.0
WAIT_S = 20.0  # a process that starts on a busy machine
MAIN = "import sys\nfrom bunqueue.cli.main import main\nsys.exit(main())\n"
HANDLERS = """
import os, time

def pid(job):
    return os.getpid()

def slow(job):
    open("started", "w").close()
    time.sleep(job.data)
    return "slept"

def held(job):
    open("started", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return "finished"

def hoard(job):
    return len(bytearray(job.data << 20))
"""

Start = Callable[..., Program]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with Queue(request.node.name.partition("[")[0], port=broker.port) as queue:
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


def results(queue: Queue, count: int) -> list[Any]:
    """Add jobs and return their results. Waits."""
    ids = [queue.add("x", n).id for n in range(count)]
    return [queue.wait_for_job(job_id, WAIT_S * 1000) for job_id in ids]


def logged(program: Program, pattern: str, count: int = 1) -> list[str]:
    """Return the groups of the first ``count`` lines that hold a pattern. Waits."""
    deadline = time.monotonic() + WAIT_S
    while len(found := [m for line in program.lines if (m := re.search(pattern, line))]) < count:
        assert time.monotonic() < deadline, program.lines
        time.sleep(0.02)
    return [match[match.re.groups] for match in found[:count]]


def status_of(program: Program) -> int:
    """Return the exit status. Waits."""
    return program.process.wait(WAIT_S)


def test_a_supervisor_keeps_its_processes_running(start: Start, queue: Queue) -> None:
    supervisor = start("pid", "--processes", "2", "-c", "1", "--pid-file", "pids")
    pids = [int(pid) for pid in logged(supervisor, r"worker process \d started pid=(\d+)", 2)]
    assert set(results(queue, 6)) <= set(pids)
    assert f"{supervisor.process.pid}\n" == Path(supervisor_file(supervisor)).read_text()

    # A crashed process is started again.
    os.kill(pids[0], signal.SIGKILL)
    pids += [int(logged(supervisor, r"worker process \d started pid=(\d+)", 3)[2])]
    assert set(results(queue, 6)) <= set(pids[1:])

    # SIGUSR1 shows stacks of those that have begun, SIGHUP replaces one process after the other.
    supervisor.process.send_signal(signal.SIGUSR1)
    logged(supervisor, r"Current thread (\w+)")
    supervisor.process.send_signal(signal.SIGHUP)
    new = [int(pid) for pid in logged(supervisor, r"worker process \d started pid=(\d+)", 5)[3:]]
    wait_until_gone(*pids[1:])
    assert set(results(queue, 6)) <= set(new)

    # SIGTERM is handed on, and all drain.
    assert 0 == supervisor.stop(WAIT_S)
    assert not Path(supervisor_file(supervisor)).exists()


def wait_until_gone(*pids: int) -> None:
    """Wait until no process of those is left."""
    deadline = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def supervisor_file(program: Program) -> str:
    return os.path.join(os.path.dirname(str(program.process.args[1])), "pids")  # type: ignore[index]


def test_a_process_is_replaced_after_so_many_jobs(start: Start, queue: Queue) -> None:
    ids = [queue.add("x").id for _ in range(3)]

    supervisor = start("pid", "--max-jobs-per-child", "1", "-c", "1", "--burst", "-x", "thread")

    assert 3 == len({queue.wait_for_job(job_id, WAIT_S * 1000) for job_id in ids})
    assert 0 == status_of(supervisor)


def test_handlers_run_in_processes_of_their_own(start: Start, queue: Queue) -> None:
    ids = [queue.add("x").id for _ in range(3)]

    worker = start("pid", "-x", "process", "--max-jobs-per-child", "1", "-c", "1", "--burst")

    pids = {queue.wait_for_job(job_id, WAIT_S * 1000) for job_id in ids}
    assert 3 == len(pids)
    assert worker.process.pid not in pids
    assert 0 == status_of(worker)


def test_a_change_of_a_file_restarts_the_workers(
    start: Start, queue: Queue, tmp_path: Path
) -> None:
    supervisor = start("answer", "--watch", str(tmp_path), "-x", "thread")
    logged(supervisor, r"(waiting for a change)")  # there is no such handler yet

    (tmp_path / "shop.py").write_text("def answer(job):\n    return 1\n")
    assert [1] == results(queue, 1)
    (tmp_path / "shop.py").write_text("def answer(job):\n    return 'two'\n")
    logged(supervisor, r"worker process 1 (started)", 3)

    logged(supervisor, r"(worker) started name", 2)
    assert ["two"] == results(queue, 1)
    assert 0 == supervisor.stop(WAIT_S)


def test_what_no_process_can_run_ends_the_supervisor(start: Start) -> None:
    supervisor = start("missing", "--processes", "2")

    assert 1 == status_of(supervisor)
    assert any("shop has no missing" in line for line in supervisor.lines), supervisor.lines


def test_a_second_signal_interrupts_what_runs(start: Start, queue: Queue, tmp_path: Path) -> None:
    job = queue.add("x", 60)
    worker = start("slow", "--processes", "1")
    wait_for_file(tmp_path / "started")

    worker.process.send_signal(signal.SIGTERM)
    logged(worker, r"(draining) grace_s")
    worker.process.send_signal(signal.SIGTERM)

    assert 3 == status_of(worker)
    assert "waiting" == queue.get_state(job.id)


@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_a_stop_in_the_midst_of_a_restart_lets_the_jobs_finish(
    start: Start, queue: Queue, tmp_path: Path, options: tuple[str, ...]
) -> None:
    job = queue.add("x")
    worker = start("held", *options)
    wait_for_file(tmp_path / "started")

    worker.process.send_signal(signal.SIGHUP)
    logged(worker, r"(draining) grace_s")
    worker.process.send_signal(signal.SIGTERM)
    assert_it_goes_on(worker)
    (tmp_path / "go").touch()

    assert 0 == status_of(worker)
    assert "finished" == queue.wait_for_job(job.id, WAIT_S * 1000)
    assert 1 == len(logged(worker, r"(worker) started name"))
    assert not any("beginning anew" in line for line in worker.lines)


def test_a_service_manager_may_signal_every_process_itself(
    start: Start, queue: Queue, tmp_path: Path
) -> None:
    """As systemd does by default: the worker process hears of the stop from two sides."""
    job = queue.add("x")
    supervisor = start("held", "--processes", "1")
    wait_for_file(tmp_path / "started")
    (pid,) = logged(supervisor, r"worker process 1 started pid=(\d+)")

    os.kill(int(pid), signal.SIGTERM)
    supervisor.process.send_signal(signal.SIGTERM)
    assert_it_goes_on(supervisor)
    (tmp_path / "go").touch()

    assert 0 == status_of(supervisor)
    assert "finished" == queue.wait_for_job(job.id, WAIT_S * 1000)


def test_a_stop_after_the_supervisor_has_gone_lets_the_jobs_finish(
    start: Start, queue: Queue, tmp_path: Path
) -> None:
    job = queue.add("x")
    supervisor = start("held", "--processes", "1")
    wait_for_file(tmp_path / "started")
    (pid,) = logged(supervisor, r"worker process 1 started pid=(\d+)")
    supervisor.process.kill()
    logged(supervisor, r"the supervisor is (gone)")

    os.kill(int(pid), signal.SIGTERM)
    (tmp_path / "go").touch()

    assert "finished" == queue.wait_for_job(job.id, WAIT_S * 1000)
    wait_until_gone(int(pid))
    assert not any("interrupting" in line for line in supervisor.lines)


def wait_for_file(path: Path) -> None:
    """Wait until a handler has made a file."""
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_it_goes_on(worker: Program) -> None:
    """Waits for a few looks of a worker or supervisor; it may not end."""
    try:
        status = worker.process.wait(SOME_LOOKS_S)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"it ended with status {status}: {worker.lines}")


@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_a_third_signal_ends_what_cannot_be_interrupted(
    start: Start, queue: Queue, tmp_path: Path, options: tuple[str, ...]
) -> None:
    queue.add("x", 60)
    worker = start("slow", "-x", "thread", *options)
    wait_for_file(tmp_path / "started")

    worker.process.send_signal(signal.SIGTERM)
    logged(worker, r"(draining) grace_s")
    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGINT)  # of another number, or the two may count as one

    assert 130 == status_of(worker)


def test_a_worker_process_has_no_more_memory_than_it_may(start: Start, queue: Queue) -> None:
    small, large = (queue.add("x", mib, attempts=1) for mib in (64, 4096))
    worker = start("hoard", "--max-memory", "2048", "-x", "thread", "-c", "1")

    assert 64 << 20 == queue.wait_for_job(small.id, WAIT_S * 1000)
    with pytest.raises(JobFailedError, match="MemoryError"):
        queue.wait_for_job(large.id, WAIT_S * 1000)
    assert 0 == worker.stop(WAIT_S)


def test_a_lone_worker_begins_anew_on_sighup(start: Start, queue: Queue) -> None:
    worker = start("pid")
    assert [worker.process.pid] == results(queue, 1)

    worker.process.send_signal(signal.SIGHUP)
    logged(worker, r"(worker) started name", 2)

    assert [worker.process.pid] == results(queue, 1)
    assert 0 == worker.stop(WAIT_S)


def test_processes_drain_when_their_supervisor_is_gone(start: Start, queue: Queue) -> None:
    supervisor = start("pid", "--processes", "1")
    (pid,) = results(queue, 1)

    supervisor.process.kill()

    wait_until_gone(pid)
    logged(supervisor, r"the supervisor is (gone)")


def test_a_pid_file_of_a_running_process_is_respected(start: Start, tmp_path: Path) -> None:
    with pid_file(str(tmp_path / "pids")):
        worker = start("pid", "--pid-file", "pids")

        assert 1 == status_of(worker)
    assert any("belongs to process" in line for line in worker.lines), worker.lines
