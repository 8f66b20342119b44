"""Use a broker for a long time, and look whether its memory, its file or any collection grows.

Usage:
  soak_broker [options]
  soak_broker --serve [options]

Called as python -m loadtests.soak_broker. Starts a broker on a fresh file and sends it jobs in
rounds: jobs that complete and are kept, that are removed, that fail (some with a message of 1 MiB),
that expire, that repeat the key of another, that have a group of their own, that are delayed, and
small flows; over many queue names. At the end of a round nothing is under way; then it reads the
broker's memory, the size of its file and of the log beside it, and the gauges of all its
collections.

What is bounded by weeks is bounded by less here, so that the bounds are reached: completed jobs
that are kept, dead letters, the minutes that figures are kept of, and the log of these figures.

Prints a table over time and a verdict; the exit status is 1 if anything has grown.

Options:
  --jobs=N          Jobs in all. [default: 1000000]
  --rounds=N        In so many rounds. [default: 50]
  --names=N         Over so many queue names, all of which come in five rounds. [default: 10000]
  --completed=N     Completed jobs that are kept. [default: 20000]
  --minutes-kept=N  Minutes of all queues' figures that are kept, and entries of their log.
                    [default: 5000]
  --lines=N         About so many lines of the table. [default: 20]
  --svg=FILE        Draw the curve too.
  --port=N          Its TCP port. [default: 0]
  --http-port=N     Its HTTP port. [default: 0]
  --data-path=FILE  Its file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from docopt import docopt

from loadtests.hub import Line, Request, _packed
from loadtests.processes import memory
from loadtests.servers import HOST, ROOT, Server, free_port, stop_servers_on_sigterm
from loadtests.soak_gauges import Gauge, growth

MIB = 1 << 20
NAMES_ROUNDS = 5  # all names come in so many rounds
WINDOW = 200  # frames in flight
BATCH = 500
LARGE_ERROR = "x" * MIB
LARGE_EVERY = 200  # one failure in so many has it
FAILING_QUEUES = 10
LETTERS_MIN, LETTERS_PART = 10, 200  # dead letters of each: at least; one per so many kept jobs
TTL_MS, DELAY_MS = 300, 200
ROUND_S_MAX = 120.0

# What a round begins and ends with differs by what the last commits and sweeps have left.
SIZES = (
    Gauge("memory", "MiB", 8.0, 0.05),
    Gauge("file", "MiB", 4.0, 0.1),
    Gauge("log", "MiB", 16.0, 0.1),
)
ENTRIES_SLACK, ENTRIES_SHARE = 500, 0.1
SHOWN = ("jobs", "queues", "keys", "groups", "timers", "stale", "proofs", "metric_minutes")
_SERIES = re.compile(r'bunqueue_(?:collection_entries|buffer_bytes)\{\w+="(\w+)"\} (\S+)')


class Load:
    """What is sent.

    Attributes:
        sent: Jobs so far.
    """

    def __init__(self, line: Line, names: int, letters: int) -> None:
        self.sent = 0
        self._line = line
        self._names = cycle([f"soak-{number}" for number in range(names)])
        self._names_of_round = max(1, names // NAMES_ROUNDS)
        self._serial = count()
        for number in range(FAILING_QUEUES):
            config = {"maxEntries": letters}
            line.call("SetDlqConfig", queue=f"soak-fail-{number}", config=config)

    def round(self, jobs: int) -> None:
        """Send about so many jobs, and see every one of them to its end."""
        names = list(islice(self._names, self._names_of_round))
        for row in KINDS:
            row.run(self, names, max(1, int(jobs * row.share)))
        end = time.monotonic() + ROUND_S_MAX
        while self._left():
            if time.monotonic() > end:
                raise RuntimeError(f"jobs are left at the end of a round: {self._left()}")
            time.sleep(0.05)

    def _left(self) -> int:
        stats = self._line.call("Stats")["stats"]
        return sum(stats[place] for place in ("waiting", "delayed", "active"))

    # -- the kinds of jobs -------------------------------------------------------------------------

    def complete(self, names: Sequence[str], jobs: int, **options: Any) -> None:
        """Push, pull and acknowledge jobs, evenly over the names."""
        self._push(names, jobs, lambda _: options)
        self._work(names[:jobs])

    def remove(self, names: Sequence[str], jobs: int) -> None:
        """The same with jobs that are removed."""
        self.complete(names, jobs, removeOnComplete=True)

    def delay(self, names: Sequence[str], jobs: int) -> None:
        """The same with jobs that come a little later."""
        self._push(names, jobs, lambda _: {"delay": DELAY_MS})
        time.sleep(DELAY_MS / 1000)
        self._work(names[:jobs])

    def fail(self, _names: Sequence[str], jobs: int) -> None:
        """Let jobs fail, some of them with a long message."""
        queues = [f"soak-fail-{number}" for number in range(FAILING_QUEUES)]
        self._push(queues, jobs, lambda _: {"maxAttempts": 1})
        for ids, tokens in self._pull(queues):
            frames = []
            for job_id, token in zip(ids, tokens, strict=True):
                is_large = next(self._serial) % LARGE_EVERY == 0
                error = LARGE_ERROR if is_large else "no"
                stack = [LARGE_ERROR] * 3 if is_large else ["line 1", "line 2"]
                fields = {"id": job_id, "token": token, "error": error, "stack": stack}
                frames.append(_packed("FAIL", fields))
            self._send(frames)

    def expire(self, names: Sequence[str], jobs: int) -> None:
        """Push jobs that nobody pulls in time."""
        self._push(names, jobs, lambda _: {"ttl": TTL_MS})

    def repeat_keys(self, names: Sequence[str], jobs: int) -> None:
        """Push jobs with keys of their own, and their twins; some keys end by themselves."""

        def options(number: int) -> Request:
            own = {"uniqueKey": f"k{next(self._serial) // 2}"}
            return {**own, "dedup": {"ttl": TTL_MS}} if number % 4 < 2 else own

        names = [f"{name}-keys" for name in names[: max(1, len(names) // 10)]]
        self._push(names, jobs, options)
        self._work(names)

    def group(self, names: Sequence[str], jobs: int) -> None:
        """Push jobs of groups that nobody has heard of."""
        names = [f"{name}-groups" for name in names[: max(1, len(names) // 10)]]
        self._push(names, jobs, lambda _: {"groupId": f"g{next(self._serial)}"})
        self._work(names, group={"concurrency": 1, "limit": {"max": 5, "duration": 1_000}})

    def flow(self, names: Sequence[str], jobs: int) -> None:
        """Push parents with two children each."""
        name = f"{names[0]}-flow"
        frames = []
        for _ in range(max(1, jobs // 3)):
            parent = f"p{next(self._serial)}"
            ids = [f"{parent}-{number}" for number in range(2)]
            own = {"data": {"__childrenIds": ids}, "dependsOn": ids, "childrenIds": ids}
            link = {"data": {"__parentId": parent, "__parentQueue": name}, "parentId": parent}
            children = [{"id": each, "queue": name, "input": link} for each in ids]
            flow = [{"id": parent, "queue": name, "input": own}, *children]
            frames.append(_packed("PUSHF", {"jobs": flow}))
            self.sent += len(flow)
        self._send(frames)
        for _ in range(2):  # the children, then the parents
            self._work([name])

    # -- commands ----------------------------------------------------------------------------------

    def _push(self, names: Sequence[str], jobs: int, options: Callable[[int], Request]) -> None:
        frames = []
        for number, name in enumerate(names[:jobs]):
            size = jobs // len(names) + (number < jobs % len(names))
            for begin in range(0, size, BATCH):
                entries = [
                    {"name": "soak", "data": {"n": each, "text": "x" * 50}, **options(each)}
                    for each in range(begin, min(begin + BATCH, size))
                ]
                frames.append(_packed("PUSHB", {"queue": name, "jobs": entries}))
        self.sent += jobs
        self._send(frames)

    def _pull(self, names: Sequence[str], **fields: Any) -> Iterable[tuple[list[str], list[str]]]:
        """Yield ids and tokens until nothing is left in any of the queues."""
        left = list(names)
        while left:
            ask = {"count": BATCH, "owner": "soak", **fields}
            answers = self._send([_packed("PULLB", {"queue": name, **ask}) for name in left])
            # Answers come in the order of the questions: none of them waits.
            full = []
            for name, answer in zip(left, answers, strict=True):
                ids = [job["id"] for job in answer["jobs"]]
                if ids:
                    yield ids, answer["tokens"]
                    full.append(name)
            left = full

    def _work(self, names: Sequence[str], **fields: Any) -> None:
        frames = []
        for ids, tokens in self._pull(names, **fields):
            results = [{"done": True}] * len(ids)
            frames.append(_packed("ACKB", {"ids": ids, "tokens": tokens, "results": results}))
            if len(frames) >= WINDOW or fields:
                self._send(frames)
                frames = []
        self._send(frames)

    def _send(self, frames: Sequence[bytes]) -> list[Request]:
        answers = []
        for begin in range(0, len(frames), WINDOW):
            answers += self._line.call_packed(list(frames[begin : begin + WINDOW]))
        return answers


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of jobs, and its share of a round."""

    share: float
    run: Callable[[Load, Sequence[str], int], None]


