"""The event ``stalled`` of a worker: told by the broker, over a link that only listeners open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue.client.subscription import Subscription

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker

REASON_DEFAULT = "stalled"  # where the broker gives none


class StallWatch:
    """Listens to the queue's events for one worker, once somebody wants to know of stalls."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._subscription: Subscription | None = None
        self._is_closed = False

    def open(self) -> None:
        """Begin to listen; a second call does nothing."""
        if self._subscription is None and not self._is_closed:
            worker = self._worker
            self._subscription = Subscription(worker.connection, worker.queue_key, self._take)

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("eventType") == "stalled":
            reason = event.get("error") or event.get("reason") or REASON_DEFAULT
            self._worker.post_event("stalled", event.get("jobId"), reason)

    def close(self) -> None:
        """Listen no more. Waits for the reader, but not for long."""
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.close()

    def forget(self) -> None:
        """In a forked child nobody listens."""
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.forget_parent()
