"""The register of workers over the wire, and the broker's own figures."""

from typing import Any, Final

from bunqueue.commands.job_wire import list_header, pack_listing
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.slices import Work
from bunqueue.engine.workers import RegisteredWorker
from bunqueue.protocol.codec import pack_for
from bunqueue.protocol.fields import Number, Text, TextList
from bunqueue.protocol.replies import Reply

_DATA_WORKERS: Final = b"\x82\xa2ok\xc3\xa4data\x82\xa7workers"
_STATS: Final = b"\xa5stats"
_COUNT: Final = Number(integer=True, doc="As the worker counts; absent leaves it as it was.")


@command(
    "RegisterWorker",
    {
        "name": Text(required=True),
        "queues": TextList(
            cure="register one worker for some of them each",
            doc="Names of the queues it serves; none if absent.",
        ),
        "concurrency": Number(integer=True, doc="Jobs it works on at a time; 1 if absent."),
        "workerId": Text(doc="Its own id; the same again updates the entry."),
        "hostname": Text(doc="`unknown` if absent."),
        "pid": Number(integer=True, doc="0 if absent."),
        "startedAt": Number(doc="When it started, epoch ms; now if absent."),
    },
    mutates=True,
)
def register_worker(peer: Peer, request: Request) -> Reply:
    """Enter a worker in the register; it goes with this connection."""
    now = peer.now()
    concurrency = request.get("concurrency")
    worker = peer.engine.register_worker(
        peer,
        request.get("workerId") or None,
        request["name"],
        request.get("queues") or [],
        1 if concurrency is None else int(concurrency),
        request.get("hostname"),
        _whole(request.get("pid")),
        _whole(request.get("startedAt")),
        now,
    )
    return {"ok": True, "data": {"workerId": worker.id, **_described(worker, "active")}}


def _described(worker: RegisteredWorker, status: str) -> dict[str, Any]:
    return {
        "name": worker.name,
        "queues": worker.queues,
        "concurrency": worker.concurrency,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "status": status,
        "registeredAt": float(worker.registered_at),
        "lastSeen": float(worker.seen_at),
        "activeJobs": worker.active,
        "processedJobs": worker.processed,
        "failedJobs": worker.failed,
        "currentJob": None,
    }


@command("UnregisterWorker", {"workerId": Text(required=True)}, mutates=True)
def unregister_worker(peer: Peer, request: Request) -> Reply:
    """Strike a worker out of the register."""
    peer.engine.unregister_worker(request["workerId"])
    return {"ok": True, "data": {"removed": True}}


@command("ListWorkers")
def list_workers(peer: Peer, _request: Request) -> Work[Reply]:
    """List the registered workers, with sums over all."""
    now = peer.now()
    workers = yield from workers_listed(peer, now)
    stats = pack_for(peer.engine.worker_stats(now), peer.int64)
    return b"".join((_DATA_WORKERS, workers, _STATS, stats))


def workers_listed(peer: Peer, now: int) -> Work[bytes]:
    """Return the packed list of all registered workers as ListWorkers and the dashboard show it."""

    def shown(worker: RegisteredWorker) -> tuple[bytes]:
        status = "active" if peer.engine.is_fresh(worker, now) else "stale"
        uptime = max(0, now - worker.registered_at)
        described = {"id": worker.id, **_described(worker, status), "uptime": uptime}
        return (pack_for(described, peer.int64),)

    count, (listed,) = yield from pack_listing(map(shown, peer.engine.list_workers()))
    return b"".join((list_header(count), *listed))


@command(
    "Heartbeat",
    {
        "id": Text(required=True, doc="The worker's id."),
        "activeJobs": _COUNT,
        "processed": _COUNT,
        "failed": _COUNT,
    },
    mutates=True,
)
def heartbeat(peer: Peer, request: Request) -> Reply:
    """Say that a worker lives, with its own counts."""
    peer.engine.worker_heartbeat(
        request["id"],
        _whole(request.get("activeJobs")),
        _whole(request.get("processed")),
        _whole(request.get("failed")),
        peer.now(),
    )
    return {"ok": True, "data": {"ok": True}}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


@command("Stats")
def stats(peer: Peer, _request: Request) -> Reply:
    """Return counts over all queues, and rates."""
    return {"ok": True, "stats": peer.engine.stats(peer.now())}
