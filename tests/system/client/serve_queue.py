"""A worker for the signal tests: serve_queue.py PORT QUEUE SECONDS [GRACE].

Prints ``ready``, ``run ID``, ``done ID``, and at the end ``stopped`` or ``interrupted``.
"""

from __future__ import annotations

import sys
import time

from bunqueue import Worker


def say(*words: str) -> None:
    """Print a line in one piece: several threads do."""
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()


def main() -> None:
    port, queue, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    grace = float(sys.argv[4]) if len(sys.argv) > 4 else None

    def handle(job):
        say("run", job.id)
        time.sleep(seconds)
        say("done", job.id)

    worker = Worker(
        queue, handle, host="127.0.0.1", port=port, autorun=False, shutdown_timeout_s=grace
    )
    worker.on("ready", lambda: say("ready"))
    try:
        worker.run()
    except KeyboardInterrupt:
        say("interrupted")
    else:
        say("stopped")


main()
