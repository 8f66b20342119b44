"""What the final failure of a child means for its parent (engine.md 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine import dependencies
from bunqueue.engine.settings import EngineSettings
from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import ScriptedStorage, World, persistent_world
from tests.support.flows import flow_child, flow_parent, tree
from tests.support.whole import check_whole

FAIL = {"failParentOnFailure": True}
CONTINUE = {"continueParentOnFailure": True}
IGNORE = {"ignoreDependencyOnFailure": True}
REMOVE = {"removeDependencyOnFailure": True}
POLICIES = (FAIL, CONTINUE, IGNORE, REMOVE)


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStorage() if request.param == "memory" else ScriptedStorage())


def push(world: World, children: int = 2, **options: Any) -> None:
    world.ok("PUSHF", jobs=tree(children, **{"maxAttempts": 1, **options}))


def fail(world: World, job_id: str = "c0", error: str | None = "boom") -> None:
    assert job_id == world.pull()
    world.ok("FAIL", id=job_id, **({} if error is None else {"error": error}))


def failed(world: World) -> dict[str, str]:
    values: dict[str, str] = world.ok("GetFailedChildrenValues", id="p")["values"]
    return values


def ignored(world: World) -> dict[str, str]:
    values: dict[str, str] = world.ok("GetIgnoredChildrenFailures", id="p")["values"]
    return values


def complete(world: World, job_id: str, queue: str = "q") -> None:
    assert job_id == world.pull(queue)
    world.ok("ACK", id=job_id)


# -- the policies ---------------------------------------------------------------------------------


def test_without_a_policy_the_parent_stays_parked_until_the_child_completes(world: World) -> None:
    push(world)
    fail(world)
    assert "waiting-children" == world.state("p")

    world.ok("RetryDlq", queue="q")
    for job_id in world.pull_all():
        world.ok("ACK", id=job_id)

    assert "waiting" == world.state("p")


def test_fail_sends_the_parent_to_the_dead_letters_uncharged(world: World) -> None:
    push(world, **FAIL)
    fail(world)

    entry = world.entry("pq")
    assert ("unknown", "Child job c0 failed: boom") == (entry["reason"], entry["error"])
    assert 0 == world.job("p")["attempts"]
    assert "Child job c0 failed: boom" == world.job("p")["failedReason"]
    assert "waiting" == world.state("c1")
    assert {} == failed(world) == ignored(world)


def test_a_failed_parent_runs_after_a_retry_whatever_its_children_do(world: World) -> None:
    push(world, **FAIL)
    fail(world)

    assert {"count": 1} == world.ok("RetryDlq", queue="pq")

    assert "p" == world.pull("pq")


def test_continue_lets_the_parent_go_at_once(world: World) -> None:
    push(world, **CONTINUE)
    fail(world)

    assert "waiting" == world.state("p")
    assert [] == world.job("p")["dependsOn"]
    assert ["c0", "c1"] == world.job("p")["childrenIds"]
    assert {"q:c0": "boom"} == failed(world)
    assert {} == ignored(world)


@pytest.mark.parametrize(("policy", "noted"), [(IGNORE, {"q:c0": "boom"}), (REMOVE, {})])
def test_ignore_and_remove_drop_this_dependency_only(
    world: World, policy: dict[str, bool], noted: dict[str, str]
) -> None:
    push(world, **policy)
    fail(world)
    assert "waiting-children" == world.state("p")
    assert ["c1"] == world.job("p")["dependsOn"]

    complete(world, "c1")

    assert "waiting" == world.state("p")
    assert noted == ignored(world)
    assert {} == failed(world)


def test_a_failure_without_a_text_has_one_for_the_parent(world: World) -> None:
    push(world, **CONTINUE)
    fail(world, error=None)

    assert {"q:c0": "unknown error"} == failed(world)


def test_an_empty_text_stays_empty_for_the_parent(world: World) -> None:
    push(world, **CONTINUE)
    fail(world, error="")

    assert {"q:c0": ""} == failed(world)


@pytest.mark.parametrize("policy", [CONTINUE, REMOVE])
def test_a_parent_let_go_by_a_policy_has_no_line_of_it(
    world: World, policy: dict[str, bool]
) -> None:
    push(world, 1, **policy)
    fail(world)

    job = world.job("p")
    assert ("waiting", ["waiting-children"]) == (
        job["state"],
        [line["state"] for line in job["timeline"]],
    )


@pytest.mark.parametrize("policy", [CONTINUE, REMOVE, IGNORE])
def test_a_parent_let_go_by_a_policy_runs_at_once_whatever_its_delay(
    world: World, policy: dict[str, bool]
) -> None:
    delayed = flow_parent(delay=60_000, priority=2)
    world.ok("PUSHF", jobs=[flow_child(maxAttempts=1, **policy), delayed])
    world.pull()
    world.clock.ms += 5
    world.ok("FAIL", id="c")

    assert ("prioritized", world.now) == (world.state("p"), world.job("p")["runAt"])
    assert "p" == world.pull("pq")


def test_a_policy_that_could_not_be_committed_leaves_the_delay() -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=[flow_child(maxAttempts=1, **REMOVE), flow_parent(delay=60_000)])
    due_at = world.job("p")["runAt"]
    world.pull()
    world.storage.fails = True
    world.go("FAIL", id="c")
    world.storage.fails = False

    assert ("waiting-children", due_at) == (world.state("p"), world.job("p")["runAt"])


def test_a_failure_that_is_tried_again_does_nothing_to_the_parent(world: World) -> None:
    push(world, **FAIL, **{"maxAttempts": 2})
    fail(world)

    assert "waiting-children" == world.state("p")


def test_a_failed_parent_fails_its_own_parent(world: World) -> None:
    jobs = [
        flow_child("leaf", "mid", parent_queue="q2", maxAttempts=1, **FAIL),
        flow_parent(
            ["leaf"], "mid", "q2", parentId="p", data={"__parentId": "p", "__parentQueue": "pq"},
            **FAIL,
        ),
        flow_parent(["mid"]),
    ]  # fmt: skip
    world.ok("PUSHF", jobs=jobs)
    fail(world, "leaf")

    assert ["failed", "failed"] == [world.state("mid"), world.state("p")]
    assert "Child job mid failed: Child job leaf failed: boom" == world.entry("pq")["error"]


def test_the_parent_fails_once_however_many_children_do(world: World) -> None:
    world.listen()
    jobs = [flow_child(job_id, maxAttempts=1, **FAIL) for job_id in ("a", "b")]
    world.ok("PUSHF", jobs=[*jobs, flow_parent(["a", "b"])])
    fail(world, "a")
    fail(world, "b")
    world.forward(1)

    assert "Child job a failed: boom" == world.entry("pq")["error"]
    told = [event["eventType"] for event in world.events if event["jobId"] == "p"]
    assert ["pushed", "failed"] == told


def test_a_note_of_a_parent_that_does_not_know_the_child_has_no_effect(world: World) -> None:
    world.push("pq", jobId="p")
    world.push(jobId="c0", parentId="p", maxAttempts=1, **FAIL)
    fail(world)

    assert "waiting" == world.state("p")


def test_fail_comes_before_continue_before_ignore_before_remove(world: World) -> None:
    every = {**FAIL, **CONTINUE, **IGNORE, **REMOVE}
    effects = []
    for number, given in enumerate((every, every.keys() - FAIL.keys(), IGNORE | REMOVE)):
        parent, child = f"p{number}", f"c{number}"
        world.push("pq", jobId=parent)
        options = dict.fromkeys(given, True)
        data = {"__parentId": parent, "__parentQueue": "pq"}
        world.push(jobId=child, parentId=parent, data=data, maxAttempts=1, **options)
        fail(world, child)
        noted = world.ok("GetIgnoredChildrenFailures", id=parent)["values"]
        effects.append((world.state(parent), bool(noted)))

    assert [("failed", False), ("waiting", False), ("waiting", True)] == effects


@pytest.mark.parametrize(
    ("policy", "command"),
    [
        ("ignoreDependencyOnFailure", "GetIgnoredChildrenFailures"),
        ("continueParentOnFailure", "GetFailedChildrenValues"),
    ],
)
@pytest.mark.parametrize("end", [{"cmd": "ACK"}, {"cmd": "FAIL", "unrecoverable": True}])
def test_errors_of_children_are_shown_until_the_parent_ends(
    policy: str, command: str, end: dict[str, Any]
) -> None:
    world = World()
    world.push(jobId="parent")
    data = {"__parentId": "parent", "__parentQueue": "q"}
    world.push(
        jobId="child", priority=1, maxAttempts=1, parentId="parent", data=data, **{policy: True}
    )
    world.pull()
    world.ok("FAIL", id="child", error="boom")
    world.pull()

    assert {"q:child": "boom"} == world.ok(command, id="parent")["values"]
    world.ok(id="parent", **end)
    assert {} == world.ok(command, id="parent")["values"]


@pytest.mark.parametrize("event", ["child", "orphan"])
def test_a_parent_that_did_not_run_is_a_dead_letter_whatever_remove_on_fail_says(
    event: str,
) -> None:
    world = persistent_world(EngineSettings(orphaned_dependency="fail"))
    parent = flow_parent(["c0"], removeOnFail=True)
    world.ok("PUSHF", jobs=[parent, flow_child("c0", maxAttempts=1, failParentOnFailure=True)])
    if event == "child":
        fail(world)
        error = "Child job c0 failed: boom"
    else:
        world.ok("Cancel", id="c0")
        world.forward(1)
        error = "Dependency job c0 was removed"

    assert ["failed"] * 2 == [asked.state("p") for asked in (world, world.restart())]
    assert ("unknown", error) == (world.entry("pq")["reason"], world.entry("pq")["error"])
    world.ok("RetryDlq", queue="pq")
    assert "p" == world.pull("pq")
    world.ok("FAIL", id="p", unrecoverable=True)
    assert "unknown" == world.state("p")


@pytest.mark.parametrize(
    ("policy", "state"), [(FAIL, "failed"), (CONTINUE, "waiting"), (IGNORE, "waiting")]
)
def test_a_parent_that_its_child_fails_has_failed_for_its_own_parent(
    world: World, policy: dict[str, bool], state: str
) -> None:
    ids = {"dependsOn": ["c"], "childrenIds": ["c"], "data": {"__childrenIds": ["c"]}}
    middle = flow_child("p", "top", "pq", removeOnFail=True, **ids, **policy)
    child = flow_child("c", maxAttempts=1, failParentOnFailure=True)
    world.ok("PUSHF", jobs=[flow_parent(["p"], "top"), middle, child])

    fail(world, "c")

    assert ["failed", state] == [world.state("p"), world.state("top")]


@pytest.mark.parametrize("policy", [CONTINUE, IGNORE])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_completed_parent_that_runs_again_knows_of_no_failure_before(
    policy: dict[str, bool], is_killed: bool
) -> None:
    world = persistent_world()
    push(world, 1, **policy)
    fail(world)
    assert "p" == world.pull("pq")
    world.ok("ACK", id="p")
    if is_killed:
        world = world.restart()

    world.ok("RetryCompleted", queue="pq", id="p")

    assert ({}, {}) == (failed(world), ignored(world))
    assert {} == world.storage.tables.get("flow_failures", {})
    check_whole(world.engine, world.now, [])


@pytest.mark.parametrize(("policy", "told"), [(CONTINUE, failed), (IGNORE, ignored)])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_failed_parent_that_runs_again_knows_what_it_goes_without(
    policy: dict[str, bool], told: Callable[[World], dict[str, str]], is_killed: bool
) -> None:
    world = persistent_world()
    push(world, 1, **policy)
    fail(world)
    assert "p" == world.pull("pq")
    world.ok("FAIL", id="p", unrecoverable=True)
    if is_killed:
        world = world.restart()

    world.ok("RetryDlq", queue="pq")

    assert {"q:c0": "boom"} == told(world)


# -- every way to fail for good -------------------------------------------------------------------


def by_fail(world: World) -> None:
    world.ok("FAIL", id="c0", error="boom")


def by_unrecoverable(world: World) -> None:
    world.ok("FAIL", id="c0", unrecoverable=True)


def by_removal(world: World) -> None:
    world.ok("FAIL", id="c0", removeOnFail=True)


def by_timeout(world: World) -> None:
    world.forward(5_001)


def by_stall(world: World) -> None:
    world.forward(60_000)


def by_discard(world: World) -> None:
    world.ok("Discard", id="c0")


WAYS: dict[str, tuple[dict[str, Any], Callable[[World], None]]] = {
    "FAIL": ({}, by_fail),
    "unrecoverable": ({"maxAttempts": 5}, by_unrecoverable),
    "removeOnFail": ({}, by_removal),
    "timeout": ({"timeout": 5_000}, by_timeout),
    "stall": ({}, by_stall),
    "discard": ({}, by_discard),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_a_policy_holds_however_the_child_fails(
    world: World, way: str, policy: dict[str, bool]
) -> None:
    options, end = WAYS[way]
    push(world, 1, **policy, **options)
    assert "c0" == world.pull()
    end(world)
    world.settle()

    assert ("failed" if policy is FAIL else "waiting") == world.state("p")


def test_a_policy_holds_when_a_lease_runs_out(world: World) -> None:
    push(world, 1, **FAIL)
    world.lease(lockTtl=1_000)
    world.forward(10_000)

    assert "Child job c0 failed: Lock expired at max attempts (1)" == world.entry("pq")["error"]


def test_a_policy_holds_when_a_restart_ends_the_child() -> None:
    world = persistent_world()
    push(world, 1, **FAIL)
    world.pull()

    again = world.restart()

    assert ["failed", "failed"] == [again.state("c0"), again.state("p")]
    assert again.restart().state("p") == "failed"


# -- commits that fail, restarts ------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_a_failure_that_could_not_be_committed_has_done_nothing(policy: dict[str, bool]) -> None:
    world = persistent_world()
    push(world, 1, **policy)
    world.pull()
    before = world.job("p")
    world.storage.fails = True
    assert "Internal server error" == world.error("FAIL", id="c0", error="boom")
    world.storage.fails = False
    world.settle()

    assert before == world.job("p")
    assert {} == failed(world) == ignored(world)
    assert {} == world.storage.tables.get("flow_failures", {})
    world.ok("FAIL", id="c0", error="boom")
    assert ("failed" if policy is FAIL else "waiting") == world.state("p")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_a_timeout_whose_commit_fails_still_reaches_the_parent(policy: dict[str, bool]) -> None:
    world = persistent_world()
    push(world, 1, timeout=1_000, **policy)
    world.pull()
    world.storage.fails = True
    world.forward(1_001)
    world.storage.fails = False
    world.forward(10)

    assert "failed" == world.state("c0")
    expected = "failed" if policy is FAIL else "waiting"
    assert expected == world.state("p")
    assert expected == world.restart().state("p")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_a_broker_that_died_between_child_and_parent_applies_the_policy(
    policy: dict[str, bool],
) -> None:
    world = persistent_world()
    push(world, 1, **policy)
    world.pull()
    rows = dict(world.storage.rows)
    world.ok("FAIL", id="c0", error="boom")
    # As if only the child's end and the record had been written.
    world.storage.rows["p"] = rows["p"]
    mode = {0: "fail", 1: "continue", 2: "ignore", 3: "remove"}[POLICIES.index(policy)]
    record = ("p", "c0", "q", mode, "boom", world.now)
    world.storage.tables.setdefault("flow_failures", {})["p\0c0"] = record

    once = world.restart()
    twice = once.restart()

    for again in (once, twice):
        assert ("failed" if policy is FAIL else "waiting") == again.state("p")
        assert ({"q:c0": "boom"} if policy is CONTINUE else {}) == failed(again)
        assert ({"q:c0": "boom"} if policy is IGNORE else {}) == ignored(again)
    assert (policy is FAIL) == bool(twice.ok("Dlq", queue="pq")["entries"])


@pytest.mark.parametrize("policy", [CONTINUE, IGNORE])
def test_what_was_noted_lives_until_the_parent_ends(policy: dict[str, bool]) -> None:
    world = persistent_world()
    push(world, 1, **policy)
    fail(world)
    read = failed if policy is CONTINUE else ignored
    again = world.restart()
    assert {"q:c0": "boom"} == read(again)

    complete(again, "p", "pq")

    assert {} == again.storage.tables["flow_failures"]


def test_records_of_a_parent_that_is_gone_are_dropped_at_the_start() -> None:
    world = persistent_world()
    world.storage.tables["flow_failures"] = {"p\0c": ("p", "c", "q", "fail", "boom", world.now)}

    assert {} == world.restart().storage.tables["flow_failures"]


# -- found by tests/simulation --------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_a_policy_that_a_failed_commit_undoes_is_applied_again(policy: dict[str, bool]) -> None:
    world = persistent_world()
    push(world, 2, **policy)
    world.pull()
    rows = dict(world.storage.rows)
    world.ok("FAIL", id="c0", error="boom")
    # As if only the child's end and the record had been written; the next commit fails.
    world.storage.rows["p"] = rows["p"]
    mode = {0: "fail", 1: "continue", 2: "ignore", 3: "remove"}[POLICIES.index(policy)]
    record = ("p", "c0", "q", mode, "boom", world.now)
    storage = ScriptedStorage()
    storage.rows = dict(world.storage.rows)
    storage.tables = {"flow_failures": {"p\0c0": record}}
    again = World(storage, world.clock)
    storage.fails = True
    again.settle()
    storage.fails = False
    for _ in range(3):
        again.forward(1)
        again.settle()

    if policy in (IGNORE, REMOVE):
        complete(again, "c1")
    assert ("failed" if policy is FAIL else "waiting") == again.state("p")
    assert ("failed" if policy is FAIL else "waiting") == again.restart().state("p")


@pytest.mark.parametrize("policy", [CONTINUE, IGNORE, REMOVE], ids=lambda p: next(iter(p)))
def test_a_second_failure_that_is_not_committed_leaves_the_first_one(
    policy: dict[str, bool],
) -> None:
    world = persistent_world()
    push(world, **policy)
    fail(world)
    world.ok("RetryDlq", queue="q", jobId="c0")
    parent, values = world.job("p"), (failed(world), ignored(world))
    world.storage.fails = True
    assert "Internal server error" == world.error("Discard", id="c0")
    world.storage.fails = False
    world.settle()

    assert (parent, values) == (world.job("p"), (failed(world), ignored(world)))
    again = world.restart()
    assert (world.state("p"), values) == (again.state("p"), (failed(again), ignored(again)))


@pytest.mark.parametrize("policy", [CONTINUE, IGNORE], ids=lambda p: next(iter(p)))
@pytest.mark.parametrize("command", ["RemoveChildDependency", "PUSH"])
def test_an_edit_that_is_not_committed_leaves_what_was_noted_of_the_child(
    command: str, policy: dict[str, bool]
) -> None:
    world = persistent_world()
    push(world, **policy)
    fail(world)
    if command == "PUSH":
        data = {"__parentId": "p", "__parentQueue": "pq"}
        fields = {"queue": "q", "jobId": "c0", "parentId": "p", "data": data}
    else:
        world.ok("RetryDlq", queue="q", jobId="c0")
        fields = {"id": "c0"}
    parent, values = world.job("p"), (failed(world), ignored(world))
    world.storage.fails = True
    assert "Internal server error" == world.error(command, **fields)
    world.storage.fails = False
    world.settle()

    assert (parent, values) == (world.job("p"), (failed(world), ignored(world)))
    again = world.restart()
    assert (world.state("p"), values) == (again.state("p"), (failed(again), ignored(again)))


LINK = {"parentId": "p", "data": {"__parentId": "p", "__parentQueue": "pq"}}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("FAIL", {"id": "c0", "error": "boom"}),
        ("ACK", {"id": "c0"}),
        ("RemoveChildDependency", {"id": "c0"}),
        ("RemoveUnprocessedChildren", {"id": "p"}),
        ("UpdateParent", {"childId": "other", "parentId": "p"}),
        ("PUSH", {"queue": "q", "jobId": "new", **LINK}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_undo_leaves_a_parent_alone_whose_id_has_been_promised_to_another(
    command: str, fields: dict[str, Any], policy: dict[str, bool]
) -> None:
    world = persistent_world()
    world.push("z", jobId="other")
    push(world, **policy)
    assert "c0" == world.pull()
    changed = world.send(command, **fields)
    world.send("Cancel", id="p")
    pushed = world.send("PUSH", queue="pq", jobId="p")
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    assert changed.reply is not None
    assert "Internal server error" == changed.reply["error"]
    check_whole(world.engine, world.now, [world.peer])
    assert pushed.reply is not None
    assert pushed.reply["ok"] == (world.pull("pq") == "p")


@pytest.mark.parametrize("policy", [CONTINUE, IGNORE, REMOVE], ids=lambda p: next(iter(p)))
def test_a_running_parent_does_not_wait_for_a_failed_child_that_it_does_without(
    world: World, policy: dict[str, bool]
) -> None:
    push(world, 1, **policy)
    fail(world)
    assert "p" == world.pull("pq")

    world.ok("MoveToWaitingChildren", id="p")

    assert ("failed", "waiting") == (world.state("c0"), world.state("p"))


def test_what_a_parent_knows_of_a_failure_outlives_a_restart_though_it_refers_to_nobody() -> None:
    world = persistent_world()
    world.push("pq", jobId="p")
    world.push("q", jobId="c0", maxAttempts=1, **CONTINUE, **LINK)
    world.ok("Obliterate", queue="pq")
    world.push("pq", jobId="p", dependsOn=["c0"])  # by this alone
    fail(world)
    world.settle()

    assert {"q:c0": "boom"} == failed(world)
    again = world.restart()
    assert {"q:c0": "boom"} == failed(again)
    assert "p" == again.pull("pq")
    again.ok("ACK", id="p")
    again.settle()
    assert {} == again.storage.tables["flow_failures"]  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["Obliterate", "Cancel"])
def test_a_failure_that_was_about_to_reach_a_parent_does_after_the_parent_comes_back(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = persistent_world()
    push(world, 2, **CONTINUE, removeOnFail=True)
    monkeypatch.setattr(dependencies, "SETTLED_PER_SLICE", 1)
    world.engine.graph.later(world.engine, lambda *_: None)  # its turn is before the parent's
    fail(world)
    world.settle()
    parent = world.engine.index.get("p")
    assert parent is not None
    assert parent.extra.flow is not None
    assert (["c0"], {}) == (list(parent.extra.flow.records), parent.extra.flow.failed)
    world.engine.tick(world.now)
    assert {"q:c0": "boom"} == parent.extra.flow.failed
    fail_commit(world)
    assert {} == parent.extra.flow.failed
    world.send(command, queue="pq", id="p")
    assert world.engine.index.get("p") is None
    world.engine.tick(world.now)
    fail_commit(world)
    for _ in range(3):
        world.forward(1)
        world.settle()

    assert "waiting" == world.state("p") == world.restart().state("p")
    assert {"q:c0": "boom"} == failed(world)


def fail_commit(world: World) -> None:
    assert isinstance(world.storage, ScriptedStorage)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False


@pytest.mark.parametrize("restarts_before", [True, False])
def test_a_parent_that_went_on_waits_for_a_new_child_only_over_a_restart(
    restarts_before: bool,
) -> None:
    world = persistent_world()
    push(world, **CONTINUE)
    fail(world)
    assert "waiting" == world.state("p")
    world = world.restart() if restarts_before else world
    world.push("z", jobId="new", **LINK)
    assert "waiting-children" == world.state("p")

    world = world.restart()

    assert "waiting-children" == world.state("p")
    assert {"q:c0": "boom"} == failed(world)
    complete(world, "new", "z")
    assert "waiting" == world.state("p")
    assert "waiting" == world.restart().state("p")


@pytest.mark.parametrize("policy", [
    "failParentOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
])  # fmt: skip
def test_a_failure_of_a_run_that_an_undo_brings_back_does_not_reach_the_parent(
    policy: str,
) -> None:
    world = persistent_world()
    world.ok("PUSHF", jobs=[flow_parent(["c"]), flow_child("c", maxAttempts=1, **{policy: True})])
    _, token = world.lease("q", lockTtl=1_000)
    world.send("Progress", id="c", progress=5)
    world.clock.ms += 1_500
    world.engine.tick(world.now)
    world.storage.answer_waits = 0
    assert "failed" == world.engine.state("c", world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(1)

    assert ["active", "waiting-children"] == [world.state("c"), world.state("p")]
    assert {} == world.storage.tables.get("flow_failures", {})
    world.ok("ACK", id="c", token=token)
    assert "p" == world.pull("pq")


@pytest.mark.parametrize("policy", [
    "failParentOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
])  # fmt: skip
@pytest.mark.parametrize(
    "change",
    [("Update", {"id": "p", "data": {"n": 1}}), ("RemoveChildDependency", {"id": "other"})],
)
def test_a_failure_reaches_a_parent_of_which_an_earlier_change_is_undone(
    policy: str, change: tuple[str, dict[str, Any]]
) -> None:
    """With the change, the parent got back what it knew of its children before."""
    world = persistent_world()
    child = flow_child("c", maxAttempts=1, timeout=10, **{policy: True})
    world.ok("PUSHF", jobs=[flow_parent(["c", "other"]), child, flow_child("other")])
    world.pull("q")
    changed = world.send(change[0], **change[1])
    world.clock.ms += 20
    world.engine.tick(world.now)
    world.storage.answer_waits = 0
    assert "failed" == world.engine.state("c", world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(1)

    assert changed.reply == {"ok": False, "error": "Internal server error"}
    if policy != "failParentOnFailure":
        if policy != "continueParentOnFailure":
            complete(world, "other")
        assert "p" == world.pull("pq")
    else:
        assert "failed" == world.state("p")
    again = world.restart()
    assert world.state("p") != "waiting-children" != again.state("p")


@pytest.mark.parametrize("policy", [IGNORE, REMOVE])
def test_a_new_child_of_an_id_that_the_parent_does_without_does_not_make_it_wait_for_that_again(
    policy: dict[str, bool],
) -> None:
    """Its failure means nothing to the parent, and must not end the record of the first one."""
    world = persistent_world()
    push(world, **policy)
    fail(world)
    world.push(jobId="c0", priority=9, maxAttempts=1, **FAIL)
    fail(world)
    world.ok("UpdateParent", childId="c0", parentId="p")
    again = world.restart()

    complete(again, "c1")
    assert "waiting" == again.state("p")
