"""Measure this checkout's server beside the reference server.

Usage:
  bench [options] [WORKLOAD ...]

Called as python -m loadtests.bench. Every repeat starts fresh servers on fresh files: ours with its
compiled core and in pure Python, and the reference server, each on a file and in memory. They are
bound to one core and driven in turn by this process, bound to another, in reversed order every
second repeat. Prints Markdown tables: medians with their range, and ratios above 1 where ours is
better, taken within a repeat. Without a WORKLOAD all of them run, some of them only on a file; the
reference is given half of the jobs, for it takes long.

Options:
  --reference=DIR   Where npm install bun bunqueue@2.9.5 was run; without it only ours runs.
  --repeats=N       Fresh servers so many times. [default: 5]
  --quick           Three repeats, and one of the peers: about twelve minutes.
  --engines=NAMES   Some of compiled, pure, reference; commas between them.
  --places=NAMES    file, memory, or both with a comma. [default: file,memory]
  --jobs=N          Most jobs of a run, to try it out.
  --queued=N        Jobs in the queue where memory and stalls are measured. [default: 1000000]
  --peers=PYTHON    Interpreter of an environment that has rq, huey, dramatiq and celery, to measure
                    them too; it needs redis-server.
  --server-core=N   Core for the servers. [default: 1]
  --driver-core=N   Core for the driver. [default: 0]
  --json=FILE       Write every figure to a file. [default: loadtests/bench.json]
  --update-readme   Write the tables into loadtests/README.md and draw loadtests/bench.svg.
  --from=FILE       Measure nothing: read the figures that --json wrote.
  --list            List the workloads.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docopt import docopt

from loadtests import delivery, peers, plot, report, stalls
from loadtests.driver import RunFailed
from loadtests.figures import Figures, Results, as_json, from_json, tables
from loadtests.measuring import measure, queued
from loadtests.processes import pinned
from loadtests.servers import Server, stop_servers_on_sigterm
from loadtests.targets import (
    COMPILED,
    ENGINES,
    FILE,
    MEMORY,
    PURE,
    REFERENCE,
    Target,
    has_core,
    targets,
)
from loadtests.workloads import WORKLOADS

QUICK_REPEATS = 3
DELIVERIES = 1_000
IDLE, SAME_LOAD, HALF_BUSY = "deliver-idle", "deliver-same-load", "deliver-half-busy"
QUEUED = "queued"
# Jobs a second that keep the reference server near half a core, beside the deliveries themselves:
# what deliver-half-busy comes to.
SAME_LOAD_PER_S = {FILE: 250.0, MEMORY: 2_000.0}
QUEUED_BYTES = 100  # of a job's data, where memory is measured
FILE_ONLY = {
    "durable-1x1", "durable-1x64", "durable-64x4", "push-delayed", "cycle-delayed",
    "cycle-priorities", "cycle-groups", "parked-1000", "queues-10000",
}  # fmt: skip

# What is not a row of the table of workloads.
SPECIAL = {
    IDLE: "from a push to its delivery at a parked puller, on an idle server",
    SAME_LOAD: "the same while others have so many jobs done that the reference uses half a core",
    HALF_BUSY: "the same while others have so many done that this server uses half a core",
    QUEUED: f"memory, file and stalls with so many jobs of {QUEUED_BYTES} bytes queued",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    targets: list[Target]
    names: list[str]
    repeats: int
    jobs: int | None
    queued: int
    reference: Path | None
    server_core: int | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    docs = {name: row.doc for name, row in WORKLOADS.items()} | SPECIAL
    if given["--list"]:
        print("\n".join(f"{name:17} {doc}" for name, doc in docs.items()))
        return 0
    if given["--from"]:
        return _publish(json.loads(Path(given["--from"]).read_text()), given["--update-readme"])
    unknown = [name for name in given["WORKLOAD"] if name not in docs]
    if unknown:
        print(f"unknown workload: {', '.join(unknown)}", file=sys.stderr)
        return 2
    plan = _plan(given, list(docs))
    stop_servers_on_sigterm()
    begin = time.monotonic()
    with pinned(int(given["--driver-core"])):
        results = run(plan)
    told = {**report.circumstances(plan.repeats, plan.reference), "workloads": as_json(results)}
    if given["--peers"]:
        told["peers"] = peers.measure(
            given["--peers"], 1 if given["--quick"] else plan.repeats, plan.jobs
        )
    told["took_s"] = round(time.monotonic() - begin)
    Path(given["--json"]).write_text(json.dumps(told, indent=1) + "\n")
    return _publish(told, given["--update-readme"])


def _plan(given: dict[str, Any], names: list[str]) -> Plan:
    engines, reference = engines_of(given)
    return Plan(
        targets=targets(engines, given["--places"].split(",")),
        names=given["WORKLOAD"] or names,
        repeats=QUICK_REPEATS if given["--quick"] else int(given["--repeats"]),
        jobs=int(given["--jobs"]) if given["--jobs"] else None,
        queued=int(given["--queued"]),
        reference=reference,
        server_core=int(given["--server-core"]),
    )


def engines_of(given: dict[str, Any]) -> tuple[list[str], Path | None]:
    """Return the engines that a command line asks for and this checkout has, and the reference."""
    reference = Path(given["--reference"]).resolve() if given["--reference"] else None
    engines = given["--engines"].split(",") if given["--engines"] else list(ENGINES)
    if COMPILED in engines and not has_core():
        say("no compiled core in this checkout: absent")
        engines.remove(COMPILED)
    if REFERENCE in engines and reference is None:
        engines.remove(REFERENCE)
    return engines, reference


def _publish(told: dict[str, Any], is_for_readme: bool) -> int:
    results = from_json(told["workloads"])
    docs = {name: row.doc for name, row in WORKLOADS.items()} | SPECIAL
    parts = [report.heading(told), tables(results, docs)]
    if told.get("peers"):
        parts.append(peers.table(told["peers"]))
    text = "\n\n".join(parts)
    print(text)
    if is_for_readme:
        report.update(report.README, text)
        report.PICTURE.write_text(plot.draw(results, report.heading(told)))
    return 0


def run(plan: Plan) -> Results:
    """Measure everything; a target that fails a workload has no figures for it."""
    results: Results = {name: {} for name in plan.names}
    for number in range(plan.repeats):
        order = plan.targets if number % 2 == 0 else plan.targets[::-1]
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            servers: dict[Target, Server] = {}
            for target in order:
                server = target.server(Path(name), plan.server_core, plan.reference)
                servers[target] = stack.enter_context(server)
            for workload in plan.names:
                if workload == QUEUED:
                    continue
                for target in order:
                    if workload in FILE_ONLY and target.place != FILE and len(plan.names) > 1:
                        continue
                    try:
                        figures = _one(workload, target, servers[target], plan.jobs)
                    except RunFailed as error:
                        say(f"{target.name} {workload}: {error}")
                        figures = Figures(workload=workload, jobs=0)  # keeps repeats in step
                    _note(results, number, target, figures)
    if QUEUED in plan.names:
        _queued(plan, results)
    return results


def _one(workload: str, target: Target, server: Server, jobs: int | None) -> Figures:
    pids = [server.pid]
    if workload == IDLE:
        return delivery.deliveries(server.port, IDLE, min(jobs or DELIVERIES, DELIVERIES))
    if workload in (SAME_LOAD, HALF_BUSY):
        load = delivery.Load(jobs_per_s=SAME_LOAD_PER_S[target.place])
        if workload == HALF_BUSY:
            load = delivery.Load(share=0.5)
        with delivery.loaded(server.port, pids, load):
            figures = delivery.deliveries(
                server.port, workload, min(jobs or DELIVERIES, DELIVERIES)
            )
        return replace(figures, jobs_per_s=load.jobs_per_s)
    row = WORKLOADS[workload]
    usual = row.jobs // 2 if target.engine == REFERENCE else row.jobs
    return measure(server.port, row, pids, min(jobs or usual, usual))


def _queued(plan: Plan, results: Results) -> None:
    """Fill queues of fresh servers, one server at a time; once, for it takes its time."""
    for target in plan.targets:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            directory = Path(name)
            with target.server(directory, plan.server_core, plan.reference) as server:
                file = target.file(directory)
                figures = queued(server.port, plan.queued, QUEUED_BYTES, [server.pid], file)
            _note(results, 0, target, figures)
        if target.engine in (COMPILED, PURE) and target.place == FILE:
            watched_s = stalls.WATCHED_S if plan.jobs is None else stalls.TRIAL_S
            stall = stalls.worst(plan.queued, QUEUED_BYTES, target.environment(), watched_s)
            figures = Figures(workload="stall", jobs=plan.queued, stall_ms=round(stall, 1))
            results.setdefault("stall", {})
            _note(results, 0, target, figures)


def _note(results: Results, number: int, target: Target, figures: Figures) -> None:
    results[figures.workload].setdefault(target.name, []).append(figures)
    shown = {
        name: getattr(figures, name)
        for name in ("jobs_per_s", "server_us", "driver_us", "p50_us", "p99_us", "memory_bytes")
        if getattr(figures, name) is not None
    }
    stall = {} if figures.stall_ms is None else {"stall_ms": figures.stall_ms}
    text = "  ".join(f"{name} {value:,}" for name, value in (shown | stall).items())
    say(f"{number + 1} {target.name:17} {figures.workload:17} {text}")


def say(text: str) -> None:
    """Tell how it goes, beside the tables."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
