"""Producers without workers."""

from locust import task

from loadtests.load.user import BunqueueUser


class Producer(BunqueueUser):
    """How quickly does the broker take jobs, while a backlog grows and nobody works it off?"""

    @task(10)
    def add_one(self) -> None:
        """Add a job."""
        self.queue.add("work", self.payload())

    @task(2)
    def add_batch(self) -> None:
        """Add ``--batch-size`` jobs in one command."""
        self.queue.add_bulk(self.batch())

    @task(1)
    def add_durable(self) -> None:
        """Add a job that is on the disk before the broker answers."""
        self.queue.add("work", self.payload(), durable=True)
