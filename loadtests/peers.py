"""Our client and worker beside RQ, Huey, Dramatiq and Celery on Redis; jobs that do nothing.

Usage:
  peers [options]

Called as python -m loadtests.peers, and by loadtests.bench. One producer process, then one worker
process, each system at its usual settings; Redis keeps nothing on disk, which is its fastest, and
our broker runs on a file and in memory.

Options:
  --peers=PYTHON  Interpreter of an environment that has rq, huey, dramatiq and celery.
  --repeats=N     Runs of each. [default: 3]
  --jobs=N        Most jobs of a run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docopt import docopt

from loadtests.figures import spread
from loadtests.peer_side import PORT_ENV, SYSTEM_ENV
from loadtests.processes import cpu_ns
from loadtests.servers import ROOT, Server, free_port, stop_servers_on_sigterm
from loadtests.targets import COMPILED, FILE, MEMORY, PURE, Target, has_core

PIECE_S_MAX = 300.0
PIECES = ("enqueue", "bulk", "process")

Told = dict[str, dict[str, list[dict[str, float]]]]
"""Name of a row -> piece -> what each repeat said, with the CPU time of the broker."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system, and how many jobs of each piece take about two seconds."""

    system: str
    title: str
    jobs: tuple[int, int, int]
    place: str | None = None


ROWS = (
    Row("bunqueue", "bunqueue, broker on a file", (10_000, 100_000, 15_000), FILE),
    Row("bunqueue", "bunqueue, broker in memory", (10_000, 100_000, 15_000), MEMORY),
    Row("rq", "RQ (worker without fork)", (4_000, 8_000, 800)),
    Row("huey", "Huey (8 greenlets)", (10_000, 0, 8_000)),
    Row("dramatiq", "Dramatiq (8 threads)", (6_000, 0, 4_000)),
    Row("celery", "Celery (prefork 2)", (2_000, 0, 2_000)),
)


def measure(python: str | None, repeats: int, most_jobs: int | None = None) -> Told:
    """Run all systems in turn; those on Redis only where there is an interpreter that has them.

    Args:
        python: That interpreter.
        repeats: How often.
        most_jobs: Bound of the jobs of a piece.
    """
    rows = [row for row in ROWS if row.place or (python and shutil.which("redis-server"))]
    told: Told = {row.title: {piece: [] for piece in PIECES} for row in rows}
    for number in range(repeats):
        for row in rows if number % 2 == 0 else rows[::-1]:
            for piece, usual in zip(PIECES, row.jobs, strict=True):
                jobs = min(usual, most_jobs or usual)
                if not jobs:
                    continue
                interpreter = sys.executable if row.place else str(python)
                with _broker(row) as broker:
                    figures = _run(interpreter, row.system, piece, broker, jobs)
                told[row.title][piece].append(figures)
                print(f"{number + 1} {row.title:28} {piece:8} {figures}", file=sys.stderr)
    return told


def table(told: Told) -> str:
    """Lay the figures out as Markdown."""
    lines = [
        "### Beside other Python job queues",
        "",
        "Jobs that do nothing; one producer, one worker process; CPU microseconds per job of the "
        "producer or worker + of the broker or Redis.",
        "",
        "| system | enqueue/s | CPU us | in bulk/s | CPU us | processed/s | CPU us |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for title, pieces in told.items():
        cells = [title]
        for piece in PIECES:
            found = pieces[piece]
            cells.append(spread([one["jobs_per_s"] for one in found], 0))
            own, other = ([one[name] for one in found] for name in ("cpu_us", "broker_us"))
            cells.append(f"{median(own):.0f} + {median(other):.0f}" if found else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _run(python: str, system: str, piece: str, broker: Server, jobs: int) -> dict[str, float]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(ROOT), SYSTEM_ENV: system, PORT_ENV: str(broker.port)}
    before = cpu_ns([broker.pid])
    done = subprocess.run(
        [python, "-m", "loadtests.peer_side", piece, system, str(broker.port), str(jobs)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PIECE_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"{system} {piece}: {done.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures | {"broker_us": round((cpu_ns([broker.pid]) - before) / jobs / 1_000, 1)}


@contextmanager
def _broker(row: Row) -> Iterator[Server]:
    """Run our broker, or Redis, fresh."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        directory = Path(name)
        if row.place:
            target = Target(COMPILED if has_core() else PURE, row.place)
            server = target.server(directory, None, None)
        else:
            port = free_port()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
            command += ["--save", "", "--appendonly", "no", "--dir", name]
            server = Server((command, {}), port, directory / "redis.log")
        with server:
            yield server


def main() -> int:
    """Run the command."""
    given = docopt(__doc__ or "")
    stop_servers_on_sigterm()
    jobs = int(given["--jobs"]) if given["--jobs"] else None
    print(table(measure(given["--peers"], int(given["--repeats"]), jobs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
