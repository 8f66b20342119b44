"""Whole queues: pause, drain, clean, obliterate, limits (engine.md 6.1, 10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import World, persistent_world
from tests.unit.test_legality import park

MINUTE = 60_000


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


def one_of_each(world: World) -> dict[str, str]:
    """Put one job into every place; return state -> id."""
    ids = {}
    for state in ("completed", "failed", "active"):
        ids[state] = world.push(jobId=state, uniqueKey=state)
        world.pull()
    world.ok("ACK", id="completed", result=1)
    world.ok("FAIL", id="failed", unrecoverable=True)
    for state, fields in (
        ("waiting-children", {}),
        ("waiting", {}),
        ("prioritized", {"priority": 3}),
        ("delayed", {"delay": MINUTE}),
    ):
        ids[state] = world.push(jobId=state, uniqueKey=state, **fields)
        if state == "waiting-children":
            park(world, state)
    assert {state: 1 for state in ids} == world.counts()
    return ids


QUEUED = ("waiting", "prioritized", "delayed")


def test_drain_removes_what_is_queued_and_counts_it(world: World) -> None:
    ids = one_of_each(world)

    assert {"count": 3} == world.ok("Drain", queue="q")

    assert {state: 1 for state in ids if state not in QUEUED} == world.counts()
    assert [] == world.pull_all()


def test_drain_of_nothing_is_0(world: World) -> None:
    assert {"count": 0} == world.ok("Drain", queue="q")


def let_slices_commit(world: World) -> None:
    """Each slice of a drain comes after the commit of the one before."""
    for _ in range(10):
        world.forward(2)
        world.settle()


def test_a_long_queue_is_drained_to_the_last(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 5_000)
    answer = world.send("Drain", queue="q")
    let_slices_commit(world)

    assert {"ok": True, "count": 5_000} == answer.reply
    assert {} == world.counts()
    if world.storage.is_persistent:
        assert {} == world.storage.rows


def test_what_is_pushed_while_a_long_queue_is_drained_stays(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 5_000)
    world.send("Drain", queue="q")
    job_id = world.push()
    let_slices_commit(world)

    assert {"waiting": 1} == world.counts()
    assert job_id == world.pull()


def test_obliterate_leaves_nothing_in_any_place(world: World) -> None:
    ids = one_of_each(world)
    world.ok("RateLimit", queue="q", limit=0)
    world.ok("SetDlqConfig", queue="q", config={"maxEntries": 5})

    world.ok("Obliterate", queue="q")

    assert ["unknown"] * 7 == [world.state(job_id) for job_id in ids.values()]
    assert {} == world.counts()
    assert [] == world.ok("ListQueues")["queues"]
    assert 10_000 == world.ok("GetDlqConfig", queue="q")["config"]["maxEntries"]
    if world.storage.is_persistent:
        assert ({}, {}) == (world.storage.rows, world.storage.tables.get("queues", {}))
    job_id = world.push(uniqueKey="waiting")
    assert job_id == world.pull()


CLEANED = {
    None: QUEUED,
    "waiting": QUEUED,
    "wait": QUEUED,
    "delayed": ("delayed",),
    "prioritized": ("prioritized",),
    "completed": ("completed",),
    "failed": ("failed",),
    "active": (),
    "paused": (),
    "nonsense": (),
}


@pytest.mark.parametrize("state", CLEANED)
def test_clean_removes_the_jobs_of_the_named_state(world: World, state: str | None) -> None:
    ids = one_of_each(world)

    reply = world.ok("Clean", queue="q", state=state)

    gone = set(CLEANED[state])
    assert gone == set(reply["ids"])
    assert len(gone) == reply["count"]
    assert {name: 1 for name in ids if name not in gone} == world.counts()


def test_clean_takes_the_oldest_up_to_the_limit(world: World) -> None:
    names = ["c", "a", "b"]
    for name in names:
        world.push(jobId=name)
        world.clock.ms += 1

    assert ["c", "a"] == world.ok("Clean", queue="q", limit=2)["ids"]
    assert "waiting" == world.state("b")


def test_clean_spares_jobs_younger_than_the_grace(world: World) -> None:
    old = world.push()
    world.clock.ms += 500
    world.push()
    world.clock.ms += 500

    assert [old] == world.ok("Clean", queue="q", grace=1_000)["ids"]


def test_clean_counts_completed_jobs_from_their_end(world: World) -> None:
    job_id = world.push()
    world.clock.ms += MINUTE
    world.pull()
    world.ok("ACK", id=job_id)

    assert [] == world.ok("Clean", queue="q", state="completed", grace=1_000)["ids"]
    world.clock.ms += 1_000
    assert [job_id] == world.ok("Clean", queue="q", state="completed", grace=1_000)["ids"]


def test_clean_takes_a_thousand_at_most_by_default(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 1_200)

    assert 1_000 == world.ok("Clean", queue="q")["count"]


def test_pause_and_resume_are_events(world: World) -> None:
    world.listen()
    world.ok("Pause", queue="q")
    world.ok("Resume", queue="q")

    assert [("paused", ""), ("resumed", "")] == [
        (event["eventType"], event["jobId"]) for event in world.events
    ]


@pytest.mark.parametrize("command", ["Resume", "RateLimitClear", "ClearConcurrency", "Obliterate"])
def test_clearing_what_is_not_there_is_fine(world: World, command: str) -> None:
    assert {} == world.ok(command, queue="nowhere")
    assert [] == world.ok("ListQueues")["queues"]


def test_retry_completed_runs_jobs_again_without_their_results(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.ok("Progress", id=job_id, progress=40)
    world.ok("ACK", id=job_id, result=1)
    world.clock.ms += 5

    assert {"count": 1} == world.ok("RetryCompleted", queue="q")

    view = world.job(job_id)
    assert ("waiting", 0, 0, None, None, world.now) == tuple(
        view[key] for key in ("state", "attempts", "progress", "startedAt", "completedAt", "runAt")
    )
    assert "returnvalue" not in view
    states = [entry["state"] for entry in view["timeline"]]
    assert ["waiting", "active", "completed", "waiting"] == states
    assert {"id": job_id} == world.ok("GetResult", id=job_id)
    assert job_id == world.pull()


def test_retry_completed_takes_the_oldest_completion_first(world: World) -> None:
    for name in ("a", "b", "c"):
        world.push(jobId=name)
    world.ok("PULLB", queue="q", count=3)
    for name in ("c", "a", "b"):
        world.ok("ACK", id=name)
        world.clock.ms += 10

    assert {"count": 1} == world.ok("RetryCompleted", queue="q", count=1)
    assert "waiting" == world.state("c")
    assert {"count": 1} == world.ok("RetryCompleted", queue="q", timestamp=world.now - 10)
    assert "waiting" == world.state("a")
    assert {"count": 0} == world.ok("RetryCompleted", queue="q", count=0)


# -- limits --------------------------------------------------------------------------------------

NO_LIMITS = {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}


def limits(world: World, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = world.ok("GetQueueLimits", queue="q", **fields)["data"]["limits"]
    return found


def test_a_queue_has_no_limits_at_first(world: World) -> None:
    assert NO_LIMITS == limits(world)


def test_limits_are_shown_as_set(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=2, duration=500)
    world.ok("SetConcurrency", queue="q", limit=1)

    assert {
        "rateLimit": {"max": 2, "duration": 500},
        "rateLimitTtl": 0,
        "concurrencyLimit": 1,
        "maxed": False,
    } == limits(world)
    world.push()
    world.pull()
    assert limits(world)["maxed"]


def test_the_wait_for_the_next_token_is_shown(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=500)
    world.push()
    world.pull()
    world.clock.ms += 100

    assert 400 == limits(world)["rateLimitTtl"]


def test_the_wait_can_be_asked_for_so_many_jobs_used_up(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=3, duration=60_000)
    found = []
    for _ in range(3):
        world.push()
        world.pull()
        found.append([limits(world, maxJobs=most)["rateLimitTtl"] for most in (1, 2, 3, 4)])

    assert [[0, 0, 0, 0], [0, 0, 0, 0], [20_000, 20_000, 20_000, 0]] == found


def test_a_temporary_limit_shows_its_remaining_life_and_goes(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, ttl=5_000)
    world.clock.ms += 1_000
    assert 4_000 == limits(world)["rateLimitTtl"]

    world.clock.ms += 4_000

    assert NO_LIMITS == limits(world)


def test_a_temporary_limit_that_is_over_keeps_no_queue(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, ttl=5_000)
    world.ok("RateLimit", queue="kept", limit=1, ttl=5_000)
    world.ok("SetConcurrency", queue="kept", limit=1)
    world.forward(MINUTE)

    assert ["kept"] == world.ok("ListQueues")["queues"]


def test_setting_a_rate_limit_again_fills_the_bucket(world: World) -> None:
    for _ in range(2):
        world.push()
        world.ok("RateLimit", queue="q", limit=1, duration=MINUTE)
        assert world.pull() is not None


@pytest.mark.parametrize("limit", ["3", 3.0, 3])
def test_numeric_strings_are_limits(world: World, limit: object) -> None:
    world.ok("RateLimit", queue="q", limit=limit)
    world.ok("SetConcurrency", queue="q", limit=limit)

    assert (3, 3) == (limits(world)["rateLimit"]["max"], limits(world)["concurrencyLimit"])


@pytest.mark.parametrize("limit", ["many", None, [], {}, float("inf"), float("nan")])
@pytest.mark.parametrize("command", ["RateLimit", "SetConcurrency"])
def test_a_limit_must_be_a_finite_number(world: World, command: str, limit: object) -> None:
    assert "limit must be a finite number" == world.error(command, queue="q", limit=limit)
    assert NO_LIMITS == limits(world)


@pytest.mark.parametrize("span", [0, -1, None])
def test_a_useless_duration_or_ttl_is_the_default(world: World, span: object) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=span, ttl=span)

    assert {"max": 1, "duration": 1_000} == limits(world)["rateLimit"]
    world.clock.ms += 10**9
    assert limits(world)["rateLimit"] is not None


def test_limits_survive_a_restart() -> None:
    world = persistent_world()
    world.ok("RateLimit", queue="q", limit=2, duration=500, ttl=5_000)
    world.ok("SetConcurrency", queue="q", limit=7)
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 9})
    world.ok("SetDlqConfig", queue="q", config={"maxAge": None, "autoRetry": True})
    asked = ("GetQueueLimits", "GetStallConfig", "GetDlqConfig", "IsPaused")
    before = [world.ok(command, queue="q") for command in asked]

    again = world.restart()

    assert before == [again.ok(command, queue="q") for command in asked]


def test_an_expired_limit_does_not_come_back_with_a_restart() -> None:
    world = persistent_world()
    world.ok("RateLimit", queue="q", limit=0, ttl=5_000)
    world.clock.ms += 5_000

    again = world.restart()
    assert NO_LIMITS == limits(again)
    again.forward(MINUTE)
    assert [] == again.ok("ListQueues")["queues"]
    assert {} == again.storage.tables["queues"]
