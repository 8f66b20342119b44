"""The log of figures: one row a batch, bounded, and nothing of it lost or brought back."""

from __future__ import annotations

import pytest

from bunqueue.engine import metrics_log
from tests.support.engine import World, persistent_world

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    world = persistent_world()
    world.clock.ms -= world.clock.ms % MINUTE
    return world


def complete(world: World, queue: str) -> None:
    world.push(queue)
    job_id = world.pull(queue)
    world.ok("ACK", id=job_id)


def data(world: World, queue: str) -> object:
    return world.ok("Metrics", queue=queue, type="completed")["data"]["data"]


def test_the_queues_of_a_batch_share_a_row(world: World) -> None:
    names = ("a", "b", "c")
    ids = {name: (world.push(name), world.pull(name))[0] for name in names}
    before = len(world.storage.tables.get("metrics_log", {}))
    for name in names:
        world.send("ACK", id=ids[name])
    world.storage.settle()

    assert before + 1 == len(world.storage.tables["metrics_log"])
    assert "metrics_total" not in world.storage.tables
    again = world.restart()
    assert [(1, 0)] * 3 == [again.engine.queue_totals(name) for name in names]
    assert [[1]] * 3 == [data(again, name) for name in names]


@pytest.mark.parametrize("bound", ["ROWS_MAX", "ENTRIES_MAX"])
def test_what_leaves_the_log_gets_a_row_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(metrics_log, bound, 4)
    complete(world, "quiet")
    for _ in range(9):
        complete(world, "busy")

    assert 4 == len(world.storage.tables["metrics_log"])
    assert 4 == world.engine.metrics_log.entries
    assert ["quiet"] == list(world.storage.tables["metrics_total"])
    for _ in range(2):
        world = world.restart()
        complete(world, "busy")
    assert (1, 0) == world.engine.queue_totals("quiet")
    assert (11, 0) == world.engine.queue_totals("busy")
    assert 4 == len(world.storage.tables["metrics_log"])


def test_forgotten_figures_are_not_read_in_the_log(world: World) -> None:
    complete(world, "q")
    world.ok("Obliterate", queue="q", force=True)
    again = world.restart()

    assert (0, 0) == again.engine.queue_totals("q")
    complete(again, "q")
    assert (1, 0) == again.restart().engine.queue_totals("q")


def test_nothing_is_noted_of_forgotten_queues_that_the_log_does_not_have() -> None:
    world = World()  # in memory, where nothing is ever written
    for _ in range(3):
        complete(world, "q")
        world.ok("Obliterate", queue="q", force=True)

    assert {} == world.engine.recounted


def test_a_minute_that_comes_again_goes_on_counting(world: World) -> None:
    complete(world, "q")
    world.leap(MINUTE)
    complete(world, "q")
    world.leap(-MINUTE)
    complete(world, "q")
    assert [1, 2] == data(world, "q")
    assert [1, 2] == data(world.restart(), "q")

    world.leap(2 * MINUTE)
    complete(world, "q")
    assert [1, 1, 2] == data(world, "q")
    assert [1, 1, 2] == data(world.restart(), "q")


def test_a_failed_commit_leaves_the_figures_right(world: World) -> None:
    complete(world, "q")
    job_id = (world.push("q"), world.pull("q"))[0]
    world.storage.fails = True
    world.send("ACK", id=job_id)
    world.storage.settle()
    world.storage.fails = False
    assert (1, 0) == world.engine.queue_totals("q")
    world.storage.settle()

    assert (1, 0) == world.restart().engine.queue_totals("q")


def test_an_undone_obliterate_leaves_the_queue_noted(world: World) -> None:
    first = (world.push("q"), world.pull("q"))[0]
    second = (world.push("q"), world.pull("q"))[0]
    world.send("ACK", id=first)
    world.storage.settle()
    world.push("q")
    world.send("ACK", id=second)
    world.send("Obliterate", queue="q", force=True)
    world.storage.fails = True
    world.storage.settle()
    world.storage.fails = False
    assert (1, 0) == world.engine.queue_totals("q")
    world.ok("ACK", id=second)

    assert (2, 0) == world.engine.queue_totals("q")
    assert (2, 0) == world.restart().engine.queue_totals("q")
