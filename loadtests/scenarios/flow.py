"""Jobs that wait for other jobs."""

from locust import task

from bunqueue import FlowProducer
from loadtests.load.user import BunqueueUser

CHILDREN = 5


class Flow(BunqueueUser):
    """How long does a tree of jobs take, from one command that adds it to its parent's completion?

    Each user has a worker and one tree of a parent and 5 children under way.
    """

    def on_start(self) -> None:
        """Start a worker that does parents and children alike."""
        self.flows = FlowProducer(connection=self.connection, prefix_key=self.options.queue_prefix)
        self.start_worker(self.queue, lambda job: len(job.data["filling"]))

    @task
    def add_tree_and_wait(self) -> None:
        """Add a parent with its children and wait until it is completed."""
        children = [self.node("child") for _ in range(CHILDREN)]
        with self.reporter.measured("tree to completion"):
            root = self.flows.add({**self.node("parent"), "children": children})
            self.queue.wait_for_job(root.job.id)

    def node(self, name: str) -> dict[str, object]:
        """Return a node for this user's queue."""
        return {"name": name, "queue_name": str(self.queue.name), "data": self.payload()}
