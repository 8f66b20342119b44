"""Schedulers and repeating jobs, over TCP and embedded: the same sentences, the same code."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bunqueue import BunqueueError, CommandError, Queue, shutdown_manager
from tests.support.logs import said
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 5


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "jobs.db"
    shutdown_manager(WAIT_S)


def test_a_scheduler_is_read_back_with_readable_keys(transport: Transport) -> None:
    queue = transport.queue(prefix_key="app:")
    name = queue.queue_key

    made = queue.upsert_job_scheduler(
        "nightly",
        {"pattern": "30 2 * * *", "tz": "Europe/Rome", "limit": 9},
        {"name": "report", "data": {"a": 1}, "opts": {"priority": 3, "attempts": 2}},
    )

    expected = {
        "name": "nightly",
        "jobName": "report",
        "queue": name,
        "schedule": "30 2 * * *",
        "repeatEvery": None,
        "executions": 0,
        "maxLimit": 9,
        "timezone": "Europe/Rome",
        "priority": 3,
        "id": "nightly",
        "pattern": "30 2 * * *",
        "every": None,
        "limit": 9,
        "next": made["nextRun"],
        "tz": "Europe/Rome",
        "nextRun": made["nextRun"],
    }
    assert expected == made
    assert made == queue.get_job_scheduler("nightly")
    assert isinstance(made["next"], int)
    assert queue.remove_job_scheduler("nightly")


def test_schedulers_of_a_queue_come_by_their_next_run(transport: Transport) -> None:
    queue, other = transport.queue(), transport.queue("other")
    queue.every("slow", timedelta(hours=2))
    queue.every("fast", 60_000.0)
    queue.add_cron("rare", "0 0 29 2 *")
    other.every("elsewhere", 1000)

    assert ["fast", "slow", "rare"] == [one["id"] for one in queue.get_job_schedulers()]
    assert ["slow"] == [one["id"] for one in queue.get_job_schedulers(1, 1)]
    assert ["rare", "slow"] == [one["id"] for one in queue.get_job_schedulers(0, 1, asc=False)]
    assert 3 == queue.get_job_schedulers_count()
    other.remove_job_scheduler("elsewhere")


def test_two_prefixes_may_use_one_id(transport: Transport) -> None:
    one, two = transport.queue(prefix_key="a:"), transport.queue(prefix_key="b:")
    one.every("tick", 60_000)
    two.every("tick", 90_000)

    scheduler = one.get_job_scheduler("tick")

    assert scheduler is not None
    assert 60_000 == scheduler["every"]
    one.remove_job_scheduler("tick")
    assert one.get_job_scheduler("tick") is None
    assert 1 == two.get_job_schedulers_count()


def test_a_missing_scheduler_is_none_to_read_and_an_error_to_remove(transport: Transport) -> None:
    queue = transport.queue()

    assert queue.get_job_scheduler("nothing") is None
    with pytest.raises(CommandError, match="Cron job not found"):
        queue.remove_job_scheduler("nothing")


def test_a_definition_that_cannot_run_is_refused(transport: Transport) -> None:
    with pytest.raises(CommandError, match="Invalid cron expression: 'L' in days"):
        transport.queue().add_cron("x", "0 0 L * *")


def test_an_unknown_member_is_a_mistake_of_the_caller(transport: Transport) -> None:
    queue = transport.queue()

    with pytest.raises(TypeError, match="unknown member of repeat: 'evry'"):
        queue.upsert_job_scheduler("x", {"evry": 5})
    with pytest.raises(TypeError, match="unknown job option: 'atempts'"):
        queue.upsert_job_scheduler("x", {"every": 5}, {"opts": {"atempts": 5}})


def test_an_option_that_scheduled_jobs_cannot_have_is_ignored_with_a_warning(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    queue = transport.queue(logger=logging.getLogger("bunqueue.own"))
    queue.upsert_job_scheduler("x", {"every": 60_000}, {"opts": {"lifo": True, "tags": ["a"]}})

    assert ["a scheduler's jobs cannot have these options: lifo tags"] == said(
        caplog, "bunqueue.own", logging.WARNING
    )


def test_a_worker_gets_the_jobs_of_a_scheduler(transport: Transport) -> None:
    queue, seen, done = transport.queue(), [], threading.Event()

    def handle(job):
        seen.append((job.name, job.data, job.attempts_made))
        if len(seen) == 2:
            done.set()

    transport.worker(handle)
    queue.every("tick", 100, {"a": 1}, immediately=True)

    assert done.wait(WAIT_S)
    assert [("tick", {"a": 1}, 0)] * 2 == seen[:2]
    queue.remove_job_scheduler("tick")


def test_a_repeating_job_runs_until_its_limit(transport: Transport) -> None:
    queue, counts, done = transport.queue(), [], threading.Event()

    def handle(job):
        counts.append(job.raw["repeat"]["count"])
        if counts[-1] == 2:
            done.set()

    transport.worker(handle)
    queue.add("again", repeat={"every": timedelta(milliseconds=50), "limit": 2})

    assert done.wait(WAIT_S)
    assert [0, 1, 2] == counts


def test_schedulers_are_in_the_file(path: Path) -> None:
    queue = Queue("q", embedded=True, data_path=path)
    before = queue.add_cron("nightly", "0 3 * * *", {"a": 1}, tz="Asia/Kathmandu")
    queue.every("gone", 1000)
    queue.remove_job_scheduler("gone")
    shutdown_manager(WAIT_S)

    with sqlite3.connect(path) as file:
        row = file.execute("SELECT schedule, timezone, executions FROM crons").fetchall()
    file.close()
    assert [("0 3 * * *", "Asia/Kathmandu", 0)] == row

    queue = Queue("q", embedded=True, data_path=path)
    assert [before] == queue.get_job_schedulers()


def test_an_invalid_definition_in_the_file_ends_the_start_and_is_named(path: Path) -> None:
    Queue("q", embedded=True, data_path=path).add_cron("nightly", "0 3 * * *")
    shutdown_manager(WAIT_S)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE crons SET schedule = 'L'")
    file.close()

    with pytest.raises(BunqueueError, match="definition of cron 'nightly' is invalid"):
        Queue("q", embedded=True, data_path=path).count()
