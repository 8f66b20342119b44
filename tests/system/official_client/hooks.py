"""Scenarios: webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue as queues
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scenario import World, fail, raises, scenario, until

from bunqueue import CommandError, Queue

ELSEWHERE = "http://hooks.invalid/here"  # RFC 2606: leads nowhere


@scenario()
def webhooks_are_defined_and_forgotten(world: World) -> None:
    queue = world.queue()

    webhook_id = queue.add_webhook(ELSEWHERE, ["job.failed"], queue=queue.name, secret="s")

    (shown,) = (hook for hook in queue.list_webhooks() if hook["id"] == webhook_id)
    assert (ELSEWHERE, ["job.failed"], queue.name) == (
        shown["url"], shown["events"], shown["queue"],
    )  # fmt: skip
    assert (0, 0, True) == (shown["successCount"], shown["failureCount"], shown["enabled"])
    assert "secret" not in shown
    queue.remove_webhook(webhook_id)
    assert webhook_id not in [hook["id"] for hook in queue.list_webhooks()]
    raises(CommandError, "Webhook not found", lambda: queue.remove_webhook(webhook_id))


@scenario()
def a_webhook_can_be_switched_off(world: World) -> None:
    queue = world.queue()
    webhook_id = queue.add_webhook(ELSEWHERE, ["job.pushed"], queue=queue.name)

    def enabled() -> list[bool]:
        return [hook["enabled"] for hook in queue.list_webhooks() if hook["id"] == webhook_id]

    queue.set_webhook_enabled(webhook_id, False)
    assert [False] == enabled()
    queue.set_webhook_enabled(webhook_id, True)
    assert [True] == enabled()
    raises(
        CommandError, "Webhook not found", lambda: queue.set_webhook_enabled("no-such-hook", True)
    )
    queue.remove_webhook(webhook_id)


@scenario()
def refuses_webhooks_in_words(world: World) -> None:
    queue = world.queue()
    for text, url, events in (
        ("Webhook URL is required", "", []),
        ("Webhook URL too long", f"http://example.org/{'x' * 2048}", []),
        ("Invalid URL format", "no url", []),
        ("Webhook URL must use http or https protocol", "ftp://example.org/", []),
        ("Webhook URL cannot point to localhost", "http://localhost/", []),
        ("Webhook URL cannot point to private IP", "http://10.0.0.1/", []),
        ("Webhook URL cannot point to link-local IP", "http://169.254.1.1/", []),
        ("Invalid webhook event(s): job.born", ELSEWHERE, ["job.born", "job.pushed"]),
    ):
        raises(CommandError, text, lambda url=url, events=events: queue.add_webhook(url, events))


class _Receiver:
    """Takes what webhooks post."""

    def __init__(self, world: World) -> None:
        posts: queues.Queue[tuple[dict[str, Any], bytes]] = queues.Queue()
        self.posts = posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posts.put((dict(self.headers), body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_arguments: Any) -> None:
                """Keep standard error for what fails."""

        self.server = ThreadingHTTPServer(("", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        world.stack.callback(self.server.server_close)
        world.stack.callback(self.server.shutdown)

    def add_to(self, queue: Queue, events: list[str]) -> str:
        """Have events of the queue posted here.

        Our broker was told that this address is meant; 2.9.5 refuses it as it is spelled, but
        not the machine's name.
        """
        port = self.server.server_address[1]
        names = ("127.0.0.1", socket.gethostname())
        urls = [f"http://{name}:{port}/" for name in names]
        try:
            return str(queue.add_webhook(urls[0], events, queue.name, "key"))
        except CommandError:
            return str(queue.add_webhook(urls[1], events, queue.name, "key"))


@scenario("webhook")
def a_webhook_is_told_what_happens_to_jobs(world: World) -> None:
    """2.9.5 posts a job's data with no event but `job.completed`, where it is the result."""
    queue, receiver = world.queue(), _Receiver(world)
    events = ["job.pushed", "job.started", "job.completed"]
    webhook_id = receiver.add_to(queue, events)
    job = queue.add("x", {"n": 1})
    world.worker(queue, lambda _job: {"r": 2})

    posts = [receiver.posts.get(timeout=10) for _ in events]

    bodies = {headers["X-Webhook-Event"]: json.loads(body) for headers, body in posts}
    assert set(events) == set(bodies)
    for headers, body in posts:
        signature = hmac.new(b"key", body, hashlib.sha256).hexdigest()
        assert signature == headers["X-Webhook-Signature"]
        assert "application/json" == headers["Content-Type"]
    for event, told in bodies.items():
        assert (event, job.id, queue.name) == (told["event"], told["jobId"], told["queue"])
    assert bodies["job.pushed"].get("data") in ({"n": 1}, None)
    assert {"r": 2} == bodies["job.completed"]["data"]

    def counts() -> list[int]:
        return [hook["successCount"] for hook in queue.list_webhooks() if hook["id"] == webhook_id]

    until(lambda: counts() == [3])


@scenario("webhook")
def a_webhook_is_told_every_failed_attempt(world: World) -> None:
    queue, receiver = world.queue(), _Receiver(world)
    receiver.add_to(queue, ["job.failed"])
    queue.add("x", attempts=2, backoff=0)
    world.worker(queue, fail("broken"))

    told = [json.loads(receiver.posts.get(timeout=10)[1]) for _ in range(2)]

    assert ["broken", "broken"] == [each["error"] for each in told]
