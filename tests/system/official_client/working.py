"""Scenarios: jobs are worked on."""

from __future__ import annotations

import threading
import time

from scenario import World, fail, raises, scenario, until

from bunqueue import CommandError, CommandTimeoutError


@scenario()
def works_a_job_and_keeps_its_result(world: World) -> None:
    queue = world.queue()
    job = queue.add("double", {"n": 21})
    world.worker(queue, lambda job: {"value": job.data["n"] * 2})

    assert {"value": 42} == queue.wait_for_job(job.id, 10_000)
    assert {"value": 42} == queue.get_result(job.id)
    read = queue.get_job(job.id)
    assert "completed" == read.state
    assert {"value": 42} == read.raw["returnvalue"]
    assert read.completed_at >= read.started_at >= read.created_at


@scenario()
def works_many_jobs_each_once(world: World) -> None:
    queue = world.queue()
    seen: list[int] = []
    ids = queue.add_bulk([{"name": "n", "data": {"i": i}} for i in range(300)])
    for _ in range(2):
        world.worker(queue, lambda job: seen.append(job.data["i"]), concurrency=8)

    until(lambda: queue.get_completed_count() == 300)

    assert list(range(300)) == sorted(seen)
    assert {"completed"} == {queue.get_state(job_id) for job_id in ids}


@scenario()
def gives_no_result_for_a_job_without_one(world: World) -> None:
    """2.9.5 sends "undefined", which 0.1.5 shows as an extension object."""
    queue = world.queue()
    job = queue.add("quiet")
    world.worker(queue, lambda _job: None)
    queue.wait_for_job(job.id, 10_000)

    result = queue.get_result(job.id)

    assert result is None or type(result).__name__ == "ExtType"


@scenario()
def wait_for_job_gives_up_in_time(world: World) -> None:
    queue = world.queue()
    job = queue.add("never")
    begin = time.monotonic()

    raises(CommandTimeoutError, "timed out", lambda: queue.wait_for_job(job.id, 300))

    assert 0.2 < time.monotonic() - begin < 5


@scenario()
def wait_for_job_tells_a_failure(world: World) -> None:
    """2.9.5 answers only when the time is up; both are in time here."""
    queue = world.queue()
    job = queue.add("bad", attempts=1)
    world.worker(queue, fail("no"))

    raises(CommandError, "failed before completion", lambda: queue.wait_for_job(job.id, 2_000))


@scenario()
def wait_for_job_of_an_unknown_job_is_an_error(world: World) -> None:
    queue = world.queue()
    raises(CommandError, "Job not found", lambda: queue.wait_for_job("no-such-job", 100))


@scenario()
def a_waiting_worker_gets_a_job_at_once(world: World) -> None:
    queue = world.queue()
    begun = threading.Event()
    world.worker(queue, lambda _job: begun.set(), poll_timeout_ms=10_000)
    time.sleep(0.3)
    begin = time.monotonic()

    queue.add("now")

    assert begun.wait(5)
    assert time.monotonic() - begin < 2


@scenario()
def takes_higher_priorities_first(world: World) -> None:
    queue = world.queue()
    for priority in (1, 10, 5, 0, 10):
        queue.add("p", {"p": priority}, priority=priority)

    order = [world.pull(queue)[0]["data"]["p"] for _ in range(5)]

    assert [10, 10, 5, 1, 0] == order


@scenario()
def takes_the_newest_first_if_asked(world: World) -> None:
    queue = world.queue()
    for number in range(3):
        queue.add("stack", {"n": number}, lifo=True)
        time.sleep(0.005)

    assert [2, 1, 0] == [world.pull(queue)[0]["data"]["n"] for _ in range(3)]


@scenario()
def a_delayed_job_is_worked_when_its_time_has_come(world: World) -> None:
    queue = world.queue()
    begin = time.monotonic()
    job = queue.add("later", delay=600)
    assert "delayed" == queue.get_state(job.id)
    world.worker(queue, lambda _job: "done", poll_timeout_ms=5_000)

    assert "done" == queue.wait_for_job(job.id, 10_000)
    assert 0.55 < time.monotonic() - begin < 5


@scenario()
def an_expired_job_is_never_worked(world: World) -> None:
    queue = world.queue()
    job = queue.add("stale", ttl=100)
    time.sleep(0.3)

    assert (None, None) == world.pull(queue)
    assert "unknown" == queue.get_state(job.id)


