"""Changing and moving single jobs."""

from typing import Final

from bunqueue.commands.core import check_data_size, pack_data
from bunqueue.commands.job_reads import JOB_ID
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.slices import Work
from bunqueue.protocol.fields import Anything, Flag, Number, QueueName, Text
from bunqueue.protocol.options import PRIORITY_MAX, YEAR_MS
from bunqueue.protocol.replies import OK, Reply

_TOKEN: Final = {"token": Text(doc="Needed when the job was pulled with an owner.")}
_DELAY: Final = {"delay": Number(required=True, max=YEAR_MS, doc="Ms from now.")}


@command("Cancel", JOB_ID, mutates=True)
def cancel(peer: Peer, request: Request) -> Reply:
    """Remove a job that nobody is running."""
    peer.engine.cancel(request["id"], peer.now())
    return OK


@command("Discard", {**JOB_ID, **_TOKEN}, mutates=True)
def discard(peer: Peer, request: Request) -> Reply:
    """Send a queued or running job to the dead letters."""
    peer.engine.discard(request["id"], request.get("token"), peer.now())
    return OK


@command(
    "Progress",
    {
        **JOB_ID,
        "progress": Number(required=True, min=None, doc="0..100; clamped."),
        "message": Text(is_long=True, doc="Absent keeps the old one."),
    },
    mutates=True,
)
def progress(peer: Peer, request: Request) -> Reply:
    """Say how far a running job is."""
    peer.engine.set_progress(request["id"], request["progress"], request.get("message"), peer.now())
    return OK


@command(
    "Update",
    {**JOB_ID, "data": Anything(is_long=True, doc="The new payload; null if absent.")},
    mutates=True,
)
def update(peer: Peer, request: Request) -> Reply:
    """Replace the payload of a job that has not ended."""
    data = request.get("data")
    packed = pack_data(data)
    check_data_size(data, packed)
    peer.engine.update_data(request["id"], packed, peer.now())
    return OK


@command(
    "ChangePriority",
    {
        **JOB_ID,
        "priority": Number(required=True, min=-PRIORITY_MAX, max=PRIORITY_MAX, integer=True),
        "lifo": Flag(doc="Absent leaves it as it is."),
    },
    mutates=True,
)
def change_priority(peer: Peer, request: Request) -> Reply:
    """Give a queued job another rank."""
    peer.engine.change_priority(
        request["id"], int(request["priority"]), request.get("lifo"), peer.now()
    )
    return OK


@command("ChangeDelay", {**JOB_ID, **_DELAY, **_TOKEN}, mutates=True)
def change_delay(peer: Peer, request: Request) -> Reply:
    """Make a queued or running job due so long from now; 0 makes it waiting."""
    peer.engine.change_delay(request["id"], int(request["delay"]), request.get("token"), peer.now())
    return OK


@command("MoveToDelayed", {**JOB_ID, **_DELAY, **_TOKEN}, mutates=True)
def move_to_delayed(peer: Peer, request: Request) -> Reply:
    """Send a running job back to the queue, due so long from now, uncharged."""
    peer.engine.move_to_delayed(
        request["id"], int(request["delay"]), request.get("token"), peer.now()
    )
    return OK


@command("MoveToWait", {**JOB_ID, **_TOKEN}, mutates=True)
def move_to_wait(peer: Peer, request: Request) -> Reply:
    """Send a running, delayed or failed job to waiting."""
    peer.engine.move_to_wait(request["id"], request.get("token"), peer.now())
    return OK


@command("Promote", JOB_ID, mutates=True)
def promote(peer: Peer, request: Request) -> Reply:
    """Let a delayed job run now."""
    peer.engine.promote(request["id"], peer.now())
    return OK


@command(
    "PromoteJobs",
    {
        "queue": QueueName(),
        "count": Number(min=None, integer=True, doc="At most so many; all if absent."),
    },
    mutates=True,
)
def promote_jobs(peer: Peer, request: Request) -> Work[Reply]:
    """Let the delayed jobs of a queue run now, oldest first."""
    count = request.get("count")
    moved = yield from peer.engine.promote_jobs(
        request["queue"], None if count is None else int(count), peer.now()
    )
    return {"ok": True, "count": moved}


@command(
    "RetryCompleted",
    {
        "queue": QueueName(),
        "id": Text(doc="Only this job; all of the queue if absent."),
        "count": Number(min=None, integer=True, doc="At most so many; all if absent."),
        "timestamp": Number(
            doc="Only those completed before this moment, epoch ms; all if absent."
        ),
    },
    mutates=True,
)
def retry_completed(peer: Peer, request: Request) -> Work[Reply]:
    """Let completed jobs run again, without their results."""
    count, before = request.get("count"), request.get("timestamp")
    moved = yield from peer.engine.retry_completed(
        request["queue"],
        request.get("id"),
        None if count is None else int(count),
        None if before is None else int(before),
        peer.now(),
    )
    return {"ok": True, "count": moved}


@command(
    "GetDeduplicationJobId",
    {"queue": QueueName(), "deduplicationId": Text(required=True)},
)
def get_deduplication_job_id(peer: Peer, request: Request) -> Reply:
    """Return the id of the live job that holds a dedup key, or null."""
    owner = peer.engine.dedup_owner(request["queue"], request["deduplicationId"], peer.now())
    return {"ok": True, "data": {"jobId": owner}}


@command(
    "RemoveDeduplicationKey",
    {"queue": QueueName(), "deduplicationId": Text(required=True)},
    mutates=True,
)
def remove_deduplication_key(peer: Peer, request: Request) -> Reply:
    """Free a dedup key; its owner lives on."""
    removed = peer.engine.remove_dedup_key(request["queue"], request["deduplicationId"], peer.now())
    return {"ok": True, "data": {"count": removed}}


@command("RemoveJobDeduplicationKey", JOB_ID, mutates=True)
def remove_job_deduplication_key(peer: Peer, request: Request) -> Reply:
    """Free the dedup key that a job holds."""
    removed = peer.engine.remove_job_dedup_key(request["id"], peer.now())
    return {"ok": True, "data": {"removed": removed}}
