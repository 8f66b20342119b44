"""Jobs by the minute: counted exactly, kept over restarts, gone with the queue's end."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import metrics
from bunqueue.engine.metrics import WINDOW_MINUTES
from tests.support.engine import World, persistent_world

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    world = World()
    world.clock.ms -= world.clock.ms % MINUTE  # at the beginning of a minute
    return world


def complete(world: World, count: int = 1, queue: str = "q") -> None:
    for _ in range(count):
        world.push(queue)
        job_id = world.pull(queue)
        world.ok("ACK", id=job_id)


def fail(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.ok("FAIL", id=job_id, unrecoverable=True)


def figures(world: World, kind: str = "completed", queue: str = "q", **fields: Any) -> Any:
    return world.ok("Metrics", queue=queue, type=kind, **fields)["data"]


def test_every_minute_has_its_count_and_gaps_are_zero(world: World) -> None:
    complete(world, 2)
    world.leap(3 * MINUTE)
    complete(world)
    fail(world)
    world.leap(MINUTE)

    assert {
        "meta": {"count": 3, "prevTS": world.now - MINUTE, "prevCount": 1},
        "data": [1, 0, 0, 2],
        "count": 4,
    } == figures(world)
    assert [1] == figures(world, "failed")["data"]


def test_the_last_moment_of_a_minute_counts_for_it(world: World) -> None:
    world.leap(MINUTE - 1)
    complete(world)
    world.leap(1)
    complete(world, 2)

    assert [2, 1] == figures(world)["data"]


def test_points_are_chosen_by_place(world: World) -> None:
    for count in (1, 2, 3):
        complete(world, count)
        world.leap(MINUTE)

    assert [2, 1] == figures(world, start=1)["data"]
    assert [3, 2] == figures(world, end=1)["data"]
    assert [2] == figures(world, start=1, end=1)["data"]
    assert [] == figures(world, start=3, end=9)["data"]
    assert 3 == figures(world, start=3)["count"]


def test_minutes_older_than_two_weeks_go_and_the_total_stays(world: World) -> None:
    complete(world)
    world.leap(MINUTE)
    complete(world)
    world.leap((WINDOW_MINUTES - 1) * MINUTE)
    complete(world)

    assert WINDOW_MINUTES == figures(world)["count"]
    assert 3 == figures(world)["meta"]["count"]
    assert 1 == len(world.engine.metrics["q"].minutes)  # besides the present one


def test_figures_outlive_the_queues_name(world: World) -> None:
    complete(world)
    world.ok("Clean", queue="q", state="completed", grace=0)
    world.forward(60_000)
    assert [] == world.ok("ListQueues")["queues"]

    assert 1 == figures(world)["meta"]["count"]
    complete(world)
    assert 2 == figures(world)["meta"]["count"]


def test_obliterate_ends_the_figures(world: World) -> None:
    complete(world)
    world.ok("Obliterate", queue="q")
    assert 0 == figures(world)["meta"]["count"]

    complete(world)
    assert 1 == figures(world)["meta"]["count"]


def test_a_discarded_job_has_not_failed(world: World) -> None:
    world.ok("Discard", id=world.push())

    assert 0 == figures(world, "failed")["count"]


def test_an_expired_job_that_had_failed_has(world: World) -> None:
    job_id = world.push(ttl=10_000, backoff=60_000)
    world.pull()
    world.ok("FAIL", id=job_id)
    world.forward(20_000)

    assert 1 == figures(world, "failed")["meta"]["count"]


def test_a_step_of_the_clock_backwards_is_counted(world: World) -> None:
    complete(world)
    world.clock.ms -= 10 * MINUTE
    world.engine.clock_jumped(-10 * MINUTE)
    complete(world)

    assert 2 == figures(world)["meta"]["count"]
    assert 2 == sum(figures(world)["data"])


# -- with a file -----------------------------------------------------------------------------------


def test_a_count_is_committed_with_its_outcome() -> None:
    world = persistent_world()
    complete(world, 2)

    assert 2 == figures(world.restart())["meta"]["count"]
    assert [2] == figures(world.restart())["data"]


def test_finished_minutes_survive_restarts() -> None:
    world = persistent_world()
    complete(world, 2)
    world.leap(2 * MINUTE)
    complete(world)
    before = figures(world)

    assert [1, 0, 2] == before["data"]
    again = world.restart()
    assert before == figures(again)
    assert before == figures(again.restart())


def test_a_completion_that_was_undone_is_not_counted() -> None:
    world = persistent_world()
    job_id = world.push()
    world.pull()
    world.storage.fails = True
    world.error("ACK", id=job_id)
    world.storage.fails = False
    world.settle()

    assert 0 == figures(world)["meta"]["count"]
    assert 0 == figures(world.restart())["meta"]["count"]
    world.ok("ACK", id=job_id)
    assert 1 == figures(world.restart())["meta"]["count"]


def test_obliterate_takes_the_rows_and_gives_them_back_if_it_fails() -> None:
    world = persistent_world()
    complete(world)
    world.leap(MINUTE)
    complete(world)
    before = figures(world)
    world.storage.fails = True
    world.error("Obliterate", queue="q")
    world.storage.fails = False
    world.settle()
    assert before == figures(world)
    assert before == figures(world.restart())

    world.ok("Obliterate", queue="q")
    assert 0 == figures(world.restart())["meta"]["count"]
    assert {} == world.storage.tables["metrics_minute"]


def test_rows_of_old_minutes_go_from_the_file() -> None:
    world = persistent_world()
    complete(world)
    world.leap(MINUTE)
    complete(world)
    assert 1 == len(world.storage.tables["metrics_minute"])
    world.leap(WINDOW_MINUTES * 2 * MINUTE)
    complete(world)
    world.leap(MINUTE)
    complete(world)

    assert 1 == len(world.storage.tables["metrics_minute"])
    assert 4 == figures(world.restart())["meta"]["count"]


def test_figures_of_names_long_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "QUEUES_MAX", 2)
    world = World()
    for name in ("a", "b"):
        complete(world, queue=name)
        world.ok("Clean", queue=name, state="completed", grace=0)
    world.forward(60_000)
    complete(world, queue="c")

    assert ["b", "c"] == list(world.engine.metrics)


def test_old_queues_that_live_on_keep_no_figures_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "QUEUES_MAX", 4)
    monkeypatch.setattr(metrics, "FORGET_LOOKS_MAX", 2)
    world = World()
    for name in ("a", "b", "c"):  # more than are looked at
        complete(world, queue=name)
    for number in range(12):
        complete(world, queue=f"n{number}")
        world.ok("Clean", queue=f"n{number}", state="completed", grace=0)
        world.forward(60_000)

    assert {"a", "b", "c"} < set(world.engine.metrics)
    assert 5 >= len(world.engine.metrics)


def test_the_minutes_of_all_queues_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MINUTES_MAX", 40)
    world = persistent_world()
    for _ in range(30):
        for name in ("a", "b", "c", "d"):
            job_id = world.push(name)
            world.pull(name)
            world.ok("ACK", id=job_id)
        world.forward(MINUTE)

    kept = sum(len(each.minutes) for each in world.engine.metrics.values())
    assert 30 < kept <= 44  # each queue has the minute that runs besides
    assert kept == world.engine.metric_minutes
    assert len(world.storage.tables["metrics_minute"]) <= 44
    assert (30, 0) == world.engine.queue_totals("a")


def test_what_is_kept_of_minutes_is_counted_through_forgetting_and_a_restart() -> None:
    world = persistent_world()
    for _ in range(5):
        for name in ("a", "b"):
            job_id = world.push(name)
            world.pull(name)
            world.ok("ACK", id=job_id)
        world.forward(MINUTE)
    world.ok("Obliterate", queue="a", force=True)
    again = world.restart()

    for each in (world, again):
        kept = sum(len(each.minutes) for each in each.engine.metrics.values())
        assert 0 < kept == each.engine.metric_minutes
