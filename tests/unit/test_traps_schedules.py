"""The traps of engine.md 15 about schedulers, each under its number."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import START, World, persistent_world

SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


def silent(world: World, _peer: Any) -> World:
    """Let the worker fall silent until it counts as stalled, or its lease is over."""
    world.forward(45 * SECOND)
    return world


def close(world: World, peer: Any) -> World:
    world.close(peer)
    return world


def crash(world: World, _peer: Any) -> World:
    return world.restart()


@pytest.mark.parametrize("end", [silent, close, crash])
def test_trap_36_a_schedulers_job_that_lost_its_worker_is_not_replayed(end: Any) -> None:
    world = persistent_world()
    world.ok("Cron", name="c", queue="q", repeatEvery=10 * MINUTE)
    world.forward(10 * MINUTE)
    peer = world.connect()
    job_id, token = world.lease(peer=peer)

    world = end(world, peer)

    assert "unknown" == world.state(job_id)
    assert {} == world.counts()
    if end is not crash:
        assert {"ok": True} | {"data": {"applied": False, "reason": "already-finalized"}} == (
            world.go("ACK", id=job_id, token=token)
        )
    world.forward(10 * MINUTE)
    world.settle()
    assert {"waiting": 1} == world.counts()
    assert 2 == world.ok("CronGet", name="c")["cron"]["executions"]


def test_trap_38_runs_that_were_left_out_do_not_use_up_the_limit() -> None:
    world = World()
    world.ok(
        "Cron",
        name="c",
        queue="q",
        repeatEvery=MINUTE,
        maxLimit=2,
        skipIfNoWorker=True,
        preventOverlap=False,
    )
    world.forward(5 * MINUTE)
    assert 0 == world.ok("CronGet", name="c")["cron"]["executions"]

    worker = world.ok("RegisterWorker", name="w", queues=["q"])["data"]["workerId"]
    for _ in range(10):
        world.forward(20 * SECOND)
        world.ok("Heartbeat", id=worker)

    assert {"waiting": 2} == world.counts()


def test_trap_39_an_interval_does_not_drift() -> None:
    world = World()
    world.ok("Cron", name="c", queue="q", repeatEvery=100, preventOverlap=False)

    end = START + 1000 * 100
    late = 0
    while world.now < end:
        late = (late * 7 + 3) % 10  # the ticker comes 0 to 9 ms late
        world.clock.ms = (
            max(world.now, int(world.ok("CronGet", name="c")["cron"]["nextRun"])) + late
        )
        world.engine.tick(world.now)

    cron = world.ok("CronGet", name="c")["cron"]
    assert 1000 == cron["executions"]
    assert 0 == (cron["nextRun"] - START) % 100


@pytest.mark.parametrize("fields", [{"repeatEvery": 60 * DAY}, {"schedule": "0 0 29 2 *"}])
def test_trap_40_a_timer_far_ahead_does_not_spin(fields: dict[str, Any]) -> None:
    world = World()
    idle = World()
    ticks = []
    for each in (idle, world):
        if each is world:
            each.ok("Cron", name="c", queue="q", **fields)
        count = 0
        end = each.now + 10 * MINUTE
        while (at := each.engine.tick(each.now)) <= end:
            assert each.now < at
            each.clock.ms = at
            count += 1
        ticks.append(count)

    assert ticks[0] == ticks[1]
