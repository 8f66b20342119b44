"""Handlers in child processes: what becomes of a job whose child crashes, hangs or eats memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Queue, SandboxedWorker, Worker, shutdown_manager
from tests.support import sandboxed
from tests.support.heard import Heard
from tests.support.program import Program

HANDLER = "tests.support.sandboxed:processor"
START_S = 60.0  # an import on a busy machine
EVENTS = ("active", "completed", "failed", "progress", "log", "error", "closed")


class Sandbox:
    """A queue and a sandboxed worker on the engine of this process."""

    def __init__(self, **options: Any) -> None:
        self.queue = Queue("q", embedded=True)
        self.worker = SandboxedWorker(
            "q",
            {"processor": HANDLER, **options},
            embedded=True,
            poll_timeout_ms=200,
            start_timeout_s=options.pop("start_timeout_s", START_S),
        )
        self.heard = Heard(self.worker, *EVENTS)

    def add(self, name: str, data: Any = None, **options: Any) -> str:
        return str(self.queue.add(name, data, **{"attempts": 1, **options}).id)

    def result(self, job_id: str) -> Any:
        """Return the result, or the reason of the failure. Waits."""
        deadline = time.monotonic() + START_S
        while (job := self.queue.get_job(job_id)) is not None and time.monotonic() < deadline:
            if job.state == "completed":
                return self.queue.get_result(job_id)
            if job.state == "failed":
                return job.failed_reason
            time.sleep(0.01)
        raise AssertionError(f"job {job_id} is still {job and job.state}")


@pytest.fixture
def sandbox() -> Iterator[Any]:
    made: list[Sandbox] = []

    def make(**options: Any) -> Sandbox:
        made.append(Sandbox(**options))
        made[-1].worker.start()
        return made[-1]

    yield make
    for each in made:
        each.worker.stop(force=True)
        each.queue.close()
    shutdown_manager(5)


def test_one_child_runs_job_after_job(sandbox: Any) -> None:
    box = sandbox()
    squares = [box.add("square", n) for n in range(5)]
    told, printed = box.add("tell"), box.add("print")
    pids = [box.add("pid") for _ in range(2)]

    assert [n**2 for n in range(5)] == [box.result(one) for one in squares]
    assert [told, "q", 0, None] == box.result(told)
    assert box.result(printed) is True  # whatever was printed, the answer came through
    assert box.result(pids[0]) == box.result(pids[1]) != os.getpid()
    assert [50, 60] == [event[2] for event in box.heard.events if event[0] == "progress"]
    assert [(told, "a line")] == [
        (event[1].id, event[2]) for event in box.heard.events if event[0] == "log"
    ]
    assert ["a line"] == [line["message"] for line in box.queue.get_job_logs(told)]
    assert {"total": 1, "busy": 0, "idle": 1, "recycled": 0, "restarts": 0} == settled(box.worker)


def settled(worker: SandboxedWorker) -> dict[str, int]:
    """Return the stats once nothing is busy. Waits."""
    deadline = time.monotonic() + START_S
    while worker.get_stats()["busy"] and time.monotonic() < deadline:
        time.sleep(0.005)
    return worker.get_stats()


def test_what_a_handler_raises_means_what_it_means_elsewhere(sandbox: Any) -> None:
    box = sandbox()
    plain, final = box.add("raise"), box.add("raise", "unrecoverable", attempts=5)
    later, leaving = box.add("raise", "delayed"), box.add("raise", "exit")
    failed, strange = box.add("fail"), box.add("strange")

    assert ["broken", "never", "leaving", "on purpose"] == [
        box.result(one) for one in (plain, final, leaving, failed)
    ]
    assert "the result cannot be sent" in box.result(strange)
    job = box.queue.get_job(plain)
    assert job is not None
    assert job.stacktrace is not None
    assert "ValueError: broken" == job.stacktrace[-1]
    assert any("do_raise" in line for line in job.stacktrace)
    assert "delayed" == box.queue.get_state(later)
    assert 0 == box.worker.get_stats()["restarts"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kill", "Worker crashed: killed by SIGKILL"),
        ("segfault", "Worker crashed: killed by SIGSEGV"),
        ("exit", "Worker crashed: exit status 7"),
    ],
)
def test_a_crash_fails_its_job_and_the_next_one_runs(sandbox: Any, name: str, reason: str) -> None:
    box = sandbox()
    crash, after = box.add(name), box.add("square", 3)

    assert reason == box.result(crash)
    assert 9 == box.result(after)
    assert [reason] == [str(event[1]) for event in box.heard.events if event[0] == "error"]
    assert 1 == box.worker.get_stats()["restarts"]


def test_a_child_killed_while_idle_costs_no_job(sandbox: Any) -> None:
    box = sandbox()
    pid = box.result(box.add("pid"))

    os.kill(pid, signal.SIGKILL)

    assert pid != box.result(box.add("pid"))
    assert 1 == box.worker.get_stats()["restarts"]


def test_a_handler_that_spins_is_killed_at_its_limit(sandbox: Any) -> None:
    box = sandbox(timeout=300, max_restarts=0)
    spin, after = box.add("spin"), box.add("square", 3)

    assert "job exceeded 300 ms" == box.result(spin)
    assert 9 == box.result(after)  # being killed is no crash: the slot is not given up


def test_a_handler_is_refused_the_memory_beyond_its_bound(sandbox: Any) -> None:
    box = sandbox(max_memory_mb=1024)
    greedy, after = box.add("memory"), box.add("square", 3)

    assert "MemoryError" == box.result(greedy)
    assert 9 == box.result(after)


def test_a_cancelled_handler_is_told_or_killed(sandbox: Any) -> None:
    box = sandbox()
    told, killed = box.add("wait"), box.add("spin")

    for job_id, hard in ((told, False), (killed, True)):
        active = box.heard.wait_for("active", 1 if job_id == told else 2)[1]
        assert job_id == active.id
        wait_until_busy(box.worker)
        assert box.worker.cancel_job(job_id, "no longer wanted", hard=hard)
        assert ("no longer wanted" if hard else "job cancelled") == box.result(job_id)


def wait_until_busy(worker: Worker) -> None:
    """Wait until a child has been given a job."""
    deadline = time.monotonic() + START_S
    while not worker.executor_object._running and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.005)


def test_a_forced_stop_hands_the_job_back_uncharged(sandbox: Any) -> None:
    box = sandbox()
    spin = box.add("spin")
    box.heard.wait_for("active")

    assert box.worker.stop(force=True)

    job = box.queue.get_job(spin)
    assert job is not None
    assert ("waiting", 0) == (job.state, job.attempts)


def test_children_that_keep_crashing_are_given_up(sandbox: Any) -> None:
    box = sandbox(max_restarts=2)
    box.add("exit", attempts=9, backoff={"type": "fixed", "delay": 1})

    assert box.worker.closed.wait(START_S)

    assert "no sandbox child is left" in str(box.worker.failure)
    told = [name for name in box.heard.names if name in ("error", "closed")]
    assert ["error"] * 4 + ["closed"] == told  # three crashes, and that it was the last
    assert {"total": 0, "busy": 0, "idle": 0, "recycled": 0, "restarts": 2} == (
        box.worker.get_stats()
    )


def test_without_restarts_the_first_crash_is_the_last(sandbox: Any) -> None:
    box = sandbox(auto_restart=False)
    box.add("exit")

    assert box.worker.closed.wait(START_S)
    assert 0 == box.worker.get_stats()["restarts"]


def test_a_child_is_replaced_after_so_many_jobs(sandbox: Any) -> None:
    box = sandbox(max_jobs_per_child=2)
    ids = [box.add("pid") for _ in range(4)]

    first, second, third, fourth = (box.result(one) for one in ids)

    assert first == second != third == fourth
    assert 0 == box.worker.get_stats()["restarts"]


def test_an_idle_child_is_ended_and_the_next_job_gets_a_new_one(sandbox: Any) -> None:
    box = sandbox(idle_recycle_ms=50)
    first = box.result(box.add("pid"))
    deadline = time.monotonic() + START_S
    while not box.worker.get_stats()["recycled"] and time.monotonic() < deadline:
        time.sleep(0.01)

    assert {"total": 1, "busy": 0, "idle": 0, "recycled": 1, "restarts": 0} == (
        box.worker.get_stats()
    )
    assert first != box.result(box.add("pid"))


def test_after_an_idle_timeout_the_worker_closes(sandbox: Any) -> None:
    box = sandbox(idle_timeout_ms=100)
    box.result(box.add("square", 2))

    assert box.worker.closed.wait(START_S)
    assert box.worker.failure is None


def test_environment_and_directory_are_the_options(sandbox: Any, tmp_path: Path) -> None:
    box = sandbox(env={"SHOP": "open"}, cwd=str(tmp_path))

    assert ["open", str(tmp_path.resolve())] == box.result(box.add("environment"))


def test_a_file_is_a_processor(sandbox: Any) -> None:
    box = sandbox(processor=Path(sandboxed.__file__))

    assert 16 == box.result(box.add("square", 4))


def test_a_generator_is_driven_to_its_end(sandbox: Any) -> None:
    box = sandbox(processor="tests.support.sandboxed:steps")

    assert 2 == box.result(box.add("x"))


@pytest.mark.parametrize(
    ("processor", "text"),
    [
        ("nowhere.shop:run", "ModuleNotFoundError: No module named 'nowhere'"),
        ("tests.support.sandboxed:missing", "AttributeError"),
        ("tests.support.sandboxed:coroutine", "no asyncio API"),
    ],
)
def test_a_processor_that_cannot_be_imported_ends_the_worker(
    sandbox: Any, processor: str, text: str
) -> None:
    box = sandbox(processor=processor)
    job_id = box.add("square", 2)

    assert box.worker.closed.wait(START_S)

    assert text in str(box.worker.failure)
    assert "waiting" == box.queue.get_state(job_id)  # nothing was pulled for it


def test_a_function_that_can_be_imported_is_a_processor() -> None:
    worker = Worker("q", sandboxed.processor, executor="process", embedded=True, autorun=False)

    assert HANDLER == worker._processor_name
    worker.close()
    shutdown_manager(5)


def test_a_lambda_is_refused_and_told_why() -> None:
    with pytest.raises(ValueError, match="can be imported"):
        Worker("q", lambda _job: None, executor="process", embedded=True, autorun=False)


PARENT = """
import time
from bunqueue import Queue, SandboxedWorker
queue = Queue("q", embedded=True)
queue.add("pid")
queue.add("spin")
worker = SandboxedWorker(
    "q", processor="tests.support.sandboxed:processor", embedded=True, start_timeout_s=60
)
worker.on("completed", lambda _job, pid: print("child", pid, flush=True))
worker.start()
time.sleep(600)
"""


def test_a_child_at_work_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "parent.py"
    file.write_text(PARENT)
    with Program(file, (), directory=tmp_path) as parent:
        pid = int(parent.wait_for("child").split()[1])
        parent.process.kill()
        parent.process.wait()
        deadline = time.monotonic() + START_S
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)

    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
