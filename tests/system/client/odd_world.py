"""A client in a process that gevent has patched early, late, partly or not at all.

``odd_world.py HOW PORT``: produces and works some jobs and prints ``ok`` with the executor, or the
error, and beside that what is logged.
"""

from __future__ import annotations

import logging
import sys

JOBS = 20


def main() -> None:
    how, port = sys.argv[1], int(sys.argv[2])
    logging.basicConfig(format="%(message)s")
    PREPARE[how](port)
    try:
        print("ok", produce_and_work(port), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)


def produce_and_work(port: int) -> str:
    """Add jobs from many callers, work them, and return the name of the executor."""
    import threading

    from bunqueue import Queue, Worker

    with (
        Queue("odd", port=port) as queue,
        Worker("odd", lambda job: job.data + 1, port=port, concurrency=8) as worker,
    ):
        ids = []
        callers = [
            threading.Thread(target=lambda n=number: ids.append(queue.add("x", n).id))
            for number in range(JOBS)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        results = sorted(queue.wait_for_job(job_id) for job_id in ids)
        assert list(range(1, JOBS + 1)) == results, results
        return worker.executor


def late(_port: int) -> None:
    from gevent import monkey

    monkey.patch_all()


def early(port: int) -> None:
    from bunqueue import Queue, Worker

    assert Queue("odd", port=port).name == "odd"
    assert Worker.__name__ == "Worker"
    late(port)


def used_before(port: int) -> None:
    produce_and_work(port)
    late(port)


def never(_port: int) -> None:
    import gevent

    gevent.sleep(0)


def never_in_greenlets(port: int) -> None:
    import gevent

    gevent.spawn(produce_and_work, port).get()


def sockets_only(_port: int) -> None:
    from gevent import monkey

    monkey.patch_socket()


def threads_only(_port: int) -> None:
    from gevent import monkey

    monkey.patch_thread()


def all_but_threads(_port: int) -> None:
    from gevent import monkey

    monkey.patch_all(thread=False)


def all_but_sockets(_port: int) -> None:
    from gevent import monkey

    monkey.patch_all(socket=False)


PREPARE = {
    prepare.__name__: prepare
    for prepare in (
        late,
        early,
        used_before,
        never,
        never_in_greenlets,
        sockets_only,
        threads_only,
        all_but_threads,
        all_but_sockets,
    )
}

main()
