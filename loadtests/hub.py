"""Measure how long a broker's hub is blocked by whatever may take long.

Usage:
  hub [options] [SCENARIO ...]

Called as python -m loadtests.hub. Without a SCENARIO all of them run, each in a broker of its own
on a fresh file. Prints for each the longest step of the hub, in CPU time and in time of day, the
longest pause of the garbage collector, and the CPU time per job beside that of a small case.

Options:
  --jobs=N   Most jobs of a scenario, to try one out.
  --list     List the scenarios.
  --json     Print JSON lines.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
from docopt import docopt

from bunqueue.protocol.options import EDGES_MAX
from loadtests.servers import HOST, ROOT, stop_servers_on_sigterm

SMALL_JOBS = 100  # the case that a large one's cost per job is compared with
SMALL_ROUNDS = 5
BATCH = 1000
ANSWER_S_MAX = 300.0
CRON_LEAD_S = 15  # all crons are defined within this, then they are due together
DELAY_S = 10  # the same for delayed jobs
Request = dict[str, Any]


class Broker:
    """One broker process with a stopwatch, and one connection to it."""

    def __init__(
        self,
        path: Path,
        environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Start it. Waits."""
        command = [sys.executable, "-m", "loadtests.hub_server", f"--data-path={path}", *flags]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.line = Line(self.port)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def close(self) -> None:
        """End it. Waits."""
        self.line.close()
        self._process.kill()
        self._process.communicate()

    def read(self) -> dict[str, float]:
        """Return what the stopwatch has, and reset it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._process.stdout.readline())
        return figures


class Line:
    """A connection that asks and waits for the answer."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self._socket = socket.create_connection((HOST, port), timeout=ANSWER_S_MAX)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def call(self, cmd: str, **fields: Any) -> Request:
        """Waits for the answer to one command.

        Raises:
            RuntimeError: It was refused.
        """
        return self.call_packed([_packed(cmd, fields)])[0]

    def call_packed(self, frames: list[bytes]) -> list[Request]:
        """Waits for the answers to prepared frames, in the order of their arrival."""
        self._socket.sendall(b"".join(frames))
        answers = []
        for _ in frames:
            (size,) = struct.unpack(">I", self._file.read(4))
            answer = msgpack.unpackb(self._file.read(size), strict_map_key=False)
            if not answer.get("ok"):
                raise RuntimeError(f"refused: {str(answer)[:200]}")
            answers.append(answer)
        return answers


def _packed(cmd: str, fields: Request) -> bytes:
    body: bytes = msgpack.packb({"cmd": cmd, **fields})
    return struct.pack(">I", len(body)) + body


# -- filling --------------------------------------------------------------------------------------


def _push(line: Line, queue: str, count: int, **options: Any) -> list[str]:
    ids: list[str] = []
    for begin in range(0, count, BATCH):
        size = min(BATCH, count - begin)
        jobs = [{"name": "n", "data": {"n": n}, **options} for n in range(begin, begin + size)]
        ids += line.call("PUSHB", queue=queue, jobs=jobs)["ids"]
    return ids


def _pull(line: Line, queue: str, count: int, **fields: Any) -> Iterator[tuple[list[str], Any]]:
    """Pull so many jobs; yield ids and tokens by batches."""
    left = count
    while left:
        answer = line.call("PULLB", queue=queue, count=min(BATCH, left), owner="w", **fields)
        ids = [job["id"] for job in answer["jobs"]]
        if not ids:
            raise RuntimeError(f"{left} jobs of {queue} cannot be pulled")
        left -= len(ids)
        yield ids, answer["tokens"]


def _complete(line: Line, queue: str, count: int) -> None:
    for ids, tokens in _pull(line, queue, count):
        line.call("ACKB", ids=ids, tokens=tokens, results=[{"r": 1}] * len(ids))


def _fail(line: Line, queue: str, count: int) -> None:
    config = {"maxEntries": 1_000_000, "autoRetry": False}
    line.call("SetDlqConfig", queue=queue, config=config)
    for ids, tokens in _pull(line, queue, count):
        pairs = zip(ids, tokens, strict=True)
        line.call_packed([_packed("FAIL", {"id": i, "token": t, "error": "no"}) for i, t in pairs])


