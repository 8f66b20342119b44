"""Starting from what a file holds (engine.md 11.5)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.settings import EngineSettings
from tests.support.engine import World, persistent_world
from tests.unit.engine.test_control import one_of_each

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return persistent_world()


def without_moments(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key not in ("timeline", "lastHeartbeat")}


def test_every_place_but_active_comes_back_as_it_was(world: World) -> None:
    ids = one_of_each(world)
    before = {state: without_moments(world.job(job_id)) for state, job_id in ids.items()}

    again = world.restart()

    after = {state: without_moments(again.job(job_id)) for state, job_id in ids.items()}
    del before["active"], after["active"]
    assert before == after
    assert "delayed" == again.state(ids["active"])


def test_the_figures_say_what_came_back(world: World) -> None:
    one_of_each(world)

    found = world.restart().recovered

    assert (4, 1, 1, 1) == (found.pending, found.interrupted, found.completed, found.failed)


def test_a_second_restart_changes_nothing_more(world: World) -> None:
    ids = one_of_each(world)
    once = world.restart()
    twice = once.restart()

    assert [once.job(job_id) for job_id in ids.values()] == [
        twice.job(job_id) for job_id in ids.values()
    ]


def test_the_order_of_a_queue_survives(world: World) -> None:
    pushes: list[dict[str, Any]] = [
        {"jobId": "z"},
        {"jobId": "a"},
        {"jobId": "high", "priority": 5},
        {"jobId": "lifo-1", "lifo": True},
        {"jobId": "lifo-2", "lifo": True},
        {"jobId": "low", "priority": -5},
        {"jobId": "m"},
    ]
    for fields in pushes:
        world.push(**fields)
    world.settle()

    assert ["high", "lifo-2", "lifo-1", "z", "a", "m", "low"] == world.restart().pull_all()


def test_admission_numbers_go_on(world: World) -> None:
    first = world.push()
    world.settle()
    again = world.restart()
    second = again.push()

    assert [first, second] == again.pull_all()


def test_delays_deadlines_and_keys_go_on(world: World) -> None:
    delayed = world.push(delay=MINUTE)
    expiring = world.push(ttl=2 * MINUTE, delay=3 * MINUTE)
    keyed = world.push(uniqueKey="k", delay=10 * MINUTE)
    world.settle()

    again = world.restart()
    again.forward(MINUTE)
    assert delayed == again.pull()
    again.forward(MINUTE + 1)
    assert "unknown" == again.state(expiring)
    assert keyed == again.push(uniqueKey="k")


def test_a_dead_letter_keeps_its_entry(world: World) -> None:
    world.push(jobId="a", maxAttempts=1)
    world.pull()
    world.ok("FAIL", id="a", error="no", stack=["line"])

    assert world.entry() == world.restart().entry()


def test_results_survive_and_none_stays_none(world: World) -> None:
    for name, fields in (("a", {"result": None}), ("b", {}), ("c", {"result": b"\x00"})):
        world.push(jobId=name)
        world.pull()
        world.ok("ACK", id=name, **fields)

    again = world.restart()

    assert [{"id": "a", "result": None}, {"id": "b"}, {"id": "c", "result": b"\x00"}] == [
        again.ok("GetResult", id=name) for name in "abc"
    ]


def test_the_newest_completed_jobs_are_kept(world: World) -> None:
    for number in range(30):
        world.push(jobId=str(number))
        world.pull()
        world.ok("ACK", id=str(number))
        world.clock.ms += 1
    world.settings = EngineSettings(max_completed_jobs=20)

    again = world.restart()
    again.forward(1)

    assert {"completed": 18} == again.counts()
    assert "unknown" == again.state("11")
    assert "completed" == again.state("12")


def test_a_workers_progress_and_edits_survive(world: World) -> None:
    world.push(jobId="a", data=1)
    world.pull()
    world.ok("Progress", id="a", progress=40, message="m")
    world.ok("Update", id="a", data=2)

    view = world.restart().job("a")

    assert (40, "m", 2) == (view["progress"], view["progressMessage"], view["data"])


def test_no_answer_waits_after_a_recovery(world: World) -> None:
    world.push()
    world.lease()

    assert 0 == world.restart().storage.answer_waits


@pytest.mark.parametrize(("back_ms", "is_told"), [(MINUTE, True), (MINUTE - 1, False)])
def test_a_clock_behind_the_file_is_told(
    world: World, caplog: pytest.LogCaptureFixture, back_ms: int, is_told: bool
) -> None:
    world.push(jobId="a")
    world.pull()
    world.clock.ms -= back_ms

    world.restart()

    assert is_told == ("the clock is behind the data file" in caplog.text)
