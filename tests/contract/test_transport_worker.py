"""What a Worker does, over TCP and embedded: the same sentences, the same code."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bunqueue import (
    DelayedError,
    Job,
    JobCancelledError,
    SerializationError,
    UnrecoverableError,
    Worker,
)
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0


def test_jobs_are_run_and_their_results_kept(transport: Transport) -> None:
    queue = transport.queue()
    jobs = queue.add_bulk_jobs([{"name": "square", "data": n} for n in range(20)])
    worker = transport.worker(lambda job: job.data**2, autorun=False)
    heard = Heard(worker, "completed", "error")
    worker.start()

    heard.wait_for("completed", 20)

    assert [n**2 for n in range(20)] == [queue.get_result(job.id) for job in jobs]
    assert {"completed": 20} == {key: n for key, n in queue.get_job_counts().items() if n}
    assert (20, 0, 0) == tuple(worker.stats()[key] for key in ("processed", "failed", "active"))
    assert "error" not in heard.names


def test_never_more_handlers_than_slots(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x"}] * 30)
    running, most = [0], [0]
    lock = threading.Lock()

    def handle(_job: Job) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    worker = transport.worker(handle, concurrency=3, autorun=False)
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 30)

    assert 3 == most[0]


def test_events_come_in_their_order(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x")

    def handle(job: Job) -> str:
        job.update_progress(50, "half")
        job.log("line")
        return "done"

    worker = transport.worker(handle, autorun=False, poll_timeout_ms=50)
    heard = Heard(worker, "ready", "active", "progress", "log", "completed", "drained", "closed")
    worker.start()
    heard.wait_for("drained")
    worker.close()

    assert "ready" in heard.names
    told = [event for event in heard.events if event[0] != "ready"]  # from another thread
    assert ["active", "progress", "log", "completed", "drained", "closed"] == [
        event[0] for event in told
    ]
    assert (50, "line", "done") == (told[1][2], told[2][2], told[3][2])


def test_a_failure_is_tried_again_and_then_is_final(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x", attempts=2, backoff={"type": "fixed", "delay": 1})

    def fail(job: Job) -> None:
        raise RuntimeError(f"attempt {job.attempts}")

    worker = transport.worker(fail, autorun=False)
    heard = Heard(worker, "failed")
    worker.start()
    heard.wait_for("failed", 2)

    found = queue.get_job(job.id)
    assert found is not None
    assert ("failed", 2, "attempt 1") == (found.state, found.attempts, found.failed_reason)
    assert found.stacktrace is not None
    assert "RuntimeError: attempt 1" == found.stacktrace[-1]
    assert ["attempt 0", "attempt 1"] == [str(event[2]) for event in heard.events]


def test_an_unrecoverable_error_gives_up_at_once(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x", attempts=5)

    def fail(_job: Job) -> None:
        raise UnrecoverableError("never")

    worker = transport.worker(fail, autorun=False)
    heard = Heard(worker, "failed")
    worker.start()
    heard.wait_for("failed")

    assert "failed" == queue.get_state(job.id)


def test_a_delayed_error_runs_the_job_again_without_a_failure(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    runs = []

    def handle(job: Job) -> str:
        runs.append(job.attempts)
        if len(runs) == 1:
            raise DelayedError(5)
        return "second"

    worker = transport.worker(handle, autorun=False)
    heard = Heard(worker, "completed", "failed", "error")
    worker.start()
    heard.wait_for("completed")

    assert [0, 0] == runs
    assert "second" == queue.get_result(job.id)
    assert ["completed"] == heard.names


def test_a_handler_that_moves_its_job_ends_the_delivery(transport: Transport) -> None:
    queue = transport.queue()
    moved = queue.add("later")
    worker = transport.worker(lambda job: job.move_to_delayed(60_000), autorun=False)
    heard = Heard(worker, "active", "completed", "failed", "error", "drained")
    worker.start()
    heard.wait_for("drained")

    assert "delayed" == queue.get_state(moved.id)
    assert ["active", "drained"] == heard.names


def test_acks_in_batches_are_applied_one_and_all(transport: Transport) -> None:
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x", "data": n} for n in range(50)])
    worker = transport.worker(
        lambda job: job.data, ack_batch={"max_size": 7, "max_delay_ms": 5}, autorun=False
    )
    heard = Heard(worker, "completed", "error")
    worker.start()
    heard.wait_for("completed", 50)
    worker.close()

    assert list(range(50)) == [queue.get_result(job_id) for job_id in ids]
    assert "error" not in heard.names


def test_closing_lets_active_jobs_finish(transport: Transport) -> None:
    queue = transport.queue()
    jobs = queue.add_bulk_jobs([{"name": "x"}, {"name": "y"}])
    started, go_on = threading.Event(), threading.Event()

    def handle(_job: Job) -> None:
        started.set()
        go_on.wait(WAIT_S)

    worker = transport.worker(handle, concurrency=1)
    assert started.wait(WAIT_S)

    assert not worker.close(timeout=0.05)
    go_on.set()
    assert worker.close(timeout=WAIT_S)

    assert ["completed", "waiting"] == [job.get_state() for job in jobs]
    assert [] == queue.get_workers(scope="queue")


def test_closing_an_idle_worker_does_not_wait_for_its_poll(transport: Transport) -> None:
    worker = transport.worker(lambda _job: None, poll_timeout_ms=30_000)
    worker.wait_until_ready()
    began = time.monotonic()

    assert worker.close(timeout=WAIT_S)

    assert time.monotonic() - began < 3
    assert worker.is_closed()


def test_a_forced_close_sends_jobs_back_uncharged(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    started, go_on = threading.Event(), threading.Event()
    reasons = []

    def handle(job: Job) -> None:
        started.set()
        job.signal.wait(WAIT_S)
        reasons.append(job.signal.reason)
        go_on.wait(WAIT_S)

    worker = transport.worker(handle, autorun=False)
    heard = Heard(worker, "completed", "failed", "error")
    worker.start()
    assert started.wait(WAIT_S)

    assert worker.close(timeout=WAIT_S, force=True)

    found = queue.get_job(job.id)
    assert found is not None
    assert ("waiting", 0) == (found.state, found.attempts)
    go_on.set()
    assert [] == heard.names


def test_cancelling_tells_the_handler(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x", attempts=1)
    started = threading.Event()

    def handle(job: Job) -> None:
        started.set()
        job.signal.wait(WAIT_S)
        job.raise_if_cancelled()

    worker = transport.worker(handle, autorun=False)
    heard = Heard(worker, "failed", "cancelled")
    worker.start()
    assert started.wait(WAIT_S)

    assert worker.cancel_job(job.id, "not needed")
    assert not worker.cancel_job("nobody")

    _event, _job, error = heard.wait_for("failed")
    assert JobCancelledError is type(error)
    assert ("cancelled", {"jobId": job.id, "reason": "not needed"}) == heard.wait_for("cancelled")


def test_a_paused_worker_pulls_nothing(transport: Transport) -> None:
    queue = transport.queue()
    worker = transport.worker(lambda _job: None, autorun=False, poll_timeout_ms=0)
    heard = Heard(worker, "completed")
    worker.pause()
    worker.start()
    queue.add("x")

    assert worker.is_paused()
    assert 1 == queue.count()

    worker.resume()
    heard.wait_for("completed")


def test_a_worker_is_registered_while_it_runs(transport: Transport) -> None:
    queue = transport.queue()
    worker = transport.worker(lambda _job: None, name="mine", concurrency=3)
    worker.wait_until_ready()

    (listed,) = queue.get_workers(scope="queue")

    assert ("mine", 3) == (listed["name"], listed["concurrency"])


def test_max_jobs_closes_the_worker(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x"}] * 5)
    worker = transport.worker(
        lambda _job: None, max_jobs=3, batch_size=1, concurrency=1, autorun=False
    )

    worker.run()

    assert 3 == worker.stats()["processed"]
    assert 2 == queue.count()


def test_a_lease_outlives_its_span_while_the_handler_works(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    worker = transport.worker(lambda _job: time.sleep(1.5), lock_ttl_ms=900, autorun=False)
    heard = Heard(worker, "completed", "error")
    worker.start()
    heard.wait_for("completed")

    found = queue.get_job(job.id)
    assert found is not None
    assert ("completed", 0) == (found.state, found.attempts)


def test_a_generators_last_value_is_the_result(transport: Transport) -> None:
    queue = transport.queue()
    yielded, returned = queue.add("yielded"), queue.add("returned")

    def handle(job: Job) -> Any:
        yield 1
        yield 2
        if job.name == "returned":
            return 3
        return None

    transport.worker(handle)

    assert (2, 3) == (queue.wait_for_job(yielded.id), queue.wait_for_job(returned.id))


def test_jobs_pulled_by_hand_are_processed_by_hand(transport: Transport) -> None:
    queue = transport.queue()
    first, second = queue.add_bulk_jobs([{"name": "a"}, {"name": "b"}])
    worker = transport.worker(lambda job: job.name, autorun=False)

    job = worker.get_next_job()
    assert job is not None
    following = worker.process_job_manually(job, worker.get_next_job)

    assert following is not None
    assert ("completed", "active") == (first.get_state(), second.get_state())
    assert worker.process_job_manually(following, worker.get_next_job) is None
    assert "b" == queue.get_result(second.id)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_limiter_bounds_the_job_starts(
    transport: Transport, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x"}] * 6)
    starts: list[float] = []
    worker = transport.worker(
        lambda _job: None,
        concurrency=concurrency,
        limiter={"max": 2, "duration": 150},
        autorun=False,
    )
    start_delivery = worker.start_delivery

    def note(delivery: Any) -> None:
        # Here and not in the handler, which a busy machine may run late.
        starts.append(time.monotonic())
        return start_delivery(delivery)

    monkeypatch.setattr(worker, "start_delivery", note)
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 6)

    assert 6 == len(starts)
    assert all(later - earlier >= 0.15 for earlier, later in zip(starts, starts[2:], strict=False))


def test_a_worker_on_a_shared_connection_leaves_it_open(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    worker = Worker(queue.name, lambda _job: "done", connection=queue.connection, autorun=False)
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed")

    assert worker.close(timeout=WAIT_S)

    assert queue.connection is worker.connection
    assert "done" == queue.get_result(job.id)


def test_a_job_that_outlives_its_timeout_is_told(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x", timeout=100, attempts=1)
    reasons: list[Any] = []

    def handle(job: Job) -> None:
        job.signal.wait(WAIT_S)
        reasons.append(job.signal.reason)

    worker = transport.worker(handle, autorun=False)
    heard = Heard(worker, "completed", "drained")
    worker.start()
    heard.wait_for("drained")

    assert ["timeout"] == reasons
    assert "completed" not in heard.names


def test_an_observer_of_the_wider_set_hears_of_pulls_jobs_and_batches(
    transport: Transport,
) -> None:
    told: list[dict[str, Any]] = []
    queue = transport.queue(on_telemetry=told.append, extended_telemetry=True)

    def handle(job: Job) -> None:
        if job.name == "bad":
            raise ValueError("broken")

    worker = transport.worker(
        handle, connection=queue.connection, ack_batch={"max_delay_ms": 1}, autorun=False
    )
    heard = Heard(worker, "completed", "failed")
    queue.add_bulk([{"name": "good"}, {"name": "bad", "attempts": 1}])
    worker.start()
    heard.wait_for("completed")
    heard.wait_for("failed")
    worker.close()

    jobs = sorted((one["name"], one["outcome"]) for one in told if one["type"] == "job")
    assert [("bad", "failed"), ("good", "completed")] == jobs
    assert 2 == sum(one["count"] for one in told if one["type"] == "pull")
    assert [(1, True)] == [(one["size"], one["ok"]) for one in told if one["type"] == "ack_flush"]


def test_a_hard_cancel_after_the_handler_does_not_touch_its_outcome(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    worker = transport.worker(lambda _job: "done", autorun=False)
    call = worker.connection.call
    cancelled: list[bool] = []

    def cancel_first(command: dict[str, Any], timeout: float | None = None) -> Any:
        if command["cmd"] == "ACK":
            cancelled.append(worker.cancel_job(job.id, hard=True))
            time.sleep(0.01)  # lets a kill through, if there is one
        return call(command, timeout)

    worker.connection.call = cancel_first
    heard = Heard(worker, "completed", "failed", "error")
    worker.start()
    heard.wait_for("completed")

    assert ([True], ["completed"]) == (cancelled, heard.names)


def test_a_hard_cancel_before_the_handler_fails_the_job_unrun(transport: Transport) -> None:
    queue = transport.queue()
    runs: list[str] = []

    def handle(job: Job) -> None:
        runs.append(job.name or "")
        deadline = time.monotonic() + WAIT_S
        while len(worker.active) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        (other,) = set(worker.active) - {job.id}  # it waits for this one's end
        assert worker.cancel_job(other, "not wanted", hard=True)

    worker = transport.worker(
        handle, concurrency=2, limiter={"max": 1, "group_key": "tenant"}, autorun=False
    )
    queue.add_bulk([{"name": name, "data": {"tenant": 1}, "attempts": 1} for name in "ab"])
    heard = Heard(worker, "completed", "failed")
    worker.start()
    failed = heard.wait_for("failed")

    assert 1 == len(runs)
    assert "not wanted" == str(failed[2])


def test_no_more_jobs_are_taken_than_were_wanted(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x"}] * 12)
    worker = transport.worker(lambda _job: None, concurrency=4, max_jobs=5)

    assert worker.closed.wait(WAIT_S)
    counts = queue.get_job_counts()
    assert (5, 7) == (counts["completed"], counts["waiting"])


@pytest.mark.parametrize("ack_batch", [None, {"max_size": 4}], ids=["meeting", "held_back"])
def test_a_result_without_a_wire_form_fails_its_job_and_no_other(
    transport: Transport, ack_batch: dict[str, int] | None
) -> None:
    queue = transport.queue()
    worker = transport.worker(
        lambda job: {1, 2} if job.name == "set" else job.name,
        concurrency=4,
        autorun=False,
        ack_batch=ack_batch,
    )
    heard = Heard(worker, "completed", "failed", "error")
    queue.add_bulk([{"name": name, "attempts": 1} for name in ("a", "b", "set", "c")])
    worker.start()
    failed = heard.wait_for("failed")
    heard.wait_for("completed", 3)

    assert "set" == failed[1].name
    assert isinstance(failed[2], SerializationError)
    assert "failed" == queue.get_state(failed[1].id)
    assert {} == worker.leases.held
    assert "error" not in heard.names


def test_a_handler_lets_its_group_rest_and_its_job_go_back(transport: Transport) -> None:
    queue = transport.queue()
    runs: list[str] = []
    has_gone_back = threading.Event()

    def handle(job: Job) -> None:
        runs.append(job.id)
        worker.rate_limit_group(job, 3_600_000)
        has_gone_back.set()
        raise worker.RateLimitError

    job = queue.add("x", group_id="g")
    worker = transport.worker(handle, autorun=False)
    heard = Heard(worker, "completed", "failed", "error")
    worker.start()
    assert has_gone_back.wait(WAIT_S)
    assert worker.close(WAIT_S)

    assert ("waiting", 0) == (job.get_state(), job.refresh().attempts)
    assert queue.get_group_rate_limit_ttl("g") > 0
    assert ([job.id], []) == (runs, heard.events)


def test_only_a_group_can_rest(transport: Transport) -> None:
    worker = transport.worker(lambda _job: None, autorun=False)

    with pytest.raises(ValueError, match="the job has no group"):
        worker.rate_limit_group(Job({"id": "a"}), 1000)
