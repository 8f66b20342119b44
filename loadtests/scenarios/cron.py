"""Schedulers that are all due at the same second."""

import time
from typing import Any

from gevent.event import Event
from locust import task

from bunqueue import CommandTimeoutError, Job
from loadtests.load.ledger import LEDGER
from loadtests.load.reporting import JOB
from loadtests.load.user import BunqueueUser

RUNS = 2
RUNS_S_MAX = 10.0  # two seconds, and patience
PATTERN = "* * * * * *"  # every second


class Cron(BunqueueUser):
    """How late do scheduled jobs start, when every user's scheduler is due at the same second?

    Each user defines a scheduler, waits for two runs and removes it.
    """

    def on_start(self) -> None:
        """Start a worker that knows when its jobs were due."""
        self.due_at: list[float] = []  # epoch ms
        self.has_run = Event()
        self.queue = self.own_queue()
        self.start_worker(self.queue, self.work)

    @task
    def define_and_wait(self) -> None:
        """Define a scheduler, wait for its runs, remove it."""
        name = str(self.queue.name)
        self.has_run.clear()
        cron = self.queue.upsert_job_scheduler(name, {"pattern": PATTERN, "limit": RUNS})
        LEDGER.added += RUNS  # nobody pushes these
        self.due_at = [cron["next"] + 1000 * run for run in range(RUNS)]
        with self.reporter.measured(f"scheduler defined to run {RUNS}"):
            if not self.has_run.wait(RUNS_S_MAX):
                raise CommandTimeoutError(f"{len(self.due_at)} runs are missing")
        self.queue.remove_job_scheduler(name)

    def work(self, _job: Job[Any]) -> None:
        """Report how late a run is."""
        due_at = self.due_at.pop(0)
        self.reporter.tell(JOB, "due to started", time.time() * 1000 - due_at)
        if not self.due_at:
            self.has_run.set()
