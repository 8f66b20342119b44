"""The job that a line of log is about."""

from __future__ import annotations

import io
import logging
import threading

import pytest

from bunqueue import Job, JobIdFilter, Queue, Worker, current_job, shutdown_manager

log = logging.getLogger("tests.current_job")


@pytest.fixture
def lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def _handler(lines: io.StringIO) -> object:
    handler = logging.StreamHandler(lines)
    handler.addFilter(JobIdFilter())
    handler.setFormatter(logging.Formatter("%(job_id)s %(job_queue)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield
    log.removeHandler(handler)


def test_lines_of_a_handler_carry_its_job(lines: io.StringIO) -> None:
    both_run, seen = threading.Barrier(2), []

    def handle(job: Job) -> None:
        both_run.wait(10)  # each has a job of its own while the other runs
        log.info("work on %s", job.data)
        seen.append(current_job() is job)

    with Queue("logs", embedded=True) as queue:
        ids = queue.add_bulk([{"name": "x", "data": n} for n in (1, 2)])
        with Worker("logs", handle, embedded=True, concurrency=2, poll_timeout_ms=100):
            for job_id in ids:
                queue.wait_for_job(job_id)
    shutdown_manager(5)
    log.info("outside")

    wanted = [f"{job_id} logs work on {n}" for job_id, n in zip(ids, (1, 2), strict=True)]
    assert sorted([*wanted, "- - outside"]) == sorted(lines.getvalue().splitlines())
    assert ([True, True], None) == (seen, current_job())


def test_a_filter_by_name_still_filters() -> None:
    record = logging.makeLogRecord({"name": "other", "msg": "x"})

    assert not JobIdFilter("tests").filter(record)
    assert JobIdFilter("other", absent="none").filter(record)
    assert ("none", "none") == (record.job_id, record.job_queue)


def test_a_filter_may_leave_other_lines_as_they_are() -> None:
    record = logging.makeLogRecord({"msg": "x"})

    assert JobIdFilter(absent=None).filter(record)
    assert not hasattr(record, "job_id")
