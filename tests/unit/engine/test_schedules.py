"""Schedulers: what they make, what they leave out, and what is left of them after a crash."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bunqueue.engine import schedules
from bunqueue.engine.cron import Definition
from bunqueue.errors import StorageFailed
from tests.support.engine import START, World, persistent_world

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


def every(world: World, span_ms: int = MINUTE, name: str = "c", **fields: Any) -> dict[str, Any]:
    """Define an interval."""
    cron: dict[str, Any] = world.ok("Cron", name=name, queue="q", repeatEvery=span_ms, **fields)
    return cron["cron"]


def get(world: World, name: str = "c") -> dict[str, Any]:
    cron: dict[str, Any] = world.ok("CronGet", name=name)["cron"]
    return cron


def names(world: World) -> list[str]:
    return [cron["name"] for cron in world.ok("CronList")["crons"]]


def finish(world: World) -> str | None:
    """Pull a job and acknowledge it."""
    job_id = world.pull()
    if job_id is not None:
        world.ok("ACK", id=job_id)
    return job_id


def restarted(world: World, after_ms: int = 0) -> World:
    world.clock.ms += after_ms
    return world.restart()


# -- definitions ----------------------------------------------------------------------------------


def test_a_definition_is_told_as_readers_see_it(world: World) -> None:
    assert {
        "name": "c",
        "jobName": "report",
        "queue": "q",
        "schedule": "30 2 * * *",
        "repeatEvery": None,
        "nextRun": datetime(2023, 11, 15, 1, 30, tzinfo=UTC).timestamp() * 1000,
        "executions": 0,
        "maxLimit": None,
        "timezone": "Europe/Rome",
        "priority": 5,
    } == world.ok(
        "Cron",
        name="c",
        queue="q",
        jobName="report",
        schedule="30 2 * * *",
        timezone="Europe/Rome",
        priority=5,
        maxLimit=0,
    )["cron"]


def test_moments_leave_as_floats_and_spans_as_integers(world: World) -> None:
    cron = every(world)

    assert (float, int) == (type(cron["nextRun"]), type(cron["repeatEvery"]))


def test_without_a_zone_a_schedule_is_utc(world: World) -> None:
    world.ok("Cron", name="c", queue="q", schedule="0 0 * * *")

    assert 0 == get(world)["nextRun"] % DAY


def test_schedulers_are_listed_in_order_of_definition(world: World) -> None:
    for name in ("b", "a", "c", "b"):
        every(world, name=name)

    assert ["b", "a", "c"] == names(world)


EITHER = "Cron job must have either schedule or repeatEvery"
EVERY = "Cron repeatEvery must be a positive safe integer number of milliseconds"
FIELDS = "Cron expression must have 5 fields, or 6 fields with leading seconds"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, EITHER),
        ({"schedule": ""}, EITHER),
        ({"repeatEvery": None}, EITHER),
        ({"repeatEvery": 0}, EVERY),
        ({"repeatEvery": -5}, EVERY),
        ({"repeatEvery": 1.5}, EVERY),
        ({"repeatEvery": "5"}, EVERY),
        ({"repeatEvery": True}, EVERY),
        ({"repeatEvery": 2**53}, EVERY),
        ({"repeatEvery": 0, "schedule": "0 0 * * *"}, EVERY),
        ({"schedule": "* * * *"}, f"Invalid cron expression: {FIELDS}"),
        (
            {"schedule": "0 0 30 2 *"},
            "Invalid cron expression: Cron expression has no future occurrences",
        ),
        (
            {"schedule": "L * * * *"},
            "Invalid cron expression: 'L' in minutes is not understood",
        ),
        (
            {"schedule": "0 0 * * *", "timezone": "X/Y"},
            "Invalid cron expression: unknown time zone 'X/Y'",
        ),
        (
            {"repeatEvery": 1, "jobName": ""},
            "Job name must be a non-empty string of at most 256 characters",
        ),
        (
            {"repeatEvery": 1, "jobOptions": {"maxAttempts": 0}},
            "jobOptions.maxAttempts must be at least 1",
        ),
        ({"repeatEvery": 1, "queue": ""}, "Queue name is required"),
        ({"repeatEvery": 1, "name": ""}, "name is required"),
    ],
)
def test_a_definition_that_cannot_run_is_refused(
    world: World, fields: dict[str, Any], text: str
) -> None:
    assert text == world.error("Cron", **{"name": "c", "queue": "q", **fields})
    assert [] == names(world)


def test_an_integral_float_is_an_interval(world: World) -> None:
    assert 3_000_000_000 == every(world, 3_000_000_000.0)["repeatEvery"]


@pytest.mark.parametrize("command", ["CronGet", "CronDelete"])
def test_an_unknown_scheduler_is_not_found(world: World, command: str) -> None:
    assert "Cron job not found" == world.error(command, name="c")


def test_redefining_keeps_the_count_and_starts_the_schedule_anew(world: World) -> None:
    every(world, preventOverlap=False)
    world.forward(MINUTE + 10 * SECOND)

    cron = every(world, HOUR)

    assert (1, world.now + HOUR) == (cron["executions"], cron["nextRun"])
    world.forward(HOUR - 1)
    assert {"waiting": 1} == world.counts()


# A3 of the public reports: programs define their schedulers at every start.


def test_a03_the_same_definition_again_keeps_the_next_moment(world: World) -> None:
    """Else a program that starts more often than the period would never see a run."""
    every(world, preventOverlap=False)
    for _ in range(3):
        world.forward(45 * SECOND)
        every(world, data={"other": "data"}, preventOverlap=False)
        assert 0 == (get(world)["nextRun"] - START) % MINUTE

    assert 2 == get(world)["executions"]


def test_a03_a_new_schedulers_immediate_run_outlives_a_second_definition(world: World) -> None:
    every(world, immediately=True)
    every(world, immediately=True)

    world.forward(SECOND)

    assert (1, START + MINUTE) == (get(world)["executions"], get(world)["nextRun"])


@pytest.mark.parametrize(
    "other",
    [
        {"repeatEvery": 2 * MINUTE},
        {"schedule": "0 3 * * *"},
        {"schedule": "0 4 * * *"},
        {"schedule": "0 3 * * *", "timezone": "Asia/Tokyo"},
    ],
)
def test_a03_another_pattern_has_moments_of_its_own(world: World, other: dict[str, Any]) -> None:
    for first in ({"repeatEvery": MINUTE}, {"schedule": "0 3 * * *"}):
        world.ok("Cron", name="c", queue="q", **first)
        world.ok("Cron", name="fresh", queue="q", **other)
        world.ok("Cron", name="c", queue="q", **other)
        assert get(world, "fresh")["nextRun"] == get(world)["nextRun"]
        world.ok("CronDelete", name="fresh")


def test_a03_a_run_that_is_due_is_not_lost_to_a_definition(world: World) -> None:
    world.ok("Cron", name="c", queue="q", schedule="* * * * *")
    due_at = get(world)["nextRun"]
    world.clock.ms = int(due_at) + 5  # the broker is busy, and has not come to it

    world.ok("Cron", name="c", queue="q", schedule="* * * * *")
    world.forward(0)

    assert 1 == get(world)["executions"]


@pytest.mark.parametrize(("skips", "count"), [(True, 0), (False, 1)])
def test_a03_a_definition_after_a_downtime_changes_nothing_about_what_was_missed(
    skips: bool, count: int
) -> None:
    world = persistent_world()
    every(world, skipMissedOnRestart=skips)
    world = restarted(world, after_ms=10 * MINUTE + 20 * SECOND)

    every(world, skipMissedOnRestart=skips)
    world.forward(0)

    assert (count, START + 11 * MINUTE) == (get(world)["executions"], get(world)["nextRun"])


def test_removing_a_scheduler_leaves_its_jobs(world: World) -> None:
    every(world)
    world.forward(MINUTE)

    world.ok("CronDelete", name="c")

    world.forward(HOUR)
    assert {"waiting": 1} == world.counts()
    assert [] == names(world)


# -- runs -----------------------------------------------------------------------------------------


def test_a_run_makes_a_job_as_defined(world: World) -> None:
    every(
        world,
        jobName="report",
        data={"day": 1},
        priority=7,
        jobOptions={"maxAttempts": 9, "backoff": 5, "removeOnComplete": True, "jobId": "x"},
    )

    world.forward(MINUTE)

    job = world.ok("PULL", queue="q")["job"]
    expected = {
        "name": "report",
        "data": {"day": 1},
        "priority": 7,
        "maxAttempts": 9,
        "backoff": 5,
        "removeOnComplete": True,
        "uniqueKey": "cron:c",
        "customId": None,
        "createdAt": float(START + MINUTE),
    }
    assert expected == {name: job[name] for name in expected}


def test_an_older_clients_name_inside_the_data_is_the_jobs_name(world: World) -> None:
    cron = every(world, data={"name": "report", "a": 1})
    world.forward(MINUTE)

    job = world.ok("PULL", queue="q")["job"]
    assert ["report", "report", {"a": 1}] == [cron["jobName"], job["name"], job["data"]]


def test_a_waiting_pull_is_served_when_the_scheduler_fires(world: World) -> None:
    every(world, 5 * SECOND)
    answer = world.poll()

    world.forward(5 * SECOND)
    world.settle()  # the run, then the claim of its job

    assert answer.reply is not None
    assert "default" == answer.reply["job"]["name"]


def test_a_delay_counts_from_the_run(world: World) -> None:
    every(world, jobOptions={"delay": 500})

    world.forward(MINUTE)

    assert {"delayed": 1} == world.counts()


def test_a_schedule_wins_over_an_interval(world: World) -> None:
    world.ok("Cron", name="c", queue="q", schedule="0 0 * * *", repeatEvery=SECOND)

    assert 0 == get(world)["nextRun"] % DAY


def test_a_new_scheduler_may_fire_immediately(world: World) -> None:
    assert START == every(world, immediately=True)["nextRun"]

    world.forward(0)

    assert {"waiting": 1} == world.counts()
    assert (1, START + MINUTE) == (get(world)["executions"], get(world)["nextRun"])


def test_an_existing_scheduler_does_not_fire_immediately(world: World) -> None:
    every(world)

    every(world, immediately=True)

    world.forward(SECOND)
    assert {} == world.counts()


def test_runs_end_at_the_limit_and_the_scheduler_goes_when_it_is_due_again(world: World) -> None:
    every(world, maxLimit=2, preventOverlap=False)

    world.forward(2 * MINUTE)
    assert (2, ["c"]) == (get(world)["executions"], names(world))

    world.forward(MINUTE)
    assert {"waiting": 2} == world.counts()
    assert [] == names(world)


def test_jobs_without_a_key_show_the_policy_of_their_scheduler(world: World) -> None:
    every(world, preventOverlap=False, dedup={"ttl": 5, "extend": True})
    world.forward(MINUTE)

    [job] = world.ok("GetJobs", queue="q")["jobs"]

    assert (None, 5, True) == (
        job["uniqueKey"],
        job["deduplicationTtl"],
        job["deduplicationExtend"],
    )


def test_a_run_is_left_out_while_the_last_job_lives(world: World) -> None:
    every(world, 5 * SECOND)
    world.forward(5 * SECOND)
    job_id = world.pull()

    world.forward(25 * SECOND)

    assert {"active": 1} == world.counts()
    assert 1 == get(world)["executions"]
    world.ok("ACK", id=job_id)
    world.forward(5 * SECOND)
    assert 2 == get(world)["executions"]


def test_overlapping_runs_may_be_wanted(world: World) -> None:
    every(world, preventOverlap=False)

    world.forward(3 * MINUTE)

    assert {"waiting": 3} == world.counts()


def test_the_definitions_own_key_keeps_runs_apart_too(world: World) -> None:
    every(world, preventOverlap=False, uniqueKey="k")

    world.forward(3 * MINUTE)

    assert {"waiting": 1} == world.counts()


def test_a_replacing_policy_lets_the_newest_run_stand(world: World) -> None:
    every(world, dedup={"replace": True})

    world.forward(MINUTE)
    first = world.ok("GetJobs", queue="q", state="waiting")["jobs"][0]["id"]
    world.forward(MINUTE)
    world.settle()  # the run, then both jobs

    jobs = world.ok("GetJobs", queue="q", state="waiting")["jobs"]
    assert 1 == len(jobs)
    assert first != jobs[0]["id"]
    assert 2 == get(world)["executions"]


def test_a_late_interval_run_is_not_followed_by_one_too_soon(world: World) -> None:
    every(world, removeOnComplete=True)
    world.leap(MINUTE + 50 * SECOND)
    finish(world)

    world.forward(10 * SECOND)
    assert {} == {k: v for k, v in world.counts().items() if k != "completed"}
    world.forward(MINUTE)
    assert {"waiting": 1} == {k: v for k, v in world.counts().items() if k != "completed"}


def test_a_redefinition_that_says_so_removes_the_leftover_job(world: World) -> None:
    every(world)
    world.forward(MINUTE)

    every(world)
    assert {"waiting": 1} == world.counts()

    every(world, preventOverlap=True)
    assert {} == world.counts()


def test_a_running_job_is_no_leftover(world: World) -> None:
    every(world)
    world.forward(MINUTE)
    world.pull()

    every(world, preventOverlap=True)

    assert {"active": 1} == world.counts()


def test_a_late_broker_fires_once_and_goes_on_along_the_grid(world: World) -> None:
    every(world, preventOverlap=False)

    world.leap(5 * MINUTE + 7 * SECOND)

    assert {"waiting": 1} == world.counts()
    assert START + 6 * MINUTE == get(world)["nextRun"]


def test_runs_of_a_schedule_may_follow_closely(world: World) -> None:
    world.ok("Cron", name="c", queue="q", schedule="*/10 * * * * *", jobOptions={})

    fired = 0
    for _ in range(12):
        world.forward(10 * SECOND)
        fired += finish(world) is not None

    assert 12 == fired


def test_events_tell_of_definitions_and_runs(world: World) -> None:
    world.listen()
    every(world)
    every(world)
    world.forward(2 * MINUTE)
    every(world, name="idle", skipIfNoWorker=True)
    world.forward(MINUTE)
    world.ok("CronDelete", name="c")

    told = [
        (event["eventType"], event["name"], event.get("reason"))
        for event in world.events
        if event["eventType"].startswith("cron:")
    ]
    assert [
        ("cron:created", "c", None),
        ("cron:updated", "c", None),
        ("cron:fired", "c", None),
        ("cron:skipped", "c", "overlap"),
        ("cron:created", "idle", None),
        ("cron:skipped", "c", "overlap"),
        ("cron:skipped", "idle", "no-worker"),
        ("cron:deleted", "c", None),
    ] == told


# -- without a worker -----------------------------------------------------------------------------


def test_a_run_may_depend_on_a_worker_that_serves_the_queue(world: World) -> None:
    every(world, skipIfNoWorker=True, preventOverlap=False)
    world.ok("RegisterWorker", name="w", queues=["other"])
    world.forward(MINUTE)
    assert {} == world.counts()

    worker = world.ok("RegisterWorker", name="w", queues=["q"])["data"]["workerId"]
    world.forward(50 * SECOND)
    world.ok("Heartbeat", id=worker)
    world.forward(10 * SECOND)
    assert {"waiting": 1} == world.counts()

    world.forward(MINUTE)  # not heard of for 30 s
    assert {"waiting": 1} == world.counts()


# -- the disk -------------------------------------------------------------------------------------


def test_a_run_is_written_before_its_job_is_made() -> None:
    world = persistent_world()
    every(world)
    world.clock.ms += MINUTE

    world.engine.tick(world.now)

    assert [("put", "c")] == world.storage.notes
    assert 0 == len(world.engine.index)
    world.settle()
    assert {"waiting": 1} == world.counts()


def test_a_crash_before_the_job_was_made_loses_that_run_and_no_more() -> None:
    world = persistent_world()
    every(world, skipMissedOnRestart=False)
    world.clock.ms += MINUTE
    world.engine.tick(world.now)
    world.storage.settle()
    world.storage.rows.clear()  # the job's own row has not been written

    again = restarted(world)
    again.forward(MINUTE - 1)
    assert {} == again.counts()
    again.forward(1)
    assert {"waiting": 1} == again.counts()
    assert 2 == get(again)["executions"]


def test_a_run_that_cannot_be_written_comes_a_little_later() -> None:
    world = persistent_world()
    every(world)
    world.storage.fails = True
    world.leap(MINUTE)

    assert {} == world.counts()
    assert (0, START + MINUTE) == (get(world)["executions"], get(world)["nextRun"])

    world.storage.fails = False
    world.forward(schedules.AGAIN_MS)
    assert {"waiting": 1} == world.counts()
    assert (1, START + 2 * MINUTE) == (get(world)["executions"], get(world)["nextRun"])


def test_a_run_waits_while_pushes_are_refused() -> None:
    world = persistent_world()
    every(world)
    world.storage.is_refusing = True
    world.forward(MINUTE + 5 * SECOND)
    assert 0 == get(world)["executions"]

    world.storage.is_refusing = False
    world.forward(SECOND)

    assert {"waiting": 1} == world.counts()


def test_a_definition_that_cannot_be_written_is_as_if_never_given() -> None:
    world = persistent_world()
    every(world, name="old")
    world.storage.fails = True

    world.error("Cron", name="new", queue="q", repeatEvery=SECOND)
    world.error("Cron", name="old", queue="q", repeatEvery=SECOND)
    world.storage.fails = False

    assert ["old"] == names(world)
    assert MINUTE == get(world, "old")["repeatEvery"]
    world.forward(MINUTE - 1)
    assert {} == world.counts()


def test_a_removal_that_cannot_be_written_did_not_happen() -> None:
    world = persistent_world()
    every(world)
    world.storage.fails = True
    world.error("CronDelete", name="c")
    world.storage.fails = False

    world.forward(MINUTE)

    assert {"waiting": 1} == world.counts()


# -- restarts -------------------------------------------------------------------------------------


def test_everything_about_a_scheduler_survives_a_restart() -> None:
    world = persistent_world()
    every(world, maxLimit=9, priority=3, data=[1], jobOptions={"maxAttempts": 2}, dedup={"ttl": 5})
    world.ok("Cron", name="s", queue="q", schedule="@daily", timezone="Asia/Kathmandu")
    before = world.ok("CronList")

    again = restarted(world)

    assert before == again.ok("CronList")
    again.forward(MINUTE)
    job = again.ok("PULL", queue="q")["job"]
    assert ([1], 2, 3) == (job["data"], job["maxAttempts"], job["priority"])


def test_a_run_that_is_due_after_the_restart_is_not_missed() -> None:
    world = persistent_world()
    every(world)

    again = restarted(world, after_ms=30 * SECOND)
    again.forward(30 * SECOND)

    assert {"waiting": 1} == again.counts()


def test_a_run_that_falls_due_while_the_start_takes_its_time_is_not_missed() -> None:
    world = persistent_world()
    every(world, 10 * MINUTE)
    world = restarted(world, after_ms=MINUTE)
    cron = world.engine.schedules.by_name["c"]
    cron.doubt = schedules.RESTARTED  # nobody has looked at it yet

    world.leap(9 * MINUTE + SECOND)

    assert (1, START + 20 * MINUTE) == (get(world)["executions"], get(world)["nextRun"])


def test_missed_runs_are_left_out_by_default() -> None:
    world = persistent_world()
    every(world)

    again = restarted(world, after_ms=HOUR + SECOND)
    again.forward(SECOND)

    assert {} == again.counts()
    assert (0, START + HOUR + MINUTE) == (get(again)["executions"], get(again)["nextRun"])


def test_one_run_makes_up_for_all_that_were_missed_if_asked() -> None:
    world = persistent_world()
    every(world, skipMissedOnRestart=False)

    again = restarted(world, after_ms=HOUR + SECOND)
    again.forward(SECOND)

    assert {"waiting": 1} == again.counts()
    assert (1, START + HOUR + MINUTE) == (get(again)["executions"], get(again)["nextRun"])


def test_without_workers_nothing_is_made_up_for() -> None:
    world = persistent_world()
    every(world, skipMissedOnRestart=False, skipIfNoWorker=True)

    again = restarted(world, after_ms=HOUR)
    again.ok("RegisterWorker", name="w", queues=["q"])
    again.forward(SECOND)

    assert {} == again.counts()


def test_a_scheduler_at_its_limit_does_not_come_back() -> None:
    world = persistent_world()
    every(world, maxLimit=1)
    world.forward(2 * MINUTE)

    assert [] == names(restarted(world))


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        (2, "L * * * *", "Invalid cron expression: 'L' in minutes is not understood"),
        (4, "X/Y", "Invalid cron expression: unknown time zone 'X/Y'"),
        (3, 0, EVERY),
        (5, "soon", "next_run is no whole number"),
        (14, "[]", "job_options is no map"),
        (14, "{", "Expecting property name"),
        (15, None, "data is no packed value"),
        (0, "", "queue is no text"),
    ],
)
def test_an_invalid_stored_definition_ends_the_start_and_is_named(
    column: int, value: object, why: str
) -> None:
    world = persistent_world()
    world.ok("Cron", name="nightly", queue="q", schedule="0 3 * * *", repeatEvery=5)
    row = list(world.storage.tables["crons"]["nightly"])
    row[column] = value
    world.storage.tables["crons"]["nightly"] = tuple(row)

    with pytest.raises(StorageFailed) as failure:
        restarted(world)

    assert str(failure.value).startswith("the stored definition of cron 'nightly' is invalid: ")
    assert why in str(failure.value)


def test_a_restart_inside_a_repeated_hour_fires_no_slot_twice() -> None:
    world = persistent_world()
    world.clock.ms = int(datetime(2026, 10, 24, 23, 0, tzinfo=UTC).timestamp() * 1000)
    for name, schedule in {"fixed": "*/30 2 * * *", "hourly": "*/30 * * * *"}.items():
        world.ok(
            "Cron",
            name=name,
            queue=name,
            schedule=schedule,
            timezone="Europe/Rome",
            preventOverlap=False,
        )
    for _ in range(40):  # ten hours: 01:00 summer time and on, a restart every quarter
        world.forward(15 * MINUTE)
        world.settle()
        world = restarted(world)

    made = {
        queue: sorted(
            datetime.fromtimestamp(job["createdAt"] / 1000, UTC).strftime("%H:%M")
            for job in world.ok("GetJobs", queue=queue, state="waiting", limit=100)["jobs"]
        )
        for queue in ("fixed", "hourly")
    }
    assert ["00:00", "00:30"] == made["fixed"]
    assert 20 == len(made["hourly"]) == len(set(made["hourly"]))


REPEATED_HOURS = [
    ("Europe/Rome", "2026-10-24T22:50+00:00", 2),
    ("America/New_York", "2026-11-01T03:50+00:00", 1),
    ("Australia/Lord_Howe", "2026-04-04T13:20+00:00", 1),
    ("America/Sao_Paulo", "2019-02-17T00:20+00:00", 23),
]


def made_in_a_repeated_hour(zone: str, start: str, hour: int, every_ms: int) -> list[list[str]]:
    """Return when each of several schedules ran, with a restart after every so many ms."""
    schedules = [f"30 {hour} * * *", f"*/10 {hour} * * *", "*/20 * * * *", f"5,45 {hour} * * *"]
    world = persistent_world()
    world.clock.ms = int(datetime.fromisoformat(start).timestamp() * 1000)
    for number, schedule in enumerate(schedules):
        name = f"q{number}"
        fields = {"schedule": schedule, "timezone": zone, "preventOverlap": False}
        world.ok("Cron", name=name, queue=name, **fields)
    for _ in range(4 * HOUR // every_ms):
        world.forward(every_ms)
        world.settle()  # the job of a run is written after the run
        world = restarted(world)
    return [
        sorted(
            datetime.fromtimestamp(job["createdAt"] / 1000, UTC).strftime("%H:%M")
            for job in world.ok("GetJobs", queue=f"q{number}", state="waiting", limit=100)["jobs"]
        )
        for number in range(len(schedules))
    ]


@pytest.mark.parametrize(("zone", "start", "hour"), REPEATED_HOURS)
def test_restarts_at_any_side_of_a_repeated_hour_change_no_run(
    zone: str, start: str, hour: int
) -> None:
    undisturbed = made_in_a_repeated_hour(zone, start, hour, 4 * HOUR)

    assert all(undisturbed)
    assert all(len(set(runs)) == len(runs) for runs in undisturbed)
    assert undisturbed == made_in_a_repeated_hour(zone, start, hour, 6 * MINUTE)


# -- a clock that is set --------------------------------------------------------------------------


def jump(world: World, delta_ms: int) -> None:
    """Set the wall clock, as the broker's clock does."""
    world.clock.ms += delta_ms
    world.engine.clock_jumped(delta_ms)
    world.forward(0)
    world.forward(1)


