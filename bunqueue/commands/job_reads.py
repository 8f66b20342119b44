"""Reading jobs."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bunqueue.commands.job_wire import list_header, narrowed, pack_listing, pack_view
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.job import Job
from bunqueue.engine.later import Later
from bunqueue.engine.slices import Work
from bunqueue.engine.states import ACTIVE, COMPLETED, GONE, state_of
from bunqueue.errors import NotFound, WrongPlace
from bunqueue.protocol.codec import pack
from bunqueue.protocol.fields import Anything, Flag, Number, OneOf, QueueName, Text, TextList
from bunqueue.protocol.options import is_truthy
from bunqueue.protocol.replies import Reply

WAIT_MS_MAX = 600_000  # wire.md 2.2
WAIT_MS_DEFAULT = 30_000
LIST_LIMIT_DEFAULT = 100
JOB_ID: Final = {"id": Text(required=True)}

_JOB: Final = b"\x82\xa2ok\xc3\xa3job"
_JOBS: Final = b"\x82\xa2ok\xc3\xa4jobs"


def found(peer: Peer, job_id: str) -> Job:
    """Return the job, or refuse."""
    job = peer.engine.find(job_id)
    if job is None:
        raise NotFound("Job not found")
    return job


@command("GetJob", JOB_ID)
def get_job(peer: Peer, request: Request) -> Reply:
    """Return a job with its state and outcome."""
    job = found(peer, request["id"])
    return _JOB + pack_view(job, state_of(job, peer.now()), peer.int64)


@command("GetJobByCustomId", {"customId": Text(required=True)})
def get_job_by_custom_id(peer: Peer, request: Request) -> Reply:
    """Return the unfinished job with a custom id."""
    job = peer.engine.find_by_custom_id(request["customId"])
    if job is None:
        raise NotFound("Job not found")
    return _JOB + pack_view(job, None, peer.int64)


@command("GetState", JOB_ID)
def get_state(peer: Peer, request: Request) -> Reply:
    """Return a job's state; "unknown" if there is no such job."""
    job_id = request["id"]
    return {"ok": True, "id": job_id, "state": peer.engine.state(job_id, peer.now())}


@command("ExplainJob", JOB_ID)
def explain_job(peer: Peer, request: Request) -> Work[Reply]:
    """Tell why a job is not running; no command of the original server."""
    told = yield from peer.engine.explain(request["id"], peer.now())
    return {"ok": True, "explanation": told}


@command("GetResult", JOB_ID)
def get_result(peer: Peer, request: Request) -> Reply:
    """Return a completed job's result; the key is absent when there is none."""
    job_id = request["id"]
    job = peer.engine.find(job_id)
    if job is None:
        packed = peer.engine.kept_result(job_id)
    else:
        packed = job.result if job.place == COMPLETED else None
    if packed is None:
        return {"ok": True, "id": job_id}
    result = packed if peer.int64 else narrowed(packed)
    return b"".join((b"\x83\xa2ok\xc3\xa2id", pack(job_id), b"\xa6result", result))


@command(
    "GetJobs",
    {
        "queue": QueueName(),
        "state": OneOf(
            fields=(((str,), Text()), ((list,), TextList())),
            otherwise=Text(),
            doc="A state or a list of them; absent is all.",
        ),
        "limit": Number(min=None, integer=True, doc="At most so many; 100 if absent."),
        "offset": Number(min=None, integer=True, doc="Skip so many; none if absent."),
        "asc": Flag(truthy=True, doc="Oldest first, which is the default."),
    },
)
def get_jobs(peer: Peer, request: Request) -> Work[Reply]:
    """List the jobs of a queue by age."""
    now = peer.now()
    ascending = request.get("asc")
    limit = request.get("limit")
    jobs = yield from peer.engine.list_jobs(
        request["queue"],
        _states(request.get("state")),
        LIST_LIMIT_DEFAULT if limit is None else int(limit),
        max(0, int(request.get("offset") or 0)),
        True if ascending is None else is_truthy(ascending),
        now,
    )
    # This filter alone shows the view in place of the state.
    shown = "paused" if request.get("state") == "paused" else None
    count, (listed,) = yield from pack_listing(
        (pack_view(job, shown or state_of(job, now), peer.int64),)
        for job in jobs
        if job.place != GONE
    )
    return b"".join((_JOBS, list_header(count), *listed))


