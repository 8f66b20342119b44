"""Groups: order, limits, windows, pauses, and what wakes whom (engine.md 2.2, 2.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import World, persistent_world


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


def pulled(world: World, count: int, **fields: Any) -> list[Any]:
    """Pull one by one; the data of what came."""
    found = []
    for _ in range(count):
        job = world.ok("PULL", queue="q", **fields)["job"]
        found.append(None if job is None else job["data"])
    return found


def push(world: World, group: str | None, data: Any, **fields: Any) -> str:
    if group is not None:
        fields["groupId"] = group
    return world.push(data=data, **fields)


# -- order ---------------------------------------------------------------------------------------


def test_ungrouped_jobs_go_first_whatever_their_priority(world: World) -> None:
    push(world, "a", "grouped", priority=9)
    push(world, None, "plain", priority=-5)

    assert ["plain", "grouped"] == pulled(world, 2)


def test_groups_take_turns(world: World) -> None:
    for group, data in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("c", "c1")):
        push(world, group, data)

    assert ["a1", "b1", "c1", "a2", "a3", None] == pulled(world, 6)


def test_a_group_that_gets_its_first_job_joins_at_the_tail(world: World) -> None:
    push(world, "a", "a1")
    push(world, "a", "a2")
    push(world, "b", "b1")
    assert ["a1"] == pulled(world, 1)
    push(world, "c", "c1")

    assert ["b1", "a2", "c1"] == pulled(world, 3)


@pytest.mark.parametrize("command", ["ChangePriority", "Cancel", "ChangeDelay"])
def test_a_group_whose_only_job_left_its_lane_joins_at_the_tail(world: World, command: str) -> None:
    jobs = [push(world, group, f"{group}1") for group in ("a", "b", "c")]
    world.ok(command, id=jobs[0], **{"ChangePriority": {"priority": 3}}.get(command, {"delay": 5}))
    world.forward(10)
    if command == "Cancel":
        push(world, "a", "a1")

    assert ["b1", "c1", "a1"] == pulled(world, 3)


def test_inside_a_group_the_lower_number_goes_first_then_admission(world: World) -> None:
    for data, priority in (("late", 7), ("first", 0), ("second", 0), ("mid", 3)):
        push(world, "a", data, priority=priority, lifo=True)

    assert ["first", "second", "mid", "late"] == pulled(world, 4)


def test_a_delayed_grouped_job_keeps_its_admission_order(world: World) -> None:
    push(world, "a", "early", delay=1000)
    push(world, "a", "later")
    world.forward(1000)

    assert ["early", "later"] == pulled(world, 2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=25))
def test_k_pulls_hit_k_groups(pushes: list[tuple[str, int]]) -> None:
    world = World()
    left: dict[str, list[tuple[int, int]]] = {}
    for number, (group, priority) in enumerate(pushes):
        push(world, group, [group, number], priority=priority)
        left.setdefault(group, []).append((priority, number))
    while any(left.values()):
        full = [group for group, jobs in left.items() if jobs]
        turn = [tuple(data) for data in pulled(world, len(full))]
        assert sorted(full) == sorted(group for group, _ in turn)
        for group, number in turn:
            best = min(left[group])
            assert best[1] == number
            left[group].remove(best)


def test_affinity_names_one_group_or_none(world: World) -> None:
    push(world, "a", "a1")
    push(world, "b", "b1")
    push(world, None, "plain")

    assert ["b1", None] == pulled(world, 2, group={"affinity": "b"})
    assert ["plain", None] == pulled(world, 2, group={"affinity": None})
    assert ["a1"] == pulled(world, 1)


# -- limits --------------------------------------------------------------------------------------


def test_a_group_at_its_concurrency_does_not_hold_up_others(world: World) -> None:
    for data in ("a1", "a2", "a3"):
        push(world, "a", data)
    push(world, "b", "b1")

    assert ["a1", "b1", None] == pulled(world, 3, group={"concurrency": 1})


def test_a_stored_concurrency_is_inert_without_a_default_of_the_puller(world: World) -> None:
    world.ok("SetGroupConcurrency", queue="q", groupId="a", concurrency=1)
    for data in ("a1", "a2", "a3"):
        push(world, "a", data)

    assert ["a1", "a2"] == pulled(world, 2)
    assert [None] == pulled(world, 1, group={"concurrency": 50})


def test_a_freed_slot_serves_a_waiting_puller(world: World) -> None:
    first = push(world, "a", "a1")
    push(world, "a", "a2")
    terms = {"concurrency": 1}
    world.ok("PULL", queue="q", group=terms)
    waiting = world.send("PULL", queue="q", group=terms, timeout=5000)
    assert not waiting.is_there
    world.ok("ACK", id=first)

    assert "a2" == waiting.reply["job"]["data"]


def test_a_window_lets_so_many_go_and_opens_again(world: World) -> None:
    for number in range(5):
        push(world, "a", number)
    terms = {"limit": {"max": 2, "duration": 1000}}

    assert [0, 1, None] == pulled(world, 3, group=terms)
    waiting = world.send("PULL", queue="q", group=terms, timeout=5000)
    world.forward(999)
    assert not waiting.is_there
    world.forward(1)
    assert 2 == waiting.reply["job"]["data"]


def test_a_manual_rest_holds_for_every_puller(world: World) -> None:
    push(world, "a", "a1")
    world.ok("RateLimitGroup", queue="q", groupId="a", duration=500)

    assert 500 == world.ok("GetGroupRateLimitTtl", queue="q", groupId="a")["data"]["ttl"]
    waiting = world.send("PULL", queue="q", timeout=5000)
    world.forward(499)
    assert not waiting.is_there
    world.forward(1)
    assert "a1" == waiting.reply["job"]["data"]


@pytest.mark.parametrize("closes", ["rest", "window"])
def test_a_poll_for_one_group_is_served_when_that_may_go_again(world: World, closes: str) -> None:
    terms: dict[str, Any] = {"affinity": "a"}
    push(world, "a", "a1")
    if closes == "rest":
        world.ok("RateLimitGroup", queue="q", groupId="a", duration=500)
    else:
        push(world, "a", "a2")
        terms["limit"] = {"max": 1, "duration": 500}
        assert ["a1"] == pulled(world, 1, group=terms)
    waiting = world.send("PULL", queue="q", timeout=5000, group=terms)

    world.forward(499)
    assert not waiting.is_there
    world.forward(1)
    assert waiting.reply is not None
    assert waiting.reply["job"] is not None


def test_a_shorter_rest_takes_the_place_of_a_longer_one(world: World) -> None:
    push(world, "a", "a1")
    world.ok("RateLimitGroup", queue="q", groupId="a", duration=4000)
    waiting = world.send("PULL", queue="q", timeout=5000)
    world.ok("RateLimitGroup", queue="q", groupId="a", duration=500)

    world.forward(499)
    assert not waiting.is_there
    world.forward(1)
    assert waiting.reply is not None
    assert "a1" == waiting.reply["job"]["data"]


def test_a_job_that_has_expired_takes_nothing_of_its_groups_window(world: World) -> None:
    for data, ttl in (("old", 100), ("first", None), ("second", None)):
        push(world, "a", data, ttl=ttl)
    world.clock.ms += 200  # a pull comes before the timed work

    assert ["first", None] == pulled(world, 2, group={"limit": {"max": 1, "duration": 1000}})
    assert 1 == world.ok("GetGroupJobsCount", queue="q", groupId="a")["data"]["count"]
    assert 1 == world.ok("GetGroupsJobsCount", queue="q")["data"]["count"]


def rest_ms(world: World) -> int:
    ttl: int = world.ok("GetGroupRateLimitTtl", queue="q", groupId="a")["data"]["ttl"]
    return ttl


def test_a_window_is_told_from_its_first_delivery_on(world: World) -> None:
    for number in range(2):
        push(world, "a", number)
    terms = {"limit": {"max": 2, "duration": 1000}}
    assert -2 == rest_ms(world)
    assert [0] == pulled(world, 1, group=terms)

    assert 1000 == rest_ms(world)
    world.forward(999)
    assert 1 == rest_ms(world)
    world.forward(1)
    assert -2 == rest_ms(world)


def test_a_manual_rest_is_told_before_the_window(world: World) -> None:
    push(world, "a", 0)
    assert [0] == pulled(world, 1, group={"limit": {"max": 1, "duration": 1000}})
    world.ok("RateLimitGroup", queue="q", groupId="a", duration=200)

    assert 200 == rest_ms(world)
    world.forward(200)
    assert 800 == rest_ms(world)


def test_storing_or_dropping_a_rate_ends_the_window(world: World) -> None:
    for number in range(3):
        push(world, "a", number)
    group = {"queue": "q", "groupId": "a"}
    terms = {"limit": {"max": 1, "duration": 1000}}
    assert [0, None] == pulled(world, 2, group=terms)

    world.ok("SetGroupRateLimit", **group, max=1, duration=1000)
    assert -2 == rest_ms(world)
    assert [1, None] == pulled(world, 2, group=terms)
    world.ok("RemoveGroupRateLimit", **group)
    assert -2 == rest_ms(world)
    assert [2] == pulled(world, 1, group=terms)
    world.ok("RemoveGroupRateLimit", **group)  # there is none any more
    assert 1000 == rest_ms(world)


def test_a_paused_group_waits_for_its_resume(world: World) -> None:
    push(world, "a", "a1")
    assert {"changed": True} == world.ok("PauseGroup", queue="q", groupId="a")["data"]
    waiting = world.send("PULL", queue="q", timeout=60_000)
    world.forward(10_000)
    assert not waiting.is_there
    assert {"changed": True} == world.ok("ResumeGroup", queue="q", groupId="a")["data"]

    assert "a1" == waiting.reply["job"]["data"]


def test_a_puller_behind_one_that_finds_nothing_is_served(world: World) -> None:
    picky = world.send("PULL", queue="q", timeout=5000, group={"affinity": "x"})
    open_to_all = world.send("PULL", queue="q", timeout=5000)
    push(world, "a", "a1")

    assert not picky.is_there
    assert "a1" == open_to_all.reply["job"]["data"]


EXITS = {
    "ack": {"cmd": "ACK"},
    "fail": {"cmd": "FAIL", "error": "no"},
    "final": {"cmd": "FAIL", "unrecoverable": True},
    "move": {"cmd": "MoveToDelayed", "delay": 10},
    "wait": {"cmd": "MoveToWait"},
    "discard": {"cmd": "Discard"},
}


@pytest.mark.parametrize("command", EXITS.values(), ids=EXITS)
def test_every_exit_from_active_frees_the_group_slot(world: World, command: dict[str, Any]) -> None:
    job_id = push(world, "a", "a1", priority=0)
    push(world, "a", "a2", priority=1)
    world.ok("PULL", queue="q", group={"concurrency": 1})
    world.ok(id=job_id, **command)

    count = world.ok("GetGroupActiveCount", queue="q", groupId="a")["data"]["count"]
    assert 0 == count
    assert [None] != pulled(world, 1, group={"concurrency": 1})


# -- size and counts -----------------------------------------------------------------------------


def test_a_full_group_refuses_and_a_batch_is_taken_whole_or_not_at_all(world: World) -> None:
    push(world, "a", 1)
    full = "Group a has reached its maximum size of 2"
    jobs = [{"data": 2, "groupId": "a", "groupMaxSize": 2}] * 2

    assert full == world.error("PUSHB", queue="q", jobs=jobs)
    assert 1 == world.ok("GetGroupJobsCount", queue="q", groupId="a")["data"]["count"]
    world.ok("PUSH", queue="q", groupId="a", groupMaxSize=2)
    assert full == world.error("PUSH", queue="q", groupId="a", groupMaxSize=2)


def test_running_jobs_do_not_count_against_the_size(world: World) -> None:
    push(world, "a", 1)
    world.pull()

    world.ok("PUSH", queue="q", groupId="a", groupMaxSize=1)


@pytest.mark.parametrize("most", [1, 0, -1, "x", None])
def test_jobs_of_all_groups_are_counted_whatever_a_client_says_of_a_maximum(
    world: World, most: object
) -> None:
    """The original's client sends 100 unless told otherwise, and its server never looks at it."""
    push(world, "a", 1)
    push(world, "b", 2)

    assert 2 == world.ok("GetGroupsJobsCount", queue="q", maxCount=most)["data"]["count"]


