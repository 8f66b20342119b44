"""What readers are told."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import reads
from tests.support.engine import World
from tests.unit.engine.test_control import one_of_each

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def listed(world: World, **fields: Any) -> list[str]:
    return [job["id"] for job in world.ok("GetJobs", queue="q", **fields)["jobs"]]


@pytest.mark.parametrize(
    "state",
    ["waiting", "prioritized", "delayed", "waiting-children", "active", "completed", "failed"],
)
def test_a_job_is_in_the_list_of_its_state_and_in_no_other(world: World, state: str) -> None:
    one_of_each(world)

    jobs = world.ok("GetJobs", queue="q", state=state)["jobs"]

    assert [(state, state)] == [(job["id"], job["state"]) for job in jobs]
    assert state == world.state(state)


@pytest.mark.parametrize("all_states", [None, [], ""])
def test_no_state_means_all(world: World, all_states: object) -> None:
    assert set(one_of_each(world)) == set(listed(world, state=all_states))


def test_several_states_may_be_named(world: World) -> None:
    one_of_each(world)

    assert {"active", "failed"} == set(listed(world, state=["active", "failed", "nonsense"]))


@pytest.mark.parametrize("state", ["wait", "nonsense", "unknown"])
def test_an_unknown_state_matches_nothing(world: World, state: str) -> None:
    one_of_each(world)

    assert [] == listed(world, state=state)


def test_jobs_are_listed_by_age_then_id(world: World) -> None:
    for name in ("c", "a", "b"):
        world.push(jobId=name)
    world.clock.ms += 1
    world.push(jobId="0")

    assert ["a", "b", "c", "0"] == listed(world)
    assert ["0", "c", "b", "a"] == listed(world, asc=False)
    assert ["b", "c"] == listed(world, offset=1, limit=2)
    assert [] == listed(world, limit=0)


def test_a_hundred_are_listed_by_default(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 120)

    assert 100 == len(listed(world))


def test_a_paused_queue_lists_its_jobs_under_paused(world: World) -> None:
    one_of_each(world)
    world.ok("Pause", queue="q")

    assert [] == listed(world, state=["waiting", "prioritized"])
    assert {"waiting", "prioritized"} == set(listed(world, state="paused"))
    assert {"waiting", "prioritized", "delayed"} < set(listed(world))
    assert "waiting" == world.state("waiting")


def test_the_filter_paused_alone_shows_the_view_as_the_state(world: World) -> None:
    world.push()
    world.ok("Pause", queue="q")

    def shown(state: object) -> list[str]:
        return [job["state"] for job in world.ok("GetJobs", queue="q", state=state)["jobs"]]

    assert ["paused"] == shown("paused")
    assert ["waiting"] == shown(["paused", "delayed"])


@pytest.mark.parametrize("fields", [{"limit": -1}, {"limit": 0}])
def test_a_negative_limit_lists_nothing(world: World, fields: dict[str, int]) -> None:
    world.push()

    assert [] == listed(world, **fields)
    assert 1 == len(listed(world, offset=-1))


def test_paused_lists_nothing_of_a_running_queue(world: World) -> None:
    one_of_each(world)

    assert [] == listed(world, state="paused")


def test_counts_name_every_state(world: World) -> None:
    one_of_each(world)
    names = [
        "waiting",
        "prioritized",
        "delayed",
        "active",
        "completed",
        "failed",
        "waiting-children",
    ]

    assert {**dict.fromkeys(names, 1), "paused": 0} == world.ok("GetJobCounts", queue="q")["counts"]
    assert {**dict.fromkeys(names, 0), "paused": 0} == (
        world.ok("GetJobCounts", queue="nowhere")["counts"]
    )


def test_count_is_what_is_queued(world: World) -> None:
    one_of_each(world)

    assert {"count": 3} == world.ok("Count", queue="q")
    assert {"count": 0} == world.ok("Count", queue="nowhere")


def test_counts_per_priority_include_delayed_jobs_and_add_up(world: World) -> None:
    for priority in (0, 0, 5, -1):
        world.push(priority=priority)
    world.push(priority=5, delay=MINUTE)

    reply = world.ok("GetCountsPerPriority", queue="q")

    assert {"queue": "q", "counts": {"0": 2, "5": 2, "-1": 1}} == reply
    assert world.ok("Count", queue="q")["count"] == sum(reply["counts"].values())


def test_a_delay_matures_without_a_write_or_an_event(world: World) -> None:
    job_id = world.push(delay=1_000)
    world.listen()
    world.clock.ms += 1_000

    assert "waiting" == world.state(job_id)
    assert {"waiting": 1} == world.counts()
    assert [job_id] == listed(world, state="waiting")
    assert [] == world.events


def test_queues_are_listed(world: World) -> None:
    world.push("b")
    world.push("a")

    assert ["b", "a"] == world.ok("ListQueues")["queues"]


def test_logs_keep_the_newest_hundred(world: World) -> None:
    job_id = world.push()
    for number in range(105):
        world.ok("AddLog", id=job_id, message=str(number))

    data = world.ok("GetLogs", id=job_id)["data"]
    assert (100, "5", "104") == (
        data["count"],
        data["logs"][0]["message"],
        data["logs"][-1]["message"],
    )
    assert {"timestamp": world.now, "level": "info", "message": "5"} == data["logs"][0]


def test_a_job_may_keep_fewer_lines(world: World) -> None:
    job_id = world.push(keepLogs=2)
    for number in range(5):
        world.ok("AddLog", id=job_id, message=str(number), level="warn")

    lines = world.ok("GetLogs", id=job_id)["data"]["logs"]
    assert [("warn", "3"), ("warn", "4")] == [(line["level"], line["message"]) for line in lines]


def test_so_many_jobs_have_a_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LOGGED_JOBS_MAX", 2)
    ids = [world.push() for _ in range(3)]
    for job_id in (ids[0], ids[1], ids[0], ids[2]):
        world.ok("AddLog", id=job_id, message="line")

    assert [2, 0, 1] == [world.ok("GetLogs", id=job_id)["data"]["count"] for job_id in ids]
    assert 2 == world.engine.collection_sizes()["logged_jobs"]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "01234"),
        ({"start": 2}, "234"),
        ({"start": 1, "end": 3}, "123"),
        ({"end": 0}, "0"),
        ({"end": -2}, "0123"),
        ({"start": 9}, ""),
    ],
)
def test_a_part_of_the_log_can_be_read(world: World, fields: dict[str, int], found: str) -> None:
    job_id = world.push()
    for number in range(5):
        world.ok("AddLog", id=job_id, message=str(number))

    data = world.ok("GetLogs", id=job_id, **fields)["data"]
    assert (found, 5) == ("".join(line["message"] for line in data["logs"]), data["count"])


def test_logs_are_cleared_but_for_the_newest(world: World) -> None:
    job_id = world.push()
    for number in range(5):
        world.ok("AddLog", id=job_id, message=str(number))

    assert {} == world.ok("ClearLogs", id=job_id, keepLogs=2)
    assert 2 == world.ok("GetLogs", id=job_id)["data"]["count"]
    world.ok("ClearLogs", id=job_id)
    assert 0 == world.ok("GetLogs", id=job_id)["data"]["count"]
    assert {} == world.ok("ClearLogs", id="ghost")


def test_figures_count_over_all_queues(world: World) -> None:
    one_of_each(world)
    world.push("other")
    world.clock.ms += 5_000

    stats = world.ok("Stats")["stats"]
    assert {
        "waiting": 2,
        "active": 1,
        "delayed": 1,
        "dlq": 1,
        "completed": 1,
        "failed": 1,
        "uptime": 5_000,
    }.items() <= stats.items()
    assert {"pushPerSec", "pullPerSec"} <= stats.keys()


def test_reading_changes_nothing(world: World) -> None:
    one_of_each(world)
    world.ok("Pause", queue="q")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("GetJobs", {"queue": "q"}),
        ("GetJobCounts", {"queue": "q"}),
        ("Dlq", {"queue": "q"}),
        ("Stats", {}),
        ("GetQueueLimits", {"queue": "q"}),
        ("ListWorkers", {}),
    ]

    first = [world.ok(command, **fields) for command, fields in asked]
    assert first == [world.ok(command, **fields) for command, fields in asked]
