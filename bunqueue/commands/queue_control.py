"""Queues as a whole: pause, clean-up, limits, configuration."""

import math
from typing import Any, Final

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.engine.slices import Work
from bunqueue.errors import InvalidField
from bunqueue.protocol.fields import SAFE_INTEGER_MAX, Anything, Map, Number, QueueName, Text
from bunqueue.protocol.replies import OK, Reply

_QUEUE: Final = {"queue": QueueName()}


@command("Pause", _QUEUE, mutates=True)
def pause(peer: Peer, request: Request) -> Reply:
    """Hand nothing out any more; active jobs finish. Survives a restart."""
    peer.engine.pause(request["queue"], peer.now())
    return OK


@command("Resume", _QUEUE, mutates=True)
def resume(peer: Peer, request: Request) -> Reply:
    """Hand jobs out again; waiting pulls are served."""
    peer.engine.resume(request["queue"], peer.now())
    return OK


@command("IsPaused", _QUEUE)
def is_paused(peer: Peer, request: Request) -> Reply:
    """Say whether the queue is paused."""
    return {"ok": True, "paused": peer.engine.is_paused(request["queue"])}


@command("Drain", _QUEUE, mutates=True)
def drain(peer: Peer, request: Request) -> Work[Reply]:
    """Remove every waiting, prioritized and delayed job."""
    count = yield from peer.engine.drain(request["queue"], peer.now())
    return {"ok": True, "count": count}


@command("Obliterate", _QUEUE, mutates=True)
def obliterate(peer: Peer, request: Request) -> Work[Reply]:
    """Remove the queue with all its jobs, active ones too, its dead letters and settings."""
    yield from peer.engine.obliterate(request["queue"], peer.now())
    return OK


@command(
    "Clean",
    {
        **_QUEUE,
        "grace": Number(min=None, doc="Only jobs older than this, ms; 0 if absent."),
        "state": Text(doc="Which jobs; absent is everything queued."),
        "limit": Number(min=None, integer=True, doc="At most so many; 1,000 if absent."),
    },
    mutates=True,
)
def clean(peer: Peer, request: Request) -> Work[Reply]:
    """Remove old jobs of a state; the reply lists their ids."""
    limit = request.get("limit")
    ids = yield from peer.engine.clean(
        request["queue"],
        request.get("grace") or 0,
        request.get("state"),
        None if limit is None else int(limit),
        peer.now(),
    )
    return {"ok": True, "count": len(ids), "ids": ids}


@command("ListQueues")
def list_queues(peer: Peer, _request: Request) -> Reply:
    """Return the names of all queues."""
    return {"ok": True, "queues": peer.engine.queue_names()}


def _finite(value: Any, name: str) -> float:
    """Read a limit: numbers and numeric strings pass, those that no client could hold as bounds.

    Raises:
        InvalidField: It is none.
    """
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidField(f"{name} must be a finite number")
    number = max(-SAFE_INTEGER_MAX, min(number, SAFE_INTEGER_MAX))
    return int(number) if number == int(number) else number


def _span(value: Any, name: str) -> float | None:
    return None if value is None else _finite(value, name)


@command(
    "RateLimit",
    {
        **_QUEUE,
        "limit": Anything(doc="Jobs per duration; 0 and below block the queue."),
        "duration": Anything(doc="Ms; 1,000 if absent."),
        "ttl": Anything(doc="Ms until the limit is gone; absent is never."),
    },
    mutates=True,
)
def rate_limit(peer: Peer, request: Request) -> Reply:
    """Let at most so many jobs go per duration; a token bucket, full at the start."""
    peer.engine.set_rate_limit(
        request["queue"],
        _finite(request.get("limit"), "limit"),
        _span(request.get("duration"), "duration"),
        _span(request.get("ttl"), "ttl"),
        peer.now(),
    )
    return OK


@command("RateLimitClear", _QUEUE, mutates=True)
def rate_limit_clear(peer: Peer, request: Request) -> Reply:
    """Drop the rate limit."""
    peer.engine.clear_rate_limit(request["queue"], peer.now())
    return OK


@command(
    "SetConcurrency",
    {**_QUEUE, "limit": Anything(doc="Active jobs at a time; 0 and below let none go.")},
    mutates=True,
)
def set_concurrency(peer: Peer, request: Request) -> Reply:
    """Let at most so many jobs be active at a time."""
    limit = math.floor(_finite(request.get("limit"), "limit"))
    peer.engine.set_concurrency(request["queue"], limit, peer.now())
    return OK


@command("ClearConcurrency", _QUEUE, mutates=True)
def clear_concurrency(peer: Peer, request: Request) -> Reply:
    """Drop the concurrency limit."""
    peer.engine.clear_concurrency(request["queue"], peer.now())
    return OK


@command(
    "GetQueueLimits", {**_QUEUE, "maxJobs": Number(integer=True, doc="Ask as if so many had gone.")}
)
def get_queue_limits(peer: Peer, request: Request) -> Reply:
    """Return the limits in force, and how long until the next job may go."""
    most = request.get("maxJobs")
    limits = peer.engine.queue_limits(
        request["queue"], None if most is None else int(most), peer.now()
    )
    return {"ok": True, "data": {"limits": limits}}


@command("SetStallConfig", {**_QUEUE, "config": Map(required=True)}, mutates=True)
def set_stall_config(peer: Peer, request: Request) -> Reply:
    """Merge ``{enabled, stallInterval, maxStalls, gracePeriod}``; useless values are ignored."""
    peer.engine.set_stall_config(request["queue"], request["config"], peer.now())
    return OK


@command("GetStallConfig", _QUEUE)
def get_stall_config(peer: Peer, request: Request) -> Reply:
    """Return when a silent job of the queue counts as stalled."""
    return {"ok": True, "config": peer.engine.stall_config(request["queue"])}


@command("SetDlqConfig", {**_QUEUE, "config": Map(required=True)}, mutates=True)
def set_dlq_config(peer: Peer, request: Request) -> Work[Reply]:
    """Merge ``{autoRetry, autoRetryInterval, maxAutoRetries, maxAge, maxEntries}``."""
    yield from peer.engine.set_dlq_config(request["queue"], request["config"], peer.now())
    return OK


@command("GetDlqConfig", _QUEUE)
def get_dlq_config(peer: Peer, request: Request) -> Reply:
    """Return what happens to the queue's dead letters."""
    config = dict(peer.engine.dlq_config(request["queue"]))
    return {"ok": True, "config": config}
