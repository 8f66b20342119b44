"""Scenarios: jobs made by the clock."""

from __future__ import annotations

import threading
import time

from scenario import World, raises, scenario, until

from bunqueue import CommandError

HOUR_MS = 3_600_000


@scenario()
def a_scheduler_by_interval_makes_jobs(world: World) -> None:
    queue = world.queue()
    seen: list[dict[str, object]] = []
    world.worker(queue, lambda job: seen.append(job.raw))

    queue.every("tick", 300, {"n": 1})
    until(lambda: len(seen) >= 2)
    queue.remove_job_scheduler("tick")

    assert ("tick", {"n": 1}) == (seen[0]["name"], seen[0]["data"])
    # From planned time to planned time; a first tick that is late shortens only what follows it.
    assert abs(seen[1]["createdAt"] - seen[0]["createdAt"] - 300) < 250


@scenario()
def a_scheduler_by_pattern_is_shown(world: World) -> None:
    queue = world.queue()
    queue.add_cron(f"{queue.name}-noon", "0 12 * * *", {"n": 1}, tz="Asia/Kathmandu")

    shown = queue.get_job_scheduler(f"{queue.name}-noon")

    assert (f"{queue.name}-noon", queue.name) == (shown["name"], shown["queue"])
    assert ("0 12 * * *", "Asia/Kathmandu") == (shown["schedule"], shown["timezone"])
    assert shown["repeatEvery"] is None
    now_ms = time.time() * 1000
    assert now_ms < shown["nextRun"] <= now_ms + 24 * HOUR_MS
    # Noon in Kathmandu is 06:15 UTC, all year round.
    assert 6.25 * HOUR_MS == shown["nextRun"] % (24 * HOUR_MS)
    assert 0 == shown["executions"]


@scenario()
def schedulers_are_listed_by_queue(world: World) -> None:
    queue, other = world.queue(), world.queue()
    for name in ("b", "a"):
        queue.upsert_job_scheduler(f"{queue.name}-{name}", {"every": HOUR_MS})
    other.upsert_job_scheduler(f"{other.name}-c", {"every": HOUR_MS})

    listed = {scheduler["name"] for scheduler in queue.get_job_schedulers()}

    assert {f"{queue.name}-a", f"{queue.name}-b"} == listed
    assert 2 == queue.get_job_schedulers_count()
    queue.remove_job_scheduler(f"{queue.name}-a")
    assert 1 == queue.get_job_schedulers_count()
    assert queue.get_job_scheduler(f"{queue.name}-a") is None
    raises(
        CommandError,
        "Cron job not found",
        lambda: queue.remove_job_scheduler(f"{queue.name}-a"),
    )


@scenario()
def a_scheduler_can_be_replaced(world: World) -> None:
    queue = world.queue()
    name = f"{queue.name}-report"
    queue.upsert_job_scheduler(name, {"every": HOUR_MS, "immediately": True})
    until(lambda: queue.get_job_scheduler(name)["executions"] == 1)

    queue.upsert_job_scheduler(name, {"pattern": "@hourly"})

    shown = queue.get_job_scheduler(name)
    assert ("@hourly", None, 1) == (shown["schedule"], shown["repeatEvery"], shown["executions"])
    assert 1 == queue.count()


@scenario()
def a_scheduler_ends_at_its_limit(world: World) -> None:
    queue = world.queue()
    done = threading.Semaphore(0)
    name = f"{queue.name}-twice"
    world.worker(queue, lambda _job: done.release())

    queue.upsert_job_scheduler(name, {"every": 150, "limit": 2})

    until(lambda: queue.get_job_scheduler(name) is None)
    assert done.acquire(timeout=5)
    assert done.acquire(timeout=5)
    assert not done.acquire(timeout=0.4)


@scenario()
def a_schedulers_jobs_have_the_options_of_its_template(world: World) -> None:
    queue = world.queue()
    queue.upsert_job_scheduler(
        f"{queue.name}-opts",
        {"every": HOUR_MS, "immediately": True},
        {
            "name": "report",
            "data": {"page": 1},
            "opts": {
                "priority": 4,
                "attempts": 8,
                "backoff": {"type": "fixed", "delay": 50},
                "timeout": 9_000,
                "stall_timeout": 8_000,
                "remove_on_complete": True,
                "remove_on_fail": True,
                "deduplication": {"id": "one-report"},
            },
        },
    )

    job = until(lambda: world.pull(queue)[0])

    assert ("report", {"page": 1}, 4, 8) == (
        job["name"], job["data"], job["priority"], job["maxAttempts"],
    )  # fmt: skip
    assert ("fixed", 50) == (job["backoffConfig"]["type"], job["backoffConfig"]["delay"])
    assert (9_000, 8_000, True, True) == (
        job["timeout"], job["stallTimeout"], job["removeOnComplete"], job["removeOnFail"],
    )  # fmt: skip
    assert "one-report" == job["uniqueKey"]


@scenario()
def a_scheduler_waits_for_its_last_job(world: World) -> None:
    """2.9.5 counts the runs that are left out among the executions; both are accepted."""
    queue = world.queue()
    name = f"{queue.name}-slow"
    queue.upsert_job_scheduler(name, {"every": 150, "prevent_overlap": True})
    planned: set[float] = set()

    def sees_a_run() -> bool:
        planned.add(queue.get_job_scheduler(name)["nextRun"])
        return len(planned) == 4

    until(sees_a_run)

    assert 1 == queue.count()
    queue.remove_job_scheduler(name)


@scenario()
def a_scheduler_can_wait_for_a_worker(world: World) -> None:
    queue = world.queue()
    name = f"{queue.name}-idle"
    queue.upsert_job_scheduler(name, {"every": 200, "skip_if_no_worker": True})
    time.sleep(0.6)
    assert 0 == queue.count()
    done = threading.Event()

    world.worker(queue, lambda _job: done.set())

    assert done.wait(10)
    queue.remove_job_scheduler(name)


@scenario()
def refuses_schedulers_in_words(world: World) -> None:
    queue = world.queue()
    name = f"{queue.name}-bad"
    for text, repeat in (
        ("Cron job must have either schedule or repeatEvery", {}),
        ("Invalid cron expression", {"pattern": "61 * * * *"}),
        ("Invalid cron expression", {"pattern": "0 0 * * *", "tz": "Mars/Olympus"}),
        ("Cron repeatEvery must be a positive safe integer", {"every": 1.5}),
    ):
        raises(CommandError, text, lambda repeat=repeat: queue.upsert_job_scheduler(name, repeat))
    assert queue.get_job_scheduler(name) is None


@scenario()
def a_repeated_job_makes_its_next_generation(world: World) -> None:
    queue = world.queue()
    runs: list[tuple[str, int]] = []
    world.worker(queue, lambda job: runs.append((job.id, job.raw["repeat"]["count"])))

    queue.add("again", {"n": 1}, repeat={"every": 100, "limit": 2})

    until(lambda: len(runs) == 3)
    time.sleep(0.3)
    assert [0, 1, 2] == [count for _, count in runs]
    assert 3 == len({job_id for job_id, _ in runs})
    raises(
        CommandError,
        "repeat requires exactly one of every or pattern",
        lambda: queue.add("bad", repeat={"limit": 2}),
    )
