"""Scenarios: the broker is killed and comes back on the same file and port."""

from __future__ import annotations

from typing import Any

from scenario import World, fail, scenario, until

from bunqueue import BunqueueError, Queue


def _reachable(queue: Queue) -> bool:
    try:
        queue.ping()
        queue.count()
    except BunqueueError:
        return False
    return True


def _restart(world: World, queue: Queue) -> None:
    world.ask("restart")
    until(lambda: _reachable(queue), 30)


@scenario("restart")
def a_queue_and_a_worker_find_the_broker_again(world: World) -> None:
    queue = world.queue()
    worker = world.worker(queue, lambda job: job.data["n"], heartbeat_interval_s=0.5)
    before = queue.add("before", {"n": 1})
    assert 1 == queue.wait_for_job(before.id, 10_000)

    _restart(world, queue)

    after = queue.add("after", {"n": 2})
    assert 2 == queue.wait_for_job(after.id, 20_000)
    assert 1 == queue.get_result(before.id)
    until(lambda: worker.worker_id in [row["id"] for row in queue.get_workers()], 30)


@scenario("restart")
def everything_that_was_confirmed_survives(world: World) -> None:
    queue = world.queue()
    ids: dict[str, str] = {}
    for state in ("completed", "failed"):
        ids[state] = queue.add(state, {"s": state}, attempts=1).id
        job, token = world.pull(queue, owner="me")
        if state == "completed":
            queue.move_job_to_completed(job["id"], {"r": [1, None]}, token)
        else:
            queue.move_job_to_failed(job["id"], "broken", token)
    ids["waiting"] = queue.add("w", {"s": "waiting"}, durable=True).id
    ids["prioritized"] = queue.add("p", {"s": "prioritized"}, priority=4, durable=True).id
    ids["delayed"] = queue.add("d", {"s": "delayed"}, delay=3_600_000, durable=True).id
    queue.add("c", {"s": "custom"}, job_id="survivor", durable=True)
    queue.add("u", {"s": "unique"}, unique_key="held", durable=True)

    _restart(world, queue)

    assert {state: state for state in ids} == {s: queue.get_state(i) for s, i in ids.items()}
    assert {"r": [1, None]} == queue.get_result(ids["completed"])
    assert "broken" == queue.get_job(ids["failed"]).raw["failedReason"]
    assert [ids["failed"]] == [dead["id"] for dead in queue.get_dlq()]
    assert {"s": "prioritized"} == queue.get_job(ids["prioritized"]).data
    counts = queue.get_job_counts()
    queue.add("c", job_id="survivor")
    queue.add("u", unique_key="held")
    assert counts == queue.get_job_counts()


@scenario("restart")
def settings_of_a_queue_survive(world: World) -> None:
    queue = world.queue()
    queue.pause()
    queue.set_global_concurrency(7)
    queue.set_global_rate_limit(99)
    queue.set_stall_config({"stallInterval": 12_345})
    queue.set_dlq_config({"maxEntries": 77})

    _restart(world, queue)

    assert queue.is_paused() is True
    assert 12_345 == queue.get_stall_config()["stallInterval"]
    assert 77 == queue.get_dlq_config()["maxEntries"]
    limits = queue.connection.call({"cmd": "GetQueueLimits", "queue": queue.name})["data"]["limits"]
    assert 7 == limits["concurrencyLimit"]
    assert 99 == limits["rateLimit"]["max"]


@scenario("restart")
def a_job_at_work_during_the_crash_is_charged_once(world: World) -> None:
    queue = world.queue()
    job = queue.add("half done", attempts=5, backoff=100, durable=True)
    world.pull(queue, owner="me")

    _restart(world, queue)

    read = queue.get_job(job.id)
    assert (1, 1) == (read.attempts, read.raw["stallCount"])
    done: list[Any] = []
    world.worker(queue, lambda job: done.append(job.id))
    until(lambda: queue.get_state(job.id) == "completed")
    assert done == [job.id]


@scenario("restart")
def a_retried_dead_letter_survives(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", attempts=1)
    worker = world.worker(queue, fail("no"))
    until(lambda: queue.get_state(job.id) == "failed")
    worker.close(10)
    queue.retry_dlq()

    _restart(world, queue)

    assert "waiting" == queue.get_state(job.id)
    assert [] == queue.get_dlq()


@scenario("restart")
def flows_schedulers_and_groups_survive(world: World) -> None:
    queue = world.queue()
    steps = [{"name": name, "queueName": queue.name, "opts": {"durable": True}} for name in "ab"]
    first_id, second_id = world.flows().add_chain(steps)
    scheduler = f"{queue.name}-hourly"
    queue.upsert_job_scheduler(scheduler, {"every": 3_600_000})
    group = {"queue": queue.name, "groupId": "ann"}
    queue.connection.call({"cmd": "SetGroupConcurrency", "concurrency": 3, **group})

    _restart(world, queue)

    assert "waiting-children" == queue.get_state(second_id)
    assert 3_600_000 == queue.get_job_scheduler(scheduler)["repeatEvery"]
    kept = queue.connection.call({"cmd": "GetGroupConcurrency", **group})["data"]
    assert {"concurrency": 3} == kept
    world.worker(queue, lambda _job: "done")
    assert "done" == queue.wait_for_job(second_id, 20_000)
    assert "completed" == queue.get_state(first_id)
