"""Run a broker with a stopwatch on its hub.

Usage:
  hub_server --data-path=FILE [--shards=N] [--completed=N] [--still]

Started by other load tests; called as python -m loadtests.hub_server. The server is the ordinary
one. Beside its greenlets runs one more, the heartbeat, which wants to be woken every millisecond:
what lies between two of its beats is a *step*, the longest anybody had to wait for the hub. A line
on standard input is a question; the answer is one line of JSON with the longest step since the last
question. The first line of all tells the port. The number of shards is no setting of a broker; here
it can be told, to see what it changes. A broker that is to be still has no heartbeat: that costs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from functools import partial
from typing import Any

import gevent
from docopt import docopt
from gevent.fileobject import FileObject

from bunqueue.config import load_settings
from bunqueue.engine.settings import EngineSettings
from bunqueue.server import main as server_main
from bunqueue.server.main import Started, serve

BEAT_S = 0.001
COMPLETED_JOBS_MAX = 1_000_000  # nothing that a scenario completes is dropped under it, by default


class Stopwatch:
    """The heartbeat, and the longest steps it has met.

    Attributes:
        cpu_ms: Longest step in CPU time of the hub's thread: our own work.
        wall_ms: Longest step in time of day: our work, and whoever had the core meanwhile.
        gc_ms: Longest pause of the cyclic garbage collector, part of its step.
    """

    def __init__(self) -> None:
        self._begin_gc_s = 0.0
        self.reset()
        gc.callbacks.append(self._on_gc)

    def reset(self) -> None:
        """Begin anew."""
        self.cpu_ms = self.wall_ms = self.gc_ms = 0.0
        self._began_s = time.thread_time()

    def beat(self) -> None:
        """Waits in the hub over and over, and measures how long that took it."""
        cpu_s, wall_s = time.thread_time(), time.monotonic()
        while True:
            gevent.sleep(BEAT_S)
            now_cpu_s, now_wall_s = time.thread_time(), time.monotonic()
            self.cpu_ms = max(self.cpu_ms, (now_cpu_s - cpu_s) * 1000)
            self.wall_ms = max(self.wall_ms, (now_wall_s - wall_s - BEAT_S) * 1000)
            cpu_s, wall_s = now_cpu_s, now_wall_s

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begin_gc_s = time.thread_time()
        else:
            self.gc_ms = max(self.gc_ms, (time.thread_time() - self._begin_gc_s) * 1000)

    def read(self) -> dict[str, float]:
        """Return the figures since the last reading, with the CPU time of all steps together."""
        figures = {"cpu_ms": self.cpu_ms, "wall_ms": self.wall_ms, "gc_ms": self.gc_ms}
        figures["total_ms"] = (time.thread_time() - self._began_s) * 1000
        self.reset()
        return figures


def main(arguments: dict[str, Any]) -> int:
    """Serve until the standard input ends. Waits."""
    flags = {
        "host": "127.0.0.1",
        "tcp_port": 0,
        "http_port": 0,
        "data_path": arguments["--data-path"],
        "max_completed_jobs": int(arguments["--completed"] or COMPLETED_JOBS_MAX),
    }
    settings = load_settings(flags, environ={"LOG_LEVEL": "error"})
    if arguments["--shards"]:
        server_main.EngineSettings = partial(EngineSettings, shards=int(arguments["--shards"]))
    return serve(settings, partial(_watch, is_still=arguments["--still"]))


def _watch(started: Started, is_still: bool) -> None:
    watch = Stopwatch()
    if not is_still:
        gevent.spawn(watch.beat)
    gevent.spawn(_answer, watch)
    print(started.tcp[1], flush=True)


def _answer(watch: Stopwatch) -> None:
    """Waits for questions."""
    for _ in FileObject(sys.stdin.fileno(), "rb", close=False):
        gevent.sleep(2 * BEAT_S)  # let the step be counted that is not over yet
        print(json.dumps(watch.read()), flush=True)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(docopt(__doc__ or "")))
