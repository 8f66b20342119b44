"""Native batches, caps by key and by group, and stalls, over TCP and embedded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue import Job
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0


class Batches:
    """A processor that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def __call__(self, job: Job) -> int:
        self.calls.append([member.data for member in job.get_batch()])
        return len(self.calls[-1])


def test_one_call_serves_several_jobs(transport: Transport) -> None:
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x", "data": n} for n in range(7)])
    batches = Batches()
    worker = transport.worker(batches, batch={"size": 3}, concurrency=1, autorun=False)
    heard = Heard(worker, "active", "completed")
    worker.start()
    heard.wait_for("completed", 7)

    assert [[0, 1, 2], [3, 4, 5], [6]] == batches.calls
    assert [3, 3, 3, 3, 3, 3, 1] == [queue.get_result(job_id) for job_id in ids]
    assert 7 == heard.names.count("active")
    assert (7, 0, 0) == tuple(worker.stats()[key] for key in ("processed", "failed", "active"))


def test_members_that_were_set_as_failed_fail_alone(transport: Transport) -> None:
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x", "data": n, "attempts": 1} for n in range(3)])

    def handle(job: Job) -> str:
        first, second, _third = job.get_batch()
        first.set_as_failed("text")
        second.set_as_failed(ValueError("exception"))
        return "fine"

    worker = transport.worker(handle, batch={"size": 3}, autorun=False)
    heard = Heard(worker, "completed", "failed")
    worker.start()
    heard.wait_for("completed")
    heard.wait_for("failed", 2)

    jobs = [queue.get_job(job_id) for job_id in ids]
    assert ["text", "exception", None] == [job and job.failed_reason for job in jobs]
    assert "fine" == queue.get_result(ids[2])


def test_an_exception_fails_all_members(transport: Transport) -> None:
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x", "attempts": 1}] * 3)

    def handle(_job: Job) -> None:
        raise RuntimeError("all of them")

    worker = transport.worker(handle, batch={"size": 3}, autorun=False)
    heard = Heard(worker, "failed")
    worker.start()
    heard.wait_for("failed", 3)

    assert ["failed"] * 3 == [queue.get_state(job_id) for job_id in ids]


def test_a_batch_waits_for_its_least_size_or_its_time(transport: Transport) -> None:
    queue = transport.queue()
    batches = Batches()
    worker = transport.worker(
        batches, batch={"size": 5, "min_size": 2, "timeout": 150}, autorun=False
    )
    heard = Heard(worker, "completed")
    queue.add("x", "late")
    worker.start()
    heard.wait_for("completed")  # alone, when its time was over

    queue.add_bulk([{"name": "x", "data": n} for n in range(2)])
    heard.wait_for("completed", 3)

    assert [["late"], [0, 1]] == batches.calls


def test_jobs_that_wait_for_a_batch_go_back_at_the_close(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    worker = transport.worker(
        Batches(), batch={"size": 5, "min_size": 2}, autorun=False, poll_timeout_ms=50
    )
    worker.start()
    deadline = time.monotonic() + WAIT_S
    while not worker.active_count and time.monotonic() < deadline:
        time.sleep(0.005)

    assert worker.close(WAIT_S)
    found = queue.get_job(job.id)
    assert found is not None
    assert ("waiting", 0) == (found.state, found.attempts)


def test_with_affinity_groups_do_not_mix(transport: Transport) -> None:
    queue = transport.queue()
    for n in range(4):
        queue.add("x", f"a{n}", group_id="a")
        queue.add("x", f"b{n}", group_id="b")
    batches = Batches()
    worker = transport.worker(
        batches,
        batch={"size": 4, "min_size": 4, "timeout": 300, "group_affinity": True},
        autorun=False,
    )
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 8)

    assert all(1 == len({name[0] for name in call}) for call in batches.calls)


