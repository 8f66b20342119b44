"""Measure this checkout's client, beside the official one if it is there, on the same broker.

Usage:
  client [options]

Called as python -m loadtests.client. One broker of this checkout, in memory; the pieces of
client_side.py run one after the other, each in a process of its own, ours and the official
client's in turn. Prints medians, and ratios above 1 where ours is faster. Worker figures are jobs
per second from the first handler's start to the last one's end; the handler sleeps 1 ms.

Options:
  --official=PYTHON  Interpreter of an environment that has bunqueue-client 0.1.5.
  --rounds=N         Runs of each piece. [default: 3]
  --only=NAMES       Only these rows, separated by commas.
  --json=FILE        Write every figure to a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docopt import docopt

from loadtests.processes import cpu_ns
from loadtests.servers import ROOT, Server, free_port, our_command, stop_servers_on_sigterm

SIDE = ROOT / "loadtests" / "client_side.py"
RUN_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        ours: Arguments of client_side.py.
        theirs: Those of the official client's run; None where it has no such thing.
        wanted: What the figures should be.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...] | None = None
    wanted: str = ""


# The official worker polls every 50 ms while its slots are full: a fifth of the jobs is enough.
OFFICIAL_WORKER = ("worker", "--jobs=1000")

ROWS = {
    "handler alone (greenlets)": Row(("handler", "--gevent"), None, "what a worker cannot pass"),
    "handler alone (threads)": Row(("handler",), None, "what a worker cannot pass"),
    "worker (greenlets)": Row(("worker", "--gevent"), OFFICIAL_WORKER, "x20; 60% of handler alone"),
    "worker (threads)": Row(("worker",), OFFICIAL_WORKER, "x20; 60% of handler alone"),
    "add one by one": Row(("sequential",), ("sequential",), "x1"),
    "add from 16 threads": Row(("shared", "--jobs=50000"), ("shared", "--jobs=50000"), "x3"),
    "add_bulk of 1000": Row(("bulk", "--jobs=50000"), ("bulk", "--jobs=50000"), "x2"),
    "embedded on a file: add": Row(("sequential", "--jobs=50000"), None, "40,000/s"),
    "embedded on a file: add_bulk": Row(("bulk", "--jobs=200000"), None, "200,000/s"),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run came to."""

    jobs_per_s: float
    client_us: float
    broker_us: float


def run(python: str, arguments: tuple[str, ...], broker: Server, is_ours: bool) -> Figures:
    """Run one piece; raises when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if is_ours:
        environment["PYTHONPATH"] = str(ROOT)
    takes_port = not any(one == "handler" or one.startswith("--file") for one in arguments)
    port = [str(broker.port)] if takes_port else []
    before = cpu_ns([broker.pid])
    done = subprocess.run(
        [python, str(SIDE), *arguments, *port],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    told = json.loads(done.stdout)
    jobs = told["jobs"]
    return Figures(
        jobs_per_s=jobs / told["wall_s"],
        client_us=told["cpu_s"] / jobs * 1e6,
        broker_us=(cpu_ns([broker.pid]) - before) / jobs / 1000,
    )


def measure(
    row: Row, broker: Server, directory: Path, official: str | None, rounds: int
) -> dict[str, list[Figures]]:
    """Run a row's pieces in turn; say on stderr how it goes."""
    found: dict[str, list[Figures]] = {"ours": [], "official": []}
    for number in range(rounds):
        arguments = row.ours
        if row.wanted.endswith("/s"):
            arguments = (*arguments, f"--file={directory / f'{row.ours[0]}{number}.db'}")
        found["ours"].append(run(sys.executable, arguments, broker, is_ours=True))
        if official and row.theirs:
            found["official"].append(run(official, row.theirs, broker, is_ours=False))
        for name, figures in found.items():
            if figures:
                print(f"{number + 1} {name:8} {' '.join(row.ours)} {figures[-1]}", file=sys.stderr)
    return found


def table(results: dict[str, dict[str, list[Figures]]]) -> str:
    """Lay the results out as a Markdown table."""
    heads = ("piece", "ours, jobs/s", "client us/job", "broker us/job", "official, jobs/s")
    lines = [f"| {' | '.join((*heads, 'ratio', 'wanted'))} |", f"|{'---|' * 7}"]
    for name, found in results.items():
        ours, theirs = found["ours"], found["official"]
        cells = [name, f"{median(one.jobs_per_s for one in ours):,.0f}"]
        cells.append(f"{median(one.client_us for one in ours):.0f}")
        cells.append(f"{median(one.broker_us for one in ours):.0f}")
        if theirs:
            ratios = [a.jobs_per_s / b.jobs_per_s for a, b in zip(ours, theirs, strict=True)]
            cells.append(f"{median(one.jobs_per_s for one in theirs):,.0f}")
            cells.append(f"x{median(ratios):.1f}")
        else:
            cells += ["", ""]
        cells.append(ROWS[name].wanted)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure, print."""
    args = docopt(__doc__ or "")
    stop_servers_on_sigterm()
    only = args["--only"].split(",") if args["--only"] else list(ROWS)
    results: dict[str, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        port, http_port = free_port(), free_port()
        command = our_command(port, http_port, None)
        with Server(command, port, directory / "broker.log") as broker:
            for title in only:
                results[title] = measure(
                    ROWS[title], broker, directory, args["--official"], int(args["--rounds"])
                )
    print(table(results))
    if args["--json"]:
        rows = {
            title: {
                side: [[one.jobs_per_s, one.client_us, one.broker_us] for one in figures]
                for side, figures in found.items()
            }
            for title, found in results.items()
        }
        Path(args["--json"]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
