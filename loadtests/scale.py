"""Measure whether a job costs the same with more jobs, queues, connections and shards.

Usage:
  scale [options] [CURVE ...]

Called as python -m loadtests.scale. For each point of a curve a fresh broker on a fresh file is
brought to that size, then the server CPU time of jobs that are pushed, pulled and acknowledged
beside it is measured. Repeats go up and down the curve in turn. A curve is flat if no point costs
1.5 times as much as the cheapest point before it; otherwise the first that does is its knee.

Options:
  --repeats=N      Fresh brokers for every point so many times. [default: 3]
  --most=N         Leave points beyond this size out.
  --jobs=N         Jobs of a measurement. [default: 10000]
  --pure           Without the compiled parts.
  --server-core=N  Core for the broker. [default: 1]
  --driver-core=N  Core for the driver. [default: 0]
  --json=FILE      Write every figure to a file. [default: loadtests/scale.json]
  --update-readme  Write the table into loadtests/README.md.
  --list           List the curves.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from docopt import docopt

from loadtests import report
from loadtests.figures import spread
from loadtests.hub import Broker
from loadtests.measuring import cost
from loadtests.processes import pinned
from loadtests.servers import HOST, stop_servers_on_sigterm
from loadtests.targets import COMPILED, FILE, PURE, Target, has_core
from loadtests.workloads import FILL_BATCH, WORKLOADS, Workload, fill, push_then_work

FLAT = 1.5  # times; the goal of issue 5
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
STEM = "load-scale"
BYTES = 64
SHARD_QUEUES = 64  # so that every shard has one

WORK = Workload("work", push_then_work, 4, 10_000, 64, doc="PUSH, then PULL and ACK")

Costs = dict[int, list[float]]
"""Size -> server CPU microseconds per job, one for each repeat."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker that is measured: where it listens, its process."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Curve:
    """One question.

    Attributes:
        sizes: The points.
        measure: Brings a broker to a size and measures jobs; returns microseconds per job.
        doc: What grows, and what is measured.
    """

    name: str
    sizes: tuple[int, ...]
    measure: Callable[[Place, int, int], float]
    doc: str


