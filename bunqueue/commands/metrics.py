"""Figures over the wire: totals, a queue's minutes, the text for Prometheus, the storage."""

from typing import Any

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.metrics import TYPES
from bunqueue.engine.slices import Work
from bunqueue.errors import InvalidField
from bunqueue.protocol.fields import Anything, QueueName, SafeInteger
from bunqueue.protocol.replies import OK, Reply

BYTES_PER_MB = 1 << 20

_QUEUE = QueueName()
_POINT = SafeInteger(positive=False)
_LENGTH = SafeInteger(positive=False, required=True)


@command(
    "Metrics",
    {
        "queue": Anything(doc="Name of a queue; absent for totals over all."),
        "type": Anything(doc="`completed` or `failed`; needed with a queue."),
        "start": Anything(doc="First point, the newest is 0; 0 if absent."),
        "end": Anything(doc="Last point, inclusive; -1 or absent is all."),
    },
)
def metrics(peer: Peer, request: Request) -> Reply:
    """Return totals since the start; or, of one queue, how many jobs ended so per minute.

    The points of a queue go from the newest minute with an event back to the oldest of the last
    two weeks, with zeros between.
    """
    queue, kind = request.get("queue"), request.get("type")
    if queue is None and kind is None:
        return {"ok": True, "metrics": _totals(peer)}
    if not isinstance(queue, str):
        raise InvalidField("Metrics queue is required")
    if not isinstance(kind, str) or kind not in TYPES:
        raise InvalidField("Metrics type must be 'completed' or 'failed'")
    start, end = request.get("start"), request.get("end")
    problem = _QUEUE.problem("queue", queue) or _POINT.problem("start", start)
    if problem is None and end != -1:
        problem = _POINT.problem("end", end)
    if problem is not None:
        raise InvalidField(problem)
    data = peer.engine.queue_metrics(queue, kind, int(start or 0), -1 if end is None else int(end))
    return {"ok": True, "data": data}


def _totals(peer: Peer) -> dict[str, Any]:
    overview = peer.engine.overview(peer.now())
    totals = overview["stats"]
    names = ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")
    return {
        **{name: totals[name] for name in names},
        "avgLatencyMs": peer.host.latencies.mean_ms(),
        "avgProcessingMs": overview["avgProcessingMs"],
        "memoryUsageMb": peer.host.memory_bytes()["heapUsed"] / BYTES_PER_MB,
        "sqliteSizeMb": (peer.host.file_bytes() or 0) / BYTES_PER_MB,
        "activeConnections": sum(peer.host.connections().values()),
    }


@command("Prometheus")
def prometheus(peer: Peer, _request: Request) -> Reply:
    """Return all figures as text in Prometheus' format."""
    return {"ok": True, "data": {"metrics": peer.host.prometheus()}}


@command(
    "TrimEvents",
    {
        "queue": QueueName(),
        "maxLength": Anything(doc="How many to keep; required, a whole number from 0."),
    },
)
def trim_events(peer: Peer, request: Request) -> Reply:
    """Shorten the stored list of a queue's events; the reply says by how many."""
    length = request.get("maxLength")
    problem = _LENGTH.problem("maxLength", length)
    if problem is not None:
        raise InvalidField(problem)
    removed = peer.engine.trim_events(request["queue"], int(request["maxLength"]))
    return {"ok": True, "data": {"removed": removed}}


@command("StorageStatus")
def storage_status(peer: Peer, _request: Request) -> Reply:
    """Tell whether the storage takes writes, and since when not."""
    return {"ok": True, "data": peer.host.storage_status()}


@command("CompactMemory")
def compact_memory(peer: Peer, _request: Request) -> Reply:
    """Hand free memory back to the system; changes nothing that anyone can see."""
    peer.host.compact()
    return OK


@command("Diagnose")
def diagnose(peer: Peer, _request: Request) -> Work[Reply]:
    """Look for what is wrong, check by check; no command of the original server."""
    findings = yield from peer.engine.diagnose(peer.now())
    told = peer.host.facts() | {"findings": [*peer.host.findings(), *findings]}
    return {"ok": True, "diagnosis": told}
