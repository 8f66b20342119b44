"""Links by hand, their removal, parking, and what children have left (engine.md 5.6)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import ScriptedStorage, World, persistent_world
from tests.support.flows import flow_child, flow_parent, tree
from tests.support.whole import check_whole

INTERNAL = "Internal server error"


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStorage() if request.param == "memory" else ScriptedStorage())


def push_child(world: World, job_id: str = "c", parent: str = "p", **fields: Any) -> str:
    """Push a job with a true link to a parent in the queue ``pq``."""
    data = {"__parentId": parent, "__parentQueue": "pq", "n": 1}
    return world.push(jobId=job_id, parentId=parent, **{"data": data, **fields})


def links(world: World, job_id: str = "p") -> tuple[Any, ...]:
    """Return a parent's state, its two lists of ids and its data."""
    job = world.job(job_id)
    return job["state"], job["dependsOn"], job["childrenIds"], job["data"]


def values(world: World, job_id: str = "p") -> dict[str, Any]:
    found: dict[str, Any] = world.ok("GetChildrenValues", id=job_id)["data"]["values"]
    return found


def complete(world: World, job_id: str, queue: str = "q", **fields: Any) -> None:
    assert job_id == world.pull(queue)
    world.ok("ACK", id=job_id, **fields)


# -- a push with a parent -------------------------------------------------------------------------


def test_a_true_link_parks_the_parent(world: World) -> None:
    world.push("pq", jobId="p", data={"k": 1})
    push_child(world)

    assert ("waiting-children", ["c"], ["c"], {"k": 1, "__childrenIds": ["c"]}) == links(world)
    assert world.pull("pq") is None
    complete(world, "c")
    assert "p" == world.pull("pq")


def test_a_bare_parent_is_a_note(world: World) -> None:
    world.push("pq", jobId="p")
    world.push(jobId="c", parentId="p")
    world.push(jobId="d", parentId="nobody", data={"__parentId": "somebody"})

    assert "waiting" == world.state("p")
    assert "p" == world.job("c")["parentId"]


@pytest.mark.parametrize("data", [{}, {"__parentId": "pending", "__parentQueue": "pq"}])
def test_pending_is_a_note_everywhere(world: World, data: dict[str, str]) -> None:
    child = world.push(jobId="c", parentId="pending", data=data)
    world.push("pq", jobId="p")

    world.ok("UpdateParent", childId=child, parentId="p")

    assert "waiting-children" == world.state("p")
    assert {"__parentId": "p", "__parentQueue": "pq"} == world.job("c")["data"]


def test_a_parent_whose_data_is_no_object_gets_one(world: World) -> None:
    world.push("pq", jobId="p", data=5)
    push_child(world)

    assert {"__childrenIds": ["c"]} == world.job("p")["data"]


def test_a_link_that_cannot_be_is_refused(world: World) -> None:
    world.push("pq", jobId="p")
    world.push("pq", jobId="running")
    world.push("q", jobId="elsewhere")
    assert "p" == world.pull("pq")
    for parent, text in (
        ("nobody", "Parent job not found: nobody"),
        ("elsewhere", "Parent job elsewhere belongs to queue q, not pq"),
        ("p", "Parent job p is not linkable"),
        ("c", "A job cannot be its own parent"),
    ):
        data = {"__parentId": parent, "__parentQueue": "pq"}
        fields = {"parentId": parent, "data": data}
        assert text == world.error("PUSH", queue="q", jobId="c", **fields)
        job = {"customId": "c", **fields}
        assert text == world.error("PUSHB", queue="q", jobs=[job])
    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"parentId": "c", "data": {"__parentId": "c", "__parentQueue": "q"}},
            "A job cannot be its own parent",
        ),
        (
            {"repeat": {"every": 1000}},
            "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead",
        ),
    ],
)
def test_what_is_wrong_in_itself_is_refused_while_its_id_lives(
    world: World, fields: dict[str, Any], text: str
) -> None:
    world.push(jobId="c")

    assert text == world.error("PUSH", queue="q", jobId="c", **fields)
    assert {"waiting": 1} == world.counts()


def test_a_batch_links_every_job(world: World) -> None:
    world.push("pq", jobId="p")
    data = {"__parentId": "p", "__parentQueue": "pq"}
    jobs = [{"customId": job_id, "parentId": "p", "data": data} for job_id in "abc"]
    world.ok("PUSHB", queue="q", jobs=jobs)

    assert ["a", "b", "c"] == world.job("p")["dependsOn"]
    for job_id in "abc":
        complete(world, job_id)
    assert "waiting" == world.state("p")


