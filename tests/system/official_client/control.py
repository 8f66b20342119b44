"""Scenarios: queues and jobs are steered from outside."""

from __future__ import annotations

import threading
import time

from scenario import World, raises, scenario, until

from bunqueue import CommandError


@scenario()
def a_paused_queue_hands_out_nothing(world: World) -> None:
    queue = world.queue()
    queue.pause()
    job = queue.add("held")
    world.worker(queue, lambda _job: "x", poll_timeout_ms=5_000)
    time.sleep(0.4)

    assert queue.is_paused() is True
    assert "waiting" == queue.get_state(job.id)
    counts = queue.get_job_counts()
    assert (0, 1) == (counts["waiting"], counts["paused"])
    queue.resume()
    assert queue.is_paused() is False
    assert "x" == queue.wait_for_job(job.id, 3_000)


@scenario()
def drains_what_waits(world: World) -> None:
    queue = world.queue()
    queue.add("active")
    active, token = world.pull(queue, owner="me")
    ids = [queue.add("a").id, queue.add("b", priority=2).id, queue.add("c", delay=60_000).id]

    assert 3 == queue.drain()

    assert 0 == queue.count()
    assert {"unknown"} == {queue.get_state(job_id) for job_id in ids}
    queue.move_job_to_completed(active["id"], token=token)
    assert "completed" == queue.get_state(active["id"])


@scenario()
def obliterates_everything(world: World) -> None:
    queue = world.queue()
    queue.add("active")
    active, token = world.pull(queue, owner="me")
    queue.add("waiting")
    queue.pause()

    queue.obliterate()

    assert {0} == set(queue.get_job_counts().values())
    assert queue.is_paused() is False
    raises(
        CommandError,
        "Job not found or not in processing state",
        lambda: queue.move_job_to_completed(active["id"], token=token),
    )


@scenario()
def cleans_old_completed_jobs(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n"} for _ in range(3)])
    world.worker(queue, lambda _job: None)
    until(lambda: queue.get_completed_count() == 3)

    assert 0 == queue.clean(60_000, state="completed")
    time.sleep(0.05)
    assert 2 == queue.clean(10, limit=2, state="completed")
    assert 1 == queue.clean(10, state="completed")
    assert {"unknown"} == {queue.get_state(job_id) for job_id in ids}


@scenario()
def cleans_only_the_named_state(world: World) -> None:
    """2.9.5 cleans all that is queued, whichever queued state is named; both are accepted."""
    queue = world.queue()
    waiting = queue.add("waiting")
    delayed = queue.add("delayed", delay=60_000)
    time.sleep(0.05)

    assert queue.clean(10, state="delayed") in (1, 2)

    assert "unknown" == queue.get_state(delayed.id)
    assert queue.get_state(waiting.id) in ("waiting", "unknown")


@scenario()
def removes_a_job_that_waits(world: World) -> None:
    queue = world.queue()
    job = queue.add("unwanted")

    queue.remove(job.id)

    assert "unknown" == queue.get_state(job.id)
    raises(CommandError, "Job not found or cannot be cancelled", lambda: queue.remove(job.id))


@scenario()
def does_not_remove_a_job_at_work(world: World) -> None:
    queue = world.queue()
    queue.add("busy")
    job, _ = world.pull(queue, owner="me")

    raises(CommandError, "Job not found or cannot be cancelled", lambda: queue.remove(job["id"]))

    assert "active" == queue.get_state(job["id"])


@scenario()
def promotes_a_delayed_job(world: World) -> None:
    queue = world.queue()
    job = queue.add("later", delay=60_000)
    world.worker(queue, lambda _job: "now", poll_timeout_ms=5_000)

    queue.promote_job(job.id)

    assert "now" == queue.wait_for_job(job.id, 3_000)
    raises(CommandError, "Job not found or not delayed", lambda: queue.promote_job(job.id))


@scenario()
def promotes_the_oldest_delayed_jobs(world: World) -> None:
    queue = world.queue()
    ids = [queue.add("later", delay=60_000 - i).id for i in range(4)]

    assert 2 == queue.promote_jobs(count=2)

    assert ["waiting", "waiting", "delayed", "delayed"] == [queue.get_state(i) for i in ids]
    assert 2 == queue.promote_jobs()
    assert 4 == queue.get_waiting_count()


@scenario()
def changes_priority_delay_and_data(world: World) -> None:
    queue = world.queue()
    first, second = queue.add("a", {"n": 1}), queue.add("b", {"n": 2})

    second.change_priority(9)
    first.update_data({"n": 100})
    later = queue.add("c", delay=60_000)
    queue.change_job_delay(later.id, 0)

    assert "prioritized" == queue.get_state(second.id)
    assert {"n": 100} == queue.get_job(first.id).data
    assert [second.id, first.id, later.id] == [world.pull(queue)[0]["id"] for _ in range(3)]


@scenario()
def puts_a_job_at_work_off_until_later(world: World) -> None:
    queue = world.queue()
    queue.add("not now")
    job, _ = world.pull(queue)

    queue.move_job_to_delayed(job["id"], 60_000)

    assert "delayed" == queue.get_state(job["id"])
    assert 0 == queue.get_job(job["id"]).attempts
    queue.move_job_to_wait(job["id"])
    assert "waiting" == queue.get_state(job["id"])


@scenario()
def honours_a_rate_limit(world: World) -> None:
    queue = world.queue()
    queue.add_bulk([{"name": "n"} for _ in range(6)])

    queue.set_global_rate_limit(3)
    taken = [world.pull(queue)[0] for _ in range(6)]

    assert 3 <= sum(job is not None for job in taken) <= 4  # a slow machine refills meanwhile
    limits = queue.connection.call({"cmd": "GetQueueLimits", "queue": queue.name})["data"]["limits"]
    assert {"max": 3, "duration": 1000} == limits["rateLimit"]
    queue.remove_global_rate_limit()
    assert all(world.pull(queue)[0] for _ in range(2))


@scenario()
def honours_a_concurrency_limit(world: World) -> None:
    queue = world.queue()
    queue.set_global_concurrency(2)
    queue.add_bulk([{"name": "n"} for _ in range(8)])
    lock = threading.Lock()
    now, most = 0, 0

    def handler(_job) -> None:  # type: ignore[no-untyped-def]
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1

    for _ in range(2):
        world.worker(queue, handler, concurrency=4)
    until(lambda: queue.get_completed_count() == 8)

    assert 2 == most
    queue.remove_global_concurrency()
    limits = queue.connection.call({"cmd": "GetQueueLimits", "queue": queue.name})["data"]["limits"]
    assert limits["concurrencyLimit"] is None


@scenario()
def keeps_the_stall_configuration(world: World) -> None:
    queue = world.queue()
    assert {
        "enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000,
    } == queue.get_stall_config()  # fmt: skip

    queue.set_stall_config({"stallInterval": 1_000})

    assert 1_000 == queue.get_stall_config()["stallInterval"]
    assert 3 == queue.get_stall_config()["maxStalls"]