@pytest.mark.parametrize(("skips", "count"), [(True, 0), (False, 1)])
def test_a_clock_set_forward_makes_up_once_if_asked(world: World, skips: bool, count: int) -> None:
    every(world, skipMissedOnRestart=skips, preventOverlap=False)

    jump(world, DAY)

    assert count == world.counts().get("waiting", 0)
    assert world.now < get(world)["nextRun"] <= world.now + MINUTE


def test_a_small_step_forward_makes_a_run_late_not_missed(world: World) -> None:
    every(world)
    world.forward(58 * SECOND)

    jump(world, 4 * SECOND)

    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize("fields", [{"repeatEvery": HOUR}, {"schedule": "0 * * * *"}])
def test_a_clock_set_back_delays_by_no_more_than_a_period(
    world: World, fields: dict[str, Any]
) -> None:
    world.ok("Cron", name="c", queue="q", **fields)

    jump(world, -DAY)

    assert world.now < get(world)["nextRun"] <= world.now + HOUR
    world.forward(HOUR)
    assert {"waiting": 1} == world.counts()


@pytest.mark.parametrize("fields", [{"repeatEvery": HOUR}, {"schedule": "0 * * * *"}])
def test_a_clock_set_back_during_a_stop_delays_by_no_more_than_a_period(
    fields: dict[str, Any],
) -> None:
    world = persistent_world()
    world.ok("Cron", name="c", queue="q", **fields)

    again = restarted(world, after_ms=-DAY)
    again.forward(1)

    assert again.now < get(again)["nextRun"] <= again.now + HOUR
    again.forward(HOUR)
    assert {"waiting": 1} == again.counts()