def test_a_link_that_could_not_be_written_never_was() -> None:
    world = persistent_world()
    world.push("pq", jobId="p", data={"k": 1})
    before = links(world)
    world.storage.fails = True
    data = {"__parentId": "p", "__parentQueue": "pq"}
    assert INTERNAL == world.error("PUSH", queue="q", jobId="c", parentId="p", data=data)
    world.storage.fails = False
    world.settle()

    assert before == links(world)
    assert "unknown" == world.state("c")
    assert {} == world.engine.graph.consumers
    assert "p" == world.pull("pq")


def test_a_link_survives_a_restart() -> None:
    world = persistent_world()
    world.push("pq", jobId="p", data={"k": 1})
    push_child(world)
    before = links(world)

    again = world.restart()

    assert before == links(again)
    complete(again, "c")
    assert "p" == again.pull("pq")


# -- UpdateParent ---------------------------------------------------------------------------------


def test_update_parent_links_existing_jobs_and_may_be_repeated(world: World) -> None:
    world.push("pq", jobId="p", data={"k": 1})
    world.push(jobId="c", data={"n": 1})
    for _ in range(2):
        world.ok("UpdateParent", childId="c", parentId="p")

    assert ("waiting-children", ["c"], ["c"], {"k": 1, "__childrenIds": ["c"]}) == links(world)
    child = world.job("c")
    assert "p" == child["parentId"]
    assert {"n": 1, "__parentId": "p", "__parentQueue": "pq"} == child["data"]


def test_update_parent_refuses_what_cannot_be(world: World) -> None:
    world.push("pq", jobId="p")
    world.push("pq", jobId="done")
    world.push("pq", jobId="running")
    world.push(jobId="c")
    world.push(jobId="taken", parentId="p")
    assert ["p", "done"] == [world.pull("pq"), world.pull("pq")]
    world.ok("ACK", id="done")
    for child, parent, text in (
        ("c", "c", "A flow job cannot be its own parent"),
        ("x", "p", "Child job not found: x"),
        ("c", "x", "Parent job not found: x"),
        ("c", "p", "Parent job p is not linkable"),
        ("c", "done", "Parent job done is not linkable"),
        ("taken", "done", "Child job taken already belongs to parent p"),
    ):
        assert text == world.error("UpdateParent", childId=child, parentId=parent)


def test_two_jobs_never_wait_for_each_other(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="b", dependsOn=["a"])
    world.push(jobId="c", dependsOn=["b"])

    text = "flow contains a dependency cycle"
    assert text == world.error("UpdateParent", childId="c", parentId="a")
    assert "waiting" == world.state("a")


def test_a_declared_child_is_only_filled_in(world: World) -> None:
    world.push(jobId="c")
    world.push("pq", jobId="p", dependsOn=["c"], childrenIds=["c"], data={"k": 1})
    complete(world, "c", result=1)
    assert "p" == world.pull("pq")

    world.ok("UpdateParent", childId="c", parentId="p")

    assert ("active", ["c"], ["c"], {"k": 1}) == links(world)
    assert "p" == world.job("c")["parentId"]


def test_a_child_declared_without_a_dependency_is_not_waited_for(world: World) -> None:
    world.push(jobId="p", childrenIds=["c"], data=5)
    world.push(jobId="c")
    world.ok("UpdateParent", childId="c", parentId="p")

    parent = world.job("p")
    assert ([], 5, "waiting") == (parent["dependsOn"], parent["data"], parent["state"])
    assert "p" == world.job("c")["parentId"]


def test_a_linked_child_is_listed_behind_those_the_parent_was_pushed_with(world: World) -> None:
    world.push(jobId="p", childrenIds=["x", "y"], data={"a": 1})
    world.push(jobId="c", parentId="p", data={"__parentId": "p", "__parentQueue": "q"})

    parent = world.job("p")
    assert ["x", "y", "c"] == parent["childrenIds"] == parent["data"]["__childrenIds"]
    assert ["c"] == parent["dependsOn"]


def test_a_completed_child_holds_nothing_up(world: World) -> None:
    world.push(jobId="c")
    complete(world, "c", result=3)
    world.push("pq", jobId="p")
    world.ok("UpdateParent", childId="c", parentId="p")

    assert "waiting" == world.state("p")
    assert {"q:c": 3} == values(world)


