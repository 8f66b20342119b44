"""A worker process for the lease tests: run_worker.py PORT QUEUE KIND [SECONDS [POLL_MS]].

Kinds of handlers: ``spin`` never yields, ``sleep`` sleeps in C, ``nap`` waits as good code does.
Prints ``ready``, ``run ID``, ``done ID`` or ``lost ID``, ``completed ID``, ``error``, ``back``.
"""

from __future__ import annotations

import sys
import threading
import time

from bunqueue import Worker

LEASE_MS = 1500
POLL_S = 0.02


def main() -> None:
    port, queue, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0

    def handle(job):
        tell("run", job.id)
        until = time.monotonic() + seconds
        if kind == "spin":
            while time.monotonic() < until:
                sum(range(100))
        else:
            time.sleep(seconds)
        tell("lost" if job.lease_lost else "done", job.id)
        return kind

    worker = Worker(
        queue,
        handle,
        host="127.0.0.1",
        port=port,
        lock_ttl_ms=LEASE_MS if kind != "nap" else 6000,
        poll_timeout_ms=int(sys.argv[5]) if len(sys.argv) > 5 else 1000,
        concurrency=2,
        autorun=False,
    )
    worker.on("ready", lambda: tell("ready"))
    worker.on("completed", lambda job, _result: tell("completed", job.id))
    worker.on("failed", lambda job, error: tell("failed", job.id, repr(error)))
    worker.on("error", lambda error: tell("error", repr(error)))
    threading.Thread(target=tell_when_back, args=(worker,), daemon=True).start()
    worker.run()


def tell_when_back(worker: Worker) -> None:
    while worker.stats()["reconnects"] == 0:
        time.sleep(POLL_S)
    tell("back")


def tell(*words: object) -> None:
    line = " ".join(map(str, words)) + "\n"
    print(line, end="", flush=True)  # one write: others tell from other threads


main()
