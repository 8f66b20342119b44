"""What a comparison with the 2.9.5 server showed, where no golden conversation can.

These need time to pass or a connection to close; everything that a conversation of one connection
can show stands in ``tests/wire``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import ScriptedStorage, World, persistent_world

SWEEPS_MS = 12_000  # two stall sweeps


@pytest.fixture
def world() -> World:
    return World()


def timeline(world: World, job_id: str) -> list[str]:
    """Return the states of the job's timeline, each with the attempt it names."""
    return [
        line["state"] + (f" {line['attempt']}" if "attempt" in line else "")
        for line in world.job(job_id)["timeline"]
    ]


# -- timelines -----------------------------------------------------------------------------------


def test_a_delay_that_ended_by_hand_stays_in_the_timeline(world: World) -> None:
    job_id = world.push(delay=60_000)
    world.ok("Promote", id=job_id)

    assert ["delayed"] == timeline(world, job_id)


def test_a_priority_given_later_does_not_change_the_first_line(world: World) -> None:
    job_id = world.push()
    world.ok("ChangePriority", id=job_id, priority=7)

    assert ["waiting"] == timeline(world, job_id)


def test_what_a_new_priority_writes_down_gets_into_the_file() -> None:
    world = persistent_world()
    job_id = world.push()
    world.settle()
    world.send("ChangePriority", id=job_id, priority=7)

    assert isinstance(world.storage, ScriptedStorage)
    assert {("rewritten", job_id), ("changed", job_id)} == set(world.storage.notes)


def test_a_run_that_ended_with_its_connection_stays_in_the_timeline(world: World) -> None:
    job_id = world.push()
    gone = world.connect()
    world.pull(peer=gone)
    world.close(gone)
    world.pull()

    assert ["waiting", "active", "active"] == timeline(world, job_id)


def test_an_expired_lease_is_no_line_and_no_failure(world: World) -> None:
    job_id = world.push()
    world.lease(lockTtl=1_000)
    world.forward(SWEEPS_MS)

    view = world.job(job_id)
    assert ["waiting", "active"] == timeline(world, job_id)
    assert (1, 1) == (view["attempts"], view["stallCount"])
    assert "failedReason" not in view


def test_an_expired_lease_has_its_own_words_in_the_history(world: World) -> None:
    job_id = world.push()
    world.lease(lockTtl=1_000)
    world.forward(SWEEPS_MS)
    world.pull()
    world.ok("FAIL", id=job_id, unrecoverable=True)

    record, _last = world.entry()["attempts"]
    assert ("stalled", "Lock expired") == (record["reason"], record["error"])


