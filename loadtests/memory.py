"""Measure what queued jobs cost in memory, and what is left of it when they are gone.

Usage:
  memory [options]

Called as python -m loadtests.memory. Starts a server on a fresh file, pushes jobs, removes
them, and prints the server's memory at each of these points, child processes included.

Options:
  --reference=DIR  Measure the reference server installed there instead of ours.
  --jobs=N         How many jobs. [default: 1000000]
  --payload=BYTES  Encoded size of a job's data. [default: 100]
  --how=HOW        How the jobs go: drain (one command) or work (PULLB and ACKB). [default: drain]
  --memory         A server without a file.
  --json           Print JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from docopt import docopt

from loadtests.driver import run
from loadtests.processes import memory, settled_cpu_ns
from loadtests.scripts import WorkMany, call
from loadtests.servers import HOST, Server, stop_servers_on_sigterm
from loadtests.targets import COMPILED, FILE, MEMORY, PURE, REFERENCE, Target, has_core
from loadtests.workloads import FILL_BATCH, fill

QUEUE = "load-memory"
WORKERS = 4
WORK_BATCH = 500
SETTLE_S = 12.0  # the sweeps that compact have had their turn; the slowest comes every 10 s
SERVER_CORE = 1
MIB = 1 << 20


def measure(server: Server, jobs: int, payload_bytes: int, how: str) -> dict[str, float]:
    """Fill and empty a queue; return memory figures in MiB and bytes per job.

    The reference is taken after a few jobs went through, so that what a first job loads once
    is not charged to the million.
    """
    pids = [server.pid]
    fill(HOST, server.port, QUEUE, FILL_BATCH, payload_bytes)
    _empty(server, FILL_BATCH, how)
    start = _rest(pids)
    begin = time.monotonic()
    fill(HOST, server.port, QUEUE, jobs, payload_bytes)
    filled_s = time.monotonic() - begin
    full = _rest(pids)
    begin = time.monotonic()
    _empty(server, jobs, how)
    emptied_s = time.monotonic() - begin
    end = _rest(pids)
    return {
        "jobs": jobs,
        "payload_bytes": payload_bytes,
        "start_mib": round(start / MIB, 1),
        "full_mib": round(full / MIB, 1),
        "end_mib": round(end / MIB, 1),
        "bytes_per_job": round((full - start) / jobs, 1),
        "end_over_start": round(end / start, 3),
        "fill_s": round(filled_s, 1),
        "empty_s": round(emptied_s, 1),
    }


def _empty(server: Server, jobs: int, how: str) -> None:
    if how == "drain":
        call(HOST, server.port, {"cmd": "Drain", "queue": QUEUE})
    else:
        run(HOST, server.port, [WorkMany(QUEUE, jobs, WORK_BATCH)] * WORKERS)


def _rest(pids: Sequence[int]) -> int:
    """Wait until the server is calm; return its resident bytes."""
    time.sleep(SETTLE_S)
    settled_cpu_ns(pids)
    return memory(pids).resident


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    if given["--how"] not in ("drain", "work"):
        print("--how is drain or work", file=sys.stderr)
        return 2
    jobs = -(-int(given["--jobs"]) // FILL_BATCH) * FILL_BATCH
    reference = Path(given["--reference"]).resolve() if given["--reference"] else None
    engine = REFERENCE if reference else COMPILED if has_core() else PURE
    target = Target(engine, MEMORY if given["--memory"] else FILE)
    stop_servers_on_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="load-") as directory,
        target.server(Path(directory), SERVER_CORE, reference) as server,
    ):
        figures = measure(server, jobs, int(given["--payload"]), given["--how"])
    if given["--json"]:
        print(json.dumps({"server": target.name, **figures}))
        return 0
    print(
        f"{target.name}: {jobs:,} jobs of {given['--payload']} bytes, emptied by {given['--how']}"
    )
    print(f"  start {figures['start_mib']:10,.1f} MiB")
    print(f"  full  {figures['full_mib']:10,.1f} MiB  {figures['bytes_per_job']:,.0f} bytes a job")
    print(f"  end   {figures['end_mib']:10,.1f} MiB  {figures['end_over_start']:.2f} of the start")
    print(f"  filled in {figures['fill_s']} s, emptied in {figures['empty_s']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
