"""Flags that take any value are read as JavaScript reads them: an empty list or map is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.engine import World

TRUE: tuple[Any, ...] = (True, {}, [], {"count": 5}, 1, "x", b"")
FALSE: tuple[Any, ...] = (False, "", 0, float("nan"))


def removed_by_ack(world: World, flag: Any) -> bool:
    world.push(jobId="a")
    world.pull()
    world.ok("ACK", id="a", removeOnComplete=flag)
    return world.state("a") == "unknown"


def removed_by_ackb(world: World, flag: Any) -> bool:
    world.push(jobId="a")
    world.pull()
    world.ok("ACKB", ids=["a"], removeOnCompletes=[flag])
    return world.state("a") == "unknown"


def removed_by_fail(world: World, flag: Any) -> bool:
    world.push(jobId="a", maxAttempts=1)
    world.pull()
    world.ok("FAIL", id="a", removeOnFail=flag)
    return world.state("a") == "unknown"


def unrecoverable(world: World, flag: Any) -> bool:
    world.push(jobId="a", maxAttempts=3)
    world.pull()
    world.ok("FAIL", id="a", unrecoverable=flag)
    return world.state("a") == "failed"


def detached(world: World, flag: Any) -> bool:
    world.push(jobId="a")
    world.ok("PULL", queue="q", detach=flag)
    world.close(world.peer)
    return world.state("a") == "active"


def shows_jobs(world: World, flag: Any) -> bool:
    return "jobs" in world.ok("DashboardQueue", queue="q", includeJobs=flag)["data"]


def oldest_first(world: World, flag: Any) -> bool:
    world.push(jobId="a")
    world.clock.ms += 1
    world.push(jobId="b")
    return world.ok("GetJobs", queue="q", asc=flag)["jobs"][0]["id"] == "a"


def enabled(world: World, flag: Any) -> bool:
    hook = world.ok("AddWebhook", url="http://example.org/", events=[])["data"]["webhookId"]
    world.ok("SetWebhookEnabled", id=hook, enabled=flag)
    is_enabled: bool = world.ok("ListWebhooks")["data"]["webhooks"][0]["enabled"]
    return is_enabled


@pytest.mark.parametrize(
    "reads",
    [
        removed_by_ack,
        removed_by_ackb,
        removed_by_fail,
        unrecoverable,
        detached,
        shows_jobs,
        oldest_first,
        enabled,
    ],
)
@pytest.mark.parametrize(
    ("flag", "is_true"), [*((flag, True) for flag in TRUE), *((flag, False) for flag in FALSE)]
)
def test_a_flag_is_read_as_javascript_does(
    reads: Callable[[World, Any], bool], flag: Any, is_true: bool
) -> None:
    assert is_true == reads(World(), flag)