KINDS = (
    Kind(0.30, Load.complete),
    Kind(0.10, Load.remove),
    Kind(0.05, Load.delay),
    Kind(0.15, Load.fail),
    Kind(0.15, Load.expire),
    Kind(0.14, Load.repeat_keys),
    Kind(0.10, Load.group),
    Kind(0.01, Load.flow),
)


class Watch:
    """What was read at the ends of the rounds.

    Attributes:
        series: Name -> what was read, in order.
    """

    def __init__(self, line: Line, pid: int, path: Path) -> None:
        self.series: dict[str, list[float]] = {}
        self._line, self._pid, self._path = line, pid, path

    def read(self) -> dict[str, float]:
        """Read everything."""
        text = self._line.call("Prometheus")["data"]["metrics"]
        figures = {
            "memory": memory([self._pid]).resident / MIB,
            "file": self._path.stat().st_size / MIB,
            "log": Path(f"{self._path}-wal").stat().st_size / MIB,
        }
        figures |= {name: float(value) for name, value in _SERIES.findall(text)}
        for name, figure in figures.items():
            self.series.setdefault(name, []).append(figure)
        return figures

    def grown(self) -> list[str]:
        """Say what has grown."""
        gauges = {gauge.name: gauge for gauge in SIZES}
        rows = [
            gauges.get(name) or Gauge(name, "", ENTRIES_SLACK, ENTRIES_SHARE)
            for name in self.series
        ]
        return growth([self.series[row.name] for row in rows], rows)


