"""Workers that wait for jobs."""

from locust import task

from loadtests.load.user import BunqueueUser


class Worker(BunqueueUser):
    """How long does a job take from being added to being completed, while workers wait for it?

    Each user has a worker and one job under way, so the number of users is the load.
    """

    def on_start(self) -> None:
        """Start a worker that returns at once."""
        self.start_worker(self.queue, lambda job: len(job.data["filling"]))

    @task
    def add_and_wait(self) -> None:
        """Add a job and wait for its result."""
        job = self.queue.add("work", self.payload())
        self.queue.wait_for_job(job.id)
