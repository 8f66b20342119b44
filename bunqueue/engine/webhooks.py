"""Webhooks: who wants to be told of what, and the hand-over to whoever delivers.

The definitions are the engine's: they are committed before their answer and survive a restart.
Delivery needs a network, so it is the server's: it sets ``Webhooks.deliver`` and reports back what
became of each delivery.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.events import Event
from bunqueue.errors import NotFound

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

TABLE: Final = "webhooks"

# kind of event -> name that webhooks know it by (engine.md 9)
EVENTS: Final = {
    "pushed": "job.pushed",
    "pulled": "job.started",
    "completed": "job.completed",
    "failed": "job.failed",
    "progress": "job.progress",
}


class Webhook:
    """One definition, and how its deliveries went; moments in epoch ms.

    Attributes:
        events: Names out of ``EVENTS``, as given.
        queue_name: The only queue it is about; None or "" for all.
        secret: Key of the signature; None or "" for none.
        triggered_at: The last delivery that succeeded, or None.
    """

    __slots__ = (
        "id",
        "url",
        "events",
        "queue_name",
        "secret",
        "created_at",
        "is_enabled",
        "triggered_at",
        "success_count",
        "failure_count",
    )

    def __init__(
        self,
        id: str,
        url: str,
        events: list[str],
        queue_name: str | None,
        secret: str | None,
        created_at: int,
    ) -> None:
        self.id = id
        self.url = url
        self.events = events
        self.queue_name = queue_name
        self.secret = secret
        self.created_at = created_at
        self.is_enabled = True
        self.triggered_at: int | None = None
        self.success_count = 0
        self.failure_count = 0

    def wants(self, name: str, queue_name: str) -> bool:
        """Say whether it is to be told of the event ``name`` of that queue."""
        return (
            self.is_enabled
            and name in self.events
            and (not self.queue_name or self.queue_name == queue_name)
        )


class Webhooks:
    """All definitions, and the listener on their behalf.

    Attributes:
        by_id: id -> definition, in order of addition.
        deliver: Takes a webhook and an event; None where nobody delivers. Must not wait.
        on_removed: Told of the id of a webhook that is gone or switched off.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Webhook] = {}
        self.deliver: Callable[[Webhook, Event], None] | None = None
        self.on_removed: Callable[[str], None] | None = None

    def wants(self, kind: str, queue_name: str) -> bool:
        """Say whether a webhook is to be told."""
        name = EVENTS.get(kind)
        if name is None or self.deliver is None:
            return False
        return any(webhook.wants(name, queue_name) for webhook in self.by_id.values())

    def hear(self, event: Event) -> None:
        """Have the event delivered to all that want it."""
        if self.deliver is None:
            return
        name = EVENTS[event.kind]
        for webhook in self.by_id.values():
            if webhook.wants(name, event.queue_name):
                self.deliver(webhook, event)


def _changed(engine: "Engine") -> None:
    """Listen while there is an enabled webhook."""
    webhooks = engine.webhooks
    is_needed = any(webhook.is_enabled for webhook in webhooks.by_id.values())
    if is_needed and webhooks not in engine.listeners:
        engine.listeners.append(webhooks)
    elif not is_needed and webhooks in engine.listeners:
        engine.listeners.remove(webhooks)


def _store(engine: "Engine", webhook: Webhook) -> None:
    engine.storage.put(
        TABLE,
        webhook.id,
        (
            webhook.url,
            json.dumps(webhook.events),
            webhook.queue_name,
            webhook.secret,
            webhook.created_at,
            int(webhook.is_enabled),
            webhook.triggered_at,
            webhook.success_count,
            webhook.failure_count,
        ),
    )


def restore(engine: "Engine", tables: Mapping[str, Mapping[str, tuple[Any, ...]]]) -> None:
    """Read the definitions back."""
    rows = sorted(tables.get(TABLE, {}).items(), key=lambda row: (row[1][4], row[0]))
    for id, (url, events, queue_name, secret, created_at, enabled, *results) in rows:
        webhook = Webhook(id, url, json.loads(events), queue_name, secret, created_at)
        webhook.is_enabled = bool(enabled)
        webhook.triggered_at, webhook.success_count, webhook.failure_count = results
        engine.webhooks.by_id[id] = webhook
    _changed(engine)


def add_webhook(
    engine: "Engine",
    url: str,
    events: list[str],
    queue_name: str | None,
    secret: str | None,
    now: int,
) -> Webhook:
    """Tell ``url`` of these events from now on."""
    webhook = Webhook(engine.ids.new(now), url, events, queue_name, secret, now)
    engine.webhooks.by_id[webhook.id] = webhook
    _changed(engine)
    _store(engine, webhook)
    engine.storage.sync(_drop, (engine, webhook))
    return webhook


def _drop(engine: "Engine", webhook: Webhook) -> None:
    engine.webhooks.by_id.pop(webhook.id, None)
    _changed(engine)
    engine.storage.delete(TABLE, webhook.id)
    _end_deliveries(engine, webhook)


def _end_deliveries(engine: "Engine", webhook: Webhook) -> None:
    if engine.webhooks.on_removed is not None:
        engine.webhooks.on_removed(webhook.id)


def _webhook(engine: "Engine", webhook_id: str) -> Webhook:
    webhook = engine.webhooks.by_id.get(webhook_id)
    if webhook is None:
        raise NotFound("Webhook not found")
    return webhook


def remove_webhook(engine: "Engine", webhook_id: str) -> None:
    """Forget a webhook; what waits for its delivery is dropped.

    Raises:
        NotFound: There is none of that id.
    """
    webhook = _webhook(engine, webhook_id)
    before = dict(engine.webhooks.by_id)
    _drop(engine, webhook)
    engine.storage.sync(_bring_back, (engine, before, webhook))


def _bring_back(engine: "Engine", before: dict[str, Webhook], webhook: Webhook) -> None:
    others = engine.webhooks.by_id
    engine.webhooks.by_id = {**before, **others}
    _changed(engine)
    _store(engine, webhook)


def set_webhook_enabled(engine: "Engine", webhook_id: str, is_enabled: bool) -> None:
    """Switch a webhook on or off; what waits for its delivery is dropped when it goes off.

    Raises:
        NotFound: There is none of that id.
    """
    webhook = _webhook(engine, webhook_id)
    was_enabled = webhook.is_enabled
    _switch(engine, webhook, is_enabled)
    engine.storage.sync(_switch, (engine, webhook, was_enabled))


def _switch(engine: "Engine", webhook: Webhook, is_enabled: bool) -> None:
    webhook.is_enabled = is_enabled
    _changed(engine)
    if webhook.id in engine.webhooks.by_id:
        _store(engine, webhook)
    if not is_enabled:
        _end_deliveries(engine, webhook)


def list_webhooks(engine: "Engine") -> list[Webhook]:
    """Return the definitions in order of addition."""
    return list(engine.webhooks.by_id.values())


def webhook_stats(engine: "Engine") -> dict[str, int]:
    """Return ``{total, enabled}``."""
    webhooks = engine.webhooks.by_id.values()
    enabled = sum(1 for webhook in webhooks if webhook.is_enabled)
    return {"total": len(webhooks), "enabled": enabled}


def note_delivery(engine: "Engine", webhook: Webhook, is_delivered: bool, now: int) -> None:
    """Count a delivery that succeeded, or was given up."""
    if is_delivered:
        webhook.success_count += 1
        webhook.triggered_at = now
    else:
        webhook.failure_count += 1
    if webhook.id in engine.webhooks.by_id:
        _store(engine, webhook)
