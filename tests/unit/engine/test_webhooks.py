"""Definitions of webhooks: kept, switched, and handed what they want."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.events import Event
from bunqueue.engine.webhooks import Webhook
from tests.support.engine import World, persistent_world

URL = "http://example.com/hook"


class Deliveries:
    """Whoever delivers."""

    def __init__(self, world: World) -> None:
        self.taken: list[tuple[str, str, str]] = []
        self.dropped: list[str] = []
        world.engine.webhooks.deliver = self.take
        world.engine.webhooks.on_removed = self.dropped.append

    def take(self, webhook: Webhook, event: Event) -> None:
        self.taken.append((webhook.id, event.kind, event.queue_name))


@pytest.fixture(params=[World, persistent_world], ids=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    return made


def add(world: World, *events: str, **fields: Any) -> str:
    reply = world.ok("AddWebhook", url=URL, events=list(events), **fields)
    webhook_id: str = reply["data"]["webhookId"]
    return webhook_id


def listed(world: World) -> list[dict[str, Any]]:
    webhooks: list[dict[str, Any]] = world.ok("ListWebhooks")["data"]["webhooks"]
    return webhooks


def live(world: World) -> None:
    job_id = world.push(backoff=0)
    world.pull()
    world.ok("Progress", id=job_id, progress=5)
    world.ok("FAIL", id=job_id)
    world.pull()
    world.ok("ACK", id=job_id)


def test_a_webhook_gets_the_events_it_asked_for(world: World) -> None:
    deliveries = Deliveries(world)
    add(world, "job.pushed", "job.started", "job.failed", "job.completed", "job.progress")
    live(world)

    assert ["pushed", "pulled", "progress", "failed", "pulled", "completed"] == [
        kind for _, kind, _ in deliveries.taken
    ]


def test_a_webhook_gets_no_other_events(world: World) -> None:
    deliveries = Deliveries(world)
    webhook_id = add(world, "job.failed")
    live(world)

    assert [(webhook_id, "failed", "q")] == deliveries.taken


@pytest.mark.parametrize(("queue", "count"), [("other", 0), ("q", 1), ("", 1), (None, 1)])
def test_a_webhook_may_be_about_one_queue(world: World, queue: str | None, count: int) -> None:
    deliveries = Deliveries(world)
    add(world, "job.pushed", queue=queue)
    world.push()
    world.settle()

    assert count == len(deliveries.taken)


def test_a_webhook_that_is_off_gets_nothing_and_what_waits_is_dropped(world: World) -> None:
    deliveries = Deliveries(world)
    webhook_id = add(world, "job.pushed")
    world.ok("SetWebhookEnabled", id=webhook_id, enabled=False)
    world.push()
    assert [] == deliveries.taken
    assert [webhook_id] == deliveries.dropped
    assert [] == world.engine.listeners

    world.ok("SetWebhookEnabled", id=webhook_id, enabled=True)
    world.push()
    world.settle()
    assert 1 == len(deliveries.taken)


def test_a_webhook_that_was_removed_gets_nothing(world: World) -> None:
    deliveries = Deliveries(world)
    webhook_id = add(world, "job.pushed")
    world.ok("RemoveWebhook", webhookId=webhook_id)
    world.push()

    assert [] == deliveries.taken
    assert [webhook_id] == deliveries.dropped
    assert [] == listed(world)


def test_without_somebody_who_delivers_nothing_is_made(world: World) -> None:
    add(world, "job.pushed")
    world.push()

    assert {} == world.engine.untold


def test_the_list_never_shows_the_secret_and_counts_deliveries(world: World) -> None:
    webhook_id = add(world, "job.pushed", secret="s3")
    webhook = world.engine.webhooks.by_id[webhook_id]
    world.engine.note_delivery(webhook, True, world.now)
    world.engine.note_delivery(webhook, False, world.now + 5)

    shown = listed(world)[0]
    assert "secret" not in shown
    assert (1, 1, world.now) == (
        shown["successCount"], shown["failureCount"], shown["lastTriggered"],
    )  # fmt: skip
    assert {"total": 1, "enabled": 1} == world.ok("ListWebhooks")["data"]["stats"]


def test_definitions_and_counts_survive_a_restart() -> None:
    world = persistent_world()
    first = add(world, "job.pushed", queue="q", secret="s3")
    second = add(world, "job.failed")
    world.ok("SetWebhookEnabled", id=second, enabled=False)
    world.engine.note_delivery(world.engine.webhooks.by_id[first], True, world.now)
    world.settle()
    again = world.restart()

    assert listed(world) == listed(again)
    assert "s3" == again.engine.webhooks.by_id[first].secret
    deliveries = Deliveries(again)
    again.push()
    again.settle()
    assert [(first, "pushed", "q")] == deliveries.taken


def test_a_definition_that_could_not_be_written_is_gone() -> None:
    world = persistent_world()
    world.storage.fails = True
    world.error("AddWebhook", url=URL, events=["job.pushed"])

    assert [] == listed(world)
    assert [] == world.engine.listeners


@pytest.mark.parametrize(
    ("command", "fields"),
    [("RemoveWebhook", {}), ("SetWebhookEnabled", {"enabled": False})],
)
def test_a_change_that_could_not_be_written_is_undone(command: str, fields: dict[str, Any]) -> None:
    world = persistent_world()
    webhook_id = add(world, "job.pushed")
    other = add(world, "job.pushed")
    before = listed(world)
    world.storage.fails = True
    world.error(command, id=webhook_id, webhookId=webhook_id, **fields)
    world.storage.fails = False
    world.settle()

    assert before == listed(world)
    assert before == listed(world.restart())
    assert [webhook_id, other] == [webhook["id"] for webhook in listed(world)]


def test_an_outcome_that_was_undone_is_not_delivered() -> None:
    world = persistent_world()
    deliveries = Deliveries(world)
    add(world, "job.completed")
    job_id = world.push()
    world.pull()
    world.storage.fails = True
    world.error("ACK", id=job_id)

    assert [] == deliveries.taken
