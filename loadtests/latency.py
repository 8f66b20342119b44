"""How long a push takes, and a job until it is delivered, under load with 1,000 connections.

Usage:
  latency [options]

Called as python -m loadtests.latency. Nine of ten connections push, in turn, so many jobs a second
in all, whether or not earlier ones were answered; on each of the others a puller is parked, gets a
job, acknowledges it and parks again. Measured are the time from sending a PUSH to its answer, and
from sending it to the arrival of its job at a puller. The servers are ours, compiled and pure, and
the reference, each alone at its time, on a fresh file and under the same rate, in reversed order
every second repeat; then ours at a rate that the reference cannot carry. A server that does not
keep up with its rate has no figures.

Options:
  --reference=DIR   Where npm install bun bunqueue@2.9.5 was run; without it only ours runs.
  --engines=NAMES   Some of compiled, pure, reference; commas between them.
  --connections=N   How many in all. [default: 1000]
  --rate=N          Jobs a second that all servers are given. [default: 500]
  --ours-rate=N     Jobs a second that only ours is given; 0 leaves that out. [default: 2000]
  --seconds=S       How long each is measured. [default: 10]
  --repeats=N       Fresh servers so many times. [default: 5]
  --server-core=N   Core for the servers. [default: 1]
  --driver-core=N   Core for the driver. [default: 0]
  --update-readme   Write the table into loadtests/README.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docopt import docopt

from loadtests import report
from loadtests.bench import engines_of, say
from loadtests.driver import Loop, RunFailed, frame
from loadtests.figures import Figures, percentiles_us, spread
from loadtests.processes import cpu_ns, pinned
from loadtests.scripts import WorkOne
from loadtests.servers import HOST, stop_servers_on_sigterm
from loadtests.targets import ENGINES, FILE, REFERENCE, Target
from loadtests.workloads import PARKED_MS, payload

BEGIN, END = "<!-- latency: begin -->", "<!-- latency: end -->"
QUEUE = "load-latency"
PUSHERS_SHARE = 0.9
WARM_UP_S = 2.0
TICK_S = 0.001  # how often what is due is sent
LATE_S_MAX = 15.0  # after the last push, until every job must have been delivered
NUMBER_KEY = b"\xa1n\xa8"  # "n", and a string of eight characters
NUMBER_DIGITS = 8

Send = Callable[[bytes | memoryview], None]


class Pushes:
    """Connections that push when they are told to, and the moments at which they did.

    Attributes:
        sent_ns: When each job was sent, by its number.
        answers_ns: From sending to its answer, by its number; None while there is none.
    """

    def __init__(self) -> None:
        """Prepare."""
        self.sent_ns: list[int] = []
        self.answers_ns: list[int | None] = []
        self._connections: list[tuple[Send, deque[int]]] = []
        self._unanswered: dict[Send, deque[int]] = {}

    def begin(self, send: Send) -> None:
        """Remember a connection."""
        self._unanswered[send] = deque()
        self._connections.append((send, self._unanswered[send]))

    def answered(self, send: Send, _data: bytes, ends: list[int]) -> None:
        """Note how long the answers took; a connection gets them in the order of its pushes."""
        now = time.perf_counter_ns()
        unanswered = self._unanswered[send]
        for _ in ends:
            number = unanswered.popleft()
            self.answers_ns[number] = now - self.sent_ns[number]

    def is_done(self) -> bool:
        """Go on for ever."""
        return False

    def push(self) -> None:
        """Send the next job on the next connection."""
        number = len(self.sent_ns)
        send, unanswered = self._connections[number % len(self._connections)]
        data = {"n": f"{number:0{NUMBER_DIGITS}d}", **payload(number, 64)}
        request = {"cmd": "PUSH", "queue": QUEUE, "name": "job", "data": data}
        sent = frame({**request, "reqId": f"{number:08d}"})
        unanswered.append(number)
        self.answers_ns.append(None)
        self.sent_ns.append(time.perf_counter_ns())
        send(sent)


class Deliveries(WorkOne):
    """Pullers that are parked, and the moments at which jobs reached them.

    Attributes:
        came_ns: Number of a job -> when it came.
    """

    def __init__(self) -> None:
        """Prepare."""
        super().__init__([QUEUE], 1 << 40, 1, PARKED_MS)
        self.came_ns: dict[int, int] = {}
        self._now = 0

    def answered(self, send: Send, data: bytes, ends: list[int]) -> None:
        """Note the time; then as any consumer."""
        self._now = time.perf_counter_ns()
        super().answered(send, data, ends)

    def _ack(self, data: bytes, begin: int, end: int, token: int) -> tuple[bytes, ...]:
        at = data.find(NUMBER_KEY, begin, end) + len(NUMBER_KEY)
        self.came_ns[int(data[at : at + NUMBER_DIGITS])] = self._now
        return super()._ack(data, begin, end, token)


@dataclass(frozen=True, slots=True)
class Load:
    """What a server is given: jobs a second, for how long, over how many connections."""

    rate: int
    seconds: float
    connections: int


def measure(port: int, pid: int, load: Load) -> tuple[Figures, Figures]:
    """Load one server; return the figures of a push and of a delivery.

    Raises:
        RunFailed: It refused something, closed a connection, or did not keep up.
    """
    pushes, deliveries = Pushes(), Deliveries()
    pushers = max(1, round(load.connections * PUSHERS_SHARE))
    pullers = max(1, load.connections - pushers)
    warm_up = round(load.rate * WARM_UP_S)
    jobs = warm_up + round(load.rate * load.seconds)
    with Loop(HOST, port, [deliveries] * pullers + [pushes] * pushers) as loop:
        loop.begin()
        used_ns = cpu_ns([pid])
        begin = time.monotonic()
        while (sent := len(pushes.sent_ns)) < jobs:
            due = min(jobs, int((time.monotonic() - begin) * load.rate))
            for _ in range(due - sent):
                pushes.push()
            loop.turn(TICK_S)
        deadline = time.monotonic() + LATE_S_MAX
        while len(deliveries.came_ns) < jobs or None in pushes.answers_ns[-pushers:]:
            if time.monotonic() > deadline:
                raise RunFailed(f"{jobs - len(deliveries.came_ns)} of {jobs} jobs came not in time")
            loop.turn(TICK_S)
        used_ns = cpu_ns([pid]) - used_ns
    answers = [took for took in pushes.answers_ns[warm_up:] if took is not None]
    came = deliveries.came_ns
    waits = [came[number] - pushes.sent_ns[number] for number in range(warm_up, jobs)]
    cost_us = round(used_ns / 1_000 / jobs, 1)
    return (
        Figures("push", len(answers), server_us=cost_us, **percentiles_us(answers)),
        Figures("delivery", len(waits), server_us=cost_us, **percentiles_us(waits)),
    )


Found = dict[tuple[int, str], list[tuple[Figures, Figures]]]
"""Rate and engine -> figures of each repeat; empty where it did not keep up."""


def run(
    engines: Sequence[str],
    loads: Sequence[Load],
    repeats: int,
    core: int | None,
    reference: Path | None,
) -> Found:
    """Measure all servers; the reference is given only the first load."""
    found: Found = {}
    for number in range(repeats):
        for load in loads:
            for engine in engines if number % 2 == 0 else reversed(engines):
                if engine == REFERENCE and load is not loads[0]:
                    continue
                row = found.setdefault((load.rate, engine), [])
                with tempfile.TemporaryDirectory(prefix="latency-") as name:
                    target = Target(engine, FILE)
                    with target.server(Path(name), core, reference) as server:
                        try:
                            row.append(measure(server.port, server.pid, load))
                        except RunFailed as error:
                            say(f"{number + 1} {engine} {load.rate}/s: {error}")
                            continue
                push, delivery = row[-1]
                say(
                    f"{number + 1} {engine} {load.rate}/s: push p99 {push.p99_us} us, "
                    f"delivery p99 {delivery.p99_us} us, server {push.server_us} us/job"
                )
    return found


def table(found: Found) -> str:
    """Lay the figures out as Markdown, in milliseconds."""
    percentiles = ("p50", "p99", "p999")
    heads = ["jobs/s", "server", *(f"push {name}" for name in ("p50", "p99", "p99.9"))]
    heads += [*(f"delivery {name}" for name in ("p50", "p99", "p99.9")), "server CPU us/job"]
    lines = [f"| {' | '.join(heads)} |", "| --: | --- |" + " --: |" * (len(heads) - 2)]
    rank = {engine: place for place, engine in enumerate(ENGINES)}
    for rate, engine in sorted(found, key=lambda key: (key[0], rank[key[1]])):
        pairs = found[rate, engine]
        cells = [
            spread([getattr(pair[which], f"{name}_us") / 1_000 for pair in pairs], 2)
            for which in (0, 1)
            for name in percentiles
        ]
        cost = spread([pair[0].server_us for pair in pairs if pair[0].server_us is not None])
        lines.append(f"| {rate:,} | {engine} | {' | '.join([*cells, cost])} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given: dict[str, Any] = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    engines, reference = engines_of(given)
    rates = [int(given["--rate"]), int(given["--ours-rate"])]
    seconds, connections = float(given["--seconds"]), int(given["--connections"])
    loads = [Load(rate, seconds, connections) for rate in rates if rate]
    repeats = int(given["--repeats"])
    stop_servers_on_sigterm()
    with pinned(int(given["--driver-core"])):
        found = run(engines, loads, repeats, int(given["--server-core"]), reference)
    text = "\n\n".join(
        (
            report.heading(report.circumstances(repeats, reference)),
            f"{connections:,} connections, {seconds:g} s each; times in milliseconds.",
            table(found),
        )
    )
    print(text)
    if given["--update-readme"]:
        report.update(report.README, text, BEGIN, END)
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
