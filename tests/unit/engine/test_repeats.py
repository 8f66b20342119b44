"""Jobs that repeat: each successful run makes the next one."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import successors
from tests.support.engine import START, World, persistent_world

SECOND = 1_000
MINUTE = 60 * SECOND


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


def repeat(world: World, repeat: dict[str, Any], **fields: Any) -> str:
    """Push a job that repeats."""
    return world.push(repeat=repeat, **fields)


def run(world: World) -> str:
    """Pull the job that is due, and acknowledge it."""
    job_id = world.pull()
    assert job_id is not None, "nothing is due"
    world.ok("ACK", id=job_id)
    return job_id


def pending(world: World) -> list[dict[str, Any]]:
    """Return the jobs that wait."""
    states = ["waiting", "prioritized", "delayed"]
    jobs: list[dict[str, Any]] = world.ok("GetJobs", queue="q", state=states)["jobs"]
    return jobs


def successor(world: World) -> dict[str, Any]:
    (job,) = pending(world)
    return job


# -- what is accepted ------------------------------------------------------------------------------

EXACTLY_ONE = "repeat requires exactly one of every or pattern"
POSITIVE = "repeat.every must be a positive finite number"
EVERY = {"every": 1000}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"repeat": {}}, EXACTLY_ONE),
        ({"repeat": {"every": 1000, "pattern": "* * * * *"}}, EXACTLY_ONE),
        ({"repeat": {"pattern": ""}}, EXACTLY_ONE),
        ({"repeat": {"every": 0}}, POSITIVE),
        ({"repeat": {"every": -1}}, POSITIVE),
        ({"repeat": {"every": "x"}}, POSITIVE),
        ({"repeat": {"every": True}}, POSITIVE),
        ({"repeat": {"every": float("inf")}}, POSITIVE),
        (
            {"repeat": {"pattern": "* * * *"}},
            "Invalid repeat pattern: Cron expression must have 5 fields,"
            " or 6 fields with leading seconds",
        ),
        ({"repeat": {"pattern": 5}}, "Invalid repeat pattern: pattern must be a string"),
        (
            {"repeat": {"pattern": "* * * * *", "tz": "X/Y"}},
            "Invalid repeat pattern: unknown time zone 'X/Y'",
        ),
        (
            {"repeat": {"pattern": "* * * * *", "tz": 5}},
            "Invalid repeat pattern: tz must be a string",
        ),
        ({"repeat": EVERY | {"startDate": "x"}}, "repeat.startDate must be a finite timestamp"),
        ({"repeat": EVERY | {"endDate": "x"}}, "repeat.endDate must be a finite timestamp"),
        ({"repeat": EVERY | {"prevMillis": "x"}}, "repeat.prevMillis must be a finite timestamp"),
        ({"repeat": EVERY | {"offset": "x"}}, "repeat.offset must be a finite timestamp"),
        ({"repeat": EVERY | {"offset": -1e300}}, "repeat.offset must be a finite timestamp"),
        ({"repeat": EVERY | {"limit": "x"}}, "repeat.limit must be a finite number"),
        ({"repeat": EVERY | {"count": 1e300}}, "repeat.count must be a finite number"),
        (
            {"repeat": EVERY, "jobId": "j"},
            "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead",
        ),
        (
            {"repeat": EVERY, "parentId": "p"},
            "repeat jobs cannot participate in parent or dependency relationships",
        ),
        (
            {"repeat": EVERY, "childrenIds": ["c"]},
            "repeat jobs cannot participate in parent or dependency relationships",
        ),
    ],
)
def test_a_repeat_that_cannot_work_is_refused(
    world: World, fields: dict[str, Any], text: str
) -> None:
    assert text == world.error("PUSH", queue="q", **fields)
    assert text == world.error("PUSHB", queue="q", jobs=[{}, fields])
    assert {} == world.counts()


def test_the_first_run_is_due_at_once_and_counts_nothing(world: World) -> None:
    job_id = repeat(world, {"every": 1000, "limit": 2, "unknown": 1, "tz": None})

    assert {"every": 1000, "limit": 2, "count": 0} == world.job(job_id)["repeat"]
    assert "waiting" == world.state(job_id)


def test_an_interval_below_a_millisecond_is_one(world: World) -> None:
    repeat(world, {"every": 5e-324})
    for _ in range(3):
        run(world)
        world.forward(2)

    assert 3 == successor(world)["repeat"]["count"]


# -- the next generation ---------------------------------------------------------------------------


def test_a_completion_makes_the_next_one(world: World) -> None:
    first = repeat(
        world, {"every": 1000}, name="n", data={"a": 1}, priority=4, tags=["t"], maxAttempts=5
    )
    run(world)

    job = successor(world)

    expected = {
        "name": "n",
        "data": {"a": 1},
        "priority": 4,
        "tags": ["t"],
        "maxAttempts": 5,
        "attempts": 0,
        "progress": 0,
        "state": "delayed",
        "createdAt": float(START),
        "runAt": float(START + 1000),
        "repeat": {"every": 1000, "count": 1, "prevMillis": float(START + 1000)},
    }
    assert expected == {name: job[name] for name in expected}
    assert ["delayed"] == [line["state"] for line in job["timeline"]]
    assert first != job["id"]


def test_limit_counts_the_runs_after_the_first(world: World) -> None:
    repeat(world, {"every": 1000, "limit": 2})

    for _ in range(3):
        run(world)
        world.forward(SECOND)

    assert [] == pending(world)
    assert {"completed": 3} == world.counts()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_means_one_run(world: World, limit: int) -> None:
    repeat(world, {"every": 1000, "limit": limit})
    run(world)

    assert [] == pending(world)


def test_a_terminal_failure_ends_the_chain(world: World) -> None:
    job_id = repeat(world, {"every": 1000}, maxAttempts=1)
    world.pull()
    world.ok("FAIL", id=job_id)

    assert {"failed": 1} == world.counts()


def test_a_retried_run_goes_on_with_the_chain(world: World) -> None:
    job_id = repeat(world, {"every": 1000}, backoff=0)
    world.pull()
    world.ok("FAIL", id=job_id)

    assert job_id == run(world)

    assert 0 == successor(world)["attempts"]


def test_a_job_that_is_forgotten_when_done_repeats_all_the_same(world: World) -> None:
    repeat(world, {"every": 1000}, removeOnComplete=True)
    run(world)

    assert 1 == successor(world)["repeat"]["count"]


def test_an_interval_keeps_its_grid_and_leaves_missed_slots_out(world: World) -> None:
    repeat(world, {"every": 1500})
    run(world)
    world.forward(1500 + 2_000)
    run(world)

    assert START + 4500 == successor(world)["runAt"]


def test_a_key_passes_on_to_the_successor(world: World) -> None:
    repeat(world, {"every": 1000}, uniqueKey="k")
    run(world)

    assert successor(world)["id"] == world.push(uniqueKey="k")


def test_a_job_that_took_the_key_ends_the_chain_of_the_one_before(world: World) -> None:
    repeat(world, {"every": 1000}, uniqueKey="k")
    running = world.pull()
    newer = world.push(uniqueKey="k", dedup={"replace": True})

    world.ok("ACK", id=running)

    assert [newer] == [job["id"] for job in pending(world)]


def test_a_completed_run_that_runs_again_makes_no_second_chain(world: World) -> None:
    job_id = repeat(world, {"every": MINUTE})
    run(world)
    world.ok("RetryCompleted", queue="q", id=job_id)

    run(world)

    assert 1 == len(pending(world))


DUE = [
    ({"every": 700, "offset": 200}, 900),
    ({"every": 1000, "immediately": True}, 1000),
    ({"every": 1000, "startDate": START + 5000.0}, 5000),
    ({"every": 1000, "startDate": START + 5000.0, "offset": 300}, 5300),
    ({"every": 1000, "startDate": START - 2500.0}, 1000),
    ({"every": 1000, "prevMillis": START - 10_300.0}, 700),
    ({"every": 1500.5, "prevMillis": START - 10_300.0}, 204),
    ({"every": 1000, "endDate": START + 1_000_000.0, "offset": -300}, 700),
    ({"every": 1000, "endDate": START + 300.0}, None),
    ({"every": 1000, "endDate": START - 1000.0}, None),
    ({"every": 1000, "startDate": START + 5000.0, "endDate": START + 4000.0}, None),
    ({"every": 1e300}, None),
    # START is 20 s past a full minute.
    ({"pattern": "*/5 * * * * *"}, 5_000),
    ({"pattern": "*/5 * * * * *", "offset": 1000}, 1_000),
    ({"pattern": "*/5 * * * * *", "startDate": START + 20_000.0}, 20_000),
    ({"pattern": "*/5 * * * * *", "startDate": START - 20_000.0}, 5_000),
    ({"pattern": "*/5 * * * * *", "prevMillis": START + 60_000.0}, 65_000),
    ({"pattern": "0 0 0 * * *", "endDate": START + 1000.0}, None),
    ({"pattern": "0 0 0 * * *", "startDate": 1e300}, None),
    ({"pattern": "0 4 * * *", "tz": "Asia/Kathmandu"}, 100_000),
]


@pytest.mark.parametrize(("rule", "after_ms"), DUE)
def test_when_the_next_one_is_due(world: World, rule: dict[str, Any], after_ms: int | None) -> None:
    repeat(world, rule)
    run(world)

    due = [int(job["runAt"]) - START for job in pending(world)]

    assert ([] if after_ms is None else [after_ms]) == due


def test_the_next_one_becomes_due_and_is_handed_to_who_waits(world: World) -> None:
    repeat(world, {"every": 1000})
    run(world)
    answer = world.poll()

    world.forward(1000)

    assert answer.reply is not None
    assert 1 == answer.reply["job"]["repeat"]["count"]


def test_a_successor_is_told_of_as_pushed(world: World) -> None:
    repeat(world, {"every": 1000})
    world.listen()
    run(world)

    kinds = [event["eventType"] for event in world.events]
    assert ["pulled", "pushed", "completed"] == sorted(kinds, key=kinds.index)


# -- edits -----------------------------------------------------------------------------------------


def test_an_edit_of_a_completed_run_is_about_its_successor(world: World) -> None:
    first = repeat(world, {"every": 1000}, data=1)
    run(world)

    world.ok("Update", id=first, data=2)

    assert 2 == successor(world)["data"]
    assert 1 == world.job(first)["data"]


def test_an_edit_passes_on_from_a_run_that_was_forgotten(world: World) -> None:
    first = repeat(world, {"every": 1000}, data=1, removeOnComplete=True)
    run(world)

    world.ok("Update", id=first, data=2)

    assert 2 == successor(world)["data"]


def test_an_edit_reaches_the_next_generation_only(world: World) -> None:
    first = repeat(world, {"every": 1000}, data=1)
    run(world)
    world.forward(1000)
    run(world)

    assert "Job not found or cannot be updated" == world.error("Update", id=first, data=2)


def test_an_edit_of_a_run_whose_successor_runs_is_refused(world: World) -> None:
    first = repeat(world, {"every": 1000}, data=1)
    run(world)
    world.forward(1000)
    world.pull()

    assert "Job not found or cannot be updated" == world.error("Update", id=first, data=2)


def test_an_edit_of_a_run_that_waits_again_is_about_itself(world: World) -> None:
    first = repeat(world, {"every": 1000}, data=1)
    run(world)
    world.ok("RetryCompleted", queue="q", id=first)

    world.ok("Update", id=first, data=2)

    assert 2 == world.job(first)["data"]


def test_the_links_of_old_runs_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors, "LINKS_MAX", 3)
    repeat(world, {"every": 10})
    for _ in range(9):
        run(world)
        world.forward(10)

    assert 3 == len(world.engine.successors)


# -- the disk --------------------------------------------------------------------------------------


def test_completion_and_successor_are_one_commit() -> None:
    world = persistent_world()
    job_id = repeat(world, {"every": 1000})
    world.pull()
    world.storage.fails = True

    assert "Internal server error" == world.error("ACK", id=job_id)

    world.storage.fails = False
    assert {"active": 1} == world.counts()
    run_again = world.ok("ACK", id=job_id)
    assert {} == run_again
    assert 1 == len(pending(world))


def test_a_successor_that_was_taken_goes_with_the_failed_completion() -> None:
    world = persistent_world()
    job_id = repeat(world, {"every": 1000}, uniqueKey="k")
    world.pull()
    answer = world.send("ACK", id=job_id)
    world.engine.promote(pending_id(world), world.now)
    world.send("PULL", queue="q")
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    assert answer.reply == {"ok": False, "error": "Internal server error"}
    assert {"active": 1} == world.counts()
    assert job_id == world.push(uniqueKey="k")


def pending_id(world: World) -> str:
    (job,) = world.engine.queues["q"].run_set.jobs()
    return job.id


def test_a_chain_goes_on_after_a_restart() -> None:
    world = persistent_world()
    repeat(world, {"every": 1000, "limit": 2}, uniqueKey="k")
    run(world)

    again = world.restart()
    again.forward(1000)
    run(again)

    job = successor(again)
    assert (2, START + 2000) == (job["repeat"]["count"], job["runAt"])
    assert "k" == job["uniqueKey"]
