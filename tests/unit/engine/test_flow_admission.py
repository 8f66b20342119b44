"""Whole flows: all or none (engine.md 5.5)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.flow_admission import SHOWN_AT_ONCE
from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import Answer, ScriptedStorage, World, persistent_world
from tests.support.flows import flow_child, flow_parent, tree

MANY = SHOWN_AT_ONCE * 3 + 7


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStorage() if request.param == "memory" else ScriptedStorage())


def awaited(world: World, answer: Answer) -> dict[str, Any]:
    """Let time pass until the answer is there."""
    for _ in range(1_000):
        if answer.reply is not None:
            return answer.reply
        world.forward(1)
    raise AssertionError("no answer")


def nothing_is_left(world: World) -> bool:
    world.storage.fails = False
    world.settle()
    graph = world.engine.graph
    is_empty = not len(world.engine.index) and not graph.consumers and not len(graph.proofs)
    return is_empty and {} == world.counts() == world.counts("pq")


def test_a_flow_comes_back_in_the_order_it_was_given(world: World) -> None:
    jobs = world.ok("PUSHF", jobs=tree(3))["data"]["jobs"]

    assert ["c0", "c1", "c2", "p"] == [job["id"] for job in jobs]
    assert ["c0", "c1", "c2"] == jobs[3]["dependsOn"] == jobs[3]["childrenIds"]
    assert None is jobs[0]["customId"]
    assert {"waiting": 3} == world.counts()
    assert {"waiting-children": 1} == world.counts("pq")


def test_who_waits_for_children_takes_no_room_in_a_group(world: World) -> None:
    world.push("pq", groupId="g")
    full = {"groupId": "g", "groupMaxSize": 1}
    jobs = world.ok("PUSHF", jobs=[flow_child(), flow_parent(**full)])["data"]["jobs"]
    refusal = world.error("PUSHF", jobs=[{**flow_parent([], "r", **full)}])

    assert ["c", "p"] == [job["id"] for job in jobs]
    assert "Group g has reached its maximum size of 1" == refusal


def test_an_empty_flow_is_no_mistake(world: World) -> None:
    assert {"data": {"jobs": []}} == world.ok("PUSHF", jobs=[])


def test_a_flow_is_on_disk_before_anybody_sees_it() -> None:
    world = persistent_world()
    answer = world.send("PUSHF", jobs=tree())

    assert not answer.is_there
    assert "unknown" == world.engine.state("c0", world.now)

    world.settle()
    assert 1 == world.storage.durable_syncs
    assert {"c0", "c1", "p"} == set(world.storage.rows)
    assert ["waiting", "waiting-children"] == [world.state("c0"), world.state("p")]


def test_a_flow_that_could_not_be_written_leaves_no_trace() -> None:
    world = persistent_world()
    world.storage.fails = True

    assert "Internal server error" == world.error("PUSHF", jobs=tree())
    assert nothing_is_left(world)
    world.ok("PUSHF", jobs=tree())


@pytest.mark.parametrize(
    "make", ["live", "completed", "failed", "removed", "referred", "timed out", "retained"]
)
def test_an_id_that_somebody_has_or_had_is_refused(world: World, make: str) -> None:
    world.push(jobId="c1", removeOnComplete=make == "removed", timeout=1_000, maxAttempts=1)
    if make == "referred":
        world.push("other", jobId="w", dependsOn=["c1"])
        world.ok("Cancel", id="c1")
    elif make != "live":
        _, token = world.lease()
        if make == "failed":
            world.ok("FAIL", id="c1", token=token)
        elif make == "timed out":
            world.forward(1_001)
            world.ok("PurgeDlq", queue="q")
        else:
            world.ok("ACK", id="c1", token=token)
    before = world.counts(), world.counts("pq")

    assert "Flow job c1 already exists" == world.error("PUSHF", jobs=tree())
    assert before == (world.counts(), world.counts("pq"))


def test_an_id_that_is_only_named_as_a_child_is_free(world: World) -> None:
    world.push("other", jobId="w", childrenIds=["c1"])

    world.ok("PUSHF", jobs=tree())
    assert "waiting" == world.state("c1")


def test_a_full_group_refuses_the_flow(world: World) -> None:
    jobs = tree(2, groupId="g", groupMaxSize=5)
    world.ok("PUSHB", queue="q", jobs=[{"groupId": "g"}] * 5)

    assert "Group g has reached its maximum size of 5" == world.error("PUSHF", jobs=jobs)
    assert {"waiting": 5} == world.counts()


def test_a_flow_is_refused_while_the_backlog_is_full() -> None:
    world = persistent_world()
    world.storage.is_refusing = True

    assert "Internal server error" == world.error("PUSHF", jobs=tree())
    assert nothing_is_left(world)


# -- large flows ----------------------------------------------------------------------------------


def test_a_large_flow_is_taken_in_slices_and_answered_at_the_end(world: World) -> None:
    answer = world.send("PUSHF", jobs=tree(MANY))
    assert not answer.is_there

    reply = awaited(world, answer)

    assert MANY + 1 == len(reply["data"]["jobs"])
    assert {"waiting": MANY} == world.counts()
    for _ in range(MANY):
        world.ok("ACK", id=world.pull())
    assert "p" == world.pull("pq")


def test_a_large_flow_with_a_mistake_leaves_no_trace(world: World) -> None:
    jobs = tree(MANY)
    jobs[-1]["input"]["dependsOn"] = [*jobs[-1]["input"]["dependsOn"], "nope"]

    reply = awaited(world, world.send("PUSHF", jobs=jobs))

    assert {"ok": False, "error": "flow dependency not found: nope"} == reply
    assert nothing_is_left(world)


def test_a_large_flow_that_could_not_be_written_leaves_no_trace() -> None:
    world = persistent_world()
    answer = world.send("PUSHF", jobs=tree(MANY))
    world.storage.fails = True

    assert {"ok": False, "error": "Internal server error"} == awaited(world, answer)
    assert nothing_is_left(world)


def test_an_id_taken_while_a_large_flow_is_checked_is_refused(world: World) -> None:
    answer = world.send("PUSHF", jobs=tree(MANY))
    world.push(jobId="c5")

    assert "Flow job c5 already exists" == awaited(world, answer)["error"]
    assert {"waiting": 1} == world.counts()


def test_a_large_flow_is_committed_in_one_batch() -> None:
    world = persistent_world()
    answer = world.send("PUSHF", jobs=tree(MANY))
    seen = set()
    while answer.reply is None:
        world.engine.tick(world.now)
        world.settle()
        seen.add(len(world.storage.rows))

    assert {0, MANY + 1} == seen


def test_children_that_complete_before_the_parent_is_shown_count() -> None:
    world = persistent_world()
    answer = world.send("PUSHF", jobs=tree(MANY))
    done = 0
    while answer.reply is None or done < MANY:
        world.forward(1)
        for job_id in world.pull_all():
            world.ok("ACK", id=job_id)
            done += 1

    assert "p" == world.pull("pq")
    assert "active" == world.state("p")


def test_a_flow_survives_a_restart() -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(2))
    again = world.restart()
    assert ["waiting", "waiting-children"] == [again.state("c1"), again.state("p")]

    for job_id in again.pull_all():
        again.ok("ACK", id=job_id)

    assert "p" == again.restart().pull("pq")


def test_an_obliterated_queue_takes_a_flow_that_waits_for_its_commit_along() -> None:
    world = persistent_world()
    flow = world.send("PUSHF", jobs=[flow_child(queue="a"), flow_parent()])
    world.send("Obliterate", queue="a")
    world.settle()

    assert flow.reply["ok"]
    assert ["unknown", "waiting-children"] == [world.state("c"), world.state("p")]


# -- pushes that meet a flow on its way -----------------------------------------------------------


def half_way(world: World) -> Answer:
    """Send a large flow, and stop when its ids are taken but not all of its jobs are tied."""
    answer = world.send("PUSHF", jobs=tree(MANY))
    for _ in range(1_000):
        if world.engine.index.get("c0") is not None:
            world.settle()
            return answer
        world.engine.tick(world.now)
    raise AssertionError("the flow took no ids")


def test_an_obliteration_leaves_a_flow_on_its_way_whole() -> None:
    world = persistent_world()
    flow = half_way(world)

    assert True is awaited(world, world.send("Obliterate", queue="q"))["ok"]
    assert True is awaited(world, flow)["ok"]
    assert {"waiting": MANY} == world.counts("q")


MEETINGS: dict[str, dict[str, Any]] = {
    "push": {"cmd": "PUSH", "jobId": "c1", "data": "twin"},
    "batch": {"cmd": "PUSHB", "jobs": [{"customId": "c1", "data": "twin"}]},
    "dependent": {"cmd": "PUSH", "jobId": "d", "dependsOn": ["c1"]},
    "dependents": {"cmd": "PUSHB", "jobs": [{"customId": "d", "dependsOn": ["c1"]}]},
}


@pytest.mark.parametrize("push", MEETINGS.values(), ids=list(MEETINGS))
def test_who_meets_a_flow_on_its_way_is_answered_after_it(push: dict[str, Any]) -> None:
    world = persistent_world()
    flow = half_way(world)

    met = world.send(queue="q", **push)

    assert not met.is_there
    assert True is awaited(world, met)["ok"]
    assert True is awaited(world, flow)["ok"]
    assert {"__parentId": "p", "__parentQueue": "pq"} == world.job("c1")["data"]


@pytest.mark.parametrize("push", MEETINGS.values(), ids=list(MEETINGS))
def test_nobody_is_told_of_a_flow_that_could_not_be_written(push: dict[str, Any]) -> None:
    world = persistent_world()
    flow = half_way(world)
    met = world.send(queue="q", **push)
    world.storage.fails = True

    assert False is awaited(world, met)["ok"]
    assert False is awaited(world, flow)["ok"]
    assert nothing_is_left(world)


def test_who_meets_a_flow_whose_broker_ends_is_not_admitted_after_that() -> None:
    world = persistent_world()
    half_way(world)
    met = world.send("PUSH", queue="q", jobId="d", dependsOn=["c1"])

    world.engine.works.ring.pop().work.close()  # as the interpreter does to what nobody refers to

    assert not met.is_there
    assert world.engine.index.get("d") is None


def test_who_meets_a_flow_is_told_why_it_is_refused() -> None:
    world = persistent_world()
    half_way(world)

    met = world.send("PUSH", queue="q", jobId="d", dependsOn=["c1", "nobody"])

    assert {"ok": False, "error": "Dependency job not found: nobody"} == awaited(world, met)


def test_other_pushes_do_not_wait_for_a_flow() -> None:
    world = persistent_world()
    flow = half_way(world)

    job_id = world.push(jobId="other")

    assert not flow.is_there
    assert "waiting" == world.state(job_id)
