"""The subcommand demo: the whole life of a thousand jobs in one process, then the bill.

An embedded queue on a file takes jobs of five kinds, a worker runs them, and the outcome of each
kind is compared with what its kind promises. The figures come from two sides: what the worker
reported, and what the queue counts afterwards; the demo fails when they do not add up.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bunqueue.cli.progress import progress
from bunqueue.cli.show import table
from bunqueue.cli.table import declare
from bunqueue.cli.usage import Args
from bunqueue.errors import UnrecoverableError

if TYPE_CHECKING:
    from bunqueue.client.job import Job
    from bunqueue.client.queue import Queue

CONCURRENCY = 16
DEADLINE_S = 60.0  # a run takes about two seconds; past this something is stuck


@dataclass(frozen=True, slots=True)
class Kind:
    """Some jobs of the demo and what must become of each.

    Attributes:
        name: Name of the jobs; the handler acts by it.
        count: How many are pushed.
        options: Their job options.
        runs: How often each one is run.
        completes: Each completes in the end; otherwise each becomes a dead letter.
    """

    name: str
    count: int
    options: dict[str, Any]
    runs: int = 1
    completes: bool = True


KINDS = (
    Kind("plain", 500, {}),
    Kind("prioritised", 200, {"priority": 5}),
    Kind("delayed", 150, {"delay": 700}),
    Kind("flaky", 100, {"attempts": 3, "backoff": {"type": "fixed", "delay": 100}}, runs=2),
    Kind(
        "doomed",
        30,
        {"attempts": 2, "backoff": {"type": "fixed", "delay": 100}},
        runs=2,
        completes=False,
    ),
    Kind("hopeless", 20, {"attempts": 3}, completes=False),
)
JOBS = sum(kind.count for kind in KINDS)


class Tally:
    """What happened to the jobs, by kind; told by any number of threads."""

    def __init__(self) -> None:
        self.pushed: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.early = 0
        self.is_settled = threading.Event()
        self._lock = threading.Lock()

    def ran(self, job: "Job[Any]") -> None:
        with self._lock:
            self.runs[str(job.name)] += 1
            self.early += time.time() * 1000 < job.data["due_at"]

    def settle(self, outcomes: Counter[str], job: "Job[Any]") -> None:
        """Count a job whose life has ended; the last one ends the wait for all."""
        with self._lock:
            outcomes[str(job.name)] += 1
            if self.settled == JOBS:
                self.is_settled.set()

    @property
    def settled(self) -> int:
        return self.completed.total() + self.dead.total()


def handle(job: "Job[Any]") -> str:
    """Act as the job's kind promises."""
    if job.name == "flaky" and job.attempts == 0:
        raise ConnectionError("the first try never works")
    if job.name == "doomed":
        raise ConnectionError("this never works")
    if job.name == "hopeless":
        raise UnrecoverableError("trying again would be pointless")
    return "done"


def run(args: Args) -> int:
    """Waits until all jobs have settled; 0 when everything adds up."""
    from bunqueue.client.embedded import shutdown_manager
    from bunqueue.client.queue import Queue

    with data_file(args["--data-path"]) as path:
        print(f"Queue on {path}, {CONCURRENCY} jobs at a time.")
        tally, began = Tally(), time.monotonic()
        name = f"demo-{os.getpid()}-{time.time_ns()}"
        try:
            with Queue(name, embedded=True, data_path=path) as queue:
                push(queue, tally)
                push_s = time.monotonic() - began
                is_complete = work(queue, path, tally)
                work_s = time.monotonic() - began - push_s
                counts = queue.get_job_counts()
        finally:
            shutdown_manager()
        size = path.stat().st_size
    print(f"\nPushed in {push_s:.2f} s, settled in {work_s:.2f} s, file of {size // 1024} KiB.\n")
    print("\n".join(table(HEAD, summary(tally))))
    problems = faults(tally, counts)
    if not is_complete:
        problems.insert(0, f"{JOBS - tally.settled} jobs had not settled after {DEADLINE_S:.0f} s")
    for problem in problems:
        print(f"It does not add up: {problem}", file=sys.stderr)
    if not problems:
        print("\nEverything adds up: no job lost, none run more often than it should be.")
    return 1 if problems else 0


