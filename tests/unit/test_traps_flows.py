"""The traps of engine.md 15 that are about flows, each under its number; 42 is about the file."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.settings import EngineSettings
from tests.support.engine import World, persistent_world
from tests.support.flows import tree

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def complete(world: World, job_id: str, **fields: Any) -> None:
    assert job_id == world.pull()
    world.ok("ACK", id=job_id, **fields)


def test_trap_08_parked_jobs_do_not_age_out(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="old", dependsOn=["a"], timestamp=world.now - 61 * MINUTE)
    world.forward(24 * 60 * MINUTE)
    assert "waiting-children" == world.state("old")

    complete(world, "a")

    assert "old" == world.pull()


def test_trap_09_a_parked_id_is_live(world: World) -> None:
    world.ok("PUSHF", jobs=tree(1))
    complete(world, "c0")
    _, token = world.lease("pq")
    world.ok("RetryCompleted", queue="q", id="c0")
    world.ok("MoveToWaitingChildren", id="p", token=token)

    assert "p" == world.push("pq", jobId="p", data="other")

    assert {"waiting-children": 1} == world.counts("pq")
    assert {"__childrenIds": ["c0"]} == world.job("p")["data"]


def test_trap_26_obliterate_beats_the_release_of_a_parked_job() -> None:
    world = persistent_world()
    world.push(jobId="a")
    world.push("b", jobId="b", dependsOn=["a"])
    world.pull()
    poll = world.poll("b")
    world.send("ACK", id="a")
    world.send("Obliterate", queue="b")
    world.settle()

    assert "unknown" == world.state("b")
    assert not poll.is_there


def test_trap_33_a_dependency_on_a_removed_completed_job_is_satisfied(world: World) -> None:
    world.push(jobId="parent", removeOnComplete=True)
    complete(world, "parent")

    world.push(jobId="child", dependsOn=["parent"])

    assert "child" == world.pull()


def test_trap_34_cancel_reaches_parked_jobs() -> None:
    world = persistent_world()
    world.push(jobId="one")
    world.push(jobId="two", dependsOn=["one"])
    world.ok("Cancel", id="two")

    assert "unknown" == world.state("two")
    assert "unknown" == world.restart().state("two")
    complete(world, "one")
    assert None is world.pull()


def test_trap_35_child_results_survive_cache_pressure() -> None:
    world = World(settings=EngineSettings(max_completed_jobs=2))
    world.ok("PUSHF", jobs=tree(10))
    for number in range(10):
        complete(world, f"c{number}", result=number)
        world.forward(1)

    values = world.ok("GetChildrenValues", id="p")["data"]["values"]

    assert list(range(10)) == sorted(values.values())
