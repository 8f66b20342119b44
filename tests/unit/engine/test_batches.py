"""Batches are added whole or not at all, beside others and when commits fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine.flow_admission import FlowJob
from bunqueue.engine.large_batches import ADMITTED_PER_STEP
from bunqueue.protocol.codec import pack
from bunqueue.protocol.options import DEFAULT_OPTIONS, shared_options
from tests.support.engine import World, persistent_world


def entries(count: int) -> list[Any]:
    """Return as many entries with ids of their own."""
    owns = [{"customId": f"c{number}", "durable": True} for number in range(count)]
    return [("a", pack(None), shared_options(own), own) for own in owns]


def ended(work: Any, world: World, other: Any, patience: int) -> Any:
    """Drive a work to its end; ``other`` goes on only once the work has been waiting for long."""
    for turn in range(1_000):
        try:
            work.send(world.now)
        except StopIteration as end:
            return end.value
        world.settle()
        if turn > patience:
            with contextlib.suppress(StopIteration):
                other.send(world.now)
    raise AssertionError("no answer")


def test_a_batch_is_not_answered_before_another_with_its_ids_is_written() -> None:
    world = persistent_world()
    first = world.engine.push_many("q", entries(2_000), world.now)
    second = world.engine.push_many("q", entries(1_000), world.now)
    next(first)
    next(second)
    for _ in range(1_000 // ADMITTED_PER_STEP + 1):
        first.send(world.now)
    ids = ended(second, world, first, 100)
    world.settle()
    assert set(ids) <= world.storage.rows.keys()


EXTEND = {"ttl": 60_000, "extend": True}


@pytest.mark.parametrize("make", [World, persistent_world])
@pytest.mark.parametrize("is_polled", [False, True])
def test_a_batch_with_a_key_twice_is_taken_or_refused_as_a_whole(
    make: Callable[[], World], is_polled: bool
) -> None:
    world = make()
    world.push("r", jobId="dep")
    first: dict[str, Any] = {"name": "a", "uniqueKey": "k", "dedup": EXTEND}
    if is_polled:
        world.poll()
    else:
        first["dependsOn"] = ["dep"]
    reply = world.go("PUSHB", queue="q", jobs=[first, {**first, "dependsOn": []}])
    assert reply["ok"] == bool(world.counts())


@pytest.mark.parametrize("make", [World, persistent_world])
@pytest.mark.parametrize("own", [{"customId": "x"}, {"uniqueKey": "k"}])
def test_twins_take_no_room_in_a_group(make: Callable[[], World], own: dict[str, str]) -> None:
    world = make()
    job: dict[str, Any] = {"name": "a", "groupId": "g", "groupMaxSize": 1, **own}
    for _ in range(2):
        assert len(set(world.ok("PUSHB", queue="q", jobs=[job, job])["ids"])) == 1


@pytest.mark.parametrize("make", [World, persistent_world])
def test_a_full_group_refuses_the_whole_batch_of_one_that_takes_a_running_jobs_key(
    make: Callable[[], World],
) -> None:
    world = make()
    world.push(uniqueKey="k")
    world.pull()
    world.push(groupId="g")
    before = world.counts()
    job: dict[str, Any] = {
        "uniqueKey": "k",
        "dedup": {"replace": True},
        "groupId": "g",
        "groupMaxSize": 1,
    }
    world.error("PUSHB", queue="q", jobs=[{"priority": 1}, job])
    assert before == world.counts()


REPLACES: dict[str, Any] = {"uniqueKey": "k", "dedup": {"replace": True}}
LINKED: dict[str, Any] = {"parentId": "p", "data": {"__parentId": "p", "__parentQueue": "q"}}


@pytest.mark.parametrize("make", [World, persistent_world])
@pytest.mark.parametrize("jobs", [
    [{"customId": "a", "uniqueKey": "k"}, {"childrenIds": ["a"]}, REPLACES],
    [{"customId": "a", "uniqueKey": "k"}, {"dependsOn": ["a"]}, REPLACES],
    [{"customId": "a", "uniqueKey": "k", **LINKED}, REPLACES],
    [{"uniqueKey": "k", **LINKED}, REPLACES],
    [{"customId": "a", "uniqueKey": "l"}, {"customId": "b", "uniqueKey": "l"},
     {"dependsOn": ["b"]}, {**REPLACES, "uniqueKey": "l"}],
    [{"customId": "a", "uniqueKey": "l"}, {"dependsOn": ["b"]},
     {"customId": "b", "uniqueKey": "l"}, {**REPLACES, "uniqueKey": "l"}],
    [{"dependsOn": ["b"]}, {"customId": "b", "uniqueKey": "o"}, {**REPLACES, "uniqueKey": "o"}],
])  # fmt: skip
def test_a_batch_that_would_replace_what_others_of_it_wait_for_is_refused_as_a_whole(
    make: Callable[[], World], jobs: list[dict[str, Any]]
) -> None:
    world = make()
    world.push(jobId="p", uniqueKey="o")

    error = world.error("PUSHB", queue="q", jobs=[{"priority": 1}, *jobs])

    assert "because live jobs depend on it" in error
    assert {"waiting": 1} == world.counts()
    assert ["p"] == world.pull_all()


@pytest.mark.parametrize("make", [World, persistent_world])
@pytest.mark.parametrize("others", [0, 3_000])
@pytest.mark.parametrize("jobs", [
    [{"customId": "a", "uniqueKey": "k"}, REPLACES],
    [{**REPLACES, "uniqueKey": "o"}, {"dependsOn": ["p"], "uniqueKey": "g"}],
    [{**REPLACES, "uniqueKey": "o"}, {"customId": "p", "groupId": "g", "groupMaxSize": 1}],
    [{"customId": "p", "priority": 2}, {**REPLACES, "uniqueKey": "o"},
     {"customId": "p", "groupId": "g", "groupMaxSize": 1}],
    [{"customId": "b", "uniqueKey": "k", **LINKED}, REPLACES],
    [{"customId": "b", "uniqueKey": "k", **LINKED}, REPLACES, {"customId": "b"}],
    [{"customId": "b", "uniqueKey": "k"}, {**REPLACES, "uniqueKey": "o", "childrenIds": ["b"]},
     REPLACES],
])  # fmt: skip
def test_a_batch_of_any_size_is_refused_as_a_whole_for_what_others_wait_for(
    make: Callable[[], World], others: int, jobs: list[dict[str, Any]]
) -> None:
    world = make()
    world.push(jobId="p", uniqueKey="o")
    parent = world.push(childrenIds=["a"], groupId="g", uniqueKey="g")

    world.error("PUSHB", queue="q", jobs=[{"priority": 1}, *jobs, *[{"priority": -1}] * others])

    assert ["p", parent] == world.pull_all()


@pytest.mark.parametrize("make", [World, persistent_world])
def test_a_large_batch_that_is_refused_for_a_link_leaves_jobs_what_they_depend_on(
    make: Callable[[], World],
) -> None:
    world = make()
    world.push(jobId="done")
    world.ok("ACK", id=world.pull())
    world.push(jobId="a", dependsOn=["done"])
    world.push(jobId="p", uniqueKey="o")
    jobs = [LINKED, {"customId": "done"}, {**REPLACES, "uniqueKey": "o"}]

    world.error("PUSHB", queue="q", jobs=[*jobs, *[{"priority": -1}] * 3_000])

    assert ["done"] == world.job("a")["dependsOn"]
    assert "completed" == world.state("done")


@pytest.mark.parametrize("others", [0, 3_000])
@pytest.mark.parametrize(("jobs", "there"), [
    ([{**REPLACES, "customId": "a"}, {"customId": "b", "childrenIds": ["p"]}], "ab"),
    ([{**REPLACES, "customId": "a"}, {"customId": "a", "groupId": "g"},
      {"customId": "b", "groupId": "g", "groupMaxSize": 2}], "ab"),
    ([{"customId": "a", "uniqueKey": "k", "dedup": {"extend": True, "ttl": 9}},
      {"customId": "p", "groupId": "g", "groupMaxSize": 1}], "p"),
])  # fmt: skip
def test_entries_of_a_batch_come_one_after_the_other_whoever_they_name(
    others: int, jobs: list[dict[str, Any]], there: str
) -> None:
    world = persistent_world()
    world.push(jobId="p", uniqueKey="k")
    world.push(jobId="g", groupId="g")

    world.ok("PUSHB", queue="q", jobs=[*jobs, *[{"priority": -1}] * others])

    assert ["waiting"] * len(there) == [world.state(job_id) for job_id in there]


@pytest.mark.parametrize("others", [0, 1_000])
def test_a_twin_links_nothing_to_the_parent_that_it_names(others: int) -> None:
    world = World()
    world.push(jobId="p")
    jobs = [{"customId": "a"}, {"customId": "a", **LINKED}, *[{"priority": -1}] * others]

    assert ["a", "a"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"][:2]

    assert ["p", "a"] == world.pull_all()[:2]


@pytest.mark.parametrize("last", [
    [REPLACES, {"dependsOn": ["b"]}], [{**REPLACES, "dependsOn": ["b"]}],
    [REPLACES, {"dependsOn": ["b"], "uniqueKey": "k"}],
])  # fmt: skip
def test_a_job_that_depends_on_a_twin_of_who_is_replaced_is_refused(
    last: list[dict[str, Any]],
) -> None:
    world = World()
    world.push(uniqueKey="k")
    jobs = [{"customId": "b", "uniqueKey": "k"}, *last]

    assert "Dependency job not found: b" == world.error("PUSHB", queue="q", jobs=jobs)

    assert {"waiting": 1} == world.counts()


def test_a_new_job_whose_id_others_have_named_already_is_not_replaced_within_its_batch() -> None:
    world = World()
    world.push(jobId="p", childrenIds=["a"])

    error = world.error("PUSHB", queue="q", jobs=[{"customId": "a", "uniqueKey": "k"}, REPLACES])

    assert "because live jobs depend on it" in error
    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize("make", [World, persistent_world])
def test_a_job_whose_id_an_earlier_twin_has_named_takes_its_room_in_a_group(
    make: Callable[[], World],
) -> None:
    world = make()
    world.push(uniqueKey="k")
    jobs = [{"customId": "a", "uniqueKey": "k"}, {"groupId": "g"}]
    jobs.append({"customId": "a", "groupId": "g", "groupMaxSize": 1})

    world.error("PUSHB", queue="q", jobs=jobs)

    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize("make", [World, persistent_world])
@pytest.mark.parametrize("others", [0, 1_000])
def test_a_job_of_the_id_that_the_same_batch_has_replaced_is_a_new_one(
    make: Callable[[], World], others: int
) -> None:
    world = make()
    world.push(jobId="e", uniqueKey="k")
    jobs = [{"customId": "a", **REPLACES}, {"customId": "e"}, *[{"priority": -1}] * others]

    assert ["a", "e"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"][:2]

    assert ["a", "e"] == world.pull_all()[:2]


def test_a_batch_with_a_dependency_that_a_twin_answers_for_is_undone_as_a_whole() -> None:
    world = persistent_world()
    waits = {"customId": "d", "uniqueKey": "k", "dependsOn": ["a"]}
    answer = world.send("PUSHB", queue="q", jobs=[{}, waits, {"customId": "a", "uniqueKey": "k"}])
    world.storage.fails = True  # type: ignore[union-attr]
    world.settle()

    assert {"ok": False, "error": "Internal server error"} == answer.reply
    assert 0 == len(world.engine.index)


def test_a_batch_that_names_a_parent_which_it_replaces_is_refused_as_a_whole() -> None:
    world = persistent_world()
    world.push(jobId="c", uniqueKey="k")
    child = {"parentId": "c", "data": {"__parentId": "c", "__parentQueue": "q"}}
    replaces = {"uniqueKey": "k", "dedup": {"replace": True}}
    for last in (child, {**child, "uniqueKey": "k"}):
        reply = world.go("PUSHB", queue="q", jobs=[replaces, {"customId": "c"}, last])

        assert {"ok": False, "error": "Parent job c is not linkable"} == reply
        assert ["c"] == [job.id for job in world.engine.index]


@pytest.mark.parametrize(
    ("command", "fields"),
    [("Update", {"id": "p", "data": 2}), ("Cancel", {"id": "p"})],
)
def test_a_released_job_goes_on_after_an_undo_of_what_came_behind_its_release(
    command: str, fields: dict[str, Any]
) -> None:
    world = persistent_world()
    world.push(jobId="c")
    world.push("other", jobId="p", dependsOn=["c"])
    world.pull()
    world.send("ACK", id="c")
    in_flight, world.storage._operations = world.storage._operations, []
    world.send(command, **fields)
    for _, args, then in in_flight:
        if then is not None:
            then(*args)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(10)
    assert world.pull("other") == "p"


def test_a_flow_waits_for_a_batch_that_has_announced_one_of_its_ids() -> None:
    world = persistent_world()
    ids = ["c499", *(f"f{number}" for number in range(1_000))]
    plan = iter([FlowJob(i, "q", "a", pack({}), DEFAULT_OPTIONS, {"customId": i}) for i in ids])
    many = world.engine.push_many("q", entries(500), world.now)
    flow = world.engine.push_flow(plan, lambda _job: b"", world.now)
    next(many)
    many.send(world.now)
    next(flow)
    for _ in range(60):
        if len(world.engine.arriving) > 1:
            break
        flow.send(world.now)
    pushed = ended(many, world, flow, 10_000)
    world.settle()
    assert set(pushed) <= world.storage.rows.keys()