def _states(value: str | list[str] | None) -> Sequence[str]:
    if not value:
        return ()
    return (value,) if isinstance(value, str) else value


@command("GetJobCounts", {"queue": QueueName()})
def get_job_counts(peer: Peer, request: Request) -> Work[Reply]:
    """Return how many jobs the queue has in each state."""
    counts = yield from peer.engine.counts(request["queue"], peer.now())
    return {"ok": True, "counts": counts}


@command("GetCountsPerPriority", {"queue": QueueName()})
def get_counts_per_priority(peer: Peer, request: Request) -> Work[Reply]:
    """Return how many jobs are queued for each priority, due or not."""
    queue = request["queue"]
    counts = yield from peer.engine.counts_per_priority(queue)
    return {"ok": True, "queue": queue, "counts": counts}


@command("Count", {"queue": QueueName()})
def count(peer: Peer, request: Request) -> Reply:
    """Return how many jobs are waiting, prioritized or delayed."""
    return {"ok": True, "count": peer.engine.count(request["queue"])}


@command("GetProgress", JOB_ID)
def get_progress(peer: Peer, request: Request) -> Reply:
    """Return how far an active job is."""
    job = found(peer, request["id"])
    if job.place != ACTIVE:
        raise WrongPlace(f"Job is not active (current state: {state_of(job, peer.now())})")
    extra = job.extra
    return {"ok": True, "progress": extra.progress, "message": extra.progress_message}


@command(
    "WaitJob",
    {**JOB_ID, "timeout": Number(max=WAIT_MS_MAX, doc="How long to wait, ms; 30,000 if absent.")},
    waits=True,
)
def wait_job(peer: Peer, request: Request) -> Reply | Later:
    """Wait until a job has completed; ends early when it has failed for good or is gone."""
    wait_ms = request.get("timeout")
    job = peer.engine.wait_job(
        peer, request["id"], WAIT_MS_DEFAULT if wait_ms is None else int(wait_ms), peer.now()
    )
    shape = partial(_waited, peer.int64)
    if isinstance(job, Later):
        job.shape = shape
        return job
    return shape(job)


def _waited(int64: bool, job: Job | None) -> Reply:
    if job is None or job.result is None:
        return {"ok": True, "completed": job is not None}
    result = job.result if int64 else narrowed(job.result)
    return b"\x83\xa2ok\xc3\xa9completed\xc3\xa6result" + result


@command(
    "GetLogs",
    {
        **JOB_ID,
        "start": Number(min=None, integer=True, doc="First line, from 0; 0 if absent."),
        "end": Number(
            min=None, integer=True, doc="Last line, inclusive; the last of all if absent."
        ),
    },
)
def get_logs(peer: Peer, request: Request) -> Reply:
    """Return lines of a job's log, oldest first, and how many there are in all."""
    lines = peer.engine.logs(request["id"])
    start, end = int(request.get("start") or 0), request.get("end")
    chosen = lines[start:] if end is None else lines[start : int(end) + 1]
    data = {"logs": [_log_line(*line) for line in chosen], "count": len(lines)}
    return {"ok": True, "data": data}


def _log_line(timestamp: int, level: str, message: str) -> dict[str, Any]:
    return {"timestamp": float(timestamp), "level": level, "message": message}


@command(
    "AddLog",
    {
        **JOB_ID,
        "message": Text(required=True, is_long=True),
        "level": Anything(doc="Free text; info if absent."),
    },
    mutates=True,
)
def add_log(peer: Peer, request: Request) -> Reply:
    """Add a line to a job's log."""
    level = request.get("level") or "info"
    peer.engine.add_log(request["id"], request["message"], str(level), peer.now())
    return {"ok": True, "data": {"added": True}}


@command(
    "ClearLogs",
    {
        **JOB_ID,
        "keepLogs": Number(min=None, integer=True, doc="Keep the newest so many; none if absent."),
    },
    mutates=True,
)
def clear_logs(peer: Peer, request: Request) -> Reply:
    """Drop a job's log."""
    peer.engine.clear_logs(request["id"], max(0, int(request.get("keepLogs") or 0)))
    return {"ok": True}
