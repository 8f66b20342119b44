"""The longest step of a broker's hub while it works with a million jobs in a queue."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bunqueue.engine.settings import COMPLETED_JOBS_MAX_DEFAULT
from loadtests.driver import run
from loadtests.hub import Broker
from loadtests.servers import HOST
from loadtests.workloads import FILL_BATCH, WORKLOADS, fill

WATCHED_S = 12.0  # every sweep has had its turn; the slowest comes every 10 s
TRIAL_S = 0.1


def worst(jobs: int, payload_bytes: int, environment: Mapping[str, str], watched_s: float) -> float:
    """Return the longest step in CPU ms, with ``jobs`` queued and others pushed, pulled, acked.

    Args:
        jobs: How many stay queued.
        payload_bytes: Encoded size of their data.
        environment: What makes the broker the one that is meant.
        watched_s: For how long.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        flags = [f"--completed={COMPLETED_JOBS_MAX_DEFAULT}"]
        broker = Broker(Path(name) / "stalls.db", environment, flags)
        try:
            fill(
                HOST, broker.port, "load-stall", -(-jobs // FILL_BATCH) * FILL_BATCH, payload_bytes
            )
            broker.read()
            until = time.monotonic() + watched_s
            push, work = WORKLOADS["push-512x4"], WORKLOADS["pull-ack-16"]
            while time.monotonic() < until:
                for row in (push, work):
                    for scripts in row.make(row, "load-stall", min(jobs, work.jobs)):
                        run(HOST, broker.port, scripts)
            return broker.read()["cpu_ms"]
        finally:
            broker.close()
