"""Leases: who may settle a job, and how long a silent worker keeps it.

A pull with an owner makes a lease: a token and a span. Whoever shows the token may settle the
job, over any connection; an expired lease that no sweep has met yet still counts. ``retired``
remembers the tokens of deliveries that the broker itself has ended (job timeouts), so that their
late outcomes are a success without effect.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bunqueue.engine.job import Delivery, Job
from bunqueue.engine.states import ACTIVE
from bunqueue.errors import LeaseLost, NotFound

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

RETIRED_TOKENS_MAX = 50_000  # engine.md 12


class RetiredTokens:
    """The newest (id, token) pairs whose delivery the broker has ended.

    Attributes:
        ids: id -> how many pairs of that job there are.
    """

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.ids: Counter[str] = Counter()

    def add(self, job_id: str, token: str | None) -> None:
        """Remember the pair; the oldest goes when there are too many."""
        if token is None:
            return
        if (job_id, token) not in self._pairs:
            self.ids[job_id] += 1
        self._pairs[job_id, token] = None
        if len(self._pairs) > RETIRED_TOKENS_MAX:
            (oldest_id, _), _ = self._pairs.popitem(last=False)
            self.ids[oldest_id] -= 1
            if not self.ids[oldest_id]:
                del self.ids[oldest_id]

    def __contains__(self, pair: tuple[str, str | None]) -> bool:
        return pair in self._pairs

    def __len__(self) -> int:
        return len(self._pairs)


def not_processing(job_id: str) -> NotFound:
    """Build the refusal of an outcome for a job that nobody is running."""
    return NotFound(f"Job not found or not in processing state: {job_id}")


def check_token(job: Job, token: str | None) -> None:
    """Check an active job's lease.

    Raises:
        LeaseLost: A token is needed and is missing or wrong.
    """
    delivery = job.delivery
    if delivery is None or delivery.owner is None or token == job.token:
        return
    if not token:
        raise LeaseLost(f"Lock token required for job {job.id}")
    raise LeaseLost(f"Invalid or expired lock token for job {job.id}")


def heartbeat(
    engine: "Engine", job_id: str, token: str | None, duration_ms: int | None, now: int
) -> bool:
    """Say that the job is still being worked on; with the token, renew its lease.

    Args:
        duration_ms: New span from now; None is the lease's own.

    Returns:
        False if the job is not active, the token is wrong or the lease has run out.
    """
    job = engine.index.get(job_id)
    if job is None:
        return False
    with job.queue.shard.lock:
        delivery = job.delivery
        if job.place != ACTIVE or delivery is None:
            return False
        if token:
            if delivery.owner is None or token != job.token or delivery.expires_at <= now:
                return False
            _renew(delivery, duration_ms, now)
        delivery.heartbeat_at = now
        delivery.is_suspect = False
        return True


def heartbeat_batch(
    engine: "Engine", ids: Sequence[str], tokens: Sequence[str | None] | None, now: int
) -> int:
    """Heartbeat several jobs; return how many took effect."""
    count = 0
    for number, job_id in enumerate(ids):
        token = tokens[number] if tokens is not None and number < len(tokens) else None
        count += heartbeat(engine, job_id, token, None, now)
    return count


def extend_lock(
    engine: "Engine", job_id: str, token: str | None, duration_ms: int | None, now: int
) -> bool:
    """Renew a lease; a missing token passes. False if there is no such lease."""
    job = engine.index.get(job_id)
    if job is None:
        return False
    with job.queue.shard.lock:
        delivery = job.delivery
        if job.place != ACTIVE or delivery is None or delivery.owner is None:
            return False
        if (token and token != job.token) or delivery.expires_at <= now:
            return False
        _renew(delivery, duration_ms, now)
        delivery.heartbeat_at = now
        delivery.is_suspect = False
        return True


def _renew(delivery: Delivery, duration_ms: int | None, now: int) -> None:
    delivery.expires_at = now + (delivery.ttl_ms if duration_ms is None else duration_ms)
    delivery.renewals += 1
