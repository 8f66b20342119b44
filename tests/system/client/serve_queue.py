"""A worker for the signal tests: serve_queue.py PORT QUEUE SECONDS [GRACE].

Prints ``ready``, ``run ID``, ``done ID``, and at the end ``stopped`` or ``interrupted``.
"""

from __future__ import annotations

import sys
import time

from bunqueue import Worker


def main() -> None:
    port, queue, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    grace = float(sys.argv[4]) if len(sys.argv) > 4 else None

    def handle(job):
        print("run", job.id, flush=True)
        time.sleep(seconds)
        print("done", job.id, flush=True)

    worker = Worker(
        queue, handle, host="127.0.0.1", port=port, autorun=False, shutdown_timeout_s=grace
    )
    worker.on("ready", lambda: print("ready", flush=True))
    try:
        worker.run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        print("stopped", flush=True)


main()
