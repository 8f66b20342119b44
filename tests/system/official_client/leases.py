"""Scenarios: who may finish a job, and what becomes of it when a worker falls silent."""

from __future__ import annotations

import threading
import time

from scenario import World, cut, raises, scenario, until

from bunqueue import CommandError


@scenario()
def heartbeats_keep_a_long_job(world: World) -> None:
    queue = world.queue()
    runs: list[str] = []

    def handler(job) -> str:  # type: ignore[no-untyped-def]
        runs.append(job.id)
        time.sleep(7)  # longer than the lease and than any sweep
        return "kept"

    job = queue.add("long")
    for _ in range(2):
        world.worker(queue, handler, lock_ttl_ms=1_000, heartbeat_interval_s=0.3)

    assert "kept" == queue.wait_for_job(job.id, 15_000)
    assert runs == [job.id]
    assert 0 == queue.get_job(job.id).attempts


@scenario()
def a_silent_worker_loses_its_job(world: World) -> None:
    queue = world.queue()
    job = queue.add("lost", attempts=3)
    _, token = world.pull(queue, owner="silent", lockTtl=500)
    other: list[int] = []
    worker = world.worker(queue, lambda job: other.append(job.attempts))

    until(lambda: queue.get_state(job.id) == "completed")

    assert [1] == other
    worker.close(10)
    raises(
        CommandError,
        "Job not found or not in processing state",
        lambda: queue.move_job_to_completed(job.id, "late", token),
    )


@scenario()
def a_closed_connection_gives_its_jobs_back(world: World) -> None:
    queue = world.queue()
    job = queue.add("dropped")
    doomed = world.queue(queue.name)
    world.pull(doomed, owner="doomed")
    assert "active" == queue.get_state(job.id)

    cut(doomed)

    until(lambda: queue.get_state(job.id) == "waiting", 5)
    assert 0 == queue.get_job(job.id).attempts


@scenario()
def a_poller_gets_what_a_closed_connection_gives_back(world: World) -> None:
    """2.9.5 does not wake the poller; its next poll finds the job."""
    queue = world.queue()
    job = queue.add("dropped")
    doomed = world.queue(queue.name)
    world.pull(doomed, owner="doomed")
    world.worker(queue, lambda _job: "second hand", poll_timeout_ms=1_000)

    cut(doomed)

    assert "second hand" == queue.wait_for_job(job.id, 5_000)


@scenario()
def only_the_token_finishes_a_job(world: World) -> None:
    queue = world.queue()
    queue.add("guarded")
    job, token = world.pull(queue, owner="me")
    other = world.queue(queue.name)

    raises(
        CommandError,
        f"Invalid or expired lock token for job {job['id']}",
        lambda: other.move_job_to_completed(job["id"], token="wrong"),
    )
    raises(
        CommandError,
        f"Lock token required for job {job['id']}",
        lambda: other.move_job_to_completed(job["id"]),
    )
    other.move_job_to_completed(job["id"], {"by": "another connection"}, token)

    assert {"by": "another connection"} == queue.get_result(job["id"])


@scenario()
def a_lease_can_be_extended(world: World) -> None:
    queue = world.queue()
    queue.add("slow")
    job, token = world.pull(queue, owner="me", lockTtl=500)

    queue.extend_job_lock(job["id"], token, 60_000)
    raises(
        CommandError,
        "Lock not found or invalid token",
        lambda: queue.extend_job_lock(job["id"], "wrong", 60_000),
    )

    time.sleep(6)
    assert "active" == queue.get_state(job["id"])
    queue.move_job_to_completed(job["id"], "in time", token)


@scenario()
def a_handler_can_renew_its_own_lease(world: World) -> None:
    queue = world.queue()
    done = threading.Event()

    def handler(job) -> str:  # type: ignore[no-untyped-def]
        for _ in range(4):
            time.sleep(0.3)
            job.heartbeat()
        job.extend_lock(30_000)
        done.set()
        return "renewed"

    job = queue.add("busy")
    world.worker(queue, handler, lock_ttl_ms=1_000, heartbeat_interval_s=0)

    assert "renewed" == queue.wait_for_job(job.id, 10_000)
    assert done.is_set()
    assert 0 == queue.get_job(job.id).attempts


@scenario()
def a_renewed_lease_outlives_its_connection(world: World) -> None:
    queue = world.queue()
    queue.add("kept")
    first = world.queue(queue.name)
    job, token = world.pull(first, owner="me", lockTtl=30_000)
    first.connection.call({"cmd": "JobHeartbeat", "id": job["id"], "token": token})

    cut(first)
    time.sleep(0.3)

    assert "active" == queue.get_state(job["id"])
    queue.move_job_to_completed(job["id"], "after reconnecting", token)
    assert "after reconnecting" == queue.get_result(job["id"])


@scenario()
def a_batch_with_one_wrong_token_is_refused_whole(world: World) -> None:
    queue = world.queue()
    queue.add_bulk([{"name": "n"}, {"name": "n"}])
    pulled = queue.connection.call({"cmd": "PULLB", "queue": queue.name, "count": 2, "owner": "me"})
    ids = [job["id"] for job in pulled["jobs"]]

    batch = {"cmd": "ACKB", "ids": ids, "tokens": [pulled["tokens"][0], "wrong"]}
    raises(CommandError, "Invalid or expired lock token", lambda: queue.connection.call(batch))

    assert ["active", "active"] == [queue.get_state(job_id) for job_id in ids]
    queue.connection.call({"cmd": "ACKB", "ids": ids, "tokens": pulled["tokens"]})
    assert ["completed", "completed"] == [queue.get_state(job_id) for job_id in ids]