def test_a_child_that_has_failed_applies_its_policy_at_once(world: World) -> None:
    world.push(jobId="c", maxAttempts=1, failParentOnFailure=True)
    world.pull()
    world.ok("FAIL", id="c", error="bad")
    world.push("pq", jobId="p")
    world.ok("UpdateParent", childId="c", parentId="p")

    assert "Child job c failed: bad" == world.entry("pq")["error"]


def test_a_new_link_survives_a_failing_commit_on_either_side() -> None:
    world = persistent_world()
    world.push("pq", jobId="p", data={"k": 1})
    world.push(jobId="c", data={"n": 1})
    before = links(world), world.job("c")
    world.storage.fails = True
    assert INTERNAL == world.error("UpdateParent", childId="c", parentId="p")
    world.storage.fails = False
    world.settle()

    assert before == (links(world), world.job("c"))
    complete(world, "c")
    assert "p" == world.pull("pq")


# -- RemoveChildDependency ------------------------------------------------------------------------


def test_a_removed_child_leaves_both_sides_and_frees_the_parent(world: World) -> None:
    world.listen()
    world.ok("PUSHF", jobs=tree(2))
    assert {"removed": True} == world.ok("RemoveChildDependency", id="c0")
    assert ("waiting-children", ["c1"], ["c1"], {"__childrenIds": ["c1"]}) == links(world)
    child = world.job("c0")
    assert (None, {}) == (child["parentId"], child["data"])
    assert "Job c0 has no parent" == world.error("RemoveChildDependency", id="c0")

    world.ok("RemoveChildDependency", id="c1")

    assert ("waiting", [], [], {}) == links(world)
    told = [event for event in world.events if event["jobId"] == "p"]
    assert ("waiting", "waiting-children") == (told[-1]["eventType"], told[-1]["prev"])


def test_a_parent_without_its_last_child_runs_at_once_whatever_its_delay(world: World) -> None:
    world.ok("PUSHF", jobs=[flow_child(), flow_parent(delay=60_000)])
    world.ok("RemoveChildDependency", id="c")

    job = world.job("p")
    assert ("waiting", ["waiting-children"]) == (
        job["state"],
        [line["state"] for line in job["timeline"]],
    )


def test_a_child_that_has_finished_stays_with_its_parent(world: World) -> None:
    world.ok(
        "PUSHF", jobs=[flow_child("a", maxAttempts=1), flow_child("b"), flow_parent(["a", "b"])]
    )
    world.pull()
    world.ok("FAIL", id="a")
    world.pull()
    world.ok("ACK", id="b", result=1)

    for child in ("a", "b"):
        assert {"removed": False} == world.ok("RemoveChildDependency", id=child)
        assert "p" == world.job(child)["parentId"]
    assert ["a", "b"] == world.job("p")["dependsOn"]
    assert {"q:b": 1} == values(world)


def test_removing_what_is_no_child(world: World) -> None:
    world.push(jobId="c", parentId="gone")
    world.push("pq", jobId="p")
    world.push(jobId="d", parentId="p")

    assert "Job not found: x" == world.error("RemoveChildDependency", id="x")
    for job_id in "cd":
        assert {"removed": False} == world.ok("RemoveChildDependency", id=job_id)
    assert "p" == world.job("d")["parentId"]


def test_a_removal_that_could_not_be_written_never_was() -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(1))
    before = links(world), world.job("c0")
    world.storage.fails = True
    assert INTERNAL == world.error("RemoveChildDependency", id="c0")
    world.storage.fails = False
    world.settle()

    assert before == (links(world), world.job("c0"))
    assert ("waiting-children", ["c0"]) == links(world.restart())[:2]
    complete(world, "c0")
    assert "p" == world.pull("pq")


# -- RemoveUnprocessedChildren --------------------------------------------------------------------


def test_children_nobody_has_begun_are_cancelled_and_not_waited_for(world: World) -> None:
    world.ok("PUSHF", jobs=tree(3))
    assert "c0" == world.pull()

    world.ok("RemoveUnprocessedChildren", id="p")

    assert ["active", "unknown", "unknown"] == [world.state(f"c{n}") for n in range(3)]
    assert ("waiting-children", ["c0"]) == links(world)[:2]
    world.ok("ACK", id="c0")
    assert "p" == world.pull("pq")


def test_a_parent_without_begun_children_goes_at_once(world: World) -> None:
    world.ok("PUSHF", jobs=tree(3))
    world.ok("RemoveUnprocessedChildren", id="p")

    assert "p" == world.pull("pq")
    assert {} == world.counts()
    world.ok("RemoveUnprocessedChildren", id="nobody")


