"""How long a Ping takes while jobs are pushed and written as fast as they are asked for.

Usage:
  ping_under_writes [options]
  ping_under_writes --press=PORT [options]

Called as python -m loadtests.ping_under_writes. A process of its own pushes, PUSHB after PUSHB, so
many jobs in a second or the most the server takes; meanwhile one connection pings every two
milliseconds. Server and drivers share what cores there are, but the server has one to itself where
there are two. Prints what was really written, and the percentiles of the Ping.

Options:
  --engines=NAMES  Some of compiled, pure; commas between them. [default: compiled,pure]
  --press=PORT     Only push, into --queue, until the standard input ends.
  --queue=NAME     Queue to push into. [default: load-ping]
  --rate=N         Jobs to push in a second. [default: 100000]
  --batch=N        Jobs in a PUSHB; 1 pushes them alone. [default: 50]
  --seconds=N      How long. [default: 5]
  --server-core=N  Core for the server. [default: 1]
  --driver-core=N  Core for the drivers. [default: 0]
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgpack
from docopt import docopt

from loadtests.delivery import Line, Paced
from loadtests.driver import Loop, RunFailed, frame
from loadtests.figures import Figures, percentiles_us
from loadtests.processes import cpu_ns, pinned, tree
from loadtests.servers import HOST, ROOT, stop_servers_on_sigterm
from loadtests.targets import FILE, Target
from loadtests.workloads import payload

PING_S = 0.002
SETTLE_S = 1.0
TICK_S = 0.001
CONNECTIONS = 4
UNANSWERED_JOBS = 4_000  # no more wait for their answers, over all connections
PAYLOAD_BYTES = 64


def measure(
    port: int, pids: list[int], rate: int = 100_000, batch: int = 50, seconds: float = 5.0
) -> Figures:
    """Ping a server while it takes and writes jobs; its figures count the jobs.

    Args:
        port: Where it listens.
        pids: Its processes.
        rate: Jobs to push in a second.
        batch: Jobs in a PUSHB.
        seconds: How long to ping.

    Raises:
        RunFailed: The server closed a connection or refused something.
    """
    queue = f"load-ping-{os.getpid():x}"
    request: dict[str, object] = {"cmd": "Ping", "reqId": "00000000"}
    ping, took = frame(request), []
    count = frame({"cmd": "Count", "queue": queue, "reqId": "00000000"})
    command = [sys.executable, "-m", "loadtests.ping_under_writes"]
    command += [f"--press={port}", f"--rate={rate}", f"--batch={batch}", f"--queue={queue}"]
    line = Line(port)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as others:
        assert others.stdin is not None
        try:
            time.sleep(SETTLE_S)
            jobs, used, begin = _ask(line, count), cpu_ns(pids), time.monotonic()
            while time.monotonic() - begin < seconds:
                sent = time.perf_counter_ns()
                line.socket.sendall(ping)
                line.receive()
                took.append(time.perf_counter_ns() - sent)
                time.sleep(PING_S)
            jobs = _ask(line, count) - jobs
            used, wall = cpu_ns(pids) - used, time.monotonic() - begin
        finally:
            others.stdin.close()
    line.socket.close()
    if others.returncode or not jobs:
        raise RunFailed("the load on the server could not be made")
    return Figures(
        workload="ping-under-writes",
        jobs=jobs,
        jobs_per_s=round(jobs / wall),
        server_us=round(used / 1_000 / jobs, 2),
        **percentiles_us(took),
    )


def _ask(line: Line, request: bytes) -> int:
    line.socket.sendall(request)
    return int(msgpack.unpackb(line.receive())["count"])


def press(port: int, rate: int, batch: int, queue: str) -> None:
    """Push jobs at a rate until the standard input ends."""
    job: dict[str, object] = {"name": "job", "data": payload(7, PAYLOAD_BYTES)}
    request: dict[str, object] = {"cmd": "PUSH", "queue": queue, "reqId": "00000000", **job}
    if batch > 1:
        jobs = [job] * batch
        request = {"cmd": "PUSHB", "queue": queue, "reqId": "00000000", "jobs": jobs}
    producer = Paced([frame(request)])
    with Loop(HOST, port, [producer] * CONNECTIONS) as loop:
        loop.begin()
        owed, last = 0.0, time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            loop.turn(TICK_S)
            now = time.monotonic()
            owed = min(owed + (now - last) * rate / batch, rate / batch / 20)
            last = now
            room = UNANSWERED_JOBS // batch - producer.unanswered
            sent = min(int(owed), room)
            if sent > 0:
                owed -= sent
                # Shared out, so that no connection has to carry all of it.
                for part in range(CONNECTIONS):
                    share = sent // CONNECTIONS + (part < sent % CONNECTIONS)
                    if share:
                        producer.push(share)


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    args = docopt(__doc__ or "", argv)
    if args["--press"]:
        press(int(args["--press"]), int(args["--rate"]), int(args["--batch"]), args["--queue"])
        return
    stop_servers_on_sigterm()
    for engine in args["--engines"].split(","):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            server = Target(engine, FILE).server(Path(name), int(args["--server-core"]), None)
            with server, pinned(int(args["--driver-core"])):
                figures = measure(
                    server.port,
                    tree([server.pid]),
                    int(args["--rate"]),
                    int(args["--batch"]),
                    float(args["--seconds"]),
                )
        print(
            f"{engine:9} {figures.jobs_per_s:,.0f} jobs/s written,"
            f" {figures.server_us:.2f} us of CPU each; Ping p50 {figures.p50_us:,.0f} us,"
            f" p99 {figures.p99_us:,.0f} us, p999 {figures.p999_us:,.0f} us"
        )


if __name__ == "__main__":
    main()
