"""What a dashboard shows, in one answer each."""

from collections.abc import Sequence
from typing import Any, Final

from bunqueue.commands.crons import crons_listed
from bunqueue.commands.job_wire import list_header, narrowed, pack_listing
from bunqueue.commands.metrics import BYTES_PER_MB
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.commands.worker_register import workers_listed
from bunqueue.engine.job import Job
from bunqueue.engine.latency import Histogram
from bunqueue.engine.slices import Work
from bunqueue.protocol.codec import pack, pack_for
from bunqueue.protocol.fields import Flag, Number, QueueName
from bunqueue.protocol.options import is_truthy
from bunqueue.protocol.replies import Reply

JOBS_DEFAULT: Final = 10
JOBS_MAX: Final = 50  # wire.md 2.15
DLQ_PREVIEW: Final = 10
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES: Final = ("push", "pull", "ack")
JOBS_SHOWN: Final = ("waiting", "active", "delayed", "paused")

_DATA: Final = b"\x82\xa2ok\xc3\xa4data"
_DLQ_PREVIEW: Final = pack("dlqPreview")


@command("DashboardOverview")
def dashboard_overview(peer: Peer, _request: Request) -> Work[Reply]:
    """Return totals, rates, latencies, memory, workers and schedules."""
    now = peer.now()
    overview = peer.engine.overview(now)
    host = peer.host
    of_workers = peer.engine.worker_stats(now)
    workers = yield from workers_listed(peer, now)
    crons = yield from crons_listed(peer)
    before = {
        "stats": overview["stats"],
        "throughput": overview["throughput"],
        "latency": _latency({name: getattr(host.latencies, name) for name in LATENCIES}),
        "memory": {name: round(size / BYTES_PER_MB) for name, size in host.memory_bytes().items()},
        "collections": overview["collections"],
    }
    after = {"storage": host.storage_status(), "timestamp": float(now)}
    counts = {name: of_workers[name] for name in ("total", "active")}
    # A map of nine members, and in it one of three: their lists are packed already.
    return b"".join(
        (
            _DATA,
            b"\x89",
            pack_for(before, peer.int64)[1:],
            pack("workers"),
            b"\x83",
            pack_for(counts, peer.int64)[1:],
            pack("list"),
            workers,
            pack("crons"),
            crons,
            pack_for(after, peer.int64)[1:],
        )
    )


def _latency(histograms: dict[str, Histogram]) -> dict[str, Any]:
    return {
        "averages": {f"{name}Ms": each.mean_ms() for name, each in histograms.items()},
        "percentiles": {
            name: {label: each.percentile_ms(part) for label, part in PERCENTILES.items()}
            for name, each in histograms.items()
        },
    }


@command("DashboardQueues")
def dashboard_queues(peer: Peer, _request: Request) -> Work[Reply]:
    """Return the figures of every queue."""
    now = peer.now()
    queues = yield from peer.engine.queue_figures(now)
    return {"ok": True, "data": {"queues": queues, "timestamp": float(now)}}


@command(
    "DashboardQueue",
    {
        "queue": QueueName(),
        "includeJobs": Flag(truthy=True, doc="Show the oldest jobs of some states too."),
        "jobsLimit": Number(
            min=None, integer=True, doc="How many of each; 10 if absent, at most 50, as below 0."
        ),
    },
)
def dashboard_queue(peer: Peer, request: Request) -> Work[Reply]:
    """Return the figures of one queue, its newest dead letters and, if asked, some jobs."""
    name, now, engine = request["queue"], peer.now(), peer.engine
    completed, failed = engine.queue_totals(name)
    counts = yield from engine.counts(name, now)
    dead = yield from engine.list_dead(name, None, DLQ_PREVIEW, now)
    shown, (preview,) = yield from pack_listing((_previewed(job, peer.int64),) for job in dead)
    data: dict[str, Any] = {
        "name": name,
        "counts": {**counts, "totalCompleted": completed, "totalFailed": failed},
        "paused": engine.is_paused(name),
        "priorityCounts": (yield from engine.counts_per_priority(name)),
        "timestamp": float(now),
    }
    if is_truthy(request.get("includeJobs")):
        limit = request.get("jobsLimit")
        most = JOBS_DEFAULT if limit is None else int(limit)
        most = JOBS_MAX if most < 0 else min(most, JOBS_MAX)
        data["jobs"] = {}
        for state in JOBS_SHOWN:
            jobs = yield from engine.list_jobs(name, (state,), most, 0, True, now)
            data["jobs"][state] = _shown(jobs)
    head = _DATA + bytes((0x80 | (len(data) + 1),)) + pack_for(data, peer.int64)[1:]
    return b"".join((head, _DLQ_PREVIEW, list_header(shown), *preview))


def _previewed(job: Job, int64: bool) -> bytes:
    """Return what is shown of a dead letter, packed; the payload is copied as it is stored."""
    data = job.data if int64 else narrowed(job.data)
    rest = {"id": job.id, "attempts": job.attempts, "createdAt": float(job.created_at)}
    return bytes((0x80 | (len(rest) + 1),)) + pack(rest)[1:] + pack("data") + data


def _shown(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [
        {
            "id": job.id,
            "priority": job.priority,
            "createdAt": float(job.created_at),
            "runAt": float(job.run_at),
            "attempts": job.attempts,
            "progress": job.extra.progress,
        }
        for job in jobs
    ]
