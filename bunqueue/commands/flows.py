"""Flows: whole trees of jobs, links by hand, and what children have left for their parent."""

from functools import partial
from typing import Final

from bunqueue.commands.flow_plan import FLOW_JOBS_MAX, planned
from bunqueue.commands.job_reads import JOB_ID
from bunqueue.commands.job_wire import list_header, narrowed, pack_job, pack_listing
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.slices import Work
from bunqueue.errors import InvalidField
from bunqueue.protocol.codec import pack
from bunqueue.protocol.fields import Anything, Text
from bunqueue.protocol.replies import OK, Reply

_DATA_JOBS: Final = b"\x82\xa2ok\xc3\xa4data\x81\xa4jobs"
_DATA_VALUES: Final = b"\x82\xa2ok\xc3\xa4data\x81\xa6values"


def _push_all(peer: Peer, request: Request, is_large: bool = True) -> Work[Reply]:
    """Do PUSHF; ``is_large``: what a small frame could not hold may be in it."""
    jobs = request.get("jobs")
    if not isinstance(jobs, list):
        raise InvalidField("flow jobs must be an array")
    if len(jobs) > FLOW_JOBS_MAX:
        raise InvalidField(f"flow exceeds the {FLOW_JOBS_MAX} job limit")
    engine = peer.engine
    shown = yield from engine.push_flow(
        planned(jobs, engine, is_large), partial(pack_job, int64=peer.int64), peer.now()
    )
    return b"".join((_DATA_JOBS, list_header(len(shown)), *shown))


@command(
    "PUSHF",
    {"jobs": Anything(is_long=True, doc=f"List of {{id, queue, input}}, at most {FLOW_JOBS_MAX}.")},
    mutates=True,
    large=_push_all,
)
def push_flow(peer: Peer, request: Request) -> Work[Reply]:
    """Add a whole flow, all jobs or none, on disk before the reply."""
    return (yield from _push_all(peer, request, is_large=False))


@command(
    "UpdateParent",
    {"childId": Text(required=True, empty=False), "parentId": Text(required=True, empty=False)},
    mutates=True,
)
def update_parent(peer: Peer, request: Request) -> Reply:
    """Make one existing job the child of another that has not begun."""
    peer.engine.update_parent(request["childId"], request["parentId"], peer.now())
    return OK


@command(
    "MoveToWaitingChildren",
    {**JOB_ID, "token": Text(doc="Needed when the job was pulled with an owner.")},
    mutates=True,
)
def move_to_waiting_children(peer: Peer, request: Request) -> Reply:
    """Park a running job until its children have settled; it waits again at once if they have."""
    peer.engine.move_to_waiting_children(request["id"], request.get("token"), peer.now())
    return {"ok": True, "data": {"moved": True}}


@command("GetChildrenValues", JOB_ID)
def get_children_values(peer: Peer, request: Request) -> Work[Reply]:
    """Return the results of a job's children by queue:id; by bare id of those not kept."""
    values = yield from peer.engine.children_values(request["id"])
    count, (pairs,) = yield from pack_listing(
        (pack(key) + (value if peer.int64 else narrowed(value)),) for key, value in values
    )
    header = bytes((0x80 | count,)) if count < 16 else b"\xdf" + count.to_bytes(4, "big")
    return b"".join((_DATA_VALUES, header, *pairs))


@command("GetFailedChildrenValues", JOB_ID)
def get_failed_children_values(peer: Peer, request: Request) -> Reply:
    """Return the errors of the children after whose failure the job goes on, by queue:id."""
    return {"ok": True, "values": dict(peer.engine.failed_children(request["id"]))}


@command("GetIgnoredChildrenFailures", JOB_ID)
def get_ignored_children_failures(peer: Peer, request: Request) -> Reply:
    """Return the errors of the children whose failure the job ignores, by queue:id."""
    return {"ok": True, "values": dict(peer.engine.ignored_children(request["id"]))}


@command("RemoveChildDependency", JOB_ID, mutates=True)
def remove_child_dependency(peer: Peer, request: Request) -> Reply:
    """Detach a child from its parent, which goes on if it waits for nothing else."""
    return {"ok": True, "removed": peer.engine.remove_child_dependency(request["id"], peer.now())}


@command("RemoveUnprocessedChildren", JOB_ID, mutates=True)
def remove_unprocessed_children(peer: Peer, request: Request) -> Work[Reply]:
    """Cancel the children of a job that nobody has begun; the job does without them."""
    yield from peer.engine.remove_unprocessed_children(request["id"], peer.now())
    return OK
