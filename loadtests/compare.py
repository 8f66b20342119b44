"""Compare this checkout's server with the reference server.

Usage:
  compare [options] [WORKLOAD ...]

Called as python -m loadtests.compare. Both servers run at the same time, each on a fresh file,
bound to one core; the driver is bound to another and drives them in turn, in reversed order
every second round. Prints medians with their range, and ratios above 1 where ours is better.

Options:
  --reference=DIR  Where npm install bun bunqueue@2.9.5 was run; without it only ours runs.
  --rounds=N       Runs of each workload per server. [default: 5]
  --jobs=N         Jobs per run instead of the number in the table.
  --memory         Servers without a file.
  --server-core=N  Core for the servers. [default: 1]
  --driver-core=N  Core for the driver. [default: 0]
  --json=FILE      Write every figure to a file; - prints them instead of the table.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

from docopt import docopt

from loadtests.bench import Figures, line, measure
from loadtests.processes import pinned
from loadtests.servers import (
    HOST,
    Server,
    free_port,
    our_command,
    reference_command,
    stop_servers_on_sigterm,
)
from loadtests.workloads import HEADLINE, WORKLOADS, Workload

OURS = "ours"
REFERENCE = "reference"

Rounds = dict[str, list[Figures]]
"""Server name -> one entry per round, in step with each other."""


def new_server(directory: Path, reference: Path | None, has_file: bool, core: int) -> Server:
    """Prepare our server, or the one installed at ``reference``; the caller starts it."""
    name = REFERENCE if reference else OURS
    port, http_port = free_port(), free_port()
    file = directory / f"{name}.db" if has_file else None
    if reference:
        command = reference_command(reference, port, http_port, file)
    else:
        command = our_command(port, http_port, file)
    return Server(command, port, directory / f"{name}.log", core)


def compare(
    servers: dict[str, Server], row: Workload, rounds: int, jobs: int | None = None
) -> Rounds:
    """Drive the servers in turn; say on stderr how it goes."""
    measured: Rounds = {name: [] for name in servers}
    for number in range(rounds):
        order = list(servers) if number % 2 == 0 else list(reversed(servers))
        for name in order:
            server = servers[name]
            figures = measure(HOST, server.port, row, [server.pid], jobs)
            measured[name].append(figures)
            print(f"{number + 1} {name:9} {line(figures)}", file=sys.stderr)
    return measured


def ratios(measured: Rounds) -> tuple[list[float], list[float]] | None:
    """Return per round how much less CPU, and how much more throughput, ours has."""
    if REFERENCE not in measured:
        return None
    pairs = list(zip(measured[OURS], measured[REFERENCE], strict=True))
    cpu = [(theirs.server_us or 0.0) / (ours.server_us or 1.0) for ours, theirs in pairs]
    speed = [ours.jobs_per_s / theirs.jobs_per_s for ours, theirs in pairs]
    return cpu, speed


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Write a median with its range."""
    low, middle, high = (
        f"{value:,.{digits}f}" for value in (min(values), median(values), max(values))
    )
    return f"{middle} ({low}-{high})"


def table(results: dict[str, Rounds]) -> str:
    """Lay the results out as a Markdown table."""
    heads = ["workload"]
    names = list(next(iter(results.values())))
    for name in names:
        heads += [f"{name}: jobs/s", "server us/job"]
    if len(names) > 1:
        heads += ["jobs per CPU second", "jobs/s"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for workload, measured in results.items():
        cells = [workload]
        for name in names:
            cells.append(spread([figures.jobs_per_s for figures in measured[name]]))
            cells.append(spread([figures.server_us or 0.0 for figures in measured[name]], 1))
        both = ratios(measured)
        if both is not None:
            cells += [f"x{spread(values, 1)}" for values in both]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def as_json(results: dict[str, Rounds]) -> dict[str, object]:
    """Shape the results for a file: every round, and the median ratios."""
    rows: dict[str, object] = {}
    for workload, measured in results.items():
        row: dict[str, object] = {
            name: [asdict(figures) for figures in rounds] for name, rounds in measured.items()
        }
        both = ratios(measured)
        if both is not None:
            row["cpu_ratio"], row["throughput_ratio"] = (round(median(each), 2) for each in both)
        rows[workload] = row
    return {"python": platform.python_version(), "machine": platform.machine(), "workloads": rows}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    names = given["WORKLOAD"] or HEADLINE
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload: {', '.join(unknown)}", file=sys.stderr)
        return 2
    reference = Path(given["--reference"]).resolve() if given["--reference"] else None
    jobs = int(given["--jobs"]) if given["--jobs"] else None
    stop_servers_on_sigterm()
    results = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-")))
        core = int(given["--server-core"])
        servers = {}
        for name, place in {OURS: None, REFERENCE: reference}.items():
            if name == OURS or reference:
                server = new_server(directory, place, not given["--memory"], core)
                servers[name] = stack.enter_context(server)
        stack.enter_context(pinned(int(given["--driver-core"])))
        for workload in names:
            row = WORKLOADS[workload]
            results[workload] = compare(servers, row, int(given["--rounds"]), jobs)
    if given["--json"]:
        text = json.dumps(as_json(results), indent=1)
        if given["--json"] == "-":
            print(text)
            return 0
        Path(given["--json"]).write_text(text + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