@pytest.mark.parametrize("policy", [
    "failParentOnFailure", "continueParentOnFailure",
    "ignoreDependencyOnFailure", "removeDependencyOnFailure",
])  # fmt: skip
def test_a_failed_child_whose_link_could_not_be_written_is_none_of_the_parents(
    policy: str,
) -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(1))
    world.push("r", jobId="x", **{policy: True})
    world.ok("Discard", id="x")
    before = links(world), world.job("p"), world.job("x")
    world.storage.fails = True
    assert INTERNAL == world.error("UpdateParent", childId="x", parentId="p")
    world.storage.fails = False
    world.forward(1)
    world.settle()

    assert before == (links(world), world.job("p"), world.job("x"))
    assert "waiting-children" == world.restart().state("p")
    complete(world, "c0")
    assert "p" == world.pull("pq")


def test_children_that_could_not_be_cancelled_are_back() -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(2))
    before = links(world)
    world.storage.fails = True
    assert INTERNAL == world.error("RemoveUnprocessedChildren", id="p")
    world.storage.fails = False
    world.settle()

    assert before == links(world)
    for job_id in ("c0", "c1"):
        complete(world, job_id)
    assert "p" == world.pull("pq")


# -- MoveToWaitingChildren ------------------------------------------------------------------------


def running_parent(world: World) -> str:
    """Have the parent of ``c0`` run while that runs again; return the parent's token."""
    world.ok("PUSHF", jobs=tree(1))
    complete(world, "c0", result=1)
    _, token = world.lease("pq")
    world.ok("RetryCompleted", queue="q", id="c0")
    return token


@pytest.mark.parametrize(
    "policy",
    ["removeDependencyOnFailure", "ignoreDependencyOnFailure", "continueParentOnFailure"],
)
@pytest.mark.parametrize("queue", ["r", "s"])
def test_a_new_job_with_the_id_of_a_child_that_is_settled_is_not_waited_for(
    policy: str, queue: str
) -> None:
    world = persistent_world()
    world.push(jobId="p")
    data = {"__parentId": "p", "__parentQueue": "q"}
    world.push("r", jobId="c", parentId="p", data=data, maxAttempts=1, **{policy: True})
    world.pull("r")
    world.ok("FAIL", id="c", error="no")
    world.settle()
    world.push(queue, jobId="c", delay=5_000)
    assert "p" == world.pull()
    world.settle()

    assert {"data": {"moved": True}} == world.ok("MoveToWaitingChildren", id="p")
    world.settle()
    assert "waiting" == world.state("p") == world.restart().state("p")


def test_a_running_parent_is_parked_while_children_are_unsettled(world: World) -> None:
    token = running_parent(world)
    world.listen()

    assert {"data": {"moved": True}} == world.ok("MoveToWaitingChildren", id="p", token=token)

    assert "waiting-children" == world.state("p")
    told = world.events[-1]
    assert ("waiting-children", "active") == (told["eventType"], told["prev"])
    complete(world, "c0", result=2)
    assert "p" == world.pull("pq")
    assert 0 == world.job("p")["attempts"]
    assert {"q:c0": 2} == values(world)


def test_with_nothing_left_to_wait_for_it_is_back_in_line_at_once(world: World) -> None:
    world.push(jobId="a")
    _, token = world.lease()

    assert {"data": {"moved": True}} == world.ok("MoveToWaitingChildren", id="a", token=token)
    assert ["waiting", "active", "waiting"] == [
        line["state"] for line in world.job("a")["timeline"]
    ]

    assert "waiting" == world.state("a")
    assert "a" == world.pull()


def test_parking_needs_the_lease(world: World) -> None:
    running_parent(world)

    assert "Lock token required for job p" == world.error("MoveToWaitingChildren", id="p")
    wrong = world.error("MoveToWaitingChildren", id="p", token="x")
    assert "Invalid or expired lock token for job p" == wrong
    for job_id in ("c0", "nobody"):
        assert "Job is not active" == world.error("MoveToWaitingChildren", id=job_id)


def test_a_parent_parked_by_hand_survives_a_restart() -> None:
    world = persistent_world()
    token = running_parent(world)
    world.ok("MoveToWaitingChildren", id="p", token=token)
    again = world.restart()
    assert "waiting-children" == again.state("p")

    complete(again, "c0")

    assert "p" == again.pull("pq")


