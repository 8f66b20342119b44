"""Clients that come and go."""

from locust import task

from bunqueue import Queue
from loadtests.load.user import BunqueueUser


class ReconnectStorm(BunqueueUser):
    """What happens when many clients connect again and again, as after a broker's restart?"""

    @task
    def come_and_go(self) -> None:
        """Connect, authenticate, greet, add one job, leave."""
        with self.new_connection() as connection:
            with self.reporter.measured("connect and greet"):
                connection.connect()
            Queue(self.queue.name, connection=connection, auto_batch=False).add(
                "work", self.payload()
            )
