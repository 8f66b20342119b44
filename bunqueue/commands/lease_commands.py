"""Keeping what one is working on."""

from collections.abc import Callable
from typing import Final

from bunqueue.commands.core import LOCK_TTL_MS_MAX, check_ids, texts_or_none
from bunqueue.commands.job_reads import JOB_ID
from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command, in_slices
from bunqueue.engine.later import Later
from bunqueue.engine.slices import Work
from bunqueue.errors import InvalidField, LeaseLost, NotFound
from bunqueue.protocol.fields import List, Number, Text
from bunqueue.protocol.replies import OK, Reply

_TOKEN: Final = {"token": Text(doc="The delivery's lock token.")}
_DURATION: Final = {
    "duration": Number(max=LOCK_TTL_MS_MAX, doc="New span from now, ms; the lease's own if absent.")
}

RENEWED_AT_ONCE_MAX: Final = 1_000  # jobs of a batch that are dealt with in one go: a ms
RENEWED_PER_STEP: Final = 500  # of a larger one, between two looks at what was spent
CHECKED_US: Final = 0.1  # an id
RENEWED_US: Final = 1

# Renews the leases of a part of a request's jobs; returns how many.
Renew = Callable[[Peer, Request, slice, int], int]


def _in_steps(peer: Peer, request: Request, renew: Renew) -> Work[int]:
    """Renew the leases of any number of jobs; refuses what is no id before the first."""
    ids = request["ids"]
    for begin in range(0, len(ids), RENEWED_PER_STEP):
        check_ids(ids[begin : begin + RENEWED_PER_STEP])
        yield int(RENEWED_PER_STEP * CHECKED_US)
    count, now = 0, peer.now()
    lists = [values for values in request.values() if isinstance(values, list)]
    for begin in range(0, len(ids), RENEWED_PER_STEP):
        some = slice(begin, begin + RENEWED_PER_STEP)
        count += renew(peer, request, some, now)
        for values in lists:  # to free millions at the end takes long
            values[some] = [None] * len(values[some])
        now = yield RENEWED_PER_STEP * RENEWED_US
    return count


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


def _heartbeat(peer: Peer, request: Request, some: slice, now: int) -> int:
    tokens = request.get("tokens")
    given = None if tokens is None else texts_or_none(tokens[some])
    return peer.engine.heartbeat_batch(request["ids"][some], given, now)


def _heartbeat_many(peer: Peer, request: Request) -> Work[Reply]:
    """Do JobHeartbeatB in slices."""
    return _heartbeats_told((yield from _in_steps(peer, request, _heartbeat)))


def _heartbeats_told(count: int) -> Reply:
    return {"ok": True, "data": {"ok": True, "count": count}}


@command(
    "JobHeartbeatB",
    {
        "ids": List(required=True, is_long=True),
        "tokens": List(is_long=True, doc="Parallel to ids."),
    },
    mutates=True,
    large=_heartbeat_many,
)
def job_heartbeat_batch(peer: Peer, request: Request) -> Reply | Later:
    """Say so of several jobs; the reply counts those for which it took effect."""
    ids = request["ids"]
    if len(ids) > RENEWED_AT_ONCE_MAX:
        return in_slices(peer, _heartbeat_many(peer, request), True)
    check_ids(ids)
    return _heartbeats_told(_heartbeat(peer, request, slice(None), peer.now()))


@command("ExtendLock", {**JOB_ID, **_TOKEN, **_DURATION}, mutates=True)
def extend_lock(peer: Peer, request: Request) -> Reply:
    """Renew a lease."""
    done = peer.engine.extend_lock(
        request["id"], request.get("token"), _span(request.get("duration")), peer.now()
    )
    if not done:
        raise LeaseLost("Lock not found or invalid token")
    return OK


def _extend(peer: Peer, request: Request, some: slice, now: int) -> int:
    count = 0
    tokens = texts_or_none(request["tokens"][some]) or []
    for job_id, token, span in zip(
        request["ids"][some], tokens, request["durations"][some], strict=True
    ):
        problem = None if span is None else _DURATION["duration"].problem("duration", span)
        if problem is None:
            count += peer.engine.extend_lock(job_id, token, _span(span), now)
    return count


def _extend_many(peer: Peer, request: Request) -> Work[Reply]:
    """Do ExtendLocks in slices."""
    _check_lengths(request)
    count = yield from _in_steps(peer, request, _extend)
    return {"ok": True, "count": count}


def _check_lengths(request: Request) -> None:
    if not len(request["ids"]) == len(request["tokens"]) == len(request["durations"]):
        raise InvalidField("tokens and durations must be as long as ids")


@command(
    "ExtendLocks",
    {name: List(required=True, is_long=True) for name in ("ids", "tokens", "durations")},
    mutates=True,
    large=_extend_many,
)
def extend_locks(peer: Peer, request: Request) -> Reply | Later:
    """Renew several leases; the reply counts those that were."""
    if len(request["ids"]) > RENEWED_AT_ONCE_MAX:
        return in_slices(peer, _extend_many(peer, request), True)
    check_ids(request["ids"])
    _check_lengths(request)
    return {"ok": True, "count": _extend(peer, request, slice(None), peer.now())}
