"""Clients as processes: signals while a worker runs, and a Queue that lives through a fork."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue import Queue
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program

PROGRAMS = Path(__file__).parent / "client"
WORLDS = pytest.mark.parametrize("patched", [False, True], ids=["threads", "greenlets"])

pytestmark = pytest.mark.slow


@pytest.fixture
def queue(memory_broker: BrokerProcess) -> Iterator[Queue]:
    with Queue("served", host=memory_broker.host, port=memory_broker.port) as queue:
        yield queue


@WORLDS
@pytest.mark.parametrize(
    ("number", "last_word"), [(signal.SIGTERM, "stopped"), (signal.SIGINT, "interrupted")]
)
def test_one_signal_lets_the_running_job_finish(
    number: signal.Signals,
    last_word: str,
    patched: bool,
    queue: Queue,
    memory_broker: BrokerProcess,
    tmp_path: Path,
) -> None:
    job = queue.add("x")
    args = [memory_broker.port, "served", 2]
    with Program(PROGRAMS / "serve_queue.py", args, patched=patched, directory=tmp_path) as program:
        program.wait_for("run")
        program.process.send_signal(number)

        program.wait_for(last_word)
        assert 0 == program.process.wait(10)

    found = queue.get_job(job.id)
    assert found is not None
    assert ("completed", 0) == (found.state, found.attempts)
    assert [f"run {job.id}"] == program.starting_with("run")
    assert 0 == queue.get_workers_count()


@WORLDS
def test_a_second_signal_sends_the_job_back_at_once(
    patched: bool, queue: Queue, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    job = queue.add("x")
    args = [memory_broker.port, "served", 30]
    with Program(PROGRAMS / "serve_queue.py", args, patched=patched, directory=tmp_path) as program:
        program.wait_for("run")
        program.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two of a kind at once would be one
        program.process.send_signal(signal.SIGTERM)

        program.process.wait(5)

    found = queue.get_job(job.id)
    assert found is not None
    assert ("waiting", 0) == (found.state, found.attempts)


def test_a_drain_that_takes_too_long_is_cut_short(
    queue: Queue, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    job = queue.add("x")
    args = [memory_broker.port, "served", 30, 0.5]
    with Program(PROGRAMS / "serve_queue.py", args, directory=tmp_path) as program:
        program.wait_for("run")
        program.process.send_signal(signal.SIGTERM)

        assert 0 == program.process.wait(5)

    assert "waiting" == queue.get_state(job.id)


@WORLDS
@pytest.mark.parametrize("moment", ["early", "late"])
def test_a_worker_keeps_its_leases_when_the_main_thread_has_ended(
    moment: str, patched: bool, queue: Queue, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    job = queue.add("x")
    args = [memory_broker.port, "served", moment]
    with Program(PROGRAMS / "outlive_main.py", args, patched=patched, directory=tmp_path) as told:
        assert 0 == told.process.wait(20)

    assert [f"done {job.id}"] == told.lines


@pytest.mark.parametrize(
    ("patched", "callers", "each"), [(False, 16, 10), (True, 200, 1)], ids=["threads", "greenlets"]
)
def test_one_queue_is_shared_by_everybody_and_by_forked_children(
    patched: bool, callers: int, each: int, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, args=["--auth-tokens", "secret"]) as broker:
        args = [broker.port, callers, each]
        with Program(
            PROGRAMS / "share_queue.py", args, patched=patched, directory=tmp_path
        ) as program:
            assert "statuses 0 0 0 0" == program.wait_for("statuses")
            assert f"links 1 {patched}" == program.wait_for("links")
        with Queue("shared", host=broker.host, port=broker.port, token="secret") as queue:
            found = [job.data for job in queue.iter_jobs()]

    assert 1 + 5 * callers * each == len(found)
    assert len(set(found)) == len(found)


@WORLDS
def test_events_are_heard_on_both_sides_of_a_fork(
    patched: bool, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    args = [memory_broker.port, "forked"]
    with Program(PROGRAMS / "fork_events.py", args, patched=patched, directory=tmp_path) as program:
        program.wait_for("parent end")
        assert 0 == program.process.wait(10)

    assert ["parent waiting"] * 2 == program.starting_with("parent waiting")
    assert ["child waiting", "child end"] == program.starting_with("child")