def soak(load: Load, watch: Watch, jobs: int, rounds: int, lines: int) -> None:
    """Go round, and print a line now and then."""
    begin = time.monotonic()
    columns = [*(f"{row.name} {row.unit}" for row in SIZES), *SHOWN]
    print("".join([f"{'s':>6}{'sent':>11}", *(f"{name:>15}" for name in columns)]), flush=True)
    every = max(1, rounds // max(1, lines))
    for number in range(1, rounds + 1):
        load.round(jobs // rounds)
        figures = watch.read()
        if number % every == 0 or number == rounds:
            shown = [f"{figures[row.name]:>15,.1f}" for row in SIZES]
            shown += [f"{figures[name]:>15,.0f}" for name in SHOWN]
            head = f"{time.monotonic() - begin:>6.0f}{load.sent:>11,}"
            print("".join([head, *shown]), flush=True)


def draw(series: dict[str, list[float]]) -> str:
    """Return a picture: each line in the height of its own greatest value."""
    shown = [*(row.name for row in SIZES), *SHOWN]
    width, height, left = 900, 300, 20
    parts = []
    for number, name in enumerate(shown):
        figures = series[name]
        most = max(figures) or 1.0
        hue = number * 360 // len(shown)
        points = " ".join(
            f"{left + at * (width - 2 * left) / max(1, len(figures) - 1):.1f},"
            f"{height - 10 - figure / most * (height - 30):.1f}"
            for at, figure in enumerate(figures)
        )
        colour = f"hsl({hue},70%,40%)"
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        place = f'x="{left + number % 4 * 215}" y="{height + 20 + number // 4 * 18}"'
        text = f"{name}: at most {most:,.0f}"
        parts.append(f'<text {place} font-size="12" fill="{colour}">{text}</text>')
    box = f'viewBox="0 0 {width} {height + 80}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">',
         '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"]
    )  # fmt: skip


def serve(given: dict[str, Any]) -> int:
    """Be the broker, with the bounds that take weeks to reach within reach."""
    from bunqueue.config import load_settings
    from bunqueue.engine import metrics, metrics_log
    from bunqueue.server import main as server

    metrics.MINUTES_MAX = int(given["--minutes-kept"])  # type: ignore[misc]  # see above
    metrics_log.ENTRIES_MAX = int(given["--minutes-kept"])  # type: ignore[misc]
    flags = {
        "host": HOST,
        "tcp_port": int(given["--port"]),
        "http_port": int(given["--http-port"]),
        "data_path": given["--data-path"],
        "max_completed_jobs": int(given["--completed"]),
    }
    return server.serve(load_settings(flags, environ={"LOG_LEVEL": "error"}))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    if given["--serve"]:
        return serve(given)
    stop_servers_on_sigterm()
    port, http_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        path = Path(directory) / "broker.db"
        command = [sys.executable, "-m", "loadtests.soak_broker", "--serve", f"--port={port}"]
        command += [f"--http-port={http_port}", f"--data-path={path}"]
        command += [f"{name}={given[name]}" for name in ("--completed", "--minutes-kept")]
        log = Path(directory) / "server.log"
        with Server((command, {**os.environ}), port, log, cwd=ROOT) as server:
            line = Line(port)
            letters = max(LETTERS_MIN, int(given["--completed"]) // LETTERS_PART)
            load = Load(line, int(given["--names"]), letters)
            watch = Watch(line, server.pid, path)
            try:
                soak(
                    load, watch, int(given["--jobs"]), int(given["--rounds"]), int(given["--lines"])
                )
            finally:
                line.close()
            said = log.read_text().strip()
    if given["--svg"]:
        Path(given["--svg"]).write_text(draw(watch.series))
    grown = watch.grown()
    if said:
        grown.append(f"the broker complained: {said[:1000]}")
    for what in grown:
        print(what)
    print("verdict:", "it grows" if grown else "level")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
