"""Why a job is not running, state by state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import START, World


@pytest.fixture
def world() -> World:
    return World()


def explained(world: World, job_id: str) -> Any:
    return world.ok("ExplainJob", id=job_id)["explanation"]


def codes(world: World, job_id: str) -> list[str]:
    return [reason["code"] for reason in explained(world, job_id)["reasons"]]


def reason(world: World, job_id: str, code: str) -> Any:
    return next(one for one in explained(world, job_id)["reasons"] if one["code"] == code)


def worker(world: World) -> None:
    world.ok("RegisterWorker", name="w", queues=["q"])


def test_no_such_job(world: World) -> None:
    told = explained(world, "nobody")

    assert ("unknown", ["unknown"]) == (told["state"], [one["code"] for one in told["reasons"]])


def test_nothing_but_the_jobs_before_it(world: World) -> None:
    worker(world)
    world.push(priority=1)
    ids = [world.push(), world.push(lifo=True), world.push()]
    world.push(priority=-1)

    assert [[], [], []] == [codes(world, one) for one in ids]
    assert [2, 1, 3] == [explained(world, one)["ahead"] for one in ids]
    assert [world.ok("PULL", queue="q")["job"]["id"] for _ in range(4)][1:] == [
        ids[1],
        ids[0],
        ids[2],
    ]


def test_a_job_whose_delay_is_over_is_counted_before_anybody_has_pulled(world: World) -> None:
    worker(world)
    ids = [world.push(delay=50), world.push(delay=20), world.push(delay=80)]
    world.forward(60)
    ids.append(world.push())

    assert [[], [], ["delayed"], []] == [codes(world, one) for one in ids]
    assert [1, 0, None, 2] == [explained(world, one).get("ahead") for one in ids]


def test_nobody_works_on_its_queue(world: World) -> None:
    job_id = world.push()
    assert ["no-worker"] == codes(world, job_id)

    worker(world)
    assert [] == codes(world, job_id)


def test_delayed_until(world: World) -> None:
    worker(world)
    job_id = world.push(delay=5_000)

    assert START + 5_000 == reason(world, job_id, "delayed")["until"]
    world.forward(5_000)
    assert [] == codes(world, job_id)


def test_between_two_attempts(world: World) -> None:
    worker(world)
    job_id = world.push(backoff=1_000, maxAttempts=3)
    world.ok("PULL", queue="q")
    world.ok("FAIL", id=job_id)

    told = reason(world, job_id, "delayed")
    assert (1, "It waits for its next attempt.") == (told["attempts"], told["text"])


def test_paused_and_limited_at_once(world: World) -> None:
    worker(world)
    running, waiting = world.push(), world.push()
    world.ok("SetConcurrency", queue="q", limit=1)
    world.ok("PULL", queue="q")
    assert ["concurrency"] == codes(world, waiting)

    world.ok("RateLimit", queue="q", limit=1, duration=1_000)
    world.ok("ACK", id=running)
    last = world.push()
    world.ok("PULL", queue="q")
    world.ok("Pause", queue="q")

    assert ["paused", "concurrency", "rate-limit"] == codes(world, last)
    assert START + 1_000 == reason(world, last, "rate-limit")["until"]


def test_a_used_up_rate_tells_when_it_goes_on(world: World) -> None:
    worker(world)
    world.ok("RateLimit", queue="q", limit=1, duration=1_000)
    world.push()
    world.ok("PULL", queue="q")
    job_id = world.push()

    assert START + 1_000 == reason(world, job_id, "rate-limit")["until"]


@pytest.mark.parametrize("limit", [0, 0.5])
def test_limits_that_let_nothing_through_say_so(world: World, limit: float) -> None:
    worker(world)
    job_id = world.push()
    world.ok("SetConcurrency", queue="q", limit=0)
    world.ok("RateLimit", queue="q", limit=limit, duration=1_000)

    assert "may run no job" in reason(world, job_id, "concurrency")["text"]
    told = reason(world, job_id, "rate-limit")
    assert f"lets no job through: its rate is {limit} in 1000 ms" in told["text"]
    assert "until" not in told


def test_running_under_a_lease(world: World) -> None:
    job_id = world.push()
    world.ok("PULL", queue="q", owner="ann", lockTtl=9_000)

    told = reason(world, job_id, "active")
    assert ("ann", START + 9_000) == (told["owner"], told["until"])


def test_running_without_a_lease(world: World) -> None:
    job_id = world.push()
    world.ok("PULL", queue="q")

    assert ["active"] == codes(world, job_id)
    assert "until" not in reason(world, job_id, "active")


def test_ended(world: World) -> None:
    done, dead = world.push(), world.push(maxAttempts=1)
    for _ in range(2):
        world.ok("PULL", queue="q")
    world.ok("ACK", id=done)
    world.ok("FAIL", id=dead, error="no paper")

    assert ["completed"] == codes(world, done)
    told = reason(world, dead, "failed")
    assert ("max_attempts_exceeded", 1) == (told["reason"], told["attempts"])
    assert "no paper" in told["text"]


def test_waiting_for_children(world: World) -> None:
    children = [world.push(queue="other") for _ in range(2)]
    job_id = world.push(dependsOn=children)

    told = reason(world, job_id, "children")
    assert (2, sorted(children)) == (told["count"], told["ids"])


def test_its_group_is_paused_or_full_or_rests(world: World) -> None:
    worker(world)
    first, second = world.push(groupId="a"), world.push(groupId="a")
    terms = {"concurrency": 1, "limit": {"max": 1, "duration": 1_000}}
    world.ok("PULL", queue="q", group=terms)
    assert "group-concurrency" == reason(world, second, "group-concurrency")["code"]

    world.ok("ACK", id=first)
    assert START + 1_000 == reason(world, second, "group-rate")["until"]

    world.ok("PauseGroup", queue="q", groupId="a")
    assert ["group-paused"] == codes(world, second)
