"""Webhooks over the wire; who delivers them is the server."""

from typing import Any, Final

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.commands.targets import check_spelled, read_url
from bunqueue.engine.webhooks import EVENTS, Webhook
from bunqueue.errors import InvalidField, NotFound
from bunqueue.protocol.fields import Anything, Flag, List, Text
from bunqueue.protocol.options import is_truthy
from bunqueue.protocol.replies import OK, Reply

_VALID = tuple(EVENTS.values())
EVENTS_MAX: Final = 100  # names in one definition, of which there are five


@command(
    "AddWebhook",
    {
        "url": Anything(doc="http or https, at most 2,048 characters."),
        "events": List(items_max=EVENTS_MAX, doc="Names of events; required, may be empty."),
        "queue": Text(doc="Only events of this queue; absent is all."),
        "secret": Text(doc="Key of the signature; absent is none."),
    },
    mutates=True,
)
def add_webhook(peer: Peer, request: Request) -> Reply:
    """Post events to a URL from now on; survives a restart.

    The URL must not lead to the broker's own network: what it spells is judged now, what its name
    resolves to at each delivery.
    """
    url = request.get("url")
    check_spelled(read_url(url), peer.host.targets)
    events = request.get("events")
    if events is None:
        raise InvalidField("events is required")
    if len(events) > EVENTS_MAX:
        raise InvalidField(f"events has too many items (max {EVENTS_MAX}): name each event once")
    wrong = [str(name) for name in events if name not in _VALID]
    if wrong:
        raise InvalidField(
            f"Invalid webhook event(s): {', '.join(wrong)}. Valid: {', '.join(_VALID)}"
        )
    webhook = peer.engine.add_webhook(
        str(url), events, request.get("queue"), request.get("secret"), peer.now()
    )
    return {"ok": True, "data": {"webhookId": webhook.id, **_defined(webhook)}}


def _defined(webhook: Webhook) -> dict[str, Any]:
    return {
        "url": webhook.url,
        "events": webhook.events,
        "queue": webhook.queue_name,
        "createdAt": float(webhook.created_at),
    }


def _id(request: Request, name: str) -> str:
    webhook_id = request.get(name)
    if not isinstance(webhook_id, str):
        raise NotFound("Webhook not found")
    return webhook_id


@command("RemoveWebhook", {"webhookId": Anything(doc="As AddWebhook answered.")}, mutates=True)
def remove_webhook(peer: Peer, request: Request) -> Reply:
    """Forget a webhook; deliveries that wait are dropped."""
    peer.engine.remove_webhook(_id(request, "webhookId"))
    return {"ok": True, "data": {"removed": True}}


@command("ListWebhooks")
def list_webhooks(peer: Peer, _request: Request) -> Reply:
    """List the webhooks with their counts, never their secrets."""
    webhooks = [
        {
            "id": webhook.id,
            **_defined(webhook),
            "lastTriggered": None if webhook.triggered_at is None else float(webhook.triggered_at),
            "successCount": webhook.success_count,
            "failureCount": webhook.failure_count,
            "enabled": webhook.is_enabled,
        }
        for webhook in peer.engine.list_webhooks()
    ]
    return {"ok": True, "data": {"webhooks": webhooks, "stats": peer.engine.webhook_stats()}}


@command(
    "SetWebhookEnabled",
    {
        "id": Anything(doc="As AddWebhook answered."),
        "enabled": Flag(truthy=True, doc="Off if absent."),
    },
    mutates=True,
)
def set_webhook_enabled(peer: Peer, request: Request) -> Reply:
    """Switch a webhook on or off; off drops what waits for delivery."""
    peer.engine.set_webhook_enabled(_id(request, "id"), is_truthy(request.get("enabled")))
    return OK