def _flow(parent: str, queue: str, count: int) -> list[Request]:
    """Return a flow of a parent and its children, ``count`` jobs in all."""
    children = [f"{parent}-{number}" for number in range(count - 1)]
    own = {"data": {"__childrenIds": children}, "dependsOn": children, "childrenIds": children}
    link = {"__parentId": parent, "__parentQueue": queue}
    return [
        {"id": parent, "queue": queue, "input": own},
        *(
            {"id": child, "queue": queue, "input": {"data": link, "parentId": parent}}
            for child in children
        ),
    ]


# -- scenarios: each prepares, then yields what is measured ---------------------------------------

Measured = Callable[[], object]
Scenario = Callable[[Broker, str, int], Measured]


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario.

    Attributes:
        prepare: ``prepare(broker, queue, jobs)`` makes the jobs and returns what is measured.
        jobs: How many.
        rounds: How often the small case runs.
    """

    name: str
    prepare: Scenario
    jobs: int
    rounds: int = SMALL_ROUNDS


def _on_filled(fill: Callable[..., object], cmd: str, **fields: Any) -> Scenario:
    def prepare(broker: Broker, queue: str, jobs: int) -> Measured:
        _push(broker.line, queue, jobs, maxAttempts=1)
        fill(broker.line, queue, jobs)
        return lambda: broker.line.call(cmd, queue=queue, **fields)

    return prepare


def _on_queued(cmd: str, options: Request | None = None, **fields: Any) -> Scenario:
    def prepare(broker: Broker, queue: str, jobs: int) -> Measured:
        _push(broker.line, queue, jobs, **(options or {}))
        return lambda: broker.line.call(cmd, queue=queue, **fields)

    return prepare


def _on_flow(cmd: str, completes: bool) -> Scenario:
    def prepare(broker: Broker, queue: str, jobs: int) -> Measured:
        broker.line.call("PUSHF", jobs=_flow(f"p-{queue}", queue, jobs))
        if completes:
            _complete(broker.line, queue, jobs - 1)
        return lambda: broker.line.call(cmd, id=f"p-{queue}")

    return prepare


def _on_queues(cmd: str) -> Scenario:
    def prepare(broker: Broker, queue: str, jobs: int) -> Measured:
        frames = [_packed("PUSH", {"queue": f"{queue}-{n}", "data": n}) for n in range(jobs)]
        for begin in range(0, jobs, BATCH):
            broker.line.call_packed(frames[begin : begin + BATCH])
        return lambda: broker.line.call(cmd)

    return prepare


def _push_flow(broker: Broker, queue: str, jobs: int) -> Measured:
    frame = _packed("PUSHF", {"jobs": _flow(f"p-{queue}", queue, jobs)})
    return lambda: broker.line.call_packed([frame])


def _fan_in(broker: Broker, queue: str, jobs: int) -> Measured:
    broker.line.call("PUSHF", jobs=_flow(f"p-{queue}", queue, jobs))

    def run() -> None:
        _complete(broker.line, queue, jobs)  # the parent comes last

    return run


def _push_groups(broker: Broker, queue: str, jobs: int) -> Measured:
    def run() -> None:
        for begin in range(0, jobs, BATCH):
            entries = [
                {"name": "n", "data": n, "groupId": f"g{n}"}
                for n in range(begin, min(begin + BATCH, jobs))
            ]
            broker.line.call("PUSHB", queue=queue, jobs=entries)

    return run


def _work_groups(broker: Broker, queue: str, jobs: int) -> Measured:
    _push_groups(broker, queue, jobs)()
    group = {"concurrency": 1, "limit": {"max": 1, "duration": 60_000}}

    def run() -> None:
        for ids, tokens in _pull(broker.line, queue, jobs, group=group):
            broker.line.call("ACKB", ids=ids, tokens=tokens)

    return run


def _push_children(broker: Broker, queue: str, jobs: int) -> Measured:
    """Name many children in one push, and end the job."""
    frame = _packed("PUSH", {"queue": queue, "childrenIds": [f"{queue}-{n}" for n in range(jobs)]})

    def run() -> None:
        broker.line.call_packed([frame])
        broker.line.call("Obliterate", queue=queue)

    return run


def _depend(broker: Broker, queue: str, jobs: int) -> Measured:
    ids = _push(broker.line, f"{queue}-first", jobs)
    entries = [{"name": "n", "data": {"n": 1}, "dependsOn": [job_id]} for job_id in ids]

    def run() -> None:
        for begin in range(0, jobs, BATCH):
            broker.line.call("PUSHB", queue=queue, jobs=entries[begin : begin + BATCH])

    return run


def _push_plain(broker: Broker, queue: str, jobs: int) -> Measured:
    entries = [{"name": "n", "data": {"n": n}} for n in range(jobs)]
    frame = _packed("PUSHB", {"queue": queue, "jobs": entries})
    return lambda: broker.line.call_packed([frame])


def _replace(broker: Broker, queue: str, jobs: int) -> Measured:
    """Bring jobs with the ids of others that have completed."""
    entries = [{"name": "n", "data": {"n": n}, "customId": f"{queue}-{n}"} for n in range(jobs)]
    frame = _packed("PUSHB", {"queue": queue, "jobs": entries})
    broker.line.call_packed([frame])
    _complete(broker.line, queue, jobs)
    return lambda: broker.line.call_packed([frame])


def _replace_waiting(broker: Broker, queue: str, jobs: int) -> Measured:
    """Bring jobs with the dedup keys of others that wait."""
    own = {"dedup": {"replace": True}}
    entries = [{"name": "n", "data": {"n": n}, "uniqueKey": f"{n}", **own} for n in range(jobs)]
    frame = _packed("PUSHB", {"queue": queue, "jobs": entries})
    broker.line.call_packed([frame])
    return lambda: broker.line.call_packed([frame])


def _push_large(broker: Broker, queue: str, jobs: int) -> Measured:
    entries = [{"name": "n", "data": {"text": "x" * 60_000}} for _ in range(jobs)]
    frame = _packed("PUSHB", {"queue": queue, "jobs": entries})
    return lambda: broker.line.call_packed([frame])


def _pull_large(broker: Broker, queue: str, jobs: int) -> Measured:
    _push_large(broker, queue, jobs)()
    return lambda: broker.line.call("PULLB", queue=queue, count=jobs, owner="w")


def _push_small_values(broker: Broker, queue: str, jobs: int) -> Measured:
    entries = [{"name": "n", "data": {"n": [7] * 10_000}} for _ in range(jobs)]
    frame = _packed("PUSHB", {"queue": queue, "jobs": entries})
    return lambda: broker.line.call_packed([frame])


def _push_lists(broker: Broker, queue: str, jobs: int) -> Measured:
    """Push one job whose data are so many empty lists, and a map around them."""
    frame = _packed("PUSH", {"queue": queue, "data": {"lists": [[]] * jobs}})
    return lambda: broker.line.call_packed([frame])


def _push_points(broker: Broker, queue: str, jobs: int) -> Measured:
    points = [[number / 7, number / 3] for number in range(jobs)]
    frame = _packed("PUSH", {"queue": queue, "data": {"points": points}})
    return lambda: broker.line.call_packed([frame])


def _ping_lists(broker: Broker, _queue: str, jobs: int) -> Measured:
    """Ping, with a field that nobody wants."""
    frame = _packed("Ping", {"x": {"lists": [[]] * jobs}})
    return lambda: broker.line.call_packed([frame])


def _crons(broker: Broker, queue: str, jobs: int) -> Measured:
    due = time.gmtime(time.time() + CRON_LEAD_S)
    fields = {"queue": queue, "schedule": f"{due.tm_sec} {due.tm_min} * * * *"}
    frames = [_packed("Cron", {"name": f"{queue}-{n}", **fields}) for n in range(jobs)]
    for begin in range(0, jobs, BATCH):
        broker.line.call_packed(frames[begin : begin + BATCH])

    def run() -> None:
        end = time.monotonic() + ANSWER_S_MAX
        while broker.line.call("Count", queue=queue)["count"] < jobs:
            if time.monotonic() > end:
                raise RuntimeError("the crons have not all fired")
            time.sleep(0.05)

    return run


def _list_crons(broker: Broker, queue: str, jobs: int) -> Measured:
    _crons(broker, queue, jobs)
    return lambda: broker.line.call("CronList")


def _list_workers(broker: Broker, queue: str, jobs: int) -> Measured:
    fields = {"name": "w", "queues": [queue]}
    frames = [
        _packed("RegisterWorker", {"workerId": f"{queue}-{n}", **fields}) for n in range(jobs)
    ]
    for begin in range(0, jobs, BATCH):
        broker.line.call_packed(frames[begin : begin + BATCH])
    return lambda: broker.line.call("ListWorkers")


def _ack_batch(broker: Broker, queue: str, jobs: int) -> Measured:
    """Complete all jobs with one command."""
    _push(broker.line, queue, jobs)
    ids: list[str] = []
    tokens: list[str] = []
    for some, theirs in _pull(broker.line, queue, jobs, lockTtl=600_000):
        ids += some
        tokens += theirs
    frame = _packed("ACKB", {"ids": ids, "tokens": tokens, "results": [{"r": 1}] * jobs})
    return lambda: broker.line.call_packed([frame])


def _heartbeats(broker: Broker, _queue: str, jobs: int) -> Measured:
    """Renew the leases of jobs that are gone, with one command."""
    ids = [f"{number:08x}" for number in range(jobs)]
    frame = _packed("JobHeartbeatB", {"ids": ids, "tokens": ids})
    return lambda: broker.line.call_packed([frame])


def _leave(broker: Broker, queue: str, jobs: int) -> Measured:
    """Take all jobs over a second connection and hang up."""
    _push(broker.line, queue, jobs)
    line = Line(broker.port)
    for _ in _pull(line, queue, jobs):
        pass

    def run() -> None:
        line.close()
        while broker.line.call("Count", queue=queue)["count"] < jobs:
            time.sleep(0.01)

    return run


def _subscribed(broker: Broker, queue: str, jobs: int) -> Measured:
    lines = [Line(broker.port) for _ in range(100)]
    for line in lines:
        line.call("SubscribeEvents", queue=queue)

    def run() -> None:
        _push(broker.line, queue, jobs)
        for line in lines:
            line.close()

    return run


def _due_at_once(broker: Broker, queue: str, jobs: int) -> Measured:
    """Delay all jobs to the same moment, and count them then."""
    begin_s = time.time()
    _push(broker.line, queue, jobs, timestamp=int(begin_s * 1000), delay=DELAY_S * 1000)
    time.sleep(max(0, begin_s + DELAY_S - time.time()))
    return lambda: broker.line.call("GetJobCounts", queue=queue)


def _rest(broker: Broker, queue: str, jobs: int) -> Measured:
    """Fill a broker and let its periodic sweeps come round."""
    _push(broker.line, queue, jobs)
    for _ in _pull(broker.line, queue, jobs // 2, lockTtl=600_000):
        pass
    return lambda: time.sleep(12)


SCENARIOS = (
    Row("push-flow", _push_flow, 10_000),
    Row("fan-in", _fan_in, 10_000),
    Row("children-values", _on_flow("GetChildrenValues", True), 10_000),
    Row("remove-children", _on_flow("RemoveUnprocessedChildren", False), 10_000),
    Row("push-groups", _push_groups, 10_000),
    Row("work-groups", _work_groups, 10_000),
    Row("list-crons", _list_crons, 10_000),
    Row("list-workers", _list_workers, 10_000),
    Row("crons-due", _crons, 10_000, rounds=1),
    Row("push-depends-on", _depend, 10_000),
    Row("push-children", _push_children, EDGES_MAX),
    Row("push-batch", _push_plain, 10_000),
    Row("push-replacing", _replace, 10_000),
    Row("push-replacing-keys", _replace_waiting, 10_000),
    Row("push-large", _push_large, 1000),
    Row("push-many-values", _push_small_values, 1000),
    Row("push-many-lists", _push_lists, 3_000_000),
    Row("push-many-points", _push_points, 250_000),
    Row("ping-many-lists", _ping_lists, 5_000_000),
    Row("pull-large", _pull_large, 1000),
    Row("events-100", _subscribed, 10_000),
    Row("drain", _on_queued("Drain"), 100_000),
    Row("obliterate", _on_queued("Obliterate"), 100_000),
    Row("clean", _on_queued("Clean", grace=0, limit=1_000_000), 100_000),
    Row("clean-completed", _on_filled(_complete, "Clean", grace=0, state="completed",
                                      limit=1_000_000), 100_000),
    Row("promote", _on_queued("PromoteJobs", {"delay": 3_600_000}), 100_000),
    Row("pause", _on_queued("Pause"), 100_000),
    Row("resume", _on_queued("Resume"), 100_000),
    Row("retry-completed", _on_filled(_complete, "RetryCompleted"), 100_000),
    Row("retry-dlq", _on_filled(_fail, "RetryDlq"), 100_000),
    Row("purge-dlq", _on_filled(_fail, "PurgeDlq"), 100_000),
    Row("bound-dlq", _on_filled(_fail, "SetDlqConfig", config={"maxEntries": 1}), 100_000),
    Row("list-dlq", _on_filled(_fail, "Dlq"), 20_000),
    Row("dlq-stats", _on_filled(_fail, "GetDlqStats"), 100_000),
    Row("get-jobs", _on_queued("GetJobs"), 100_000),
    Row("get-jobs-all", _on_queued("GetJobs", limit=1_000_000), 50_000),
    Row("count-priorities", _on_queued("GetCountsPerPriority"), 100_000),
    Row("dashboard-queue", _on_queued("DashboardQueue", includeJobs=True), 100_000),
    Row("list-queues", _on_queues("ListQueues"), 10_000),
    Row("dashboard-queues", _on_queues("DashboardQueues"), 10_000),
    Row("prometheus", _on_queues("Prometheus"), 10_000),
    Row("ack-batch", _ack_batch, 100_000),
    Row("heartbeats", _heartbeats, 1_000_000),
    Row("hang-up", _leave, 10_000),
    Row("due-at-once", _due_at_once, 100_000, rounds=1),
    Row("stats", _on_queues("Stats"), 10_000),
    Row("sweeps", _rest, 100_000, rounds=1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """What one scenario cost; times per job in microseconds of the hub's CPU."""

    scenario: str
    jobs: int
    cpu_ms: float
    wall_ms: float
    gc_ms: float
    total_ms: float
    job_us: float
    small_job_us: float