@scenario()
def reports_progress_while_working(world: World) -> None:
    queue = world.queue()
    go_on, reported = threading.Event(), threading.Event()

    def handler(job) -> None:  # type: ignore[no-untyped-def]
        job.update_progress(40, "nearly half")
        reported.set()
        go_on.wait(10)

    job = queue.add("long")
    world.worker(queue, handler)
    assert reported.wait(10)

    assert {"progress": 40, "message": "nearly half"} == queue.get_progress(job.id)
    assert 40 == queue.get_job(job.id).progress
    go_on.set()
    until(lambda: queue.get_state(job.id) == "completed")
    raises(CommandError, "Job is not active", lambda: queue.get_progress(job.id))


@scenario()
def keeps_log_lines(world: World) -> None:
    queue = world.queue()
    job = queue.add("chatty")
    world.worker(queue, lambda job: [job.log("begun"), job.log("odd", "warn")])
    queue.wait_for_job(job.id, 10_000)
    queue.add_job_log(job.id, "afterwards", "error")

    logs = queue.get_job_logs(job.id)
    assert [("info", "begun"), ("warn", "odd"), ("error", "afterwards")] == [
        (line["level"], line["message"]) for line in logs
    ]
    assert ["odd"] == [line["message"] for line in queue.get_job_logs(job.id, 1, 1)]
    queue.clear_job_logs(job.id, keep_logs=1)
    assert ["afterwards"] == [line["message"] for line in queue.get_job_logs(job.id)]
    queue.clear_job_logs(job.id)
    assert [] == queue.get_job_logs(job.id)


@scenario()
def acknowledges_in_batches(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n", "data": {"i": i}} for i in range(120)])
    batch = {"max_size": 20, "max_delay_ms": 10}
    worker = world.worker(
        queue, lambda job: {"i": job.data["i"]}, concurrency=10, batch_size=50, ack_batch=batch
    )

    until(lambda: queue.get_completed_count() == 120)

    assert [{"i": i} for i in range(120)] == [queue.get_result(job_id) for job_id in ids]
    until(lambda: worker._processed == 120)


@scenario()
def removes_what_is_not_to_be_kept(world: World) -> None:
    queue = world.queue()
    job = queue.add("gone", remove_on_complete=True)
    world.worker(queue, lambda _job: "x")

    until(lambda: queue.get_state(job.id) == "unknown")

    assert queue.get_job(job.id) is None
    assert 0 == queue.get_completed_count()


@scenario()
def a_paused_worker_takes_nothing(world: World) -> None:
    queue = world.queue()
    worker = world.worker(queue, lambda _job: "x")
    worker.pause()
    time.sleep(0.3)
    job = queue.add("held")
    time.sleep(0.3)

    assert "waiting" == queue.get_state(job.id)
    worker.resume()
    assert "x" == queue.wait_for_job(job.id, 10_000)


@scenario()
def a_closing_worker_finishes_what_it_began(world: World) -> None:
    queue = world.queue()
    begun = threading.Event()

    def handler(_job) -> str:  # type: ignore[no-untyped-def]
        begun.set()
        time.sleep(0.5)
        return "finished"

    job = queue.add("last")
    worker = world.worker(queue, handler)
    assert begun.wait(10)

    assert worker.close(10) is True
    assert "completed" == queue.get_state(job.id)
    assert "finished" == queue.get_result(job.id)


@scenario()
def lists_a_worker_while_it_runs(world: World) -> None:
    queue = world.queue()
    worker = world.worker(queue, lambda _job: None, concurrency=3, name="lister")

    def mine() -> list[dict[str, object]]:
        return [row for row in queue.get_workers() if row["id"] == worker.worker_id]

    row = until(mine)[0]
    assert ("lister", [queue.name], 3) == (row["name"], row["queues"], row["concurrency"])
    assert "active" == row["status"]
    worker.close(10)
    until(lambda: not mine())


@scenario()
def counts_what_a_worker_did(world: World) -> None:
    queue = world.queue()
    queue.add_bulk([{"name": "n", "data": {"i": i}, "attempts": 1} for i in range(6)])

    def handler(job) -> None:  # type: ignore[no-untyped-def]
        if job.data["i"] < 2:
            raise RuntimeError("no")

    worker = world.worker(queue, handler, heartbeat_interval_s=0.2)

    def row() -> dict[str, object]:
        return next(row for row in queue.get_workers() if row["id"] == worker.worker_id)

    until(lambda: (row()["processedJobs"], row()["failedJobs"]) == (4, 2))