def test_a_child_of_which_nothing_is_to_come_is_not_waited_for_after_a_restart_either() -> None:
    world, token = parent_beside_a_child_that_failed_and_went()
    world.ok("MoveToWaitingChildren", id="p", token=token)
    check_whole(world.engine, world.now, [])
    assert ["c1"] == world.job("p")["dependsOn"]
    again = world.restart()

    complete(again, "c1")

    assert "p" == again.pull("pq")


def test_a_parent_put_back_by_hand_has_forgotten_what_can_never_come() -> None:
    world, token = parent_beside_a_child_that_failed_and_went()
    complete(world, "c1")

    world.ok("MoveToWaitingChildren", id="p", token=token)

    assert "waiting" == world.state("p")
    again = world.restart()
    assert ["c1"] == again.job("p")["dependsOn"]
    assert "p" == again.pull("pq")


def parent_beside_a_child_that_failed_and_went() -> tuple[World, str]:
    """Have the parent of ``c0`` and ``c1`` run, from the dead letters, while ``c0`` fails."""
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(2, maxAttempts=1, failParentOnFailure=True, removeOnFail=True))
    _, token = world.lease()
    world.ok("FAIL", id="c0", token=token, error="no")
    assert "failed" == world.state("p")
    world.ok("RetryDlq", queue="pq")
    return world, world.lease("pq")[1]


def test_a_parking_that_could_not_be_written_leaves_the_job_what_it_depended_on() -> None:
    world, token = parent_beside_a_child_that_failed_and_went()
    world.storage.fails = True
    world.error("MoveToWaitingChildren", id="p", token=token)
    world.storage.fails = False
    world.settle()

    assert ["c0", "c1"] == world.job("p")["dependsOn"]
    check_whole(world.engine, world.now, [])


def test_a_run_after_a_parking_that_could_not_be_written_is_in_the_file_as_in_memory() -> None:
    world, token = parent_beside_a_child_that_failed_and_went()
    complete(world, "c1")
    peer = world.connect()
    run = world.poll("pq", peer)
    world.storage.fails = True
    world.error("MoveToWaitingChildren", id="p", token=token)
    world.storage.fails = False
    world.settle()

    assert run.reply is not None
    assert "p" == run.reply["job"]["id"]
    assert ["c1"] == world.job("p")["dependsOn"] == world.restart().job("p")["dependsOn"]


def test_a_removal_from_a_completed_parent_that_could_not_be_written_leaves_no_trace() -> None:
    world = persistent_world()
    world.push("pq", jobId="p", childrenIds=["c"])
    world.push(jobId="c", parentId="p")
    complete(world, "p", "pq")
    world.storage.fails = True
    world.error("RemoveChildDependency", id="c")
    world.storage.fails = False
    world.settle()

    check_whole(world.engine, world.now, [])


def test_a_parking_that_could_not_be_written_never_was() -> None:
    world = persistent_world()
    token = running_parent(world)
    world.storage.fails = True
    assert INTERNAL == world.error("MoveToWaitingChildren", id="p", token=token)
    world.storage.fails = False
    world.settle()

    world.ok("ACK", id="p", token=token)


# -- results --------------------------------------------------------------------------------------


def test_only_children_that_left_a_result_are_listed(world: World) -> None:
    world.ok("PUSHF", jobs=tree(4, removeOnComplete=True))
    assert {} == values(world)
    for job_id, fields in (
        ("c0", {"result": {"r": 1}}),
        ("c1", {"result": None}),
        ("c2", {}),
    ):
        complete(world, job_id, **fields)

    assert {"c0": {"r": 1}, "q:c1": None} == values(world)
    assert {"r": 1} == world.ok("GetResult", id="c0")["result"]
    assert {} == values(world, "nobody")


def test_results_of_removed_children_go_with_the_last_consumer(world: World) -> None:
    world.push(jobId="c", removeOnComplete=True)
    for parent in ("p1", "p2"):
        world.push("pq", jobId=parent, dependsOn=["c"], childrenIds=["c"])
    complete(world, "c", result=9)
    complete(world, "p1", "pq")
    assert {"c": 9} == values(world, "p2")

    complete(world, "p2", "pq")

    assert {} == values(world, "p2")
    assert "result" not in world.ok("GetResult", id="c")


def test_results_of_removed_children_survive_a_restart() -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=tree(2, removeOnComplete=True))
    complete(world, "c0", result=1)

    again = world.restart()

    assert {"c0": 1} == values(again)
    complete(again, "c1", result=2)
    assert {"c0": 1, "q:c1": 2} == values(again.restart())