def _cost(place: Place, row: Workload, stem: str, jobs: int) -> float:
    """Measure a row after a warm-up of a fifth; both find and leave the broker alike."""
    _once(place, row, stem, max(1, jobs // 5))
    return _once(place, row, stem, jobs)


def _once(place: Place, row: Workload, stem: str, jobs: int) -> float:
    figures = cost(place.port, row.name, jobs, row.make(row, stem, jobs), [place.pid])
    assert figures.server_us is not None
    return figures.server_us


def queued(place: Place, size: int, jobs: int) -> float:
    """Measure jobs of a queue that has ``size`` others."""
    fill(HOST, place.port, STEM, -(-size // FILL_BATCH) * FILL_BATCH, BYTES)
    return _cost(place, WORK, STEM, jobs)


def queues(place: Place, size: int, jobs: int) -> float:
    """Measure jobs of so many queues, at least two for each."""
    row = replace(WORK, queues=size)
    jobs = max(jobs, 2 * size)
    _once(place, row, STEM, max(size, jobs // 5))  # all of them are there
    return _once(place, row, STEM, jobs)


def busy(place: Place, size: int, jobs: int) -> float:
    """Measure jobs of so many connections, each with one request at a time."""
    row = replace(WORK, connections=size, window=1)
    return _cost(place, row, STEM, max(jobs, 2 * size))


def idle(place: Place, size: int, jobs: int) -> float:
    """Measure jobs beside so many connections that say nothing."""
    with ExitStack() as stack:
        for _ in range(size):
            stack.enter_context(socket.create_connection((HOST, place.port)))
        row = WORKLOADS["cycle-64"]
        return _cost(place, row, STEM, jobs)


def shards(place: Place, _size: int, jobs: int) -> float:
    """Measure jobs of as many queues as there may be shards."""
    return _cost(place, replace(WORK, queues=SHARD_QUEUES), STEM, jobs)


CURVES = {
    curve.name: curve
    for curve in (
        Curve("jobs", (1_000, 10_000, 100_000, 500_000, 1_000_000, 2_000_000), queued,
              "jobs queued beside those that are pushed, pulled and acknowledged"),
        Curve("queues", (1, 10, 100, 1_000, 10_000), queues,
              "queues that the jobs are spread over"),
        Curve("connections", (1, 16, 100, 1_000, 5_000), busy,
              "connections with one request at a time each"),
        Curve("idle-connections", (1, 16, 100, 1_000, 5_000), idle,
              "connections that say nothing, beside 16 busy ones"),
        Curve("shards", (1, 4, 16, 64), shards, "shards of the engine, with 64 queues"),
    )
}  # fmt: skip


@contextmanager
def _broker(curve: Curve, size: int, engine: str, core: int | None) -> Iterator[Place]:
    target = Target(engine, FILE)
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        directory = Path(name)
        if curve.measure is not shards:
            with target.server(directory, core, None) as server:
                yield Place(server.port, server.pid)
            return
        with pinned(core):
            flags = [f"--shards={size}", "--still"]
            broker = Broker(directory / "scale.db", target.environment(), flags)
        try:
            yield Place(broker.port, broker.pid)
        finally:
            broker.close()


def run(
    curve: Curve, sizes: Sequence[int], repeats: int, jobs: int, engine: str, core: int | None
) -> Costs:
    """Measure the points of one curve."""
    costs: Costs = {size: [] for size in sizes}
    for number in range(repeats):
        for size in sizes if number % 2 == 0 else reversed(sizes):
            with _broker(curve, size, engine, core) as place:
                costs[size].append(round(curve.measure(place, size, jobs), 2))
            print(f"{number + 1} {curve.name} {size:,}: {costs[size][-1]} us", file=sys.stderr)
    return costs


def verdict(costs: Costs) -> str:
    """Tell whether a curve is flat, or where its knee is."""
    least, worst = float("inf"), 1.0
    for size, found in costs.items():
        least = min(least, median(found))
        times = median(found) / least
        if times > FLAT:
            return f"knee at {size:,}: x{times:.2f}"
        worst = max(worst, times)
    return f"flat: at most x{worst:.2f}"


def table(told: dict[str, Costs]) -> str:
    """Lay all curves out as Markdown."""
    lines = ["| what grows | size | server CPU us/job | verdict |", "| --- | --: | --: | --- |"]
    for name, costs in told.items():
        for place, (size, found) in enumerate(costs.items()):
            head, tail = ("", "") if place else (name, verdict(costs))
            lines.append(f"| {head} | {size:,} | {spread(found)} | {tail} |")
    lines.append("")
    lines += [f"- `{name}`: {CURVES[name].doc}" for name in told]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given: dict[str, Any] = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    if given["--list"]:
        print("\n".join(f"{curve.name:17} {curve.doc}" for curve in CURVES.values()))
        return 0
    names = given["CURVE"] or list(CURVES)
    unknown = [name for name in names if name not in CURVES]
    if unknown:
        print(f"unknown curve: {', '.join(unknown)}", file=sys.stderr)
        return 2
    repeats, jobs = int(given["--repeats"]), int(given["--jobs"])
    most = int(given["--most"]) if given["--most"] else None
    engine = PURE if given["--pure"] or not has_core() else COMPILED
    core = int(given["--server-core"])
    stop_servers_on_sigterm()
    told: dict[str, Costs] = {}
    with pinned(int(given["--driver-core"])):
        for name in names:
            sizes = [size for size in CURVES[name].sizes if most is None or size <= most]
            told[name] = run(CURVES[name], sizes, repeats, jobs, engine, core)
    about = report.circumstances(repeats)
    Path(given["--json"]).write_text(json.dumps(about | {"engine": engine, "curves": told}) + "\n")
    text = f"{report.heading(about)} Engine: {engine}.\n\n{table(told)}"
    print(text)
    if given["--update-readme"]:
        report.update(report.README, text, BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
