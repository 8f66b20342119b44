"""Keeping what one is working on."""

from typing import Final

from bunqueue.commands.core import LOCK_TTL_MS_MAX, check_ids, texts_or_none
from bunqueue.commands.job_reads import JOB_ID
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.errors import InvalidField, LeaseLost, NotFound
from bunqueue.protocol.fields import List, Number, Text
from bunqueue.protocol.replies import OK, Reply

_TOKEN: Final = {"token": Text(doc="The delivery's lock token.")}
_DURATION: Final = {
    "duration": Number(max=LOCK_TTL_MS_MAX, doc="New span from now, ms; the lease's own if absent.")
}


def _span(value: float | None) -> int | None:
    """A span of 0 means the lease's own, as leaving it out does."""
    return int(value) if value else None


@command("JobHeartbeat", {**JOB_ID, **_TOKEN, **_DURATION}, mutates=True)
def job_heartbeat(peer: Peer, request: Request) -> Reply:
    """Say that a job is still worked on; with the token, renew its lease."""
    done = peer.engine.heartbeat(
        request["id"], request.get("token"), _span(request.get("duration")), peer.now()
    )
    if not done:
        raise NotFound("Job not found or not active (or invalid token)")
    return {"ok": True, "data": {"ok": True}}


@command(
    "JobHeartbeatB",
    {"ids": List(required=True), "tokens": List(doc="Parallel to ids.")},
    mutates=True,
)
def job_heartbeat_batch(peer: Peer, request: Request) -> Reply:
    """Say so of several jobs; the reply counts those for which it took effect."""
    ids = request["ids"]
    check_ids(ids)
    count = peer.engine.heartbeat_batch(ids, texts_or_none(request.get("tokens")), peer.now())
    return {"ok": True, "data": {"ok": True, "count": count}}


@command("ExtendLock", {**JOB_ID, **_TOKEN, **_DURATION}, mutates=True)
def extend_lock(peer: Peer, request: Request) -> Reply:
    """Renew a lease."""
    done = peer.engine.extend_lock(
        request["id"], request.get("token"), _span(request.get("duration")), peer.now()
    )
    if not done:
        raise LeaseLost("Lock not found or invalid token")
    return OK


@command(
    "ExtendLocks",
    {"ids": List(required=True), "tokens": List(required=True), "durations": List(required=True)},
    mutates=True,
)
def extend_locks(peer: Peer, request: Request) -> Reply:
    """Renew several leases; the reply counts those that were."""
    ids, spans = request["ids"], request["durations"]
    tokens = texts_or_none(request["tokens"]) or []
    check_ids(ids)
    if not len(ids) == len(tokens) == len(spans):
        raise InvalidField("tokens and durations must be as long as ids")
    now = peer.now()
    count = 0
    for job_id, token, span in zip(ids, tokens, spans, strict=True):
        problem = None if span is None else _DURATION["duration"].problem("duration", span)
        if problem is None:
            count += peer.engine.extend_lock(job_id, token, _span(span), now)
    return {"ok": True, "count": count}
