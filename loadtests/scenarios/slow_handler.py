"""Handlers that take longer than their lease."""

from typing import Any

import gevent
from locust import task

from bunqueue import Job
from loadtests.load.reporting import JOB
from loadtests.load.user import BunqueueUser

LEASE_MS = 2_500  # below --slow-ms, so that a job is lost without heartbeats


class SlowHandler(BunqueueUser):
    """Do heartbeats keep the leases of slow jobs, so that each runs once, and what do they cost?

    A job that is started a second time is a failure.
    """

    def on_start(self) -> None:
        """Start a worker whose handler takes ``--slow-ms``."""
        self.started: set[str] = set()
        self.queue = self.own_queue()
        self.start_worker(self.queue, self.work, lock_ttl_ms=LEASE_MS)

    @task
    def add_and_wait(self) -> None:
        """Add as many jobs as the worker runs at once, and wait for all of them."""
        ids = self.queue.add_bulk(self.batch(self.options.concurrency))
        for job_id in ids:
            self.queue.wait_for_job(job_id)

    def work(self, job: Job[Any]) -> None:
        """Be slow, and notice a job that comes again."""
        if job.id in self.started:
            error = RuntimeError("a job was started twice")
            self.reporter.tell(JOB, "second start", 0, error=error)
        self.started.add(job.id)
        gevent.sleep(self.options.slow_ms / 1000)
