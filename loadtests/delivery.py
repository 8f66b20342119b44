"""How long a job takes from its push to a puller that is parked: on an idle server, and on one
that works for others meanwhile.

The puller and the pusher are two plain blocking connections. Between two pushes the server gets a
moment, so that the puller is parked again. The others are a process of their own, which pushes,
pulls and acknowledges small jobs in other queues: so many a second, the same for every server; or
as many as keep the server's processes at a share of a core, which is a hundred times as many for
one server as for another. That process gives way to the one that measures, which shares its core:
what is measured is the server, not how long its load is in the way.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgpack

from loadtests.driver import LENGTH, Loop, RunFailed, frame
from loadtests.figures import Figures, percentiles_us
from loadtests.processes import cpu_ns
from loadtests.scripts import WorkOne, call
from loadtests.servers import HOST, ROOT
from loadtests.workloads import PARKED_MS, payload

GAP_S = 0.001  # between two pushes
WARM_UP_SHARE = 10  # one tenth of the pushes goes first, uncounted
SPAN_S_MAX = 2.5  # a slow server is asked less often
ANSWER_S_MAX = 30.0

PRODUCERS, CONSUMERS, CHAINS = 2, 4, 16
TICK_S = 0.001  # how often load is added
LOOK_S = 0.1  # how often the share is looked at
SETTLE_S = 1.0  # until the share is about right
PER_TICK_MAX = 256.0
UNANSWERED_MIN = 8  # and two ticks' worth: a server that falls behind is not flooded
ENDLESS = 1 << 40
DISTINCT_FRAMES = 512


class Line:
    """A connection that sends frames and waits for answers."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection((HOST, port), timeout=ANSWER_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def receive(self) -> bytes:
        """Wait for a whole frame; return its body."""
        data = self._received
        while len(data) < 4 or len(data) < 4 + LENGTH.unpack_from(data)[0]:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise RunFailed("the server closed the connection")
            data += piece
        end = 4 + LENGTH.unpack_from(data)[0]
        self._received = data[end:]
        return data[4:end]


