"""A delivery: one job in a worker's hands, from the pull until its slot is free again."""

from __future__ import annotations

from typing import Any

from bunqueue.client.cancel import CancelSignal
from bunqueue.client.job import Job


class Delivery:
    """A pulled job, its lease, and how far its run has come.

    Attributes:
        id: The job's.
        token: The lock token, None when pulled without an owner.
        runner: Identity of the thread or greenlet that runs the handler, None when nobody does.
        members: The deliveries of the native batch that this one leads, or None.
        task: The greenlet it runs in, for interrupting it.
        key: What it is counted under where jobs of one key are capped; None for not at all.
        overdue_at: When its job has outlived its timeout, monotonic seconds; None for never.
        is_released: Its slot is free.
        is_abandoned: It was sent back; whatever its handler still says is dropped.
        interrupted_with: What an interrupted handler's job fails with, or None.
    """

    __slots__ = (
        "interrupted_with",
        "id",
        "is_abandoned",
        "is_released",
        "job",
        "key",
        "members",
        "overdue_at",
        "runner",
        "task",
        "token",
    )

    def __init__(self, job: Job[Any], token: str | None) -> None:
        self.job = job
        self.id = job.id
        self.token = token
        self.runner: int | None = None
        self.task: Any = None
        self.key: str | None = None
        self.overdue_at: float | None = None
        self.members: list[Delivery] | None = None
        self.is_released = False
        self.is_abandoned = False
        self.interrupted_with: BaseException | None = None

    @property
    def signal(self) -> CancelSignal:
        """The job's."""
        return self.job.signal