def test_a_stall_is_a_failure_and_a_retry_in_the_timeline(world: World) -> None:
    world.ok("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 100})
    job_id = world.push(backoff=60_000)
    world.pull()
    world.forward(SWEEPS_MS)

    assert ["waiting", "active", "failed 1", "waiting 2"] == timeline(world, job_id)


def test_a_lease_that_expired_for_good_leaves_no_start(world: World) -> None:
    job_id = world.push(maxAttempts=1)
    world.lease(lockTtl=1_000)
    world.forward(SWEEPS_MS)

    view = world.job(job_id)
    assert ("failed", None) == (view["state"], view["startedAt"])


# -- dead letters --------------------------------------------------------------------------------


def discarded(world: World, *, ran: bool) -> dict[str, Any]:
    job_id = world.push()
    world.clock.ms += 5
    if ran:
        world.pull()
    world.clock.ms += 5
    world.ok("Discard", id=job_id)
    record: dict[str, Any]
    [record] = world.entry()["attempts"]
    return record


def test_a_discarded_job_has_a_record_that_counts_no_attempt(world: World) -> None:
    assert {
        "attempt": 0,
        "startedAt": world.now + 5,
        "failedAt": world.now + 10,
        "reason": "unknown",
        "error": None,
        "duration": 5,
    } == discarded(world, ran=True)


def test_a_job_that_never_ran_took_no_time(world: World) -> None:
    created_at = world.now

    record = discarded(world, ran=False)

    assert (created_at, 0) == (record["startedAt"], record["duration"])


@pytest.mark.parametrize("flag", ["retriable", "expired"])
def test_a_false_flag_filters_nothing(world: World, flag: str) -> None:
    config = {"autoRetry": True, "autoRetryInterval": 1_000, "maxAge": 1_000}
    world.ok("SetDlqConfig", queue="q", config=config)
    job_id = world.push()
    world.ok("Discard", id=job_id)
    world.clock.ms += 2_000

    assert [job_id] == [
        job["id"] for job in world.ok("Dlq", queue="q", filter={flag: False})["jobs"]
    ]


# -- workers -------------------------------------------------------------------------------------


def test_a_worker_is_registered_since_it_started(world: World) -> None:
    world.ok("RegisterWorker", name="w", queues=["q"], startedAt=world.now - 5_000)

    [worker] = world.ok("ListWorkers")["data"]["workers"]
    assert (world.now - 5_000, 5_000) == (worker["registeredAt"], worker["uptime"])


def test_registering_again_keeps_the_name_and_what_is_not_given(world: World) -> None:
    world.ok("RegisterWorker", name="a", queues=["q"], workerId="w", hostname="h", pid=3)
    again = world.ok("RegisterWorker", name="b", queues=["r"], workerId="w")["data"]

    assert ("a", "h", 3, ["r"]) == tuple(
        again[key] for key in ("name", "hostname", "pid", "queues")
    )


# -- moments that the caller gives ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_ms", "delay", "state"),
    [(100_000, 50_000, "waiting"), (100_000, 500_000, "delayed"), (-100_000, 0, "delayed")],
)
def test_the_first_line_tells_of_the_admission(
    world: World, age_ms: int, delay: int, state: str
) -> None:
    job_id = world.push(timestamp=world.now - age_ms, delay=delay)
    [line] = world.job(job_id)["timeline"]

    assert (state, world.now) == (line["state"], line["timestamp"])


# -- numbers without a meaning -------------------------------------------------------------------


def test_a_negative_grace_spares_nothing(world: World) -> None:
    job_id = world.push()

    assert [job_id] == world.ok("Clean", queue="q", grace=-1)["ids"]


def test_a_negative_number_of_lines_keeps_none(world: World) -> None:
    job_id = world.push()
    world.ok("AddLog", id=job_id, message="m")
    world.ok("ClearLogs", id=job_id, keepLogs=-1)

    assert 0 == world.ok("GetLogs", id=job_id)["data"]["count"]


# -- views -----------------------------------------------------------------------------------------


def test_a_job_found_by_its_custom_id_tells_why_it_failed(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    world.ok("FAIL", id="a", error="broke")

    job = world.ok("GetJobByCustomId", customId="a")["job"]
    assert ("broke", False) == (job.get("failedReason"), "state" in job)


# -- dead letters chosen in two ways -------------------------------------------------------------


def test_a_filter_of_dead_letters_counts_more_than_an_id(world: World) -> None:
    job_id = world.push()
    world.ok("Discard", id=job_id)

    no_match = world.ok("RetryDlq", queue="q", jobId=job_id, filter={"reason": "stalled"})
    match = world.ok("RetryDlq", queue="q", jobId="another", filter={})
    assert ({"count": 0}, {"count": 1}) == (no_match, match)


# -- which of two problems is told ---------------------------------------------------------------


def test_a_parent_that_has_begun_counts_more_than_its_queue(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    data = {"__parentId": "a", "__parentQueue": "elsewhere"}

    text = "Parent job a is not linkable"
    assert text == world.error("PUSH", queue="q", parentId="a", data=data)


def test_a_missing_dependency_counts_more_than_a_wrong_repetition(world: World) -> None:
    text = "Dependency job not found: nobody"
    assert text == world.error("PUSH", queue="q", dependsOn=["nobody"], repeat={"every": 0})
