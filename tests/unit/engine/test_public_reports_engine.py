"""Reports of other queues that the engine alone can answer: A15 and A16 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.settings import EngineSettings
from tests.support.engine import World, persistent_world
from tests.support.flows import tree

SECOND = 1_000
POLICIES = {
    "none": {},
    "fail": {"failParentOnFailure": True},
    "continue": {"continueParentOnFailure": True},
    "ignore": {"ignoreDependencyOnFailure": True},
    "remove": {"removeDependencyOnFailure": True},
}
REMOVALS = (
    {},
    {"removeOnFail": True},
    {"removeOnComplete": True},
    {"removeOnFail": True, "removeOnComplete": True},
)


def grow(policy: str, removal: dict[str, bool], queue: str, orphans: str = "fail") -> World:
    """Return a broker with a parent of two children; the first has the options and the queue."""
    world = persistent_world(EngineSettings(orphaned_dependency=orphans))
    jobs = tree(2, maxAttempts=1, **POLICIES[policy], **removal)
    jobs[0]["queue"] = queue
    jobs[1]["queue"] = "q"
    world.ok("PUSHF", jobs=jobs)
    return world


def end(world: World, job_id: str, queue: str, cmd: str) -> None:
    assert job_id == world.pull(queue)
    world.ok(cmd, id=job_id)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed in between"])
@pytest.mark.parametrize("queue", ["q", "elsewhere"])
@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: "+".join(removal) or "kept")
@pytest.mark.parametrize("policy", POLICIES)
def test_a15_no_parent_waits_for_ever_for_a_child_that_failed(
    policy: str, removal: dict[str, bool], queue: str, is_killed: bool
) -> None:
    world = grow(policy, removal, queue)
    end(world, "c0", queue, "FAIL")
    if is_killed:
        world = world.restart()
    end(world, "c1", "q", "ACK")
    if is_killed:
        world = world.restart()

    is_kept = policy == "none" and "removeOnFail" not in removal
    if is_kept:  # the child rests among the dead letters, from where it can be run again
        assert "waiting-children" == world.state("p")
        world.ok("RetryDlq", queue=queue)
        end(world, "c0", queue, "ACK")
        assert "waiting" == world.state("p")
    elif policy in ("none", "fail"):
        assert "failed" == world.state("p")
    else:
        assert "waiting" == world.state("p")
        end(world, "p", "pq", "ACK")


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed in between"])
@pytest.mark.parametrize("queue", ["q", "elsewhere"])
@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: "+".join(removal) or "kept")
@pytest.mark.parametrize("policy", POLICIES)
def test_a15_a_parent_runs_when_its_children_have_ended_well(
    policy: str, removal: dict[str, bool], queue: str, is_killed: bool
) -> None:
    world = grow(policy, removal, queue)
    end(world, "c0", queue, "ACK")
    if is_killed:
        world = world.restart()
    end(world, "c1", "q", "ACK")
    if is_killed:
        world = world.restart()

    assert "waiting" == world.state("p")


BY_HAND = ("Cancel", "Drain", "Obliterate", "Discard", "PurgeDlq", "RemoveDlqJob", "Clean")


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed in between"])
@pytest.mark.parametrize("cmd", BY_HAND)
@pytest.mark.parametrize("policy", POLICIES)
def test_a15_a_parent_whose_child_is_removed_by_hand_reaches_a_state(
    policy: str, cmd: str, is_killed: bool
) -> None:
    """With ``orphanedDependency=fail``; with ``wait``, its default, the parent can be let go."""
    for orphans in ("fail", "wait"):
        world = grow(policy, {}, "elsewhere", orphans)
        if cmd in ("PurgeDlq", "RemoveDlqJob", "Clean"):
            end(world, "c0", "elsewhere", "FAIL")
        more: dict[str, Any] = {"id": "c0"} if cmd in ("Cancel", "Discard") else {}
        more |= {"queue": "elsewhere"} if not more else {}
        more |= {"jobId": "c0"} if cmd == "RemoveDlqJob" else {}
        more |= {"state": "failed", "grace": 0} if cmd == "Clean" else {}
        if world.state("p") == "waiting-children" or cmd in ("Cancel", "Discard"):
            world.ok(cmd, **more)
        if is_killed:
            world = world.restart()
        end(world, "c1", "q", "ACK")

        state = world.state("p")
        if state == "waiting-children" and cmd != "Discard":
            assert "wait" == orphans
            explained = world.ok("ExplainJob", id="p")["explanation"]
            assert "c0" in str(explained)
            world.ok("Obliterate", queue="pq")
        elif state == "waiting-children":  # c0 is a dead letter, and can be run again
            world.ok("RetryDlq", queue="elsewhere")
            end(world, "c0", "elsewhere", "ACK")
            assert "waiting" == world.state("p")
        else:
            assert state in ("waiting", "failed")


@pytest.mark.parametrize(("limit", "span_s"), [(1, 3_600), (10, 1_200), (1_000, 10)])
def test_a16_a_limit_holds_in_every_window_and_loses_no_turn(limit: int, span_s: int) -> None:
    """Eight workers wait all the time; the documented bound is twice the limit in any window."""
    world = World()
    world.ok("RateLimit", queue="q", limit=limit, duration=SECOND)
    total = limit * (span_s + 1)
    given_at: list[int] = []
    pushed = 0
    workers = [world.connect(f"w{number}") for number in range(8)]
    polls: dict[int, Any] = {}
    begin = world.now
    while world.now < begin + span_s * SECOND:
        if pushed - len(given_at) < limit:
            world.ok("PUSHB", queue="q", jobs=[{}] * limit)
            pushed += limit
        for number, peer in enumerate(workers):
            answer = polls.pop(number, None)
            if answer is None:
                polls[number] = world.send("PULLB", peer, queue="q", count=125, timeout=60_000)
            elif answer.is_there:
                ids = [job["id"] for job in answer.reply["jobs"]]
                given_at += [world.now] * len(ids)
                if ids:
                    world.ok("ACKB", ids=ids)
            else:
                polls[number] = answer
        world.forward(SECOND // min(limit, 50))

    assert abs(len(given_at) - total) <= max(0.01 * total, limit + 8)
    bound = 2 * limit
    for first, moment in enumerate(given_at):
        beyond = first + bound
        assert beyond >= len(given_at) or given_at[beyond] - moment >= SECOND