@contextmanager
def started() -> Iterator[Broker]:
    """Run a broker on a file of its own."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(Path(directory) / "hub.db")
        try:
            yield broker
        finally:
            broker.close()


def measure(row: Row, jobs: int) -> Figures:
    """Run one scenario, small and large."""
    with started() as broker:
        small = [_run(broker, row, f"s{number}", SMALL_JOBS) for number in range(row.rounds)]
    with started() as broker:
        large = _run(broker, row, "q", jobs)
    costs = sorted(figures["total_ms"] for figures in small)
    return Figures(
        row.name,
        jobs,
        **{name: round(value, 1) for name, value in large.items()},
        job_us=round(large["total_ms"] * 1000 / jobs, 2),
        small_job_us=round(costs[len(costs) // 2] * 1000 / SMALL_JOBS, 2),
    )


def _run(broker: Broker, row: Row, queue: str, jobs: int) -> dict[str, float]:
    run = row.prepare(broker, queue, jobs)
    time.sleep(0.1)
    broker.read()
    run()
    return broker.read()


def main(arguments: dict[str, Any]) -> int:
    """Measure what was asked for and print it."""
    stop_servers_on_sigterm()
    if arguments["--list"]:
        for row in SCENARIOS:
            print(f"{row.name:18} {row.jobs:>9,} jobs")
        return 0
    rows = {row.name: row for row in SCENARIOS}
    wanted = arguments["SCENARIO"] or list(rows)
    for name in wanted:
        if name not in rows:
            print(f"no scenario {name}; --list shows them", file=sys.stderr)
            return 2
    if not arguments["--json"]:
        print("| scenario | jobs | step, CPU ms | step, ms | gc ms | us/job | us/job of 100 |")
        print("| --- | --: | --: | --: | --: | --: | --: |")
    for name in wanted:
        row = rows[name]
        figures = measure(row, min(row.jobs, int(arguments["--jobs"] or row.jobs)))
        if arguments["--json"]:
            print(json.dumps(asdict(figures)), flush=True)
        else:
            print(
                f"| {name} | {figures.jobs:,} | {figures.cpu_ms} | {figures.wall_ms}"
                f" | {figures.gc_ms} | {figures.job_us} | {figures.small_job_us} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(docopt(__doc__ or "")))
