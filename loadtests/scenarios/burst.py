"""Many jobs at once, then silence."""

import gevent
from gevent.event import Event
from locust import task

from bunqueue import CommandTimeoutError
from loadtests.load.user import BunqueueUser

BATCHES = 10
DRAIN_S_MAX = 15.0  # below the stop timeout, load/options.py
SILENCE_S = 1.0


class Burst(BunqueueUser):
    """How long does a burst take until it is worked off, and what does a job of it wait?

    Each user adds 10 batches at once to a queue of its own, waits until its worker has done them
    all, and is silent for a second.
    """

    def on_start(self) -> None:
        """Start a worker that counts."""
        self.left = 0
        self.is_drained = Event()
        self.queue = self.own_queue()
        worker = self.start_worker(self.queue, lambda job: len(job.data["filling"]))
        worker.on("completed", self.count_down)

    @task
    def burst(self) -> None:
        """Add a burst and wait until it is worked off."""
        self.left = BATCHES * self.options.batch_size
        self.is_drained.clear()
        with self.reporter.measured("burst to empty queue"):
            for _ in range(BATCHES):
                self.queue.add_bulk(self.batch())
            if not self.is_drained.wait(DRAIN_S_MAX):
                raise CommandTimeoutError(f"{self.left} jobs left after {DRAIN_S_MAX} s")
        gevent.sleep(SILENCE_S)

    def count_down(self, *_: object) -> None:
        """Note that one job is done."""
        self.left -= 1
        if self.left == 0:
            self.is_drained.set()
