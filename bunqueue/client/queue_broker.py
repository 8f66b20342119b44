"""What a queue can ask about its broker: workers, figures, webhooks, storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bunqueue.client.options import compact

METRIC_TYPES = ("completed", "failed")


class QueueBroker:
    """The part of ``Queue`` that reaches beyond it."""

    connection: Any
    queue_key: str

    def _data_of(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command, without the fields that are None, and return the reply's data."""
        reply = self.connection.call(compact({"cmd": cmd, **fields}))
        data: dict[str, Any] = reply.get("data") or {}
        return data

    # -- workers and figures --------------------------------------------------------------------

    def get_workers(self, *, scope: str = "server") -> list[dict[str, Any]]:
        """Return the registered workers, of the broker or of this queue. Waits.

        Raises:
            ValueError: ``scope`` is neither ``"server"`` nor ``"queue"``.
        """
        if scope not in ("server", "queue"):
            raise ValueError("scope must be 'server' or 'queue'")
        workers = list(self._data_of("ListWorkers").get("workers") or [])
        if scope == "queue":
            workers = [one for one in workers if self.queue_key in (one.get("queues") or [])]
        return workers

    def get_workers_count(self, *, scope: str = "server") -> int:
        """Return how many workers are registered. Waits."""
        return len(self.get_workers(scope=scope))

    def get_stats(self) -> dict[str, Any]:
        """Return the broker's figures. Waits."""
        return dict(self.connection.call({"cmd": "Stats"}).get("stats") or {})

    def list_queues(self) -> list[Any]:
        """Return the names of all queues. Waits."""
        return list(self.connection.call({"cmd": "ListQueues"}).get("queues") or [])

    def get_metrics(self, type: str | None = None, start: int = 0, end: int = -1) -> dict[str, Any]:
        """Return the broker's totals; or, with a type, this queue's jobs by the minute. Waits.

        Args:
            type: ``"completed"`` or ``"failed"``.
            start: The first minute, 0 is the newest.
            end: The last minute, included; -1 for all.

        Returns:
            With a type ``{"meta": {...}, "data": [n, ...], "count": points there are}``.
        """
        if type is None:
            return dict(self.connection.call({"cmd": "Metrics"}).get("metrics") or {})
        if type not in METRIC_TYPES:
            raise ValueError("type must be 'completed' or 'failed'")
        return self._data_of("Metrics", queue=self.queue_key, type=type, start=start, end=end)

    def trim_events(self, max_length: int) -> int:
        """Shorten the stored list of this queue's events; return by how many. Waits."""
        reply = self._data_of("TrimEvents", queue=self.queue_key, maxLength=max_length)
        return int(reply.get("removed") or 0)

    def storage_status(self) -> dict[str, Any]:
        """Return ``{"diskFull", "error", "since"}`` of the broker's storage. Waits."""
        return self._data_of("StorageStatus")

    # -- webhooks -------------------------------------------------------------------------------

    def add_webhook(
        self,
        url: str,
        events: Sequence[str],
        queue: str | None = None,
        secret: str | None = None,
    ) -> str | None:
        """Have events posted to a URL; return the webhook's id. Waits.

        Args:
            url: http or https, outside the broker's own network.
            events: ``job.pushed``, ``job.started``, ``job.completed``, ``job.failed``,
                ``job.progress``.
            queue: Only of this queue; None for all.
            secret: Key of the signature.
        """
        data = self._data_of(
            "AddWebhook",
            url=url,
            events=list(events),
            queue=None if queue is None else getattr(queue, "key", queue),
            secret=secret,
        )
        webhook_id = data.get("webhookId")
        return None if webhook_id is None else str(webhook_id)

    def remove_webhook(self, webhook_id: str) -> None:
        """Forget a webhook. Waits."""
        self._data_of("RemoveWebhook", webhookId=webhook_id)

    def list_webhooks(self) -> list[dict[str, Any]]:
        """Return the webhooks with their counts, without secrets. Waits."""
        return list(self._data_of("ListWebhooks").get("webhooks") or [])

    def set_webhook_enabled(self, webhook_id: str, enabled: bool) -> None:
        """Switch a webhook on or off. Waits."""
        self._data_of("SetWebhookEnabled", id=webhook_id, enabled=enabled)
