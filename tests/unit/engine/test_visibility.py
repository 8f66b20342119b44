"""Jobs that are on disk are shown, whatever becomes of what happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import visibility
from tests.support.engine import Answer, World, persistent_world
from tests.support.flows import tree


def shown_as_another_operation_fails(world: World, answer: Answer, count: int) -> dict[str, Any]:
    """Let what was sent be committed, and the first slice that shows it fail; return the reply.

    While it is shown a pull that waits meets a job whose time is over, and the end of that job has
    to be committed.
    """
    while len(world.storage.rows) <= count:
        world.engine.tick(world.now)
        world.settle()
    world.storage.fails = True
    world.leap(1_000)
    world.storage.fails = False
    for _ in range(100):
        if answer.reply is not None:
            break
        world.forward(1)
    assert answer.reply is not None
    return answer.reply


def about_to_expire(world: World) -> Answer:
    """Push a job that will be too old when it is due, and wait for the next one of its queue."""
    world.push(jobId="old", childrenIds=["x"], priority=9, delay=100, ttl=200)
    return world.poll()


@pytest.mark.parametrize("count", [400, 1_200], ids=["one slice", "more slices"])
def test_a_batch_on_disk_is_shown_whole_whatever_fails_meanwhile(count: int) -> None:
    world = persistent_world()
    poll = about_to_expire(world)
    jobs = [{"name": "a", "priority": 1}] * count
    batch = world.send("PUSHB", queue="q", jobs=jobs)

    reply = shown_as_another_operation_fails(world, batch, count)

    assert (True, count) == (reply["ok"], len(reply.get("ids", ())))
    assert poll.reply["job"]["id"] == reply["ids"][0]
    assert {"active": 1, "prioritized": count - 1} == world.counts()


@pytest.mark.parametrize("count", [300, 757], ids=["one slice", "more slices"])
def test_a_flow_on_disk_is_shown_whole_whatever_fails_meanwhile(count: int) -> None:
    world = persistent_world()
    poll = about_to_expire(world)
    flow = world.send("PUSHF", jobs=tree(count))

    reply = shown_as_another_operation_fails(world, flow, count)

    assert True is reply["ok"]
    assert "c0" == poll.reply["job"]["id"]
    assert {"active": 1, "waiting": count - 1} == world.counts()


@pytest.mark.parametrize(
    ("policy", "state"),
    [("continueParentOnFailure", "waiting"), ("failParentOnFailure", "failed")],
)
def test_a_parent_that_is_shown_last_learns_what_its_child_did_before(
    monkeypatch: pytest.MonkeyPatch, policy: str, state: str
) -> None:
    """Also if a commit has failed meanwhile, of something else."""
    monkeypatch.setattr(visibility, "SHOWN_US", 5_000)  # each step takes a tick
    world = persistent_world()
    flow = world.send("PUSHF", jobs=tree(300, maxAttempts=1, priority=9, **{policy: True}))
    while not world.counts():
        world.engine.tick(world.now)
        world.settle()
    _, token = world.lease()
    world.ok("FAIL", id="c0", token=token)
    world.storage.fails = True
    world.engine.tick(world.now)
    world.error("Pause", queue="other")
    world.storage.fails = False
    assert "unknown" == world.state("p")

    world.forward(100)

    assert flow.reply is not None
    assert state == world.state("p")
