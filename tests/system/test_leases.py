"""Leases hold whatever the handler does, while another worker polls for the same job."""

from __future__ import annotations

from pathlib import Path

import pytest

from bunqueue import Queue
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program

PROGRAM = Path(__file__).parent / "leases" / "run_worker.py"
LEASES = 3
LEASE_S = 1.5  # of the worker program

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "patched"),
    [("spin", True), ("sleep", False)],
    ids=["a greenlet that never yields", "a thread that sleeps"],
)
def test_a_handler_busy_for_three_leases_completes_once(
    kind: str, patched: bool, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    busy_s = LEASES * LEASE_S + 0.5
    args = [memory_broker.port, "busy", kind, busy_s]
    with Program(PROGRAM, args, patched=patched, directory=tmp_path) as first:
        first.wait_for("ready")
        with Queue("busy", host=memory_broker.host, port=memory_broker.port) as queue:
            job = queue.add("work")
            first.wait_for("run")
            with Program(PROGRAM, args, patched=patched, directory=tmp_path) as second:
                second.wait_for("ready")
                first.wait_for("completed")

                assert [f"run {job.id}"] == first.starting_with("run")
                assert [f"done {job.id}"] == first.starting_with("done")
                assert [] == second.starting_with("run")
            found = queue.get_job(job.id)
            assert found is not None
            assert ("completed", 0, 0) == (found.state, found.attempts, found.stalled_counter)
