"""The broker is killed under load: callers fail fast, and all is well once it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from bunqueue import BunqueueError, ConnectionClosedError, Queue, QueueEvents, Worker
from tests.support.broker_process import HOST, BrokerProcess

ADDERS, WAITERS, ASKERS = 16, 8, 8
DEADLINE_S = 4.0
WAIT_S = 30.0  # of a long poll, which the loss of its link must end
OUTAGE_S = 1.5
DIALS_MAX = 3  # at once, after 0.5 s, and after 1 s more: client.md 6
MARGIN_S = 2.0  # a busy machine
WINDOW_S_MAX = 5.0
COME_BACK_S_MAX = 20.0

pytestmark = pytest.mark.slow


@dataclass
class Call:
    """A call that failed: how long it took, and what it said."""

    took_s: float
    error: BunqueueError


@dataclass
class Callers:
    """Threads that call without a pause until told to stop, and keep what failed."""

    failed: list[Call] = field(default_factory=list)
    succeeded: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _tasks: list[threading.Thread] = field(default_factory=list)

    def start(self, count: int, call: Callable[[], object]) -> None:
        for _ in range(count):
            task = threading.Thread(target=self._main, args=(call,))
            task.start()
            self._tasks.append(task)

    def _main(self, call: Callable[[], object]) -> None:
        while not self._is_over.is_set():
            begin = time.monotonic()
            try:
                call()
            except BunqueueError as error:
                self.failed.append(Call(time.monotonic() - begin, error))
                time.sleep(0.005)  # what fails fast would else take the machine for itself
            else:
                self.succeeded += 1

    def stop(self) -> None:
        self._is_over.set()
        for task in self._tasks:
            task.join(DEADLINE_S + MARGIN_S)
        assert not any(task.is_alive() for task in self._tasks), "a call hangs"


def until(claim: Callable[[], Any], wait_s: float = COME_BACK_S_MAX) -> Any:
    deadline = time.monotonic() + wait_s
    while not (said := claim()):
        assert time.monotonic() < deadline, f"did not come true in {wait_s} s"
        time.sleep(0.02)
    return said


@pytest.fixture(params=["tcp", "tls"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[BrokerProcess, Any]]:
    """A broker on a file, and what a client of it is told beside its port."""
    args: list[str] = []
    tls = None
    if request.param == "tls":
        authority, certificate = trustme.CA(), tmp_path / "cert.pem"
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        issued = authority.issue_cert(HOST)
        issued.private_key_and_cert_chain_pem.write_to_path(certificate)
        args = ["--tls-cert", str(certificate), "--tls-key", str(certificate)]
        tls = {"ca_file": str(tmp_path / "ca.pem")}
    with BrokerProcess(tmp_path, data_path=tmp_path / "broker.db", args=args) as broker:
        yield broker, tls


def test_a_broker_killed_under_load_is_missed_briefly(place: tuple[BrokerProcess, Any]) -> None:
    broker, tls = place
    address = {"host": HOST, "port": broker.port, "tls": tls}
    callers = Callers()
    heard: list[str] = []
    with ExitStack() as stack:
        queue, narrow, other = (
            stack.enter_context(Queue(name, **address, command_timeout=DEADLINE_S, **options))
            for name, options in (
                ("load", {"pool_size": 2}),
                ("load", {"max_in_flight": 1}),
                ("other", {}),
            )
        )
        workers = [
            stack.enter_context(Worker("load", lambda job: job.data, **address, **options))
            for options in ({"concurrency": 4}, {"ack_batch": {"max_size": 10}})
        ]
        events = stack.enter_context(QueueEvents("load", **address))
        events.on("completed", lambda event: heard.append(event.job_id))
        events.wait_until_ready()
        asked = other.add("never", delay=3_600_000, durable=True)

        # Given load of every kind: adds that meet, long polls, callers parked for a slot
        callers.start(ADDERS, lambda: queue.add("x", attempts=1000))
        callers.start(WAITERS, lambda: other.wait_for_job(asked.id, WAIT_S * 1000))
        callers.start(ASKERS, narrow.get_job_counts)
        until(lambda: callers.succeeded > 200 and heard)

        # When the broker dies
        broker.kill()
        time.sleep(OUTAGE_S)
        failed_attempts = [one.connection._failed_attempts for one in (queue, narrow, other)]
        callers.stop()

        # Then everybody heard of it, late nobody, and few have dialled
        assert {ConnectionClosedError} == {type(call.error) for call in callers.failed}
        assert max(call.took_s for call in callers.failed) < DEADLINE_S + MARGIN_S
        told_at_once = [call for call in callers.failed if "retry in" in str(call.error)]
        assert len(told_at_once) > len(callers.failed) / 2
        assert max(failed_attempts) <= DIALS_MAX
        for one in (queue, narrow, other):
            assert {} == one.connection._pending

        # When it is back, the first call after the window works
        broker.start()
        window_ends = max(one.connection._next_attempt_at for one in (queue, narrow, other))
        assert window_ends - time.monotonic() <= WINDOW_S_MAX
        time.sleep(max(0.0, window_ends - time.monotonic()))
        assert "delayed" == other.get_state(asked.id)
        narrow.get_job_counts()
        job = queue.add("after")

        # And workers and listeners come back by themselves
        until(lambda: queue.get_state(job.id) == "completed")
        ids = {worker.worker_id for worker in workers}
        until(lambda: ids == {row["id"] for row in queue.get_workers()})
        # Once, and once more for each dial that has met the broker as it died or began.
        until(lambda: all(worker.stats()["reconnects"] for worker in workers))
        assert max(worker.stats()["reconnects"] for worker in workers) <= DIALS_MAX
        heard.clear()
        until(lambda: queue.add("again") and heard)
