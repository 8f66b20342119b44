"""Jobs that wait for others (engine.md 5.1 to 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue.engine.dependencies import SETTLED_PER_SLICE
from bunqueue.engine.settings import EngineSettings
from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import ScriptedStorage, World, persistent_world
from tests.support.flows import flow_child, flow_parent
from tests.support.whole import check_whole

MINUTE = 60_000


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStorage() if request.param == "memory" else ScriptedStorage())


def finish(world: World, job_id: str, queue: str = "q", **fields: Any) -> None:
    """Pull the job, which must be the next one, and complete it."""
    assert job_id == world.pull(queue)
    world.ok("ACK", id=job_id, **fields)


# -- admission ------------------------------------------------------------------------------------


def test_a_job_waits_until_what_it_depends_on_has_completed(world: World) -> None:
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])

    assert "waiting-children" == world.state("second")
    assert world.pull("b") is None
    assert {"waiting-children": 1} == world.counts("b")

    finish(world, "first", "a")

    assert "waiting" == world.state("second")
    assert "second" == world.pull("b")


def test_a_dependency_must_exist(world: World) -> None:
    assert "Dependency job not found: x" == world.error("PUSH", queue="q", dependsOn=["x"])
    assert "Dependency job not found: me" == world.error(
        "PUSH", queue="q", jobId="me", dependsOn=["me"]
    )
    assert {} == world.counts()


def test_a_dependency_that_has_completed_does_not_hold_anything_up(world: World) -> None:
    world.push(jobId="a")
    finish(world, "a")

    world.push(jobId="b", dependsOn=["a"])

    assert "waiting" == world.state("b")
    assert ["a"] == world.job("b")["dependsOn"]


def test_a_dependency_on_a_failed_job_is_taken_and_waits(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    world.ok("FAIL", id="a", unrecoverable=True)
    world.push(jobId="b", dependsOn=["a"])

    assert "waiting-children" == world.state("b")

    world.ok("RetryDlq", queue="q")
    finish(world, "a")
    assert "waiting" == world.state("b")


def test_a_batch_may_name_its_own_jobs_in_any_order(world: World) -> None:
    jobs = [
        {"customId": "last", "dependsOn": ["middle", "first"]},
        {"customId": "middle", "dependsOn": ["first"]},
        {"customId": "first"},
    ]

    assert ["last", "middle", "first"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    for job_id in ("first", "middle", "last"):
        finish(world, job_id)


def test_a_batch_that_renews_an_id_waits_for_the_new_job(world: World) -> None:
    world.push(jobId="a")
    finish(world, "a")

    world.ok("PUSHB", queue="q", jobs=[{"customId": "b", "dependsOn": ["a"]}, {"customId": "a"}])

    assert "waiting-children" == world.state("b")
    finish(world, "a")
    assert "waiting" == world.state("b")


def test_a_batch_waits_for_the_twin_that_answers_for_one_of_its_jobs(world: World) -> None:
    # The reference keeps c and d waiting for ever, for a job that never was.
    world.push(jobId="x", uniqueKey="k")
    jobs = [
        {"customId": "c", "dependsOn": ["b"]},
        {"customId": "b", "uniqueKey": "k"},
        {"customId": "d", "dependsOn": ["b"]},
    ]

    assert ["c", "x", "d"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    assert [["x"], ["x"]] == [world.job(job_id)["dependsOn"] for job_id in "cd"]
    assert "x" == world.pull()
    assert {"waiting-children": 2, "active": 1} == world.counts()
    world.ok("ACK", id="x")
    assert ["c", "d"] == world.pull_all()


def test_a_batch_waits_for_a_twin_inside_it(world: World) -> None:
    jobs = [
        {"customId": "c", "dependsOn": ["b"]},
        {"customId": "a", "uniqueKey": "k"},
        {"customId": "b", "uniqueKey": "k"},
    ]

    assert ["c", "a", "a"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    assert "a" == world.pull()
    world.ok("ACK", id="a")
    assert "c" == world.pull()


def test_a_job_that_is_the_twin_of_its_own_dependency_waits_for_nothing(world: World) -> None:
    jobs = [
        {"customId": "c", "uniqueKey": "k", "dependsOn": ["b"]},
        {"customId": "b", "uniqueKey": "k"},
    ]

    assert ["c", "c"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    assert [] == world.job("c")["dependsOn"]
    world.forward(1)  # that it waits for nobody is committed after it
    world.settle()
    assert "c" == world.pull()


def test_what_a_batch_waits_for_survives_a_restart() -> None:
    world = persistent_world()
    world.push(jobId="x", uniqueKey="k")
    jobs = [{"customId": "c", "dependsOn": ["b"]}, {"customId": "b", "uniqueKey": "k"}]
    world.ok("PUSHB", queue="q", jobs=jobs)
    world.settle()
    world = world.restart()

    assert "x" == world.pull()
    world.ok("ACK", id="x")
    assert "c" == world.pull()


def test_a_batch_with_a_bad_dependency_is_refused_as_a_whole(world: World) -> None:
    for bad, text in (
        ({"dependsOn": ["x"]}, "jobs[1]: Dependency job not found: x"),
        ({"customId": "b", "dependsOn": ["b"]}, "jobs[1]: Job cannot depend on itself: b"),
    ):
        assert text == world.error("PUSHB", queue="q", jobs=[{"customId": "a"}, bad])
        assert {} == world.counts()


def test_of_several_problems_in_a_batch_the_same_is_told_as_by_2_9_5(world: World) -> None:
    world.push(groupId="g")
    full = {"groupId": "g", "groupMaxSize": 1}
    orphan = {"parentId": "x", "data": {"__parentId": "x", "__parentQueue": "q"}}
    bad_repeat = {"repeat": {"every": -1}}
    bad_edge = {"dependsOn": ["y"]}
    jobs = [full, orphan, bad_repeat, bad_edge]

    for text in (
        "jobs[3]: Dependency job not found: y",
        "repeat.every must be a positive finite number",
        "Parent job not found: x",
        "Group g has reached its maximum size of 1",
    ):
        assert text == world.error("PUSHB", queue="q", jobs=jobs)
        jobs.pop()
    assert {"waiting": 1} == world.counts()


def test_a_delay_counts_from_the_creation(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="late", dependsOn=["a"], delay=MINUTE)
    world.push(jobId="due", dependsOn=["a"], delay=10, priority=3)
    world.forward(1000)
    finish(world, "a")

    assert ["delayed", "prioritized"] == [world.state("late"), world.state("due")]
    finish(world, "due")
    world.forward(MINUTE - 1000)
    assert "late" == world.pull()


def test_a_waiting_poll_is_served_by_a_completion_elsewhere(world: World) -> None:
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    poll = world.poll("b")
    finish(world, "first", "a")
    world.settle()

    assert poll.reply is not None
    assert "second" == poll.reply["job"]["id"]


def test_a_grouped_job_is_released_into_its_group(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="b", dependsOn=["a"], groupId="g")
    assert 0 == world.engine.group_count("q", "g")

    finish(world, "a")

    assert 1 == world.engine.group_count("q", "g")
    assert "b" == world.pull()


def test_many_consumers_are_released_in_slices(world: World) -> None:
    world.push(jobId="a")
    count = SETTLED_PER_SLICE + 10
    world.ok("PUSHB", queue="b", jobs=[{"dependsOn": ["a"]}] * count)
    finish(world, "a")
    assert SETTLED_PER_SLICE == world.counts("b")["waiting"]

    world.forward(5)

    assert {"waiting": count} == world.counts("b")


def test_an_id_is_not_replaced_while_live_jobs_depend_on_its_owner(world: World) -> None:
    world.push(jobId="a", uniqueKey="k")
    world.push(jobId="b", dependsOn=["a"])
    text = "Cannot replace deduplicated job a because live jobs depend on it"
    twin = {"uniqueKey": "k", "dedup": {"replace": True}}

    assert text == world.error("PUSH", queue="q", **twin)
    assert text == world.error("PUSHB", queue="q", jobs=[twin])

    world.ok("Cancel", id="b")
    assert "a" != world.push(**twin)


def test_a_dependency_on_an_uncommitted_job_is_admitted_with_it() -> None:
    world = persistent_world()
    first = world.send("PUSH", queue="q", jobId="a", durable=True)
    second = world.send("PUSH", queue="q", jobId="b", dependsOn=["a"])
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    assert [False, False] == [answer.reply["ok"] for answer in (first, second)]
    assert {} == world.counts()
    assert {} == world.engine.graph.consumers


# -- orphans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["Cancel", "Drain", "Obliterate"])
def test_a_job_whose_dependency_is_removed_stays_until_it_comes_back(
    world: World, command: str
) -> None:
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    world.ok(command, **({"id": "first"} if command == "Cancel" else {"queue": "a"}))
    world.forward(120 * MINUTE)
    assert "waiting-children" == world.state("second")

    world.push("a", jobId="first")
    finish(world, "first", "a")

    assert "waiting" == world.state("second")


def test_a_job_whose_dependency_is_removed_fails_if_it_is_set_so() -> None:
    world = World(settings=EngineSettings(orphaned_dependency="fail"))
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    world.ok("Cancel", id="first")
    world.forward(1)

    assert "failed" == world.state("second")
    assert "unknown" == world.entry("b")["reason"]
    assert "Dependency job first was removed" == world.entry("b")["error"]


# -- proofs ---------------------------------------------------------------------------------------


def test_what_was_removed_on_completion_still_counts_as_completed(world: World) -> None:
    world.push(jobId="a", removeOnComplete=True)
    finish(world, "a")
    assert "unknown" == world.state("a")

    world.push(jobId="b", dependsOn=["a"])

    assert "waiting" == world.state("b")


def test_an_id_with_unresolved_consumers_is_not_used_again(world: World) -> None:
    world.push(jobId="a", removeOnComplete=True)
    world.push(jobId="other")
    world.push(jobId="b", dependsOn=["a", "other"])
    finish(world, "a")

    text = "Custom ID a still has unresolved dependency consumers"
    assert text == world.error("PUSH", queue="q", jobId="a")
    assert text == world.error("PUSHB", queue="q", jobs=[{"customId": "a"}])

    finish(world, "other")
    assert "a" == world.push(jobId="a")
    world.push(jobId="c", dependsOn=["a"])
    assert "waiting-children" == world.state("c")


def test_a_dependency_once_met_stays_met_when_its_id_is_used_again() -> None:
    world = persistent_world()
    world.push(jobId="a")
    world.push(jobId="other")
    world.push(jobId="b", dependsOn=["a", "other"])
    finish(world, "a")
    world.push(jobId="a")

    again = world.restart()

    finish(again, "other")
    assert "waiting" == again.state("b")


def test_a_dependency_once_met_stays_met_when_it_runs_again(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="other")
    world.push(jobId="b", dependsOn=["a", "other"])
    finish(world, "a")
    world.forward(1)
    world.ok("RetryCompleted", queue="q", id="a")
    finish(world, "other")

    assert "waiting" == world.state("b")


def test_unneeded_proofs_are_kept_newest_first_up_to_the_limit() -> None:
    world = World(ScriptedStorage(), settings=EngineSettings(max_completed_jobs=20))
    for number in range(30):
        world.push(jobId=f"j{number}", removeOnComplete=True)
        finish(world, f"j{number}")

    proofs = world.engine.graph.proofs
    assert len(proofs) <= 20
    assert "j29" in proofs
    assert "j0" not in proofs
    assert set(world.storage.tables["proofs"]) == set(proofs.free)


def test_proofs_that_are_needed_outlive_the_limit() -> None:
    world = World(ScriptedStorage(), settings=EngineSettings(max_completed_jobs=2))
    world.push(jobId="needed", removeOnComplete=True)
    world.push("other", jobId="other")
    world.push("b", jobId="b", dependsOn=["needed", "other"])
    finish(world, "needed")
    for number in range(10):
        world.push(jobId=f"j{number}", removeOnComplete=True)
        finish(world, f"j{number}")

    again = world.restart()

    finish(again, "other", "other")
    assert "b" == again.pull("b")


def test_a_completed_job_that_is_needed_may_go_but_stays_proved() -> None:
    world = World(ScriptedStorage(), settings=EngineSettings(max_completed_jobs=2))
    world.push(jobId="needed")
    world.push("other", jobId="other")
    world.push("b", jobId="b", dependsOn=["needed", "other"], childrenIds=["needed"])
    finish(world, "needed", result=7)
    for number in range(5):
        world.push(jobId=f"j{number}")
        finish(world, f"j{number}")
        world.forward(10)
    assert "unknown" == world.state("needed")

    again = world.restart()

    finish(again, "other", "other")
    assert "b" == again.pull("b")
    assert {"needed": 7} == again.ok("GetChildrenValues", id="b")["data"]["values"]


# -- failing commits ------------------------------------------------------------------------------


def test_nobody_starts_on_the_strength_of_a_completion_that_is_not_on_disk() -> None:
    world = persistent_world()
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    world.pull("a")
    poll = world.poll("b")
    world.settle()
    ack = world.send("ACK", id="first")

    assert "waiting-children" == world.engine.state("second", world.now)
    assert not poll.is_there

    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    assert ack.reply["ok"] is False
    assert ["active", "waiting-children"] == [world.state("first"), world.state("second")]
    assert not poll.is_there

    world.ok("ACK", id="first")
    world.settle()
    assert "second" == poll.reply["job"]["id"]


def test_a_failed_completion_leaves_no_proof() -> None:
    world = persistent_world()
    world.push(jobId="a", removeOnComplete=True)
    world.pull()
    world.storage.fails = True
    world.error("ACK", id="a")
    world.storage.fails = False

    assert 0 == len(world.engine.graph.proofs)
    world.push(jobId="b", dependsOn=["a"])
    assert "waiting-children" == world.state("b")
    assert {} == world.storage.tables.get("proofs", {})


@pytest.mark.parametrize("command", ["Cancel", "Obliterate"])
def test_a_failed_removal_brings_the_edges_back(command: str) -> None:
    world = persistent_world()
    world.push("a", jobId="first", removeOnComplete=True)
    world.push("a", jobId="other")
    world.push("b", jobId="second", dependsOn=["first", "other"], childrenIds=["first"])
    finish(world, "first", "a", result=1)
    world.storage.fails = True
    world.error(command, **({"id": "second"} if command == "Cancel" else {"queue": "b"}))
    world.storage.fails = False
    world.settle()

    assert "waiting-children" == world.state("second")
    assert {"first": 1} == world.ok("GetChildrenValues", id="second")["data"]["values"]
    finish(world, "other", "a")
    assert "second" == world.pull("b")


def test_a_failed_acknowledgement_of_a_parent_keeps_its_childrens_results() -> None:
    world = persistent_world()
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("b", jobId="p", dependsOn=["c"], childrenIds=["c"])
    finish(world, "c", "a", result=5)
    world.pull("b")
    world.storage.fails = True
    world.error("ACK", id="p")
    world.storage.fails = False
    world.settle()

    values = {"c": 5}
    assert values == world.ok("GetChildrenValues", id="p")["data"]["values"]
    assert values == world.restart().ok("GetChildrenValues", id="p")["data"]["values"]
    world.ok("ACK", id="p")
    assert {} == world.ok("GetChildrenValues", id="p")["data"]["values"]
    assert (None,) == world.storage.tables["proofs"]["c"][2:]


# -- restarts -------------------------------------------------------------------------------------


def test_who_waits_goes_on_waiting_after_a_restart() -> None:
    world = persistent_world()
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    again = world.restart()
    assert "waiting-children" == again.state("second")

    finish(again, "first", "a")

    assert "second" == again.pull("b")


def test_a_released_job_is_never_parked_again() -> None:
    world = World(ScriptedStorage(), settings=EngineSettings(max_completed_jobs=1))
    world.push("a", jobId="first", removeOnComplete=True)
    world.push("b", jobId="second", dependsOn=["first"])
    finish(world, "first", "a")
    for table in world.storage.tables.values():
        table.clear()  # not even the proof is left

    again = world.restart()

    assert "waiting" == again.state("second")
    assert "waiting" == again.restart().state("second")


def test_a_job_whose_dependencies_were_met_while_it_was_not_released_goes_at_the_start() -> None:
    world = persistent_world()
    world.push("a", jobId="first")
    world.push("b", jobId="second", dependsOn=["first"])
    finish(world, "first", "a")
    world.storage.rows["second"].place = "parked"  # as if the broker had died in between

    again = world.restart()

    assert "queued" == again.storage.rows["second"].place
    assert "second" == again.pull("b")


# -- arbitrary graphs -----------------------------------------------------------------------------

dags = st.integers(1, 14).flatmap(
    lambda size: st.tuples(
        *(
            st.lists(st.integers(0, number - 1), max_size=4, unique=True) if number else st.just([])
            for number in range(size)
        )
    )
)


@settings(max_examples=60, deadline=None)
@given(
    dags, st.randoms(use_true_random=False), st.lists(st.booleans(), min_size=14, max_size=14),
    st.booleans(), st.integers(0, 14),
)  # fmt: skip
def test_every_job_runs_once_after_its_dependencies_and_all_complete(
    dag: tuple[list[int], ...], random: Any, removes: list[bool], is_flow: bool, crash_at: int
) -> None:
    world = persistent_world()
    jobs = [
        {
            "customId": f"j{number}",
            "dependsOn": [f"j{other}" for other in others],
            "removeOnComplete": removes[number],
        }
        for number, others in enumerate(dag)
    ]
    random.shuffle(jobs)
    if is_flow:
        flow = [
            {
                "id": job["customId"],
                "queue": f"q{random.randint(0, 2)}",
                "input": job | {"data": {}},
            }
            for job in jobs
        ]
        world.ok("PUSHF", jobs=flow)
    else:
        world.ok("PUSHB", queue="q0", jobs=jobs)
    done: set[str] = set()
    active: list[str] = []
    while len(done) < len(dag):
        if len(done) == crash_at:
            crash_at = -1
            active.clear()
            world = world.restart()
            world.forward(MINUTE)
        for queue in ("q0", "q1", "q2"):
            while (job_id := world.pull(queue)) is not None:
                assert all(f"j{other}" in done for other in dag[int(job_id[1:])])
                assert job_id not in done
                active.append(job_id)
        assert active, "somebody waits for ever"
        job_id = active.pop(random.randrange(len(active)))
        world.ok("ACK", id=job_id)
        done.add(job_id)
    for number, is_removed in enumerate(removes[: len(dag)]):
        assert ("unknown" if is_removed else "completed") == world.state(f"j{number}")
    assert {} == world.engine.graph.consumers
    assert {} == world.engine.graph.proofs.pinned


def test_a_batch_may_depend_on_an_id_that_it_uses_again(world: World) -> None:
    world.push(jobId="c", removeOnComplete=True)
    world.pull()
    world.ok("ACK", id="c")

    ids = world.ok("PUSHB", queue="q", jobs=[{"dependsOn": ["c"]}, {"customId": "c"}])["ids"]

    assert "waiting-children" == world.state(ids[0])
    assert "waiting" == world.state("c")


def test_a_job_leaves_no_edge_behind_to_an_id_that_was_used_again(world: World) -> None:
    world.push(jobId="a")
    world.push(jobId="b", dependsOn=["a"])
    world.pull()
    world.ok("ACK", id="a")
    world.push(jobId="a")

    assert {} == world.engine.graph.consumers


# -- found by tests/simulation --------------------------------------------------------------------


def test_a_completed_job_that_runs_again_refers_to_its_children_again() -> None:
    world = persistent_world()
    world.push("a", jobId="c")
    world.push("b", jobId="p", childrenIds=["c"])
    finish(world, "p", "b")

    world.ok("RetryCompleted", queue="b")

    check_whole(world.engine, world.now, [world.peer])
    assert "p" == world.pull("b")
    finish(world, "c", "a", result=1, removeOnComplete=True)
    assert {"c": 1} == world.ok("GetChildrenValues", id="p")["data"]["values"]


def test_a_rerun_whose_commit_fails_leaves_the_edges_of_a_completed_job() -> None:
    world = persistent_world()
    world.push("b", jobId="p", childrenIds=["c"])
    finish(world, "p", "b")
    world = world.restart()
    world.storage.fails = True
    world.error("RetryCompleted", queue="b")
    world.storage.fails = False

    check_whole(world.engine, world.now, [world.peer])


@pytest.mark.parametrize("remove", [True, False])
def test_a_push_that_relies_on_a_completion_is_undone_with_it(remove: bool) -> None:
    world = persistent_world()
    world.push(jobId="a", removeOnComplete=remove)
    world.pull()
    acked = world.send("ACK", id="a")
    pushed = world.send("PUSH", queue="q", jobId="b", dependsOn=["a"])
    assert pushed.reply is None
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    assert [False, False] == [answer.reply["ok"] for answer in (acked, pushed) if answer.reply]
    world.push(jobId="b", dependsOn=["a"])
    assert "waiting-children" == world.state("b")


@pytest.mark.parametrize("command", ["RetryCompleted", "PUSH"])
def test_an_edge_that_was_met_is_back_when_the_completion_is_undone(command: str) -> None:
    world = persistent_world()
    world.push("a", jobId="a")
    world.push("a", jobId="other")
    world.push("b", jobId="b", dependsOn=["a", "other"])
    world.pull("a")
    world.send("ACK", id="a")
    world.send(command, queue="a", **({"jobId": "a"} if command == "PUSH" else {}))
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    check_whole(world.engine, world.now, [world.peer])
    finish(world, "other", "a")
    assert "waiting-children" == world.state("b")
    world.ok("ACK", id="a")
    assert "b" == world.pull("b")


def test_a_completed_job_whose_removal_fails_leaves_no_proof() -> None:
    world = persistent_world()
    world.push("a", jobId="c")
    world.push("b", jobId="p", childrenIds=["c"])
    finish(world, "c", "a")
    world.storage.fails = True
    world.error("Obliterate", queue="a")
    world.storage.fails = False
    world.settle()

    assert "completed" == world.state("c")
    assert 0 == len(world.engine.graph.proofs)
    assert {} == world.storage.tables.get("proofs", {})


def test_an_edge_met_by_a_job_that_was_removed_stays_met_when_its_id_is_used_again() -> None:
    world = persistent_world()
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("b", jobId="p", dependsOn=["c"])
    finish(world, "c", "a")
    world.forward(1)
    assert "waiting" == world.state("p")
    world.push("a", jobId="c")
    link = {"parentId": "p", "data": {"__parentId": "p", "__parentQueue": "b"}}
    world.push("a", jobId="other", **link)  # parks the parent again

    again = world.restart()

    again.ok("Cancel", id="c")
    finish(again, "other", "a")
    again.forward(1)
    assert "waiting" == again.state("p")


def test_a_push_whose_id_met_an_edge_is_undone_with_it() -> None:
    world = persistent_world()
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("b", jobId="p", dependsOn=["c"])
    finish(world, "c", "a")
    world.forward(1)
    world.storage.fails = True
    world.error("PUSH", queue="a", jobId="c")
    world.storage.fails = False
    world.settle()

    check_whole(world.engine, world.now, [world.peer])
    assert ["c"] == list(world.engine.graph.proofs.pinned)
    assert "p" == world.pull("b")


# -- what happens while a parent is away, until the removal that took it away is undone ------------


def away(world: World, then: Callable[[], object], parent: str = "p") -> None:
    """Remove the parent, do more, and have the commit of all that fail."""
    answer = world.send("Cancel", id=parent)
    then()
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(1)
    assert answer.reply == {"ok": False, "error": "Internal server error"}
    check_whole(world.engine, world.now, [world.peer])


def test_an_edge_stays_met_if_its_id_is_used_again_while_the_parent_is_away() -> None:
    world = persistent_world()
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("a", jobId="other")
    world.push("b", jobId="p", dependsOn=["c", "other"])
    finish(world, "c", "a")
    away(world, lambda: world.send("PUSH", queue="a", jobId="c"))

    again = world.restart()

    finish(again, "other", "a")
    assert "waiting" == again.state("c")
    assert "p" == again.pull("b")


def test_an_edge_is_open_again_if_its_completion_is_undone_too() -> None:
    world = persistent_world()
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("b", jobId="p", dependsOn=["c"])
    world.pull("a")
    world.send("ACK", id="c")
    away(world, lambda: world.send("PUSH", queue="a", jobId="c"))

    for asked in (world, world.restart()):
        assert "waiting-children" == asked.state("p")
    finish(world, "c", "a")
    assert "p" == world.pull("b")


def test_an_edge_stays_met_if_its_proof_ages_while_the_parent_is_away() -> None:
    world = persistent_world(EngineSettings(max_completed_jobs=0))
    world.push("a", jobId="c", removeOnComplete=True)
    world.push("a", jobId="other")
    world.push("b", jobId="p", dependsOn=["c", "other"], childrenIds=["c"])
    finish(world, "c", "a", result=1)
    away(world, lambda: None)

    again = world.restart()

    assert {"c": 1} == again.ok("GetChildrenValues", id="p")["data"]["values"]
    finish(again, "other", "a")
    assert "p" == again.pull("b")


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize(
    ("policy", "state"),
    [("failParentOnFailure", "failed"), ("ignoreDependencyOnFailure", "waiting")],
)
def test_a_child_that_times_out_while_its_parent_is_away_is_told_to_it(
    policy: str, state: str, is_kept: bool
) -> None:
    world = persistent_world()
    options = {policy: True, "maxAttempts": 1, "timeout": 10, "removeOnFail": not is_kept}
    jobs = [flow_parent(["c"]), flow_child("c", **options)]
    world.ok("PUSHF", jobs=jobs)
    world.pull("q")

    def time_out() -> None:
        world.clock.ms += 20
        world.engine.tick(world.now)
        world.storage.answer_waits = 0

    away(world, time_out)

    assert ("failed" if is_kept else "unknown") == world.state("c")
    assert [state, state] == [asked.state("p") for asked in (world, world.restart())]


def test_a_child_that_runs_on_since_an_undo_has_not_failed_its_parent_meanwhile() -> None:
    world = persistent_world()
    child = flow_child("c", failParentOnFailure=True, maxAttempts=1)
    world.ok("PUSHF", jobs=[flow_parent(["c"]), child])
    _, token = world.lease("q", lockTtl=1_000)
    world.send("Progress", id="c", progress=5)

    def expire() -> None:
        world.clock.ms += 1_500
        world.engine.tick(world.now)
        world.storage.answer_waits = 0
        assert "failed" == world.engine.state("c", world.now)

    away(world, expire)

    assert ["active", "waiting-children"] == [world.state("c"), world.state("p")]
    world.ok("ACK", id="c", token=token)
    assert "p" == world.pull("pq")


def test_a_parent_that_waits_for_another_chance_of_a_child_does_so_when_it_comes_back() -> None:
    world = persistent_world()
    child = flow_child("c", failParentOnFailure=True, maxAttempts=1)
    world.ok("PUSHF", jobs=[flow_parent(["c"]), child])
    world.pull("q")
    world.ok("FAIL", id="c")
    world.ok("RetryDlq", queue="pq", jobId="p")
    world.pull("pq")
    world.ok("MoveToWaitingChildren", id="p")
    assert "waiting-children" == world.state("p")

    away(world, lambda: None)

    assert "waiting-children" == world.state("p")


def test_a_parent_that_comes_back_fails_if_what_it_waits_for_has_gone_and_orphans_are_to() -> None:
    world = persistent_world(EngineSettings(orphaned_dependency="fail"))
    world.push("a", jobId="c", ttl=10)
    world.push("b", jobId="p", dependsOn=["c"])

    def expire() -> None:
        world.clock.ms += 20
        world.engine.tick(world.now)
        world.storage.answer_waits = 0

    away(world, expire)

    assert "unknown" == world.state("c")
    assert "failed" == world.state("p")


def test_a_child_that_was_handed_out_while_it_was_to_be_detached_is_still_a_child() -> None:
    world = persistent_world()
    child = flow_child("c", failParentOnFailure=True, maxAttempts=1)
    world.ok("PUSHF", jobs=[flow_parent(["c"]), child])
    before = world.job("c")["data"]
    detached = world.send("RemoveChildDependency", id="c")
    pulled = world.send("PULL", queue="q")
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    assert detached.reply is not None
    assert detached.reply["ok"] is False
    assert pulled.reply is not None
    assert "c" == pulled.reply["job"]["id"]
    assert ("p", before) == (world.job("c")["parentId"], world.job("c")["data"])
    again = world.restart()
    assert ("p", before) == (again.job("c")["parentId"], again.job("c")["data"])
    world.ok("FAIL", id="c")
    assert "failed" == world.state("p")


def test_an_edge_met_by_a_job_that_runs_again_stays_met_if_that_run_outlives_an_undo() -> None:
    world = persistent_world()
    world.push("a", jobId="c")
    world.push("a", jobId="other")
    world.push("b", jobId="p", dependsOn=["c", "other"])
    finish(world, "c", "a")
    rerun = world.send("RetryCompleted", queue="a", id="c")
    pulled = world.send("PULLB", queue="a", count=2)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    assert rerun.reply is not None
    assert rerun.reply["ok"] is False
    assert pulled.reply is not None
    assert {"c", "other"} == {job["id"] for job in pulled.reply["jobs"]}
    check_whole(world.engine, world.now, [world.peer])
    again = world.restart()
    world.ok("ACK", id="other")
    assert "p" == world.pull("b")
    again.forward(MINUTE)
    while (job_id := again.pull("a")) != "other":
        assert job_id == "c"
    again.ok("ACK", id="other")
    assert "p" == again.pull("b")


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_who_waits_for_a_rerun_that_is_undone_is_let_go(failures: int) -> None:
    """Also where the commit that lets it go fails, as many do while a disk is full."""
    world = persistent_world()
    world.push("a", jobId="c")
    finish(world, "c", "a")
    rerun = world.send("RetryCompleted", queue="a", id="c")
    world.send("PUSH", queue="b", jobId="p", dependsOn=["c"])
    world.storage.fails = True
    for _ in range(failures):
        world.settle()
        world.engine.tick(world.now)
    world.storage.fails = False
    world.forward(1_000)

    assert rerun.reply is not None
    assert rerun.reply["ok"] is False
    assert "completed" == world.state("c")
    assert "p" == world.pull("b")
    check_whole(world.engine, world.now, [world.peer])
