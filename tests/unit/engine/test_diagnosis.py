"""What the doctor finds in an engine, check by check."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.diagnosis import CHECKS, DEAD_MANY, OVERDUE_MS, STUCK_MS, UNSERVED_MS
from tests.support.engine import START, World


@pytest.fixture
def world() -> World:
    return World()


def found(world: World, check: str) -> tuple[str, str]:
    """Return level and text of a check."""
    for one in world.ok("Diagnose")["diagnosis"]["findings"]:
        if one["check"] == check:
            assert ("cure" in one) == (one["level"] != "ok")
            return one["level"], one["text"]
    raise AssertionError(f"no such check: {check}")


def worker(world: World, queue: str = "q") -> None:
    world.ok("RegisterWorker", name="w", queues=[queue])


def test_a_broker_without_jobs_is_well(world: World) -> None:
    told = world.ok("Diagnose")["diagnosis"]

    assert {"ok"} == {one["level"] for one in told["findings"]}
    assert ["storage", *CHECKS, "timed work"] == [one["check"] for one in told["findings"]]


def test_a_working_broker_is_well(world: World) -> None:
    worker(world)
    for _ in range(3):
        world.push()
    world.ok("PULL", queue="q", owner="w")
    world.forward(1_000)

    assert {"ok"} == {one["level"] for one in world.ok("Diagnose")["diagnosis"]["findings"]}


def test_jobs_that_are_due_for_long(world: World) -> None:
    worker(world)
    first = world.push()
    world.push()
    world.push(delay=3 * OVERDUE_MS)
    world.forward(OVERDUE_MS)
    worker(world)
    assert "ok" == found(world, "overdue")[0]

    world.clock.ms += 1

    assert ("warning", f"queue q has 2 jobs due, {first} for 5 min") == found(world, "overdue")


def test_a_job_whose_time_came_long_ago_although_nobody_looked(world: World) -> None:
    worker(world)
    world.push(delay=1_000)
    world.clock.ms += 2_000 + OVERDUE_MS

    assert "warning" == found(world, "overdue")[0]


def test_a_queue_that_hands_out_nothing(world: World) -> None:
    poll = world.send("PULL", queue="q", timeout=60_000)
    assert poll is not None
    queue = world.engine.queues["q"]
    waiters, queue.waiters = queue.waiters, {}  # the fault: a push that wakes nobody
    world.push()
    queue.waiters = waiters
    world.clock.ms += UNSERVED_MS
    assert "ok" == found(world, "overdue")[0]

    world.clock.ms += 1

    level, text = found(world, "overdue")
    assert ("problem", True) == (level, "hands out nothing although workers ask" in text)


def test_a_poll_for_one_group_is_no_worker_that_asks_for_other_jobs(world: World) -> None:
    world.send("PULL", queue="q", timeout=60_000, group={"affinity": "g"})
    world.push()
    world.clock.ms += 2 * UNSERVED_MS

    assert "ok" == found(world, "overdue")[0]


def test_a_lease_that_ran_out_and_was_not_taken_back(world: World) -> None:
    world.push(jobId="a")
    world.ok("PULL", queue="q", owner="w", lockTtl=8_000)
    assert "ok" == found(world, "leases")[0]

    world.clock.ms += 7_000
    assert (
        "warning",
        "job a of queue q has not renewed its lease of 8000 ms for 7 s",
    ) == found(world, "leases")

    world.clock.ms += 1_000 + STUCK_MS
    assert (
        "problem",
        "job a of queue q is active although its lease ran out 10 s ago",
    ) == found(world, "leases")


def test_a_lease_that_is_renewed_is_well(world: World) -> None:
    world.push(jobId="a")
    token = world.ok("PULL", queue="q", owner="w", lockTtl=8_000)["token"]
    for _ in range(10):
        world.clock.ms += 4_000
        world.ok("JobHeartbeat", id="a", token=token)

    assert "ok" == found(world, "leases")[0]


def test_a_job_that_nothing_ever_takes_back(world: World) -> None:
    world.push(jobId="a")
    world.ok("SetStallConfig", queue="q", config={"enabled": False})
    world.ok("PULL", queue="q", detach=True)
    world.clock.ms += 3_600_000
    assert "ok" == found(world, "leases")[0]

    world.clock.ms += 1

    assert "without a lease, and the stall check is off" in found(world, "leases")[1]


def test_a_queue_without_a_worker(world: World) -> None:
    world.push()
    world.push("other", delay=1_000)
    assert ("warning", "queue q has 1 job to do and no worker") == found(world, "workers")

    worker(world)
    assert "ok" == found(world, "workers")[0]


def test_a_poll_is_a_worker(world: World) -> None:
    world.send("PULL", queue="q", timeout=60_000)
    world.send("PULL", queue="q", timeout=60_000)
    world.push()

    assert "ok" == found(world, "workers")[0]


def test_a_silent_worker(world: World) -> None:
    worker(world)
    world.clock.ms += world.engine.settings.worker_timeout_ms

    assert ("warning", "worker w has been silent for 30 s") == found(world, "workers")


def test_a_paused_queue_with_jobs(world: World) -> None:
    world.push()
    world.ok("Pause", queue="q")
    world.ok("Pause", queue="empty")

    assert ("warning", "queue q is paused with 1 job") == found(world, "paused")
    assert "ok" == found(world, "workers")[0]


def test_paused_groups_with_jobs(world: World) -> None:
    for group in ("a", "a", "b", "c"):
        world.push(groupId=group)
    world.ok("PauseGroup", queue="q", groupId="a")
    world.ok("PauseGroup", queue="q", groupId="b")

    assert ("warning", "queue q has 2 paused groups with 3 jobs") == found(world, "paused")


def fail_all(world: World, count: int) -> None:
    for _ in range(count):
        job_id = world.push(maxAttempts=1)
        world.ok("PULL", queue="q")
        world.ok("FAIL", id=job_id)


def test_dead_letters_that_pile_up(world: World) -> None:
    fail_all(world, DEAD_MANY - 1)
    assert "ok" == found(world, "dead letters")[0]

    fail_all(world, 1)
    assert ("warning", f"queue q has {DEAD_MANY} dead letters") == found(world, "dead letters")


def test_dead_letters_that_push_others_out(world: World) -> None:
    world.ok("SetDlqConfig", queue="q", config={"maxEntries": 2})
    fail_all(world, 3)

    level, text = found(world, "dead letters")
    assert ("problem", True) == (level, "the oldest are dropped" in text)


@pytest.mark.parametrize(
    ("level", "command", "fields", "text"),
    [
        ("problem", "RateLimit", {"limit": 0.5}, "its rate limit of 0.5 lets nothing through"),
        ("problem", "SetConcurrency", {"limit": 0}, "its concurrency of 0 lets nothing through"),
        (
            "warning",
            "SetStallConfig",
            {"config": {"stallInterval": 5_000}},
            "a job counts as stalled after 5000 ms",
        ),
        (
            "warning",
            "SetDlqConfig",
            {"config": {"autoRetry": True, "maxAutoRetries": 0}},
            "but 0 times",
        ),
        (
            "warning",
            "SetDlqConfig",
            {"config": {"autoRetry": True, "maxAge": 1_000}},
            "dead letters expire after 1000 ms, before their retry",
        ),
    ],
)
def test_settings_of_a_queue_that_contradict_each_other(
    world: World, level: str, command: str, fields: dict[str, Any], text: str
) -> None:
    assert "ok" == found(world, "queue settings")[0]

    world.ok(command, queue="q", **fields)

    told = found(world, "queue settings")
    assert (level, True) == (told[0], text in told[1])


def test_groups_that_may_run_more_than_their_queue(world: World) -> None:
    world.ok("SetConcurrency", queue="q", limit=2)
    world.ok("SetGroupConcurrency", queue="q", groupId="a", concurrency=2)
    assert "ok" == found(world, "queue settings")[0]

    world.ok("SetGroupConcurrency", queue="q", groupId="a", concurrency=3)

    assert "1 group may run more jobs than the whole queue (2)" in found(world, "queue settings")[1]


def test_a_schedule_that_is_behind(world: World) -> None:
    world.ok("Cron", name="hourly", queue="q", data={}, repeatEvery=3_600_000)
    world.clock.ms += 3_600_000 + 60_000
    assert "ok" == found(world, "schedules")[0]

    world.clock.ms += 60_001

    text = "schedule hourly should have made its next job 2 min ago"
    assert ("problem", text) == found(world, "schedules")


def test_a_webhook_that_fails(world: World) -> None:
    url = "https://name:password@example.org/"
    added = world.ok("AddWebhook", url=url, events=["job.failed"])
    webhook = world.engine.webhooks.by_id[added["data"]["webhookId"]]
    webhook.success_count = 19
    webhook.failure_count = 2
    assert "ok" == found(world, "webhooks")[0]

    webhook.failure_count = 3

    level, text = found(world, "webhooks")
    assert ("warning", f"webhook {webhook.id}: 3 of 22 deliveries were given up") == (level, text)


def test_timed_work_that_does_not_come(world: World) -> None:
    world.forward(1_000)
    world.clock.ms += 31_000
    assert "ok" == found(world, "timed work")[0]

    world.clock.ms += 1_000

    assert "problem" == found(world, "timed work")[0]


def test_a_sweep_that_failed(world: World) -> None:
    world.engine.totals.failed_sweeps = 1

    assert ("problem", "1 sweep failed since the start") == found(world, "timed work")


def test_a_long_queue_is_looked_at_in_slices(world: World) -> None:
    for _ in range(20):
        world.ok("PUSHB", queue="q", jobs=[{"data": 1}] * 1_000)
    steps = sum(1 for _ in world.engine.diagnose(START))

    assert steps >= 20


def test_nothing_is_changed(world: World) -> None:
    for options in ({}, {"delay": 10_000}, {"groupId": "g"}, {"priority": 3}):
        world.push(**options)
    world.ok("PULL", queue="q", owner="w")
    before = world.ok("GetJobCounts", queue="q"), len(world.engine.index)

    world.ok("Diagnose")

    assert before == (world.ok("GetJobCounts", queue="q"), len(world.engine.index))
