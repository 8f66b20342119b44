"""One piece of work with one job queue, in a process of its own; prints its figures as JSON.

Usage:
  peer_side (enqueue | bulk | process | work) SYSTEM PORT JOBS

Called as python -m loadtests.peer_side by loadtests.peers, under the interpreter that has SYSTEM.
Jobs do nothing. ``enqueue`` adds them one by one, ``bulk`` in batches, ``process`` adds them and
then times a worker process: from the first job that is gone to the last. The system's worker
imports this module too and finds its application here, by the environment it is started with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtests.processes import cpu_ns

SYSTEM_ENV, PORT_ENV = "LOADTESTS_PEER", "LOADTESTS_PEER_PORT"
QUEUE = "load"
BATCH = 500
LOOK_S = 0.01
WORK_S_MAX = 120.0
CONCURRENCY = 16  # of our worker
BIN = Path(sys.executable).parent


class Peer:
    """One system.

    Attributes:
        add: Adds the job of a number.
        add_many: Adds a batch; None where the system has no such thing.
        left: Counts the jobs that are not done.
        worker: Command line of its worker.
    """

    def __init__(
        self,
        add: Callable[[int], object],
        add_many: Callable[[Sequence[int]], object] | None,
        left: Callable[[], int],
        worker: list[str],
    ) -> None:
        """Keep them."""
        self.add, self.add_many, self.left, self.worker = add, add_many, left, worker


def nothing(_number: int) -> None:
    """Do what every job does."""


def rq(port: int) -> Peer:
    """RQ, with the worker that does not fork for each job."""
    from redis import Redis
    from rq import Queue

    link = Redis(port=port)
    queue = Queue(QUEUE, connection=link)

    def add_many(numbers: Sequence[int]) -> None:
        queue.enqueue_many(
            [Queue.prepare_data(nothing, (number,), result_ttl=0) for number in numbers]
        )

    return Peer(
        lambda number: queue.enqueue(nothing, number, result_ttl=0),
        add_many,
        lambda: queue.count + len(queue.started_job_registry),
        [
            str(BIN / "rq"), "worker", "--url", f"redis://localhost:{port}", "--quiet",
            "--worker-class", "rq.SimpleWorker", QUEUE,
        ],
    )  # fmt: skip


def huey(_port: int) -> Peer:
    """Huey with eight greenlets."""
    return Peer(
        HUEY_TASK,
        None,
        HUEY.pending_count,
        [str(BIN / "huey_consumer"), f"{__name__}.HUEY", "-k", "greenlet", "-w", "8", "-q"],
    )


def dramatiq(port: int) -> Peer:
    """Dramatiq with one process of eight threads."""
    from redis import Redis

    link = Redis(port=port)
    return Peer(
        DRAMATIQ_ACTOR.send,
        None,
        lambda: int(link.hlen(f"dramatiq:{QUEUE}.msgs")),  # type: ignore[arg-type]
        [str(BIN / "dramatiq"), MODULE, "-p", "1", "-t", "8"],
    )


def celery(port: int) -> Peer:
    """Celery with a prefork pool of two, without its chatter, prefetching a good deal."""
    from redis import Redis

    link = Redis(port=port)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    return Peer(
        lambda number: CELERY_TASK.apply_async((number,), queue=QUEUE),
        None,
        lambda: int(link.llen(QUEUE)) + int(link.hlen("unacked")),  # type: ignore[arg-type]
        [str(BIN / "celery"), "-A", f"{MODULE}:CELERY", "worker", "-Q", QUEUE, "-c", "2", *quiet],
    )


def bunqueue(port: int) -> Peer:
    """Our client, and our worker with sixteen greenlets."""
    from bunqueue import Queue

    queue = Queue(QUEUE, host="127.0.0.1", port=port)

    def left() -> int:
        counts = queue.get_job_counts()
        return counts["waiting"] + counts["active"]

    return Peer(
        lambda number: queue.add("nothing", {"n": number}),
        lambda numbers: queue.add_bulk([{"name": "x", "data": {"n": n}} for n in numbers]),
        left,
        [sys.executable, "-m", MODULE, "work", "bunqueue", str(port), "0"],
    )


PEERS: dict[str, Callable[[int], Peer]] = {
    "rq": rq, "huey": huey, "dramatiq": dramatiq, "celery": celery, "bunqueue": bunqueue,
}  # fmt: skip
MODULE = "loadtests.peer_side"


# What the workers of those systems look for in this module.
_system, _port = os.environ.get(SYSTEM_ENV), os.environ.get(PORT_ENV, "0")
if _system == "huey":
    from huey import RedisHuey

    HUEY = RedisHuey(QUEUE, port=int(_port), results=False)
    HUEY_TASK = HUEY.task()(nothing)
elif _system == "dramatiq":
    import dramatiq as _dramatiq
    from dramatiq.brokers.redis import RedisBroker

    _dramatiq.set_broker(RedisBroker(port=int(_port)))
    DRAMATIQ_ACTOR = _dramatiq.actor(queue_name=QUEUE)(nothing)
elif _system == "celery":
    from celery import Celery

    CELERY = Celery("load", broker=f"redis://localhost:{_port}/0")
    CELERY.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        broker_connection_retry_on_startup=True,
    )
    CELERY_TASK = CELERY.task(name="nothing")(nothing)


def enqueue(peer: Peer, jobs: int) -> dict[str, float]:
    """Time adding one by one."""
    for number in range(jobs // 10):
        peer.add(number)
    begin, cpu = time.perf_counter(), time.process_time()
    for number in range(jobs):
        peer.add(number)
    return _figures(jobs, time.perf_counter() - begin, time.process_time() - cpu)


def bulk(peer: Peer, jobs: int) -> dict[str, float]:
    """Time adding in batches; empty where there are none."""
    if peer.add_many is None:
        return {}
    begin, cpu = time.perf_counter(), time.process_time()
    for start in range(0, jobs, BATCH):
        peer.add_many(range(start, min(start + BATCH, jobs)))
    return _figures(jobs, time.perf_counter() - begin, time.process_time() - cpu)


def process(peer: Peer, jobs: int) -> dict[str, float]:
    """Time a worker that finds all jobs there.

    Raises:
        RuntimeError: It ended, or did not do them.
    """
    if peer.add_many is not None:
        bulk(peer, jobs)
    else:
        for number in range(jobs):
            peer.add(number)
    began_with = peer.left()
    with subprocess.Popen(
        peer.worker, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as worker:
        try:
            left, begin, cpu = began_with, 0.0, 0
            deadline = time.monotonic() + WORK_S_MAX
            while left:
                time.sleep(LOOK_S)
                left = peer.left()
                if not begin and left < began_with:
                    begin, cpu, began_with = time.perf_counter(), cpu_ns([worker.pid]), left
                if worker.poll() is not None or time.monotonic() > deadline:
                    assert worker.stderr is not None
                    os.killpg(worker.pid, signal.SIGKILL)
                    raise RuntimeError(worker.stderr.read().decode()[-2_000:])
            seconds = time.perf_counter() - begin
            return _figures(began_with, seconds, (cpu_ns([worker.pid]) - cpu) / 1e9)
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)


def work() -> None:
    """Be our worker, until killed."""
    from gevent import monkey

    monkey.patch_all()
    from bunqueue import Worker

    worker = Worker(
        QUEUE, lambda _job: None, host="127.0.0.1", port=int(_port), concurrency=CONCURRENCY
    )
    worker.run()


def _figures(jobs: int, seconds: float, cpu_s: float) -> dict[str, float]:
    return {"jobs_per_s": round(jobs / seconds), "cpu_us": round(cpu_s / jobs * 1e6, 1)}


def main(arguments: Sequence[str]) -> None:
    """Run one piece and print its figures."""
    piece, system, port, jobs = arguments
    if piece == "work":
        work()
        return
    peer = PEERS[system](int(port))
    pieces: dict[str, Any] = {"enqueue": enqueue, "bulk": bulk, "process": process}
    print(json.dumps(pieces[piece](peer, int(jobs))), flush=True)
    os._exit(0)  # no client here has anything left to do


if __name__ == "__main__":
    from loadtests import peer_side  # by its own name, for jobs are found by that of their function

    peer_side.main(sys.argv[1:])
