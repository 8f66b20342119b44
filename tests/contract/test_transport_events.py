"""What QueueEvents tells, over TCP and embedded alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import (
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    JobFailedError,
    QueueEvents,
    shutdown_manager,
)
from bunqueue.client.connecting import address_of
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0
NAMES = (
    "waiting", "active", "completed", "failed", "progress", "delayed", "removed", "retried",
    "duplicated", "paused", "resumed", "error",
)  # fmt: skip


@pytest.fixture
def events(transport: Transport) -> Iterator[QueueEvents]:
    with QueueEvents(transport.queue_name, **transport.options) as events:
        yield events


def test_the_life_of_a_job_is_told_in_order(transport: Transport, events: QueueEvents) -> None:
    heard = Heard(events, *NAMES)
    events.wait_until_ready()
    queue = transport.queue()
    job = queue.add("x", {"n": 1}, attempts=2, backoff=1)
    worker = transport.worker(lambda _job: None, autorun=False)
    first = worker.get_next_job()
    assert first is not None
    first.update_progress(40, "half")
    first.move_to_failed("not yet")
    second = worker.get_next_job(block=True)
    assert second is not None
    second.move_to_completed({"sum": 2**53 + 1})
    heard.wait_for("completed")

    told = [one for one in heard.events if one[0] in ("waiting", "failed", "completed")]
    assert ("waiting", {"jobId": job.id}) == told[0]
    failed = told[1][1]
    assert ("not yet", {"n": 1}, False) == (failed.failed_reason, failed.data, failed.terminal)
    assert {"sum": 2**53 + 1} == told[-1][1].returnvalue
    assert 40 == heard.wait_for("progress")[1].data
    wanted = ["waiting", "active", "progress", "failed", "retried", "active", "completed"]
    assert wanted == heard.names


def test_other_changes_are_told_by_their_names(transport: Transport, events: QueueEvents) -> None:
    heard = Heard(events, *NAMES)
    events.wait_until_ready()
    queue = transport.queue()

    queue.pause()
    queue.resume()
    job = queue.add("x", deduplication={"id": "k", "ttl": 60_000})
    queue.add("x", deduplication={"id": "k", "ttl": 60_000})
    queue.remove(job.id)
    heard.wait_for("removed")

    assert ["paused", "resumed", "waiting", "duplicated", "removed"] == heard.names
    assert [{}, {}] == [heard.events[0][1], heard.events[1][1]]
    assert job.id == heard.events[3][1].job_id


def test_other_queues_are_not_told(transport: Transport, events: QueueEvents) -> None:
    heard = Heard(events, "waiting")
    events.wait_until_ready()

    transport.queue(transport.queue_name + "-other").add("x")
    mine = transport.queue().add("x")
    heard.wait_for("waiting")

    assert [("waiting", {"jobId": mine.id})] == heard.events


def test_the_prefix_is_part_of_the_queue(transport: Transport) -> None:
    queue = transport.queue(prefix_key="p:")
    with QueueEvents(queue.name, **transport.options) as events:
        heard = Heard(events, "waiting")
        events.wait_until_ready()
        transport.queue().add("x")
        job = queue.add("x")
        heard.wait_for("waiting")

    assert [("waiting", {"jobId": job.id})] == heard.events


def test_events_can_be_iterated_over(transport: Transport, events: QueueEvents) -> None:
    stream = events.stream(timeout=WAIT_S)
    events.wait_until_ready()
    queue = transport.queue()
    ids = queue.add_bulk([{"name": "x"}] * 3)

    assert [("waiting", job_id) for job_id in ids] == [
        (name, event.job_id) for name, event in (next(stream) for _ in range(3))
    ]
    events.close()
    assert [] == list(stream)
    assert [] == list(events.stream())


def test_a_stream_ends_when_nothing_happens(events: QueueEvents) -> None:
    events.wait_until_ready()

    assert [] == list(events.stream(timeout=0.01))


def test_a_listener_that_raises_harms_no_other(transport: Transport, events: QueueEvents) -> None:
    def broken(_event: Any) -> None:
        raise ValueError("mine")

    events.on("waiting", broken)
    heard = Heard(events, "waiting")
    events.wait_until_ready()
    transport.queue().add_bulk([{"name": "x"}] * 2)

    heard.wait_for("waiting", 2)


def test_a_listener_may_close_what_it_listens_to(transport: Transport, events: QueueEvents) -> None:
    closed = threading.Event()

    def close(_event: Any) -> None:
        events.close()
        closed.set()

    events.on("waiting", close)
    events.wait_until_ready()
    transport.queue().add("x")

    assert closed.wait(WAIT_S)
    events.run()  # returns at once
    with pytest.raises(ConnectionClosedError):
        events.wait_until_ready()


def test_nothing_is_told_after_closing(transport: Transport) -> None:
    events = QueueEvents(transport.queue_name, **transport.options)
    heard = Heard(events, "waiting")
    events.wait_until_ready()
    events.close()
    events.close()

    transport.queue().add("x")
    assert transport.queue().ping()

    assert [] == heard.events


def test_a_wait_that_listens_ends_with_the_result(
    transport: Transport, events: QueueEvents
) -> None:
    events.wait_until_ready()
    queue = transport.queue()
    job = queue.add("x")
    results: list[Any] = []
    waits = [
        threading.Thread(
            target=lambda: results.append(queue.wait_for_job(job.id, queue_events=events))
        )
        for _ in range(2)
    ]
    for wait in waits:
        wait.start()
    transport.worker(lambda _job: {"done": True})
    for wait in waits:
        wait.join(WAIT_S)

    assert [{"done": True}] * 2 == results
    assert {"done": True} == job.wait_until_finished(events)


def test_a_wait_that_listens_ends_with_the_failure(
    transport: Transport, events: QueueEvents
) -> None:
    events.wait_until_ready()
    queue = transport.queue()
    failing, removed = queue.add("fails", attempts=2, backoff=1), queue.add("gone", delay=60_000)

    def fail(_job: Any) -> None:
        raise ValueError("broken")

    transport.worker(fail)
    threading.Timer(0.05, queue.remove, (removed.id,)).start()

    with pytest.raises(JobFailedError, match="broken"):
        queue.wait_for_job(failing.id, queue_events=events)
    with pytest.raises(CommandError, match="Job not found"):
        queue.wait_for_job(removed.id, queue_events=events)
    with pytest.raises(JobFailedError, match="broken"):
        failing.wait_until_finished(events)


def test_a_wait_that_listens_has_an_end(transport: Transport, events: QueueEvents) -> None:
    queue = transport.queue()
    job = queue.add("x")

    with pytest.raises(CommandTimeoutError, match="timed out after 20ms"):
        queue.wait_for_job(job.id, 20, queue_events=events)


def test_a_connection_can_be_subscribed_to_directly(transport: Transport) -> None:
    address = address_of("q", prefix_key="", connection=dict(transport.options), url=None, given={})
    told: list[dict[str, Any]] = []
    arrived = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        told.append(event)
        arrived.set()

    with address.connection as connection:
        unsubscribe = connection.subscribe(transport.queue_name, hear)
        deadline = time.monotonic() + WAIT_S
        queue = transport.queue()
        while not arrived.is_set() and time.monotonic() < deadline:
            queue.add("x")  # the subscription may not have reached the broker yet
            arrived.wait(0.02)
        unsubscribe()
        count = len(told)
        queue.add("x")
        assert queue.ping()

    assert ("pushed", transport.queue_name) == (told[0]["eventType"], told[0]["queue"])
    assert count == len(told)


def test_the_end_of_the_engine_is_an_error() -> None:
    with QueueEvents("q", embedded=True) as events:
        heard = Heard(events, "error")
        events.wait_until_ready()
        shutdown_manager()
        heard.wait_for("error")

    assert "embedded engine was shut down" == str(heard.events[0][1])