def push(queue: "Queue", tally: Tally) -> None:
    """Push all kinds."""
    for kind in KINDS:
        due_at = time.time() * 1000 + kind.options.get("delay", 0)
        entries = [
            {"name": kind.name, "data": {"number": n, "due_at": due_at}, **kind.options}
            for n in range(kind.count)
        ]
        tally.pushed[kind.name] = len(set(queue.add_bulk(entries)))


def work(queue: "Queue", path: Path, tally: Tally) -> bool:
    """Run the jobs and report progress until all have settled; False when time runs out."""
    from bunqueue.client.worker import Worker

    def process(job: "Job[Any]") -> str:
        tally.ran(job)
        return handle(job)

    def failed(job: "Job[Any]", error: BaseException) -> None:
        is_last = job.attempts + 1 >= job.max_attempts
        if is_last or isinstance(error, UnrecoverableError):
            tally.settle(tally.dead, job)

    worker = Worker(
        queue.name,
        process,
        embedded=True,
        data_path=path,
        concurrency=CONCURRENCY,
        batch_size=CONCURRENCY,
        autorun=False,
    )
    worker.on("completed", lambda job, _result: tally.settle(tally.completed, job))
    worker.on("failed", failed)
    worker.start()
    try:
        return progress(lambda: tally.settled, JOBS, tally.is_settled, DEADLINE_S)
    finally:
        worker.close(timeout=5)


HEAD = ("Kind", "Pushed", "Completed", "Dead letters", "Runs", "Runs expected")


def summary(tally: Tally) -> Iterator[tuple[Any, ...]]:
    """Yield a row per kind, then the sum."""
    rows: list[tuple[Any, ...]] = [
        (
            kind.name,
            tally.pushed[kind.name],
            tally.completed[kind.name],
            tally.dead[kind.name],
            tally.runs[kind.name],
            kind.count * kind.runs,
        )
        for kind in KINDS
    ]
    yield from rows
    yield ("all", *(sum(row[column] for row in rows) for column in range(1, len(HEAD))))


def faults(tally: Tally, counts: dict[str, int]) -> list[str]:
    """Return what does not add up, between kinds and promises, and between worker and queue."""
    found = []
    for kind in KINDS:
        expected = {
            "pushed": kind.count,
            "completed": kind.count if kind.completes else 0,
            "dead": 0 if kind.completes else kind.count,
            "runs": kind.count * kind.runs,
        }
        for what, count in expected.items():
            seen = getattr(tally, what)[kind.name]
            if seen != count:
                found.append(f"{kind.name}: {what} {seen}, expected {count}")
    if tally.early:
        found.append(f"{tally.early} jobs ran before they were due")
    rest = {"completed": tally.completed.total(), "failed": tally.dead.total()}
    for state, count in counts.items():
        if count != rest.get(state, 0):
            found.append(f"the queue counts {count} jobs {state}, expected {rest.get(state, 0)}")
    return found


@contextlib.contextmanager
def data_file(given: str | None) -> Iterator[Path]:
    """Yield the file to work on: the given one, which stays, or one in a directory that goes."""
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="bunqueue-demo-") as directory:
        yield Path(directory) / "demo.db"


declare(
    "demo",
    f"""
Push and work {JOBS:,} jobs of several kinds in this process, and check the bill.

Usage:
  bunqueue demo [options]

Options:
  --data-path FILE        Keep the queue in this file; a temporary one if not given.
""",
    run,
    examples="bunqueue demo --data-path /tmp/demo.db",
    connects=False,
)
