"""A worker in a program whose main thread ends first: outlive_main.py PORT QUEUE early|late.

``early`` starts the worker in the main thread, ``late`` in another one when the main thread has
ended. Prints ``done ID`` once a job has run for longer than its lease without losing it.
"""

from __future__ import annotations

import sys
import threading
import time

from bunqueue import Worker

LEASE_MS = 1200


def main() -> None:
    port, queue, moment = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    done = threading.Event()

    def handle(_job):
        main_thread.join()
        time.sleep(2 * LEASE_MS / 1000)

    worker = Worker(
        queue,
        handle,
        host="127.0.0.1",
        port=port,
        autorun=False,
        concurrency=1,
        lock_ttl_ms=LEASE_MS,
        heartbeat_interval_s=LEASE_MS / 3000,
    )

    @worker.on("completed")
    def say(job, _result):
        print(f"done {job.id}", flush=True)
        done.set()

    def outlive():
        main_thread.join()
        worker.start()
        done.wait()
        worker.close()

    main_thread = threading.main_thread()
    threading.Thread(target=outlive).start()
    if moment == "early":
        worker.start()


main()
