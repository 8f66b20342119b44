"""Scenarios: workers, jobs and connections tell what happens to them."""

from __future__ import annotations

import threading
import time

from scenario import World, cut, raises, scenario, until

from bunqueue import (
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    SerializationError,
)


@scenario()
def a_worker_tells_what_it_does(world: World) -> None:
    queue = world.queue()
    told: list[str] = []
    drained = threading.Event()

    def handler(job) -> str:  # type: ignore[no-untyped-def]
        if job.data["n"] == 2:
            raise RuntimeError("no")
        job.update_progress(50)
        return "r"

    worker = world.worker(queue, handler)
    worker.on("ready", lambda: told.append("ready"))
    worker.on("active", lambda job: told.append(f"active {job.data['n']}"))
    worker.on("progress", lambda job, value: told.append(f"progress {job.data['n']} {value}"))
    worker.on("completed", lambda job, result: told.append(f"completed {job.data['n']} {result}"))
    worker.on("failed", lambda job, error: told.append(f"failed {job.data['n']} {error}"))
    worker.on("drained", drained.set)
    worker.once("closed", lambda: told.append("closed"))

    until(lambda: told == ["ready"])  # it comes from a thread of its own
    queue.add_bulk([{"name": "n", "data": {"n": n}, "attempts": 1} for n in (1, 2)])
    assert drained.wait(10)
    worker.close(10)

    assert "ready" in told  # a listener that comes late hears it from another thread, in any order
    told.remove("ready")
    assert [
        "active 1", "progress 1 50", "completed 1 r", "active 2", "failed 2 no", "closed",
    ] == told  # fmt: skip
    assert (False, True) == (worker.is_running(), worker.is_closed())


@scenario()
def a_worker_may_run_in_the_foreground(world: World) -> None:
    queue = world.queue()
    job = queue.add("x")
    worker = world.worker(queue, lambda _job: "r", name="front")
    assert worker.is_running() is True
    thread = threading.Thread(target=worker.run)
    thread.start()

    assert "r" == queue.wait_job_until_finished(job.id, None, 10_000)
    assert 1 <= queue.get_workers_count()
    worker.stop(10)
    thread.join(10)
    assert not thread.is_alive()


@scenario()
def a_worker_can_be_asked_to_give_a_job_up(world: World) -> None:
    queue = world.queue()
    begun = threading.Semaphore(0)
    told: list[object] = []

    def handler(job) -> None:  # type: ignore[no-untyped-def]
        begun.release()
        until(lambda: worker.is_job_cancelled(job.id), 10)
        raise RuntimeError("given up")

    worker = world.worker(queue, handler, concurrency=2)
    worker.on("cancelled", told.append)
    ids = queue.add_bulk([{"name": "n", "attempts": 1} for _ in range(2)])
    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)

    assert worker.cancel_job(ids[0], "too long") is True
    until(lambda: queue.get_state(ids[0]) == "failed")
    assert {"jobId": ids[0], "reason": "too long"} == told[0]
    worker.cancel_all_jobs()
    until(lambda: queue.get_state(ids[1]) == "failed")
    assert worker.cancel_job("no-such-job") is False
    worker.remove_all_listeners("cancelled")


@scenario()
def a_job_steers_itself(world: World) -> None:
    queue = world.queue()
    job = queue.add("x", delay=60_000)
    assert "delayed" == job.get_state()
    job.promote()
    assert "waiting" == job.get_state()
    job.change_delay(60_000)
    assert "delayed" == job.get_state()
    job.change_priority(5, lifo=True)
    job.change_delay(0)
    assert "prioritized" == job.get_state()
    assert (5, True) == (queue.get_job(job.id).priority, queue.get_job(job.id).raw["lifo"])

    world.pull(queue)
    job.move_to_delayed(60_000)
    assert "delayed" == job.get_state()
    job.discard()
    assert "failed" == job.get_state()
    job.retry()
    assert job.get_state() in ("waiting", "prioritized")
    job.remove()
    assert "unknown" == job.get_state()


@scenario()
def a_queue_steers_its_jobs(world: World) -> None:
    queue = world.queue()
    job = queue.add("x", {"n": 1})
    queue.change_job_priority(job.id, 3)
    assert "prioritized" == queue.get_state(job.id)
    assert 1 == queue.get_prioritized_count()
    queue.update_job_data(job.id, {"n": 2})
    world.pull(queue)
    queue.update_job_progress(job.id, 33, "a third")

    assert {"progress": 33, "message": "a third"} == queue.get_progress(job.id)
    assert [job.id] == [each.id for each in queue.get_active()]
    queue.cancel(queue.add("y").id)
    later = queue.add("later", delay=60_000)
    after = queue.add("after", depends_on=[later.id])
    assert [later.id] == [each.id for each in queue.get_delayed()]
    assert [after.id] == [each.id for each in queue.get_waiting_children()]
    assert [] == queue.get_prioritized() == queue.get_waiting()


