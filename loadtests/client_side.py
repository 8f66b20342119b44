"""One measured piece of client work, in a process of its own; prints its figures as JSON.

Usage:
  client_side.py worker [--gevent] [options] [--] <port>
  client_side.py handler [--gevent] [options]
  client_side.py (sequential | shared | bulk) [options] [--] <port>
  client_side.py (sequential | bulk) --file=FILE [options]

Only names that the official client has too are used, so the same file runs under the interpreter
of either. It is run by its path, and imports nothing of this folder.

Options:
  --jobs=N         How many jobs. [default: 5000]
  --concurrency=N  Slots of the worker, or threads that share the queue. [default: 16]
  --file=FILE      Embedded, on this file.
  --profile=FILE   Write a profile of the calling thread.
"""

from __future__ import annotations

import cProfile
import itertools
import json
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

HANDLER_S = 0.001
BULK = 1_000  # jobs per add_bulk
QUEUE = "load"
WAIT_S_MAX = 300.0


def main(arguments: list[str]) -> None:
    """Run one piece and print ``{"jobs", "wall_s", "cpu_s"}``."""
    options = dict(
        one.removeprefix("--").split("=", 1)
        for one in arguments
        if one.startswith("--") and "=" in one
    )
    words = [one for one in arguments if not one.startswith("--")]
    if "--gevent" in arguments:
        from gevent import monkey

        monkey.patch_all()
    jobs, concurrency = int(options.get("jobs", 5000)), int(options.get("concurrency", 16))
    place: dict[str, Any] = {"host": "127.0.0.1", "port": int(words[1])} if words[1:] else {}
    if "file" in options:
        place = {"embedded": True, "data_path": options["file"]}
    run = PIECES[words[0]]
    profile = cProfile.Profile() if "profile" in options else None
    with profile or nullcontext():
        wall_s, cpu_s = run(place, jobs, concurrency)
    if profile is not None:
        profile.dump_stats(options["profile"])
    print(json.dumps({"jobs": jobs, "wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


def worker(place: dict[str, Any], jobs: int, concurrency: int) -> tuple[float, float]:
    """Fill the queue, then time a worker from its first job's start to its last one's end."""
    from bunqueue import Queue, Worker

    queue = Queue(QUEUE, **place)
    for start in range(0, jobs, BULK):
        queue.add_bulk([{"name": "x", "data": {"n": n}} for n in range(min(BULK, jobs - start))])
    done = threading.Event()
    runs = itertools.count(1)  # next() is one C call: no two threads get the same

    starts = itertools.count(1)
    timed = Timed()

    def handle(_job: Any) -> None:
        if next(starts) == 1:
            timed.start()
        time.sleep(HANDLER_S)
        if next(runs) == jobs:
            timed.stop()
            done.set()

    made = Worker(QUEUE, handle, concurrency=concurrency, **place)
    if not done.wait(WAIT_S_MAX):
        raise SystemExit(f"only {next(runs) - 1} of {jobs} jobs were run")
    made.close()
    if (left := queue.get_job_counts())["completed"] < jobs:
        raise SystemExit(f"not all {jobs} jobs were completed: {left}")
    queue.close()
    return timed.wall_s, timed.cpu_s


def sequential(place: dict[str, Any], jobs: int, _concurrency: int) -> tuple[float, float]:
    """Time adds one after the other."""
    from bunqueue import Queue

    queue = Queue(QUEUE, **place)
    queue.add("warm", {"n": 0})
    with Timed() as timed:
        for n in range(jobs):
            queue.add("x", {"n": n})
    queue.close()
    return timed.wall_s, timed.cpu_s


def shared(place: dict[str, Any], jobs: int, concurrency: int) -> tuple[float, float]:
    """Time adds of threads that share a queue."""
    from bunqueue import Queue

    queue = Queue(QUEUE, **place)
    queue.add("warm", {"n": 0})

    def add(count: int) -> None:
        for n in range(count):
            queue.add("x", {"n": n})

    threads = [
        threading.Thread(target=add, args=(jobs // concurrency,)) for _ in range(concurrency)
    ]
    with Timed() as timed:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    queue.close()
    return timed.wall_s, timed.cpu_s


def bulk(place: dict[str, Any], jobs: int, _concurrency: int) -> tuple[float, float]:
    """Time ``add_bulk`` of 1,000 jobs at a time."""
    from bunqueue import Queue

    queue = Queue(QUEUE, **place)
    queue.add("warm", {"n": 0})
    entries = [{"name": "x", "data": {"n": n}} for n in range(BULK)]
    with Timed() as timed:
        for _ in range(jobs // BULK):
            queue.add_bulk(entries)
    queue.close()
    return timed.wall_s, timed.cpu_s


def handler(_place: dict[str, Any], jobs: int, concurrency: int) -> tuple[float, float]:
    """Time what the handler alone allows: its sleep, in as many threads or greenlets."""

    def work() -> None:
        for _ in range(jobs // concurrency):
            time.sleep(HANDLER_S)

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    with Timed() as timed:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return timed.wall_s, timed.cpu_s


PIECES = {
    "worker": worker,
    "handler": handler,
    "sequential": sequential,
    "shared": shared,
    "bulk": bulk,
}


class Timed:
    """Wall time, and this process's CPU time, of what is done inside."""

    def start(self) -> None:
        """Begin."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """End."""
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu

    def __enter__(self) -> Timed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
