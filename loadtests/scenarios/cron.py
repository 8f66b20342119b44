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
PATTERN, PERIOD_MS = "* * * * * *", 1000  # every second


class Cron(BunqueueUser):
    """How late do scheduled jobs start, when every user's scheduler is due at the same second?

    Each user defines a scheduler for two runs and waits for both; the broker then removes it.
    """

    def on_start(self) -> None:
        """Start a worker that notes when it starts a job."""
        self.defined = 0
        self.started_at: list[float] = []  # epoch ms
        self.has_run = Event()
        self.queue = self.own_queue()
        self.start_worker(self.queue, self.work)

    @task
    def define_and_wait(self) -> None:
        """Define a scheduler, wait for its runs and report how late they were."""
        self.started_at.clear()
        self.has_run.clear()
        self.defined += 1
        name = f"{self.queue.name}-{self.defined}"
        cron = self.queue.upsert_job_scheduler(name, {"pattern": PATTERN, "limit": RUNS})
        LEDGER.added += RUNS  # nobody pushes these
        with self.reporter.measured(f"scheduler defined to run {RUNS}"):
            if not self.has_run.wait(RUNS_S_MAX):
                raise CommandTimeoutError(f"only {len(self.started_at)} runs in {RUNS_S_MAX} s")
        for run, started_at in enumerate(self.started_at):
            self.reporter.tell(JOB, "due to started", started_at - (cron["next"] + run * PERIOD_MS))

    def work(self, _job: Job[Any]) -> None:
        """Note the start of a run."""
        self.started_at.append(time.time() * 1000)
        if len(self.started_at) == RUNS:
            self.has_run.set()
