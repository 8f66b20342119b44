"""Groups over the wire: limits, pause and counts of one label of a queue."""

from typing import Any, Final

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.protocol.fields import Anything, QueueName, SafeInteger
from bunqueue.protocol.group_fields import NeededGroupId
from bunqueue.protocol.replies import OK, Reply

_GROUP: Final = {"queue": QueueName(), "groupId": NeededGroupId(doc="The group.")}
_DURATION: Final = SafeInteger(required=True, doc="Ms.")


def _data(**values: Any) -> Reply:
    return {"ok": True, "data": values}


@command("GetGroupJobsCount", _GROUP)
def get_group_jobs_count(peer: Peer, request: Request) -> Reply:
    """Return how many jobs of a group are queued, due or not."""
    return _data(count=peer.engine.group_count(request["queue"], request["groupId"]))


@command("GetGroupActiveCount", _GROUP)
def get_group_active_count(peer: Peer, request: Request) -> Reply:
    """Return how many jobs of a group are running."""
    return _data(count=peer.engine.group_active_count(request["queue"], request["groupId"]))


@command(
    "GetGroupsJobsCount",
    {"queue": QueueName(), "maxCount": Anything(doc="Ignored; all are counted.")},
)
def get_groups_jobs_count(peer: Peer, request: Request) -> Reply:
    """Return how many jobs of all groups are queued."""
    return _data(count=peer.engine.groups_count(request["queue"]))


@command(
    "SetGroupRateLimit",
    {**_GROUP, "max": SafeInteger(required=True, doc="Jobs per window."), "duration": _DURATION},
    mutates=True,
)
def set_group_rate_limit(peer: Peer, request: Request) -> Reply:
    """Store a group's rate; it replaces the default of pullers that bring one."""
    peer.engine.set_group_rate_limit(
        request["queue"],
        request["groupId"],
        int(request["max"]),
        int(request["duration"]),
        peer.now(),
    )
    return OK


@command("GetGroupRateLimit", _GROUP)
def get_group_rate_limit(peer: Peer, request: Request) -> Reply:
    """Return a group's stored rate, or null."""
    rate = peer.engine.group_rate_limit(request["queue"], request["groupId"])
    return _data(limit=None if rate is None else {"max": rate.max, "duration": rate.duration_ms})


@command("RemoveGroupRateLimit", _GROUP, mutates=True)
def remove_group_rate_limit(peer: Peer, request: Request) -> Reply:
    """Drop a group's stored rate."""
    removed = peer.engine.remove_group_rate_limit(request["queue"], request["groupId"], peer.now())
    return _data(removed=removed)


@command(
    "SetGroupConcurrency",
    {**_GROUP, "concurrency": SafeInteger(required=True, doc="Running jobs at a time.")},
    mutates=True,
)
def set_group_concurrency(peer: Peer, request: Request) -> Reply:
    """Store a group's concurrency; it replaces the default of pullers that bring one."""
    peer.engine.set_group_concurrency(
        request["queue"], request["groupId"], int(request["concurrency"]), peer.now()
    )
    return OK


@command("GetGroupConcurrency", _GROUP)
def get_group_concurrency(peer: Peer, request: Request) -> Reply:
    """Return a group's stored concurrency, or null."""
    return _data(concurrency=peer.engine.group_concurrency(request["queue"], request["groupId"]))


@command("RemoveGroupConcurrency", _GROUP, mutates=True)
def remove_group_concurrency(peer: Peer, request: Request) -> Reply:
    """Drop a group's stored concurrency."""
    removed = peer.engine.remove_group_concurrency(request["queue"], request["groupId"], peer.now())
    return _data(removed=removed)


@command("RateLimitGroup", {**_GROUP, "duration": _DURATION}, mutates=True)
def rate_limit_group(peer: Peer, request: Request) -> Reply:
    """Let nothing of a group go for a while, whoever pulls."""
    peer.engine.rest_group(
        request["queue"], request["groupId"], int(request["duration"]), peer.now()
    )
    return OK


@command("GetGroupRateLimitTtl", _GROUP)
def get_group_rate_limit_ttl(peer: Peer, request: Request) -> Reply:
    """Return what is left of a group's manual rest, else of its window, ms; -2 for neither."""
    return _data(ttl=peer.engine.group_rest_ms(request["queue"], request["groupId"], peer.now()))


@command("PauseGroup", _GROUP, mutates=True)
def pause_group(peer: Peer, request: Request) -> Reply:
    """Let nothing of a group go any more; survives a restart."""
    changed = peer.engine.pause_group(request["queue"], request["groupId"], peer.now())
    return _data(changed=changed)


@command("ResumeGroup", _GROUP, mutates=True)
def resume_group(peer: Peer, request: Request) -> Reply:
    """Let a group go again."""
    changed = peer.engine.resume_group(request["queue"], request["groupId"], peer.now())
    return _data(changed=changed)


@command("IsGroupPaused", _GROUP)
def is_group_paused(peer: Peer, request: Request) -> Reply:
    """Say whether a group is paused."""
    return _data(paused=peer.engine.is_group_paused(request["queue"], request["groupId"]))
