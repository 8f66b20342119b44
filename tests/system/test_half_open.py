"""A link that stays open but carries nothing: found out by heartbeats, replaced, no job lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bunqueue import Queue
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program
from tests.support.relay import Relay

PROGRAM = Path(__file__).parent / "leases" / "run_worker.py"
BEAT_S = 2.0  # a third of the worker program's lease
NOTICE_S = 4 * BEAT_S  # two heartbeats, and what a busy machine adds; a dead poll takes 11 s
PULL_S = 4.0  # and below the lease
LEASE_OVER_S = 60.0  # 6 s, the sweep behind it, and a busy machine
POLL_MS = 30_000  # the broker's side of the dead link holds the poll for that long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("patched", [False, True], ids=["threads", "greenlets"])
def test_a_worker_behind_a_half_open_link_comes_back(
    patched: bool, memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    with (
        Relay(memory_broker.host, memory_broker.port) as relay,
        Program(PROGRAM, [relay.port, "far", "nap", 9], patched=patched, directory=tmp_path) as far,
        Queue("far", host=memory_broker.host, port=memory_broker.port) as queue,
    ):
        far.wait_for("ready")
        # Given a job whose lease has been renewed at least once
        under_way = queue.add("under way")
        far.wait_for("run")
        time.sleep(BEAT_S + 0.5)

        # When the link carries nothing any more
        relay.fall_silent()
        silent_at = time.monotonic()

        # Then the worker notices, dials again and registers
        far.wait_for("back")
        assert time.monotonic() - silent_at < NOTICE_S
        assert 1 == queue.get_workers_count(scope="queue")

        # And works on: what runs, and what comes
        later = queue.add("later")
        far.wait_for(f"run {later.id}", PULL_S)
        far.wait_for("completed", count=2)
        assert [f"run {under_way.id}", f"run {later.id}"] == far.starting_with("run")
        for job in (under_way, later):
            found = queue.get_job(job.id)
            assert found is not None
            assert ("completed", 0, 0) == (found.state, found.attempts, found.stalled_counter)


def test_a_job_handed_to_a_half_open_link_runs_once_its_lease_is_over(
    memory_broker: BrokerProcess, tmp_path: Path
) -> None:
    """The broker cannot know that the poll it answers reaches nobody; the lease makes it good."""
    with (
        Relay(memory_broker.host, memory_broker.port) as relay,
        Program(PROGRAM, [relay.port, "far", "nap", 0, POLL_MS], directory=tmp_path) as far,
        Queue("far", host=memory_broker.host, port=memory_broker.port) as queue,
    ):
        far.wait_for("ready")
        relay.fall_silent()

        job = queue.add("into the void")

        far.wait_for("completed", LEASE_OVER_S)
        assert [f"run {job.id}"] == far.starting_with("run")