def test_cancelling_a_member_calls_the_batch_off(transport: Transport) -> None:
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x", "attempts": 1}] * 2)
    begun = threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        job.signal.wait(WAIT_S)
        job.raise_if_cancelled()

    worker = transport.worker(handle, batch={"size": 2}, autorun=False)
    heard = Heard(worker, "failed")
    worker.start()
    assert begun.wait(WAIT_S)
    assert worker.cancel_job(ids[1], "enough")
    heard.wait_for("failed", 2)

    assert ["failed"] * 2 == [queue.get_state(job_id) for job_id in ids]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch": {"size": 0}}, ValueError),
        ({"batch": {"size": 3, "min_size": 4}}, ValueError),
        ({"batch": {"size": 3, "wait": 4}}, TypeError),
        ({"batch": {"size": 9, "min_size": 5}, "limiter": {"max": 4}}, ValueError),
        ({"batch": {"size": 9}, "limiter": {"max": 4, "group_key": "a"}}, ValueError),
        ({"limiter": {"max": 0, "group_key": "a"}}, ValueError),
        ({"limiter": {"max": 1, "group_key": 7}}, TypeError),
        ({"group": {"rate": 3}}, TypeError),
    ],
)
def test_what_cannot_work_is_refused(
    transport: Transport, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        transport.worker(Batches(), autorun=False, **options)


class Most:
    """A processor that finds out how many jobs of each tenant ran at once."""

    def __init__(self, tenant_of: Any) -> None:
        self._tenant_of = tenant_of
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def __call__(self, job: Job) -> None:
        tenant = self._tenant_of(job)
        with self._lock:
            self._running[tenant] = self._running.get(tenant, 0) + 1
            self.most[tenant] = max(self.most.get(tenant, 0), self._running[tenant])
        time.sleep(0.01)
        with self._lock:
            self._running[tenant] -= 1


def test_a_key_of_the_data_caps_what_runs_at_once(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x", "data": {"tenant": name}} for name in "aaaabbaa"])
    handle = Most(lambda job: job.data["tenant"])
    worker = transport.worker(
        handle, concurrency=8, limiter={"max": 2, "group_key": "tenant"}, autorun=False
    )
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 8)

    assert {"a": 2, "b": 2} == handle.most


@pytest.mark.parametrize("change", [lambda data: data.clear(), lambda data: data.update(tenant=0)])
def test_a_handler_may_change_the_data_that_the_cap_goes_by(
    transport: Transport, change: Callable[[dict[str, Any]], None]
) -> None:
    """Its slot was lost, and no other job of that key began any more."""
    queue = transport.queue()
    queue.add_bulk([{"name": "x", "data": {"tenant": "a"}} for _ in range(4)])
    worker = transport.worker(
        lambda job: change(job.data),
        concurrency=2,
        limiter={"max": 1, "group_key": "tenant"},
        autorun=False,
    )
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 4)

    assert worker.close(10)
    assert 4 == queue.get_job_counts()["completed"]


def test_the_group_option_caps_each_group_at_the_broker(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x", "group_id": name} for name in "aaabb"])
    handle = Most(lambda job: job.group_id)
    worker = transport.worker(handle, concurrency=5, group={"concurrency": 1}, autorun=False)
    heard = Heard(worker, "completed")
    worker.start()
    heard.wait_for("completed", 5)

    assert {"a": 1, "b": 1} == handle.most


def test_a_stall_is_told_to_who_wants_to_know(transport: Transport) -> None:
    worker = transport.worker(Batches(), autorun=False)
    heard = Heard(worker, "stalled")
    worker.start()
    worker.stalls._take({"eventType": "active", "jobId": "1"})
    worker.stalls._take({"eventType": "stalled", "jobId": "2", "error": "no heartbeat"})

    assert ("stalled", "2", "no heartbeat") == heard.wait_for("stalled")
    assert worker.stalls._subscription is not None


def test_without_a_listener_no_event_link_is_opened(transport: Transport) -> None:
    worker = transport.worker(Batches(), autorun=False)
    worker.start()
    assert worker.stalls._subscription is None

    worker.on("stalled", lambda _job_id, _reason: None)
    assert worker.stalls._subscription is not None
