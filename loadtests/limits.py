"""Measure where one broker ends: what its hub and its writer do for a job, and a front before it.

Usage:
  limits [options] [WORKLOAD ...]

Called as python -m loadtests.limits. A broker works in two places, the hub and the writer of its
file, which is a process, or with the compiled parts a thread: it can fill two cores, and whichever
is full first is its limit. The carried jobs per second follow from the CPU time of the dearer one.
Beside it stands what a process costs that only moves bytes between clients and broker, the least
that several brokers behind one port would pay.

Options:
  --repeats=N      Fresh brokers so many times. [default: 3]
  --jobs=N         Most jobs of a run.
  --pure           Without the compiled parts.
  --server-core=N  Core for the broker. [default: 1]
  --driver-core=N  Core for the driver. [default: 0]
  --update-docs    Write the table into docs/scaling.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docopt import docopt

from loadtests import report
from loadtests.driver import Loop
from loadtests.figures import spread
from loadtests.measuring import WARM_UP_SHARE
from loadtests.processes import PROC, cpu_ns, pinned, settled_cpu_ns
from loadtests.servers import HOST, ROOT, stop_servers_on_sigterm
from loadtests.targets import COMPILED, FILE, PURE, Target, has_core
from loadtests.workloads import FILL_BATCH, WORKLOADS, Workload, fill

NAMES = (
    "push-512x4", "push-1x16", "pushb-50", "drain-100", "pull-ack-16", "cycle-64", "cycle-10k",
    "durable-1x64", "durable-64x4",
)  # fmt: skip
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- limits: begin -->", "<!-- limits: end -->"

Costs = dict[str, list[float]]
"""``hub``, ``writer`` or ``front`` -> CPU microseconds per job, one for each repeat."""


def measure(row: Workload, jobs: int, engine: str, core: int | None) -> dict[str, float]:
    """Measure one workload on a fresh broker, then on another with a front before it."""
    with _broker(engine, core) as (port, pid):
        costs = _run(port, pid, row, jobs)
    with _broker(engine, core) as (port, pid), _front(port, core) as (front_port, front_pid):
        costs["front"] = _run(front_port, pid, row, jobs, front_pid)["front"]
    return costs


def _run(
    port: int, pid: int, row: Workload, jobs: int, front_pid: int | None = None
) -> dict[str, float]:
    """Run it after a warm-up of a fifth; return what each process did for a job."""
    for stem, count in (("limit-w", max(1, jobs // WARM_UP_SHARE)), ("limit", jobs)):
        count = row.fitting(count)
        if row.is_filled_first:
            count = -(-count // FILL_BATCH) * FILL_BATCH
            fill(HOST, port, stem, count, row.payload_bytes)
        (scripts,) = row.make(row, stem, count)
        with Loop(HOST, port, scripts) as loop:
            before = _each_ns(pid, front_pid)
            loop.run()
            after = _each_ns(pid, front_pid)
    return {name: round((after[name] - before[name]) / 1_000 / count, 2) for name in after}


def _each_ns(pid: int, front_pid: int | None) -> dict[str, int]:
    """Return the CPU time of the hub's thread and of all the rest, once the broker is at rest."""
    total = settled_cpu_ns([pid])
    # The hub is the first thread of the process; the file begins with its CPU time in ns.
    hub = int((PROC / str(pid) / "task" / str(pid) / "schedstat").read_text().split()[0])
    told = {"hub": hub, "writer": total - hub}
    return told if front_pid is None else told | {"front": cpu_ns([front_pid])}


@contextmanager
def _broker(engine: str, core: int | None) -> Iterator[tuple[int, int]]:
    with (
        tempfile.TemporaryDirectory(prefix="limits-") as name,
        Target(engine, FILE).server(Path(name), core, None) as server,
    ):
        yield server.port, server.pid


@contextmanager
def _front(port: int, core: int | None) -> Iterator[tuple[int, int]]:
    with pinned(core):
        front = subprocess.Popen(
            [sys.executable, "-m", "loadtests.front", str(port)], cwd=ROOT, stdout=subprocess.PIPE
        )
    try:
        assert front.stdout is not None
        yield int(front.stdout.readline()), front.pid
    finally:
        front.kill()
        front.communicate()


def table(told: dict[str, Costs]) -> str:
    """Lay the costs out as Markdown, with what follows from them."""
    lines = [
        "| workload | hub, us/job | writer, us/job | carried on two cores, jobs/s "
        "| a front, us/job | most through one front, jobs/s |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, costs in told.items():
        carried = [1e6 / max(pair) for pair in zip(costs["hub"], costs["writer"], strict=True)]
        cells = [name, spread(costs["hub"]), spread(costs["writer"]), spread(carried, 0)]
        cells += [spread(costs["front"]), spread([1e6 / cost for cost in costs["front"]], 0)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given: dict[str, Any] = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    names = given["WORKLOAD"] or NAMES
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload: {', '.join(unknown)}", file=sys.stderr)
        return 2
    engine = PURE if given["--pure"] or not has_core() else COMPILED
    stop_servers_on_sigterm()
    told: dict[str, Costs] = {name: {"hub": [], "writer": [], "front": []} for name in names}
    repeats = int(given["--repeats"])
    with pinned(int(given["--driver-core"])):
        for number in range(repeats):
            for name in names:
                row = WORKLOADS[name]
                jobs = min(row.jobs, int(given["--jobs"] or row.jobs))
                costs = measure(row, jobs, engine, int(given["--server-core"]))
                for process, cost in costs.items():
                    told[name][process].append(cost)
                print(f"{number + 1} {name} {costs}", file=sys.stderr)
    text = f"{report.heading(report.circumstances(repeats))} Engine: {engine}.\n\n{table(told)}"
    print(text)
    if given["--update-docs"]:
        report.update(PAGE, text, BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