def test_completed_children_of_a_live_parent_are_not_cleaned(world: World) -> None:
    world.ok("PUSHF", jobs=tree(2))
    complete(world, "c0", result=1)
    world.push(jobId="free")
    world.pull_all()
    world.ok("ACK", id="free")

    cleaned = world.ok("Clean", queue="q", grace=0, state="completed")

    assert ["free"] == cleaned["ids"]
    assert {"q:c0": 1} == values(world)


# -- data that is the broker's --------------------------------------------------------------------


def test_update_keeps_the_keys_of_a_flow(world: World) -> None:
    world.ok("PUSHF", jobs=tree(1))
    world.ok("Update", id="p", data={"new": 1})
    world.ok("Update", id="c0", data={})

    assert {"new": 1, "__childrenIds": ["c0"]} == world.job("p")["data"]
    assert {"__parentId": "p", "__parentQueue": "pq"} == world.job("c0")["data"]


def test_update_refuses_what_would_break_a_flow(world: World) -> None:
    world.ok("PUSHF", jobs=tree(1))
    world.push(jobId="plain", data={"__foo": 1})

    assert "flow job data must be an object" == world.error("Update", id="p", data=5)
    reserved = world.error("Update", id="p", data={"__foo": 1})
    assert "flow job data key is reserved: __foo" == reserved
    world.ok("Update", id="plain", data={"__bar": 2})
    assert {"__bar": 2} == world.job("plain")["data"]


# -- many children --------------------------------------------------------------------------------


def test_children_linked_one_by_one_are_all_listed_in_order(world: World) -> None:
    ids = [f"c{number}" for number in range(300)]  # the list's header grows twice, at 16 and 256
    world.push("pq", jobId="p", data={"k": 1, "__childrenIds": [], "z": 2})
    for job_id in ids:
        data = {"__parentId": "p", "__parentQueue": "pq"}
        world.push(jobId=job_id, parentId="p", data=data)

    job = world.job("p")
    assert (ids, ids) == (job["dependsOn"], job["childrenIds"])
    assert {"k": 1, "z": 2, "__childrenIds": ids} == job["data"]


def test_an_update_between_two_links_is_kept(world: World) -> None:
    world.push("pq", jobId="p", data={"k": 1})
    link_child(world, "a")
    world.ok("Update", id="p", data={"k": 2})
    link_child(world, "b")

    assert {"k": 2, "__childrenIds": ["a", "b"]} == world.job("p")["data"]


def link_child(world: World, job_id: str) -> None:
    data = {"__parentId": "p", "__parentQueue": "pq"}
    world.push(jobId=job_id, parentId="p", data=data)


def test_a_further_link_that_cannot_be_written_leaves_those_before_it() -> None:
    world = persistent_world()
    world.push("pq", jobId="p", data={})
    link_child(world, "a")
    world.storage.fails = True
    data = {"__parentId": "p", "__parentQueue": "pq"}
    world.error("PUSH", queue="q", jobId="b", parentId="p", data=data)
    world.storage.fails = False
    link_child(world, "c")

    job = world.job("p")
    assert (["a", "c"], {"__childrenIds": ["a", "c"]}) == (job["dependsOn"], job["data"])
    assert ["a", "c"] == world.restart().job("p")["dependsOn"]
    for job_id in ("a", "c"):
        assert job_id == world.pull()
        world.ok("ACK", id=job_id)
    assert "p" == world.pull("pq")


POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


def peak_bytes(action: Callable[[], object]) -> int:
    """Return how much an action allocates at most: what copies a long list shows here."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_failure_of_a_child_costs_the_same_however_many_there_are(policy: str) -> None:
    def cost(count: int) -> int:
        world = World()
        ids = [f"c{number}" for number in range(count)]
        options = {"maxAttempts": 1, policy: True}
        jobs = [*(flow_child(job_id, **options) for job_id in ids), flow_parent(ids)]
        answer = world.send("PUSHF", jobs=jobs)
        while not answer.is_there:
            world.forward(1)
        for _ in range(9):
            world.pull()
        for number in range(8):  # the first ends the waiting under two of the policies
            world.ok("FAIL", id=f"c{number}", error="no")
        return peak_bytes(lambda: world.send("FAIL", id="c8", error="no"))

    assert cost(2_000) <= 2 * cost(20)
