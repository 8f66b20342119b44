"""Measure one running server.

Usage:
  bench [options] [WORKLOAD ...]

Called as python -m loadtests.bench.

Without a WORKLOAD the headline ones run. Prints one line per run: jobs per second, and server
CPU time per job when --server-pid is given.

Options:
  --host=HOST         Where the server listens. [default: 127.0.0.1]
  --port=PORT         Its TCP port. [default: 6789]
  --server-pid=PIDS   Its process ids, comma separated; their children are counted with them.
  --jobs=N            Jobs per run instead of the number in the table.
  --repeats=N         Runs of each workload. [default: 1]
  --core=N            Core to bind the driver to.
  --json              Print JSON lines.
  --list              List the workloads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from docopt import docopt

from loadtests.driver import Repeat, call, run
from loadtests.processes import cpu_ns, pinned, settled_cpu_ns
from loadtests.workloads import FILL_BATCH, HEADLINE, WORKLOADS, Workload, fill

WARM_UP_SHARE = 5  # one fifth of the jobs runs first, uncounted
WARM_UP_JOBS_MIN = 500


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run cost.

    ``server_us`` is None when the server's process is unknown; the percentiles are there for
    workloads with one request in flight.
    """

    workload: str
    jobs: int
    seconds: float
    jobs_per_s: float
    server_us: float | None
    driver_us: float
    p50_us: float | None = None
    p99_us: float | None = None


def measure(
    host: str, port: int, row: Workload, pids: Sequence[int] = (), jobs: int | None = None
) -> Figures:
    """Run a workload once, after its warm-up, in queues that are obliterated afterwards.

    Args:
        host: Where the server listens.
        port: Its TCP port.
        row: The workload.
        pids: Processes of the server; none leaves its CPU time out.
        jobs: How many, instead of the row's number.

    Raises:
        RunFailed: The server refused a request, closed a connection or fell silent.
        ProcessGone: The server ended.
    """
    jobs = row.fitting(jobs or row.jobs)
    stem = f"load-{row.name}-{os.getpid():x}-{time.monotonic_ns():x}"
    warm_up = row.fitting(max(jobs // WARM_UP_SHARE, WARM_UP_JOBS_MIN))
    _run(host, port, row, f"{stem}-w", warm_up, pids)
    figures = _run(host, port, row, stem, jobs, pids)
    for queue in (f"{stem}-w", stem):
        call(host, port, {"cmd": "Obliterate", "queue": queue})
    return figures


def _run(
    host: str, port: int, row: Workload, queue: str, jobs: int, pids: Sequence[int]
) -> Figures:
    if row.is_filled_first:
        jobs = -(-jobs // FILL_BATCH) * FILL_BATCH
        fill(host, port, queue, jobs, row.payload_bytes)
    scripts = row.make(row, queue, jobs)
    server_before = settled_cpu_ns(pids) if pids else 0
    driver_before, begin = time.process_time_ns(), time.perf_counter()
    run(host, port, scripts)
    seconds = time.perf_counter() - begin
    driver_ns = time.process_time_ns() - driver_before
    server_ns = settled_cpu_ns(pids) - server_before if pids else None
    trips = sorted(scripts[0].round_trips_ns) if isinstance(scripts[0], Repeat) else []
    return Figures(
        workload=row.name,
        jobs=jobs,
        seconds=round(seconds, 4),
        jobs_per_s=round(jobs / seconds),
        server_us=None if server_ns is None else round(server_ns / 1_000 / jobs, 3),
        driver_us=round(driver_ns / 1_000 / jobs, 3),
        p50_us=round(trips[len(trips) // 2] / 1_000, 1) if trips else None,
        p99_us=round(trips[len(trips) * 99 // 100] / 1_000, 1) if trips else None,
    )


def line(figures: Figures) -> str:
    """Describe one run for people."""
    server = "-" if figures.server_us is None else f"{figures.server_us:.2f}"
    text = (
        f"{figures.workload:14} {figures.jobs:8,} jobs {figures.jobs_per_s:10,.0f} jobs/s"
        f"   server {server:>8} us/job   driver {figures.driver_us:6.2f} us/job"
    )
    if figures.p50_us is not None:
        text += f"   p50 {figures.p50_us} us   p99 {figures.p99_us} us"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    if given["--list"]:
        for row in WORKLOADS.values():
            print(f"{row.name:14} {row.jobs:8,} jobs  {row.doc}")
        return 0
    names = given["WORKLOAD"] or HEADLINE
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload: {', '.join(unknown)}", file=sys.stderr)
        return 2
    pids = [int(pid) for pid in (given["--server-pid"] or "").split(",") if pid]
    jobs = int(given["--jobs"]) if given["--jobs"] else None
    core = int(given["--core"]) if given["--core"] else None
    if pids:
        cpu_ns(pids)  # a wrong id is better told before the first run
    with pinned(core):
        for name in names:
            for _ in range(int(given["--repeats"])):
                port = int(given["--port"])
                figures = measure(given["--host"], port, WORKLOADS[name], pids, jobs)
                print(json.dumps(asdict(figures)) if given["--json"] else line(figures))
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
