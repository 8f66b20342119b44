"""The operations of a Job, over TCP and embedded alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue import CommandError, Job, LockLostError
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

FAR_MS = 3_600_000


def taken(transport: Transport, **options: Any) -> Job[Any]:
    """Return a job of the queue that somebody works on."""
    transport.queue().add("x", {"n": 1}, **options)
    job = transport.worker(lambda _job: None, autorun=False).get_next_job()
    assert job is not None
    return job


@pytest.mark.parametrize(
    ("move", "state"),
    [
        (lambda job: job.move_to_wait(), "waiting"),
        (lambda job: job.retry(), "waiting"),
        (lambda job: job.move_to_delayed(FAR_MS), "delayed"),
        (lambda job: job.move_to_delayed(timedelta(hours=1)), "delayed"),
        (lambda job: job.move_to_delayed(until=datetime.now(UTC) + timedelta(days=9)), "delayed"),
        (lambda job: job.discard(), "failed"),
        (lambda job: job.move_to_completed(1), "completed"),
        (lambda job: job.move_to_failed("no"), "failed"),
    ],
)
def test_a_running_job_is_moved_with_its_token(
    transport: Transport, move: Callable[[Job[Any]], None], state: str
) -> None:
    job = taken(transport, attempts=1)

    move(job)

    assert state == job.get_state()


@pytest.mark.parametrize(
    ("move", "kind"),
    [
        (lambda job: job.move_to_wait(), LockLostError),
        (lambda job: job.move_to_delayed(5), LockLostError),
        (lambda job: job.move_to_completed(), LockLostError),
        # These refusals do not say that it was the token.
        (lambda job: job.extend_lock(5000), CommandError),
        (lambda job: job.extend_lock("stale", 5000), CommandError),
        (lambda job: job.heartbeat(), CommandError),
    ],
)
def test_a_stale_token_moves_nothing(
    transport: Transport, move: Callable[[Job[Any]], None], kind: type[CommandError]
) -> None:
    job = taken(transport)
    job.token = "stale"

    with pytest.raises(kind):
        move(job)
    assert job.is_active()


def test_a_lease_is_renewed_by_hand(transport: Transport) -> None:
    queue = transport.queue()
    job = taken(transport)
    assert job.token is not None

    job.heartbeat()
    job.extend_lock(timedelta(seconds=9))
    job.extend_lock(job.token, 9000)

    assert 9000 == queue.extend_job_lock(job.id, job.token, 9000)
    assert (1, 0) == (
        queue.extend_job_locks([job.id], [job.token], 9000),
        queue.extend_job_locks([], [], 9000),
    )


def test_a_queued_job_is_changed(transport: Transport) -> None:
    job = transport.queue().add("x", {"n": 1}, delay=FAR_MS)

    job.update_data({"n": 2})
    job.change_priority(7)
    job.change_delay(timedelta(days=1))
    assert {"n": 2} == job.data
    found = job.refresh()
    assert ({"n": 2}, 7) == (found.data, found.priority)
    assert 20 * FAR_MS < found.delay
    job.promote()
    assert job.is_waiting()
    job.remove()
    assert "unknown" == job.get_state()


def test_progress_and_logs_are_kept(transport: Transport) -> None:
    queue = transport.queue()
    job = taken(transport)

    job.update_progress(30, "third")
    assert {"progress": 30, "message": "third"} == queue.get_progress(job.id)
    job.update_progress({"step": 2})
    assert {"step": 2} == job.progress
    for line in ("one", "two", "three"):
        job.log(line, "warn")
    job.clear_logs(1)

    assert [("three", "warn")] == [
        (line["message"], line["level"]) for line in queue.get_job_logs(job.id)
    ]


def test_a_parent_waits_again_for_its_children(transport: Transport) -> None:
    queue = transport.queue()
    parent = taken(transport)
    link = {"id": parent.id, "queue": queue.queue_key}
    with pytest.raises(Exception, match="not linkable"):
        queue.add("late", parent=link)
    parent.move_to_wait()
    child = queue.add("child", parent=link, continue_parent_on_failure=True, attempts=1)
    assert parent.is_waiting_children()

    job = transport.worker(lambda _job: None, autorun=False).get_next_job()
    assert job is not None
    assert child.id == job.id
    job.move_to_failed("broken")

    assert parent.is_waiting()
    assert {f"{queue.queue_key}:{child.id}": "broken"} == parent.get_failed_children_values()
    assert {} == parent.get_ignored_children_failures()
    assert {} == parent.get_children_values()


def test_children_are_detached_and_cancelled(transport: Transport) -> None:
    queue = transport.queue()
    parent = queue.add("parent", delay=FAR_MS)
    link = {"id": parent.id, "queue": queue.queue_key}
    one, two = queue.add("one", parent=link), queue.add("two", parent=link)

    assert one.remove_child_dependency()
    assert {"processed": 0, "unprocessed": 1} == parent.get_dependencies_count()
    parent.remove_unprocessed_children()

    assert ("waiting", "unknown") == (one.get_state(), two.get_state())


def test_a_handler_that_moves_its_job_ends_it(transport: Transport) -> None:
    moved = threading.Event()

    def handle(job: Job[Any]) -> str:
        job.move_to_delayed(FAR_MS)
        moved.set()
        return "not a result"

    job = transport.queue().add("x")
    transport.worker(handle).on("error", lambda error: pytest.fail(str(error)))
    assert moved.wait(10)

    assert (True, 0) == (job.is_delayed(), job.refresh().attempts)


def test_a_job_is_explained(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x", delay=60_000)

    told = queue.explain(job.id)

    assert (job.id, "delayed") == (told["id"], told["state"])
    assert ["delayed", "no-worker"] == [reason["code"] for reason in told["reasons"]]
    assert "unknown" == queue.explain("nobody")["state"]
