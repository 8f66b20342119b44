"""A bit of everything, as an application does it."""

import random
from typing import Any

from locust import task

from bunqueue import Job
from loadtests.load.user import BunqueueUser

FAILING_SHARE = 0.02
ATTEMPTS = 3  # the broker's default
DELAY_MS = 500
PRIORITY_MAX = 10


class Mixed(BunqueueUser):
    """How does the broker hold up when producers, workers and readers all use it at once?

    Some jobs are delayed, some have a priority, and a few fail and are tried again, with the wait
    that this brings.
    """

    def on_start(self) -> None:
        """Start a worker."""
        self.start_worker(self.queue, work)

    @task(10)
    def add_one(self) -> None:
        """Add a job."""
        self.queue.add("work", self.payload())

    @task(1)
    def add_batch(self) -> None:
        """Add ``--batch-size`` jobs in one command."""
        self.queue.add_bulk(self.batch())

    @task(2)
    def add_with_priority(self) -> None:
        """Add a job that overtakes others."""
        self.queue.add("work", self.payload(), priority=random.randint(1, PRIORITY_MAX))

    @task(1)
    def add_delayed(self) -> None:
        """Add a job for later; its delay does not count as latency."""
        data = self.payload()
        data["added_at"] += DELAY_MS / 1000
        self.queue.add("work", data, delay=DELAY_MS)

    @task(2)
    def read_counts(self) -> None:
        """Ask how many jobs there are in each state."""
        self.queue.get_job_counts()

    @task(2)
    def read_job(self) -> None:
        """Add a job and look at it."""
        job = self.queue.add("work", self.payload())
        self.queue.get_job(job.id)


def work(job: Job[Any]) -> int:
    """Return at once; fail now and then, but not a job's last attempt."""
    if job.attempts < ATTEMPTS - 1 and random.random() < FAILING_SHARE:
        raise RuntimeError("one of those that fail")
    return len(job.data["filling"])
