"""The dead-letter queue over the wire."""

from typing import Final

from bunqueue.commands.job_wire import list_header, pack_entry, pack_job, pack_listing
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.slices import Work
from bunqueue.protocol.fields import Anything, Flag, Map, Number, QueueName, Text
from bunqueue.protocol.replies import Reply

_FILTER: Final = Map(
    fields={
        "reason": Text(),
        "olderThan": Number(),
        "newerThan": Number(),
        "retriable": Flag(truthy=True),
        "expired": Flag(truthy=True),
        "limit": Number(integer=True),
        "offset": Number(integer=True),
    },
    doc="Which: {reason, olderThan, newerThan, retriable, expired, limit, offset}; all if absent.",
)
_COUNT: Final = Number(min=None, integer=True, doc="At most so many, below 0 as 0; all if absent.")
_QUEUE: Final = {"queue": QueueName()}


def _count(request: Request) -> int | None:
    count = request.get("count")
    return None if count is None else int(count)


@command("Dlq", {**_QUEUE, "count": _COUNT, "filter": _FILTER})
def dlq(peer: Peer, request: Request) -> Work[Reply]:
    """List dead letters in order of entry: ``jobs`` and, parallel to it, ``entries``."""
    jobs = yield from peer.engine.list_dead(
        request["queue"], request.get("filter"), _count(request), peer.now()
    )
    count, (packed, entries) = yield from pack_listing(
        # Both together: a job may have left the dead letters by the next slice.
        (
            (pack_job(job, peer.int64), pack_entry(job, peer.int64))
            for job in jobs
            if job.extra.dead
        ),
        columns=2,
    )
    header = list_header(count)
    return b"".join((b"\x83\xa2ok\xc3\xa4jobs", header, *packed, b"\xa7entries", header, *entries))


@command("GetDlqStats", _QUEUE)
def get_dlq_stats(peer: Peer, request: Request) -> Work[Reply]:
    """Return figures about the dead letters of a queue."""
    stats = yield from peer.engine.dlq_stats(request["queue"], peer.now())
    return {"ok": True, "data": {"stats": stats}}


@command(
    "RetryDlq",
    {**_QUEUE, "jobId": Text(doc="Only this job."), "count": _COUNT, "filter": _FILTER},
    mutates=True,
)
def retry_dlq(peer: Peer, request: Request) -> Work[Reply]:
    """Send dead letters back to waiting, with all attempts before them."""
    moved = yield from peer.engine.retry_dlq(
        request["queue"],
        request.get("jobId") or None,
        request.get("filter"),
        _count(request),
        peer.now(),
    )
    return {"ok": True, "count": moved}


@command("PurgeDlq", _QUEUE, mutates=True)
def purge_dlq(peer: Peer, request: Request) -> Work[Reply]:
    """Remove every dead letter of the queue."""
    count = yield from peer.engine.purge_dlq(request["queue"], peer.now())
    return {"ok": True, "count": count}


@command("RemoveDlqJob", {**_QUEUE, "jobId": Anything(required=True)}, mutates=True)
def remove_dlq_job(peer: Peer, request: Request) -> Reply:
    """Remove one dead letter."""
    removed = peer.engine.remove_dlq_job(request["queue"], str(request["jobId"]), peer.now())
    return {"ok": True, "data": {"removed": removed}}