def test_counts_follow_every_move(world: World) -> None:
    job_id = push(world, "a", 1, delay=100)
    push(world, "b", 2)

    assert 2 == world.ok("GetGroupsJobsCount", queue="q")["data"]["count"]
    world.ok("Promote", id=job_id)
    assert 1 == world.ok("GetGroupJobsCount", queue="q", groupId="a")["data"]["count"]
    world.ok("Cancel", id=job_id)
    assert 0 == world.ok("GetGroupJobsCount", queue="q", groupId="a")["data"]["count"]
    world.ok("Drain", queue="q")
    assert 0 == world.ok("GetGroupsJobsCount", queue="q")["data"]["count"]


# -- wire ----------------------------------------------------------------------------------------

REFUSED_PUSHES = [
    ({"groupId": None}, "groupId must be a string"),
    ({"groupId": 5}, "groupId must be a string"),
    ({"groupId": ""}, "groupId must be a non-empty string"),
    ({"groupId": "x" * 257}, "groupId must be at most 256 characters"),
    ({"groupId": "a\0b"}, "groupId must not contain NUL characters"),
    ({"groupId": "a", "priority": -1}, "group.priority must be between 0 and 2097151"),
    ({"groupId": "a", "priority": 2_097_152}, "group.priority must be between 0 and 2097151"),
    ({"groupId": "a", "priority": 1.5}, "group.priority must be an integer"),
    ({"groupId": "a", "priority": None}, "group.priority must be a finite number"),
    ({"groupId": "a", "priority": "x"}, "group.priority must be a finite number"),
    ({"groupId": "a", "groupMaxSize": 0}, "group.maxSize must be a positive safe integer"),
    ({"groupId": "a", "groupMaxSize": None}, "group.maxSize must be a positive safe integer"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED_PUSHES)
def test_a_push_with_a_wrong_label_is_refused(fields: dict[str, Any], text: str) -> None:
    assert text == World().error("PUSH", queue="q", **fields)


REFUSED_PULLS = [
    (None, "group must be an object"),
    ("x", "group must be an object"),
    ({"concurrency": 0}, "group.concurrency must be a positive safe integer"),
    ({"limit": 5}, "group.limit must be an object"),
    ({"limit": {"max": 0, "duration": 5}}, "group.limit.max must be a positive safe integer"),
    ({"limit": {"max": 1}}, "group.limit.duration must be a positive safe integer"),
    ({"affinity": 5}, "group.affinity must be a string or null"),
]


@pytest.mark.parametrize(("group", "text"), REFUSED_PULLS)
def test_a_pull_with_wrong_terms_is_refused(group: Any, text: str) -> None:
    assert text == World().error("PULL", queue="q", group=group)
    assert text == World().error("PULLB", queue="q", count=1, group=group)


REFUSED_COMMANDS = [
    ("GetGroupJobsCount", {}, "groupId is required"),
    ("GetGroupJobsCount", {"groupId": None}, "groupId must be a string"),
    ("PauseGroup", {"groupId": ""}, "groupId must be a non-empty string"),
    ("SetGroupRateLimit", {"groupId": "a", "max": 0}, "max must be a positive safe integer"),
    ("SetGroupRateLimit", {"groupId": "a", "max": 1}, "duration must be a positive safe integer"),
    (
        "SetGroupConcurrency",
        {"groupId": "a", "concurrency": 1.5},
        "concurrency must be a positive safe integer",
    ),
    ("RateLimitGroup", {"groupId": "a"}, "duration must be a positive safe integer"),
]


@pytest.mark.parametrize(("name", "fields", "text"), REFUSED_COMMANDS)
def test_a_group_command_with_wrong_fields_is_refused(
    name: str, fields: dict[str, Any], text: str
) -> None:
    assert text == World().error(name, queue="q", **fields)


def test_limits_are_read_back_and_removed_once(world: World) -> None:
    group = {"queue": "q", "groupId": "a"}
    assert {"limit": None} == world.ok("GetGroupRateLimit", **group)["data"]
    assert {"concurrency": None} == world.ok("GetGroupConcurrency", **group)["data"]
    world.ok("SetGroupRateLimit", **group, max=2, duration=1000)
    world.ok("SetGroupConcurrency", **group, concurrency=3)

    assert {"limit": {"max": 2, "duration": 1000}} == world.ok("GetGroupRateLimit", **group)["data"]
    assert {"concurrency": 3} == world.ok("GetGroupConcurrency", **group)["data"]
    for name in ("RemoveGroupRateLimit", "RemoveGroupConcurrency"):
        assert {"removed": 1} == world.ok(name, **group)["data"]
        assert {"removed": 0} == world.ok(name, **group)["data"]
    assert {"ttl": -2} == world.ok("GetGroupRateLimitTtl", **group)["data"]


# -- scale ---------------------------------------------------------------------------------------


def test_a_blocked_group_is_looked_at_once_not_at_every_pull() -> None:
    world = World()
    for number in range(2_000):
        push(world, f"g{number}", number)
    terms = {"concurrency": 1}
    pulled(world, 2_000, group=terms)
    for number in range(2_000):
        push(world, f"g{number}", number)
    assert [None] == pulled(world, 1, group=terms)
    groups = world.engine.queues["q"].run_set.groups
    assert groups is not None

    assert 0 == len(groups._ring)


def test_pullers_of_different_terms_leave_no_trace_in_groups_that_rest() -> None:
    world = World()
    for group in ("a", "b"):
        push(world, group, group)
        world.ok("RateLimitGroup", queue="q", groupId=group, duration=60_000)
    for limit in (1, 2) * 10:
        assert [None] == pulled(world, 1, group={"concurrency": limit})
    groups = world.engine.queues["q"].run_set.groups
    assert groups is not None

    assert 2 == len(groups._resting)
    world.leap(60_000)
    assert ["a", "b", None] == pulled(world, 3)
