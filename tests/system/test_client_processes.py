"""Clients as processes: signals while a worker runs, and a Queue that lives through a fork."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue import Queue
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program
from tests.support.relay import Relay
from tests.support.wire import values

NATIVES = 16
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


PROCESSES = 5


@pytest.mark.parametrize(
    ("patched", "greenlets", "each", "links"),
    # A greenlet's socket cannot be used from a native thread: where there are both, each kind has
    # a pool of its own.
    [(False, 0, 10, 1), (True, 200, 1, 2)],
    ids=["threads", "threads and greenlets"],
)
def test_one_queue_is_shared_by_everybody_and_by_forked_children(
    patched: bool, greenlets: int, each: int, links: int, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, args=["--auth-tokens", "secret"]) as broker:
        args = [NATIVES, greenlets, each]
        with Relay(broker.host, broker.port) as relay:
            program = Program(
                PROGRAMS / "share_queue.py",
                [relay.port, *args],
                patched=patched,
                directory=tmp_path,
            )
            with program:
                program.wait_for("status", count=PROCESSES - 1)
                assert 0 == program.process.wait(10)
        with Queue("shared", host=broker.host, port=broker.port, token="secret") as queue:
            found = Counter(job.data for job in queue.iter_jobs())

    assert ["status 0"] * (PROCESSES - 1) == program.starting_with("status")
    assert [f"links {links}"] * PROCESSES == program.starting_with("links")
    # Nothing was dialled twice, and nobody spoke before the token.
    assert links * PROCESSES == relay.accepted
    assert [["Auth", "Hello"]] * relay.accepted == [
        [command["cmd"] for command in values(bytes(said))[:2]] for said in relay.said
    ]
    assert 1 + PROCESSES * (NATIVES + greenlets) * each == found.total()
    assert {1} == set(found.values())
