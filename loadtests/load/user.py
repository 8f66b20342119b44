"""BunqueueUser: what every scenario's user has, a connection of its own, a queue and workers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from locust import User
from locust.env import Environment
from locust.user.task import LOCUST_STATE_STOPPING, LOCUST_STATE_WAITING

from bunqueue import Job, Queue, Worker
from loadtests.load.options import address_of, options_of
from loadtests.load.reporting import JOB, ReportedConnection, Reporter

COMPLETION = "add to completion"
WORKER_CLOSE_S = 15.0  # below the stop timeout, options.py

_numbers = itertools.count()


class BunqueueUser(User):
    """A user with a connection of its own, all of whose commands are reported to Locust.

    Attributes:
        number: Which user of this process it is, from 0.
        options: The command line's.
        reporter: Takes what the user measures.
        connection: The way to the broker.
        queue: One of the ``--queues`` queues that the users share.
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.number = next(_numbers)
        self.options = options_of(environment)
        self.reporter = Reporter(environment.events.request)
        self.connection = self.new_connection()
        self.queue = self.queue_named(f"shared-{self.number % self.options.queues}")
        self._workers: list[Worker] = []

    def wait_time(self) -> float:
        """Return the seconds between two tasks."""
        return float(self.options.pause_ms) / 1000

    def on_stop(self) -> None:
        """Let the workers end what they run, and leave. Waits."""
        for worker in self._workers:
            worker.close(WORKER_CLOSE_S)
        self.connection.close()

    def stop(self, force: bool = False) -> bool:
        """End the user once its task is done, or by ``force`` at once; True if it was at once.

        Locust kills a user that pauses. The kill reaches it a moment later, when it may well be in
        the middle of its next task; so one that pauses is let finish its pause, too.
        """
        if not force and self._state == LOCUST_STATE_WAITING:
            self._state = LOCUST_STATE_STOPPING
            return False
        return bool(super().stop(force))

    # -- what tasks use ---------------------------------------------------------------------------

    def new_connection(self) -> ReportedConnection:
        """Return one more connection; nothing is dialled yet."""
        return ReportedConnection(self.reporter, **address_of(self.environment))

    def queue_named(self, name: str) -> Queue:
        """Return a queue on this user's connection."""
        prefix = self.options.queue_prefix
        return Queue(name, connection=self.connection, prefix_key=prefix, auto_batch=False)

    def own_queue(self) -> Queue:
        """Return a queue that no other user has."""
        return self.queue_named(f"{type(self).__name__.lower()}-{os.getpid()}-{self.number}")

    def payload(self) -> dict[str, Any]:
        """Return data for a job: when it was added, and ``--payload-bytes`` of filling."""
        return {"added_at": time.time(), "filling": "x" * self.options.payload_bytes}

    def batch(self, size: int | None = None) -> list[dict[str, Any]]:
        """Return jobs for ``add_bulk``, ``--batch-size`` of them by default."""
        return [
            {"name": "work", "data": self.payload()}
            for _ in range(self.options.batch_size if size is None else size)
        ]

    def start_worker(
        self, queue: Queue, handler: Callable[[Job[Any]], Any], **options: Any
    ) -> Worker:
        """Start a worker that ends with the user; it reports how long each job took in all."""
        worker = Worker(
            queue.name,
            handler,
            connection=self.connection,
            concurrency=self.options.concurrency,
            autorun=False,
            **options,
        )
        worker.on("completed", self._report_completion)
        self._workers.append(worker)
        worker.start()
        return worker

    def _report_completion(self, job: Job[Any], _result: Any) -> None:
        # The wall clock: the job may have been added by another process.
        if isinstance(job.data, dict) and "added_at" in job.data:
            self.reporter.tell(JOB, COMPLETION, (time.time() - job.data["added_at"]) * 1000)
