"""The register of workers: who serves which queues, and when it was last heard of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bunqueue.engine.claiming import end_poll
from bunqueue.errors import NotFound

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.ports import Peer

WORKERS_MAX = 50_000  # registered at a time: as many as per-queue counters, engine.md 12
FORGET_AFTER_SPANS = 3  # a worker silent for so many timeouts is forgotten, engine.md 8


class RegisteredWorker:
    """One worker; moments in epoch ms.

    Attributes:
        peer: The connection that registered it last; it goes with that one.
    """

    __slots__ = (
        "id",
        "name",
        "queues",
        "concurrency",
        "hostname",
        "pid",
        "registered_at",
        "seen_at",
        "active",
        "processed",
        "failed",
        "peer",
    )

    def __init__(self, id: str, now: int) -> None:
        self.id = id
        self.name = ""
        self.queues: list[str] = []
        self.concurrency = 1
        self.hostname = "unknown"
        self.pid = 0
        self.registered_at = now
        self.seen_at = now
        self.active = 0
        self.processed = 0
        self.failed = 0
        self.peer: Peer | None = None


def register_worker(
    engine: "Engine",
    peer: "Peer",
    worker_id: str | None,
    name: str,
    queues: Sequence[str],
    concurrency: int,
    hostname: str | None,
    pid: int | None,
    started_at: int | None,
    now: int,
) -> RegisteredWorker:
    """Enter a worker, or update the one of that id; it belongs to ``peer`` from now on.

    An update keeps the name, the moment of registration and what is not given; an empty host name
    and process 0 are not given then. Beyond ``WORKERS_MAX`` the one that has been silent longest
    goes; its next heartbeat tells it so.

    Args:
        started_at: The worker's own moment of starting, epoch ms; None is now.
    """
    key = worker_id or engine.ids.new(now)
    worker = engine.workers.get(key)
    if worker is None:
        if len(engine.workers) >= WORKERS_MAX:
            silent = min(engine.workers.values(), key=lambda each: each.seen_at)
            unregister_worker(engine, silent.id)
        worker = engine.workers[key] = RegisteredWorker(key, now)
        worker.name = name
        if hostname is not None:
            worker.hostname = hostname
        if started_at is not None:
            worker.registered_at = started_at
    worker.queues = list(queues)
    worker.concurrency = concurrency
    worker.hostname = hostname or worker.hostname
    worker.pid = pid or worker.pid
    worker.seen_at = now
    if worker.peer is not peer:
        if worker.peer is not None:
            _end_old_polls(engine, worker, worker.peer)
            _leave_peer(engine, worker)
        worker.peer = peer
        engine.workers_of.setdefault(peer, {})[worker.id] = worker
    return worker


def _leave_peer(engine: "Engine", worker: RegisteredWorker) -> None:
    """Have the worker no more go with its connection."""
    peer = worker.peer
    others = None if peer is None else engine.workers_of.get(peer)
    if peer is not None and others is not None:
        others.pop(worker.id, None)
        if not others:
            del engine.workers_of[peer]
    worker.peer = None


def _end_old_polls(engine: "Engine", worker: RegisteredWorker, old: "Peer") -> None:
    """End the polls that the worker left on its old link, with nothing.

    That link may be half open: a job handed to it would wait there for its lease to run out. If
    it is not, the worker just asks again.
    """
    for name in worker.queues:
        queue = engine.queues.get(name)
        if queue is None:
            continue
        with queue.shard.lock:
            for waiter in list(queue.waiters):
                if waiter.peer is old and waiter.owner == worker.id:
                    end_poll(engine, waiter)


def unregister_worker(engine: "Engine", worker_id: str) -> None:
    """Strike a worker out; its totals stay in the sums.

    Raises:
        NotFound: There is none.
    """
    worker = engine.workers.pop(worker_id, None)
    if worker is None:
        raise NotFound("Worker not found")
    _leave_peer(engine, worker)
    engine.totals.worker_processed += worker.processed
    engine.totals.worker_failed += worker.failed


def worker_heartbeat(
    engine: "Engine",
    worker_id: str,
    active: int | None,
    processed: int | None,
    failed: int | None,
    now: int,
) -> None:
    """Note that a worker lives, and its own counts where given.

    Raises:
        NotFound: There is none; the client then registers again.
    """
    worker = engine.workers.get(worker_id)
    if worker is None:
        raise NotFound("Worker not found")
    worker.seen_at = now
    if active is not None:
        worker.active = active
    if processed is not None:
        worker.processed = processed
    if failed is not None:
        worker.failed = failed


def list_workers(engine: "Engine") -> list[RegisteredWorker]:
    """Return the workers in order of registration."""
    return list(engine.workers.values())


def is_fresh(engine: "Engine", worker: RegisteredWorker, now: int) -> bool:
    """Say whether the worker was heard of lately."""
    return now - worker.seen_at < engine.settings.worker_timeout_ms


def worker_stats(engine: "Engine", now: int) -> dict[str, Any]:
    """Return ``{total, active, totalProcessed, totalFailed, activeJobs, concurrencySlots}``."""
    workers = engine.workers.values()
    return {
        "total": len(workers),
        "active": sum(1 for worker in workers if is_fresh(engine, worker, now)),
        "totalProcessed": engine.totals.worker_processed + sum(w.processed for w in workers),
        "totalFailed": engine.totals.worker_failed + sum(w.failed for w in workers),
        "activeJobs": sum(worker.active for worker in workers),
        "concurrencySlots": sum(worker.concurrency for worker in workers),
    }


def unregister_all_of(engine: "Engine", peer: "Peer") -> None:
    """Strike out the workers that this connection registered last."""
    for worker_id in list(engine.workers_of.get(peer, ())):
        unregister_worker(engine, worker_id)


def forget_silent(engine: "Engine", now: int) -> None:
    """Strike out the workers that have been silent for too long."""
    limit_ms = engine.settings.worker_timeout_ms * FORGET_AFTER_SPANS
    for worker in [w for w in engine.workers.values() if now - w.seen_at >= limit_ms]:
        unregister_worker(engine, worker.id)