def test_a_clock_set_back_a_little_during_a_stop_does_not_fire_a_slot_again() -> None:
    world = persistent_world()
    world.ok("Cron", name="c", queue="q", schedule="0 * * * *", preventOverlap=False)
    world.forward(HOUR)
    due = get(world)["nextRun"]

    again = restarted(world, after_ms=-HOUR // 2)
    again.forward(HOUR // 2 + 5 * MINUTE)

    assert (due, {"waiting": 1}) == (get(again)["nextRun"], again.counts())


def test_a_small_step_back_does_not_fire_a_slot_again(world: World) -> None:
    world.ok("Cron", name="c", queue="q", schedule="0 * * * *", preventOverlap=False)
    world.forward(HOUR)
    due = get(world)["nextRun"]

    jump(world, -HOUR // 2)

    assert due == get(world)["nextRun"]
    world.forward(HOUR // 2 + 5 * MINUTE)
    assert {"waiting": 1} == world.counts()


def test_a_step_of_the_clock_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    every(world)
    with caplog.at_level(logging.WARNING):
        jump(world, -DAY)

    assert "schedulers are looked at again crons=1 delta_ms=-86400000" in caplog.text


# -- many -----------------------------------------------------------------------------------------


def test_what_is_due_at_once_is_done_in_bounded_pieces(world: World) -> None:
    total = 3 * schedules.FIRED_PER_TICK
    for number in range(total):
        every(world, name=f"c{number}")
    world.clock.ms += MINUTE

    made = []
    for _ in range(4):
        world.engine.tick(world.now)
        world.settle()
        made.append(world.counts().get("waiting", 0))
        world.clock.ms += 1

    per_tick = schedules.FIRED_PER_TICK
    assert [per_tick, 2 * per_tick, total, total] == made


def test_a_run_costs_the_same_whatever_the_number_of_schedulers() -> None:
    few, many = calls_per_run(50), calls_per_run(10_000)

    assert many < 1.2 * few


def calls_per_run(total: int) -> float:
    """Return how many Python calls one of the first 50 runs costs, of so many schedulers."""
    world = World()
    timetable = Definition(
        name="",
        queue="q",
        job_name="n",
        data=b"\xc0",
        schedule="*/5 * * * *",
        timezone="Asia/Tokyo",
    )
    for number in range(total):
        world.engine.set_cron(replace(timetable, name=f"c{number}"), False, False, world.now)
    world.clock.ms += 5 * MINUTE
    calls = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(profile)
    try:
        world.engine.tick(world.now)
    finally:
        sys.setprofile(None)
    return calls / world.engine.schedules.fired


def test_the_heap_does_not_grow_with_redefinitions(world: World) -> None:
    for _ in range(5 * schedules.STALE_MAX):
        world.engine.schedules.enter(world.engine, _any_cron(world), world.now + HOUR)

    assert len(world.engine.schedules._heap) <= schedules.STALE_MAX + 4


def _any_cron(world: World) -> Any:
    if not world.engine.schedules.by_name:
        every(world)
    return world.engine.schedules.by_name["c"]


def test_a_run_that_is_still_being_written_keeps_the_next_one_out() -> None:
    world = persistent_world()
    world.ok("Cron", name="n", queue="q", repeatEvery=1_000, maxLimit=3)
    for _ in range(4):  # the disk takes its time
        world.clock.ms += 1_000
        world.engine.tick(world.now)
    world.settle()

    assert 1 == world.ok("CronGet", name="n")["cron"]["executions"]
    assert 1 == world.ok("Count", queue="q")["count"]


def test_a_run_that_could_not_be_written_keeps_nothing_out() -> None:
    world = persistent_world()
    world.ok("Cron", name="n", queue="q", repeatEvery=1_000, maxLimit=3)
    world.clock.ms += 1_000
    world.engine.tick(world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    world.forward(1_000)

    assert 1 == world.ok("CronGet", name="n")["cron"]["executions"]
    assert 1 == world.ok("Count", queue="q")["count"]


def _fires_before_the_clock_goes_back() -> World:
    """Return a world with a run that is still being written."""
    world = persistent_world()
    every(world)
    world.forward(MINUTE)
    finish(world)
    world.clock.ms += MINUTE
    world.engine.tick(world.now)
    world.clock.ms -= DAY
    world.engine.clock_jumped(-DAY)
    return world


def test_a_run_that_was_being_written_when_the_clock_was_set_back_is_not_overtaken() -> None:
    world = _fires_before_the_clock_goes_back()
    world.settle()
    world.push(jobId="later")

    assert "later" != world.pull()


def test_a_run_that_could_not_be_written_is_soon_due_again_though_the_clock_was_set_back() -> None:
    world = _fires_before_the_clock_goes_back()
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    world.forward(2 * SECOND)
    world.forward(MINUTE)

    assert 1 == world.ok("Count", queue="q")["count"]


@pytest.mark.parametrize(
    "odd",
    [
        {"jobOptions": {"backoff": {"type": "fixed", "delay": 5, "note": b"\0"}}},
        {"uniqueKey": "k", "dedup": {"replace": True, "note": [b"\0"]}},
    ],
)
def test_what_nobody_reads_of_an_option_may_be_anything(odd: dict[str, Any]) -> None:
    """The definition was in force, could not be written, and no timed work was done any more."""
    world = persistent_world()
    every(world)
    every(world, **odd)

    world.forward(MINUTE)

    assert 1 == world.ok("Count", queue="q")["count"]
    assert 1 == get(world.restart())["executions"]