def deliveries(port: int, name: str, jobs: int) -> Figures:
    """Push so many jobs to a parked puller, one after the other.

    Raises:
        RunFailed: The server closed a connection or delivered nothing.
    """
    queue = f"load-{name}-{os.getpid():x}-{time.monotonic_ns():x}"
    puller, pusher = Line(port), Line(port)
    request: dict[str, object] = {"cmd": "PULL", "queue": queue, "owner": "load"}
    pull = frame({**request, "timeout": PARKED_MS, "reqId": "00000001"})
    push = frame(
        {"cmd": "PUSH", "queue": queue, "name": "job", "data": payload(0, 64), "reqId": "00000000"}
    )
    took = []
    puller.socket.sendall(pull)
    until = time.monotonic() + SPAN_S_MAX
    while len(took) < jobs + jobs // WARM_UP_SHARE and time.monotonic() < until:
        time.sleep(GAP_S)
        begin = time.perf_counter_ns()
        pusher.socket.sendall(push)
        body = puller.receive()
        took.append(time.perf_counter_ns() - begin)
        pusher.receive()
        told = msgpack.unpackb(body)
        if told.get("job") is None:
            raise RunFailed(f"nothing was delivered: {told}")
        ack = {"cmd": "ACK", "id": told["job"]["id"], "token": told["token"], "reqId": "00000002"}
        puller.socket.sendall(frame(ack))
        if not msgpack.unpackb(puller.receive()).get("ok"):
            raise RunFailed("an ACK was refused")
        puller.socket.sendall(pull)
    puller.socket.close()
    pusher.socket.close()
    counted = took[len(took) // WARM_UP_SHARE :]
    return Figures(workload=name, jobs=len(counted), **percentiles_us(counted))


@dataclass(slots=True)
class Load:
    """What others have a server do.

    Attributes:
        share: Of a core that the server's processes are kept at; None: ``jobs_per_s`` is wanted.
        jobs_per_s: Pushed, pulled and acknowledged; what it came to once the load has ended.
    """

    share: float | None = None
    jobs_per_s: float = 0.0


@contextmanager
def loaded(port: int, pids: Sequence[int], load: Load) -> Iterator[None]:
    """Keep a server busy from a process of its own; ``load`` is told what it came to."""
    what = ["share", str(load.share)] if load.share else ["rate", str(load.jobs_per_s)]
    command = [sys.executable, "-m", "loadtests.delivery", str(port), *what, *map(str, pids)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as others:
        assert others.stdin is not None
        assert others.stdout is not None
        try:
            if not others.stdout.readline():
                raise RunFailed("the load on the server could not be made")
            yield
        finally:
            others.stdin.close()
            load.jobs_per_s = float(others.stdout.readline() or 0)


class Paced:
    """Sends a few prepared frames whenever it is told to."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        """Prepare."""
        self.frames = frames
        self.sends: list[Callable[[bytes | memoryview], None]] = []
        self.unanswered = 0
        self._next = 0

    def begin(self, send: Callable[[bytes | memoryview], None]) -> None:
        """Remember a connection."""
        self.sends.append(send)

    def answered(
        self, _send: Callable[[bytes | memoryview], None], _data: bytes, ends: list[int]
    ) -> None:
        """Count."""
        self.unanswered -= len(ends)

    def is_done(self) -> bool:
        """Go on for ever."""
        return False

    def push(self, count: int) -> None:
        """Send so many frames on the next connection."""
        places = range(self._next, self._next + count)
        self._next += count
        self.unanswered += count
        data = b"".join(self.frames[place % len(self.frames)] for place in places)
        self.sends[self._next % len(self.sends)](data)


def press(port: int, load: Load, pids: Sequence[int]) -> None:
    """Load the server until the standard input ends."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    queue = f"load-pressure-{os.getpid():x}"
    request: dict[str, object] = {"cmd": "PUSH", "queue": queue, "name": "job"}
    frames = [
        frame({**request, "data": payload(number, 64), "reqId": f"{number:08d}"})
        for number in range(DISTINCT_FRAMES)
    ]
    producer, consumer = Paced(frames), WorkOne([queue], ENDLESS, CHAINS, PARKED_MS)
    with Loop(HOST, port, [consumer] * CONSUMERS + [producer] * PRODUCERS) as loop:
        loop.begin()
        _press(loop, producer, load, pids, lambda: ENDLESS - consumer.unacknowledged)
    call(HOST, port, {"cmd": "Obliterate", "queue": queue, "force": True})


def _press(
    loop: Loop, producer: Paced, load: Load, pids: Sequence[int], done: Callable[[], int]
) -> None:
    started = looked = next_tick = time.monotonic()
    used, owed, done_before = cpu_ns(pids), 0.0, -1
    per_tick = 1.0 if load.share else load.jobs_per_s * TICK_S
    is_wanted = True
    while is_wanted:
        loop.turn(max(0.0, next_tick - time.monotonic()))
        now = time.monotonic()
        if now >= next_tick:
            next_tick = max(next_tick + TICK_S, now)
            owed = min(owed + per_tick, 2 * PER_TICK_MAX)
            if owed >= 1 and producer.unanswered < UNANSWERED_MIN + 2 * per_tick:
                producer.push(int(owed))
                owed -= int(owed)
        if now - looked >= LOOK_S:
            if load.share:
                was, used = used, cpu_ns(pids)
                busy = (used - was) / 1e9 / (now - looked)
                change = min(2.0, max(0.5, load.share / max(busy, 0.01)))
                per_tick = min(PER_TICK_MAX, per_tick * change)
            looked = now
            is_wanted = not select.select([sys.stdin], [], [], 0)[0]
        if done_before < 0 and now - started > SETTLE_S:
            done_before, started = done(), now
            print("it has settled", flush=True)
    print(round((done() - done_before) / (time.monotonic() - started), 1), flush=True)


if __name__ == "__main__":
    _, told_port, kind, amount, *told_pids = sys.argv
    wanted = Load(**{"share" if kind == "share" else "jobs_per_s": float(amount)})
    press(int(told_port), wanted, [int(pid) for pid in told_pids])