@scenario()
def retries_by_state(world: World) -> None:
    queue = world.queue()
    ids = [queue.add("n", attempts=1).id for _ in range(2)]
    for job_id, end in zip(ids, ("completed", "failed"), strict=True):
        _, token = world.pull(queue, owner="me")
        if end == "completed":
            queue.move_job_to_completed(job_id, token=token)
        else:
            queue.move_job_to_failed(job_id, "no", token)

    assert 1 == queue.retry_jobs("failed", count=5)
    assert 1 == queue.retry_jobs("completed")

    assert ["waiting", "waiting"] == [queue.get_state(job_id) for job_id in ids]


@scenario()
def counts_since_the_start(world: World) -> None:
    queue = world.queue()
    before = queue.get_metrics()
    queue.add("x")
    job, token = world.pull(queue, owner="me")
    queue.move_job_to_completed(job["id"], token=token)

    after = queue.get_metrics()

    for name in ("totalPushed", "totalPulled", "totalCompleted"):
        assert after[name] > before[name]
    assert {"totalFailed", "avgLatencyMs", "avgProcessingMs", "memoryUsageMb"} <= set(after)


@scenario()
def a_connection_tells_of_its_commands(world: World) -> None:
    told: list[dict[str, object]] = []
    queue = world.queue(on_telemetry=told.append)
    queue.wait_until_ready()
    queue.ping()
    raises(CommandError, "Webhook not found", lambda: queue.remove_webhook("no-such-hook"))

    commands = [event for event in told if event["type"] == "command"]
    assert [("Ping", True), ("RemoveWebhook", False)] == [
        (event["cmd"], event["ok"]) for event in commands
    ]
    assert all(event["duration_ms"] >= 0 for event in commands)
    assert "connect" in [event["type"] for event in told]


@scenario()
def what_cannot_be_packed_never_leaves(world: World) -> None:
    queue = world.queue()

    raises(SerializationError, "", lambda: queue.add("x", {"when": object()}))

    assert queue.ping() is True
    assert 0 == queue.count()


@scenario()
def a_cut_connection_is_made_anew(world: World) -> None:
    queue = world.queue()
    job = queue.add("x")
    first = queue.connection.generation
    waiting = threading.Thread(target=lambda: _quietly(lambda: world.pull(queue, timeout=60_000)))
    world.pull(queue)
    waiting.start()
    time.sleep(0.2)

    cut(queue)

    waiting.join(10)  # told at once, not at its deadline
    assert not waiting.is_alive()
    until(lambda: queue.ping())
    assert first < queue.connection.generation
    until(lambda: queue.get_state(job.id) == "waiting")  # it was held by the connection


def _quietly(action) -> None:  # type: ignore[no-untyped-def]
    raises(ConnectionClosedError, "connection lost", action)


@scenario()
def a_worker_comes_back_after_a_cut(world: World) -> None:
    queue = world.queue()
    worker = world.worker(queue, lambda job: job.data["n"])
    assert 1 == queue.wait_for_job(queue.add("a", {"n": 1}).id, 10_000)

    worker.connection._sock.shutdown(2)

    assert 2 == queue.wait_for_job(queue.add("b", {"n": 2}).id, 10_000)
    until(lambda: worker.worker_id in [row["id"] for row in queue.get_workers()])


@scenario()
def an_answer_that_comes_too_late_is_an_error(world: World) -> None:
    queue = world.queue()
    slow = {"cmd": "PULL", "queue": queue.name, "timeout": 1_000}

    raises(CommandTimeoutError, "", lambda: queue.connection.call(slow, timeout=0.2))

    assert queue.ping() is True


@scenario()
def a_queue_may_share_a_connection(world: World) -> None:
    shared = world.connection()
    shared.connect()
    first, second = world.queue(connection=shared), world.queue(connection=shared)
    flows = world.flows(connection=shared)

    first.add("a")
    flows.add_chain([{"name": "b", "queueName": second.name}])

    assert (1, 1) == (first.count(), second.count())
    first.close()
    assert second.ping() is True


@scenario()
def a_prefix_is_part_of_the_name(world: World) -> None:
    queue = world.queue("orders", prefix_key=f"{world.name}:")
    queue.add("x")

    assert f"{world.name}:orders" in queue.list_queues()
    queue.disconnect()
