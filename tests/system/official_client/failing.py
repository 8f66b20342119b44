"""Scenarios: jobs fail, are tried again, and give up."""

from __future__ import annotations

import time

from scenario import World, fail, raises, scenario, until

from bunqueue import CommandError, UnrecoverableError


@scenario()
def retries_with_backoff_until_it_succeeds(world: World) -> None:
    queue = world.queue()
    runs: list[float] = []

    def handler(job) -> int:  # type: ignore[no-untyped-def]
        runs.append(time.monotonic())
        if job.attempts < 2:
            raise RuntimeError(f"attempt {job.attempts} failed")
        return job.attempts

    job = queue.add("flaky", attempts=5, backoff={"type": "fixed", "delay": 200})
    world.worker(queue, handler)

    assert 2 == queue.wait_for_job(job.id, 15_000)
    assert 3 == len(runs)
    # A fixed backoff is spread by 0.8 to 1.2; a loaded machine only adds to it.
    assert min(late - early for early, late in zip(runs, runs[1:], strict=False)) > 0.15
    assert "attempt 1 failed" == queue.get_job(job.id).raw["failedReason"]


@scenario()
def a_job_between_attempts_is_delayed(world: World) -> None:
    queue = world.queue()
    job = queue.add("flaky", attempts=3, backoff=60_000)
    world.worker(queue, fail("first"))

    until(lambda: queue.get_state(job.id) == "delayed")

    read = queue.get_job(job.id)
    assert (1, "first") == (read.attempts, read.raw["failedReason"])
    assert read.raw["runAt"] > time.time() * 1000 + 20_000


