"""Manual control of a worker: jobs one by one, without its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bunqueue.client.delivery import Delivery
from bunqueue.client.job import Job
from bunqueue.client.queue_changes import extend_locks
from bunqueue.client.queue_groups import resting
from bunqueue.client.rate_gate import RateGate

if TYPE_CHECKING:
    from bunqueue.client.held import HeldLeases
    from bunqueue.client.pull_loop import PullLoop


class ManualControl:
    """The part of ``Worker`` for applications that drive it themselves."""

    connection: Any
    queue_key: str
    poll_timeout_ms: float
    rate_gate: RateGate
    world: Any
    loop: PullLoop
    leases: HeldLeases
    active: dict[str, Delivery]
    _outcomes: Any

    def get_next_job(self, *, block: bool = False) -> Job[Any] | None:
        """Pull one job, or None when there is none; ``block`` waits for one as a poll does."""
        deliveries = self.loop.pull(1, self.poll_timeout_ms if block else 0)
        if not deliveries:
            return None
        delivery = deliveries[0]
        self.leases.held[delivery.job.id] = delivery.token
        return delivery.job

    def process_job_manually(
        self, job: Job[Any], fetch_next: Callable[[], Job[Any] | None] | None = None
    ) -> Job[Any] | None:
        """Run the handler for a job of ``get_next_job`` and report; return the next, if asked."""
        delivery = Delivery(job, job.token)
        self.active[job.id] = delivery
        self._outcomes.run(delivery)
        return fetch_next() if fetch_next is not None else None

    def extend_job_locks(self, ids: Sequence[str], tokens: Sequence[str], duration_ms: Any) -> int:
        """Renew leases and return how many it was. Waits."""
        return extend_locks(self.connection, ids, tokens, duration_ms)

    def delay(self, ms: float) -> None:
        """Wait in the way of the calling thread or greenlet."""
        self.world.sleep(ms / 1000)

    def rate_limit(self, ms: float) -> None:
        """Start no jobs for a while."""
        self.rate_gate.rest(ms / 1000)

    def is_rate_limited(self) -> bool:
        """Tell whether jobs may not start now."""
        return self.rate_gate.room() <= 0

    def get_rate_limiter_info(self) -> dict[str, Any] | None:
        """Return the limiter and how much of it is used, or None without one."""
        return self.rate_gate.info()

    def rate_limit_group(self, job: Job[Any], duration_ms: Any) -> None:
        """Let nothing of a job's group start for a while, and send the job back, uncharged. Waits.

        For handlers: ``raise Worker.RateLimitError()`` after it.

        Raises:
            ValueError: The job has no group.
        """
        if job.group_id is None:
            raise ValueError("the job has no group")
        self.connection.call(resting(self.queue_key, job.group_id, duration_ms))
        job.move_to_wait()

    def start_stalled_check_timer(self) -> None:
        """Do nothing: the broker looks for stalled jobs by itself."""
