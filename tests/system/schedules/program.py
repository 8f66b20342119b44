"""A program that defines a scheduler at its start and works: program.py PORT PATTERN SECONDS.

Prints ``begin ID CREATED_AT`` and ``end ID``, both with the time in ms at the end of the line.
"""

from __future__ import annotations

import sys
import time

from bunqueue import Queue, Worker


def main() -> None:
    port, pattern, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])

    def handle(job):
        print("begin", job.id, job.timestamp, int(time.time() * 1000), flush=True)
        time.sleep(seconds)
        print("end", job.id, int(time.time() * 1000), flush=True)

    with Queue("ticks", port=port) as queue:
        told = queue.upsert_job_scheduler("tick", {"pattern": pattern, "prevent_overlap": True})
        print("defined", told["next"], flush=True)
        Worker("ticks", handle, port=port, concurrency=4, autorun=False).run()


main()
