"""Measure one workload on one server: drive it, and ask the kernel what it cost."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from loadtests.driver import Loop, frame, run
from loadtests.figures import Figures, percentiles_us
from loadtests.processes import memory, settled_cpu_ns
from loadtests.scripts import Repeat
from loadtests.servers import HOST
from loadtests.targets import file_bytes
from loadtests.workloads import FILL_BATCH, Phases, Workload, fill

WARM_UP_SHARE = 5  # one fifth of the jobs runs first, uncounted
WARM_UP_JOBS_MIN = 1_000
CLEARED_AT_ONCE = 16  # queues


def measure(port: int, row: Workload, pids: Sequence[int], jobs: int | None = None) -> Figures:
    """Run a workload once, after its warm-up, in queues that are obliterated afterwards.

    Args:
        port: Where the server listens.
        row: The workload.
        pids: Processes of the server.
        jobs: How many, instead of the row's number.

    Raises:
        RunFailed: The server refused a request, closed a connection or fell silent.
        ProcessGone: The server ended.
    """
    jobs = row.fitting(jobs or row.jobs)
    stem = f"load-{row.name}-{os.getpid():x}-{time.monotonic_ns():x}"
    warm_up = row.fitting(max(jobs // WARM_UP_SHARE, min(jobs, WARM_UP_JOBS_MIN)))
    _run(port, row, f"{stem}-w", warm_up, pids)
    figures = _run(port, row, stem, jobs, pids)
    clear(port, row.queue_names(f"{stem}-w", warm_up) + row.queue_names(stem, jobs))
    return figures


def clear(port: int, queues: Sequence[str]) -> None:
    """Obliterate queues."""
    frames = [frame({"cmd": "Obliterate", "queue": queue, "reqId": "00000000"}) for queue in queues]
    run(HOST, port, [Repeat(frames, len(frames), window=CLEARED_AT_ONCE)])


def cost(port: int, name: str, jobs: int, phases: Phases, pids: Sequence[int]) -> Figures:
    """Run prepared scripts and tell what they cost; connecting is not counted."""
    seconds, server_ns, driver_ns = 0.0, 0, 0
    for scripts in phases:
        with Loop(HOST, port, scripts) as loop:
            server_before = settled_cpu_ns(pids)
            driver_before, begin = time.process_time_ns(), time.perf_counter()
            loop.run()
            seconds += time.perf_counter() - begin
            driver_ns += time.process_time_ns() - driver_before
            server_ns += settled_cpu_ns(pids) - server_before
    first = phases[0][0]
    trips = first.round_trips_ns if isinstance(first, Repeat) else []
    return Figures(
        workload=name,
        jobs=jobs,
        jobs_per_s=round(jobs / seconds),
        server_us=round(server_ns / 1_000 / jobs, 3),
        driver_us=round(driver_ns / 1_000 / jobs, 3),
        **percentiles_us(trips),
    )


def queued(
    port: int, jobs: int, payload_bytes: int, pids: Sequence[int], file: Path | None
) -> Figures:
    """Fill a queue; tell what a job in it costs in memory and in the file.

    The start is taken after a few jobs went in, so that what a first job loads once is not
    charged to all of them.
    """
    queue = "load-queued"
    fill(HOST, port, queue, FILL_BATCH, payload_bytes)
    before_ns = settled_cpu_ns(pids)
    resident, size = memory(pids).resident, file_bytes(file) if file else 0
    begin = time.perf_counter()
    fill(HOST, port, queue, jobs, payload_bytes)
    seconds = time.perf_counter() - begin
    server_ns = settled_cpu_ns(pids) - before_ns
    return Figures(
        workload="queued",
        jobs=jobs,
        jobs_per_s=round(jobs / seconds),
        server_us=round(server_ns / 1_000 / jobs, 3),
        memory_bytes=round((memory(pids).resident - resident) / jobs, 1),
        file_bytes=round((file_bytes(file) - size) / jobs, 1) if file else None,
    )


def _run(port: int, row: Workload, queue: str, jobs: int, pids: Sequence[int]) -> Figures:
    if row.is_filled_first:
        jobs = -(-jobs // FILL_BATCH) * FILL_BATCH
        fill(HOST, port, queue, jobs, row.payload_bytes)
    return cost(port, row.name, jobs, row.make(row, queue, jobs), pids)