@scenario()
def gives_up_after_the_last_attempt(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", {"n": 1}, attempts=2, backoff=0)
    world.worker(queue, fail("broken"))

    until(lambda: queue.get_state(job.id) == "failed")

    read = queue.get_job(job.id)
    assert (2, "broken", "failed") == (read.attempts, read.raw["failedReason"], read.state)
    assert [job.id] == [dead["id"] for dead in queue.get_dlq()]
    assert [job.id] == [dead.id for dead in queue.get_failed()]
    assert 1 == queue.get_failed_count()


@scenario()
def a_dead_letter_remembers_every_attempt(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", attempts=2, backoff=0)
    world.worker(queue, fail("broken"))
    until(lambda: queue.get_state(job.id) == "failed")

    answer = queue.connection.call({"cmd": "Dlq", "queue": queue.name})

    entry = answer["entries"][0]
    assert ("max_attempts_exceeded", "broken") == (entry["reason"], entry["error"])
    assert [1, 2] == [run["attempt"] for run in entry["attempts"]]
    assert ["explicit_fail", "max_attempts_exceeded"] == [
        run["reason"] for run in entry["attempts"]
    ]
    stats = queue.connection.call({"cmd": "GetDlqStats", "queue": queue.name})["data"]["stats"]
    assert (1, 1) == (stats["total"], stats["byReason"]["max_attempts_exceeded"])


@scenario()
def an_unrecoverable_error_skips_the_other_attempts(world: World) -> None:
    queue = world.queue()
    runs: list[str] = []

    def handler(job) -> None:  # type: ignore[no-untyped-def]
        runs.append(job.id)
        raise UnrecoverableError("never again")

    job = queue.add("hopeless", attempts=10, backoff=0)
    world.worker(queue, handler)

    until(lambda: queue.get_state(job.id) == "failed")
    assert runs == [job.id]
    assert "never again" == queue.get_job(job.id).raw["failedReason"]


@scenario()
def keeps_the_stack_of_the_last_failure(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", attempts=1)
    world.worker(queue, fail("look here"))
    until(lambda: queue.get_state(job.id) == "failed")

    stack = queue.get_job(job.id).stacktrace

    assert 1 < len(stack) <= 10
    assert any("look here" in line for line in stack)


@scenario()
def retries_dead_letters(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n", "data": {"i": i}, "attempts": 1} for i in range(3)])
    worker = world.worker(queue, fail("no"))
    until(lambda: queue.get_failed_count() == 3)
    worker.close(10)

    assert 3 == queue.retry_dlq()

    assert [] == queue.get_dlq()
    assert [0, 0, 0] == [queue.get_job(job_id).attempts for job_id in ids]
    world.worker(queue, lambda _job: "well")
    until(lambda: queue.get_completed_count() == 3)


@scenario()
def retries_one_dead_letter(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n", "attempts": 1} for _ in range(3)])
    worker = world.worker(queue, fail("no"))
    until(lambda: queue.get_failed_count() == 3)
    worker.close(10)

    assert 1 == queue.retry_dlq(job_id=ids[1])
    assert 0 == queue.retry_dlq(job_id="no-such-job")
    assert 1 == queue.retry_dlq(count=1)

    assert "waiting" == queue.get_state(ids[1])
    assert sorted(["failed", "waiting"]) == sorted(queue.get_state(i) for i in (ids[0], ids[2]))


@scenario()
def retry_job_brings_a_failed_job_back(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", attempts=1)
    worker = world.worker(queue, fail("no"))
    until(lambda: queue.get_state(job.id) == "failed")
    worker.close(10)

    queue.retry_job(job.id)

    assert "waiting" == queue.get_state(job.id)
    assert 0 == queue.get_failed_count()


@scenario()
def purges_dead_letters(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n", "attempts": 1} for _ in range(4)])
    world.worker(queue, fail("no"), concurrency=4)
    until(lambda: queue.get_failed_count() == 4)

    assert 4 == queue.purge_dlq()

    assert {"unknown"} == {queue.get_state(job_id) for job_id in ids}
    assert 0 == queue.get_failed_count()


@scenario()
def keeps_no_dead_letter_if_asked(world: World) -> None:
    queue = world.queue()
    job = queue.add("bad", attempts=1, remove_on_fail=True)
    world.worker(queue, fail("no"))

    until(lambda: queue.get_state(job.id) == "unknown")

    assert [] == queue.get_dlq()


@scenario()
def discards_a_job_to_the_dead_letters(world: World) -> None:
    queue = world.queue()
    job = queue.add("unwanted")

    queue.discard(job.id)

    assert "failed" == queue.get_state(job.id)
    assert (
        "unknown"
        == (queue.connection.call({"cmd": "Dlq", "queue": queue.name})["entries"][0]["reason"])
    )


@scenario()
def a_run_that_takes_too_long_fails(world: World) -> None:
    queue = world.queue()
    job = queue.add("slow", timeout=300, attempts=1)
    errors: list[object] = []
    worker = world.worker(queue, lambda _job: time.sleep(1))
    worker.on("error", errors.append)

    until(lambda: queue.get_state(job.id) == "failed")

    assert "Job timeout exceeded" == queue.get_job(job.id).raw["failedReason"]
    entry = queue.connection.call({"cmd": "Dlq", "queue": queue.name})["entries"][0]
    assert "timeout" == entry["reason"]
    worker.close(10)
    assert [] == errors  # the late ACK is a success without effect
    assert "failed" == queue.get_state(job.id)


@scenario()
def fails_a_job_by_hand(world: World) -> None:
    queue = world.queue()
    queue.add("manual", attempts=1)
    job, token = world.pull(queue, owner="hand")

    raises(
        CommandError,
        f"Invalid or expired lock token for job {job['id']}",
        lambda: queue.move_job_to_failed(job["id"], "no", "wrong"),
    )
    raises(
        CommandError,
        f"Lock token required for job {job['id']}",
        lambda: queue.move_job_to_failed(job["id"], "no"),
    )
    queue.move_job_to_failed(job["id"], ValueError("by hand"), token)

    assert "by hand" == queue.get_job(job["id"]).raw["failedReason"]
    raises(
        CommandError,
        f"Job not found or not in processing state: {job['id']}",
        lambda: queue.move_job_to_failed(job["id"], "again", token),
    )


@scenario()
def keeps_the_configuration_of_dead_letters(world: World) -> None:
    queue = world.queue()
    assert 10_000 == queue.get_dlq_config()["maxEntries"]

    queue.set_dlq_config({"maxEntries": 2, "autoRetry": False})

    assert 2 == queue.get_dlq_config()["maxEntries"]
    ids = queue.add_bulk([{"name": "n", "attempts": 1} for _ in range(3)])
    world.worker(queue, fail("no"))
    until(lambda: queue.get_state(ids[2]) == "failed")
    assert ["unknown", "failed", "failed"] == [queue.get_state(job_id) for job_id in ids]


@scenario()
def runs_completed_jobs_again(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n"} for _ in range(2)])
    worker = world.worker(queue, lambda _job: "first")
    until(lambda: queue.get_completed_count() == 2)
    worker.close(10)

    assert 1 == queue.retry_completed(ids[0])

    assert ["waiting", "completed"] == [queue.get_state(job_id) for job_id in ids]
    assert queue.get_result(ids[0]) != "first"
