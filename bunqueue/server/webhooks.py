"""Delivering webhooks: in order per webhook, bounded, and never into the broker's own network.

Each webhook has a queue and, while that holds anything, a greenlet: one delivery at a time, so that
a receiver sees the events in order. What does not fit into the queue is given up and counted.

A delivery resolves the host, leaves out every address that is not global (or allowed by the
operator), and connects to one of the rest itself: what was judged is what is connected to. The
request goes through the standard library's ``http.client`` on that socket, with the host's name in
the Host header and in TLS. It knows no proxies, no cookies and no redirects; an answer's head is
bounded by it, of the body nothing is read. There is one limit of time for all of it.

Weighed against: urllib3, whose pools resolve by themselves, and which would be one more dependency.
"""

import hmac
import http.client
import json
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import gevent
import gevent.socket
import gevent.ssl

from bunqueue import __version__
from bunqueue.broker import WEBHOOK_EVENTS, Broker, Event, Webhook
from bunqueue.commands.targets import Address, AllowedTargets, Target, as_address, read_url
from bunqueue.errors import BunqueueError
from bunqueue.protocol.codec import unpack

log = logging.getLogger(__name__)

DELIVERY_S_MAX: Final = 10.0  # engine.md 9: one try, from the look-up of the name on
CONNECT_S_MAX: Final = 5.0  # of that: one address, so that another one gets its turn
WAITING_MAX: Final = 1_000  # deliveries of one webhook
WAITING_BYTES_MAX: Final = 16 << 20  # and their payloads
WHY_CHARS_MAX: Final = 200  # of what a receiver said instead of HTTP, in the log
GOODBYE_S_MAX: Final = 5.0  # for what waits when the server stops
LAST_COMMIT_S: Final = 0.05  # until what was done last is committed and told: a flush and a little

# Kinds of event whose payload goes out as ``data``.
WITH_DATA: Final = frozenset({"pushed", "pulled", "completed", "failed"})

Resolve = Callable[[str, int], Iterable[str]]


class DeliveryFailed(BunqueueError):
    """A try did not succeed; the text says why."""


def resolve(host: str, port: int) -> list[str]:
    """Waits for the addresses of a host name."""
    found = gevent.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in found]


class Deliveries:
    """The queues of all webhooks."""

    def __init__(
        self,
        broker: Broker,
        allowed: AllowedTargets,
        *,
        tries_max: int,
        retry_delay_ms: int,
        resolve: Resolve = resolve,
    ) -> None:
        """Take over the deliveries of a broker.

        Args:
            broker: Whose webhooks.
            allowed: Where they may go beside global addresses.
            tries_max: How often a delivery is tried in all.
            retry_delay_ms: Pause after the first try; after the second it is twice that.
            resolve: Returns the addresses of a name. Waits.
        """
        self._broker = broker
        self._allowed = allowed
        self._tries_max = max(1, tries_max)
        self._retry_delay_s = retry_delay_ms / 1000
        self._resolve = resolve
        self._senders: dict[str, _Sender] = {}
        webhooks = broker.engine.webhooks
        webhooks.deliver = self.deliver
        webhooks.on_removed = self.drop

    def deliver(self, webhook: Webhook, event: Event) -> None:
        """Put a delivery into the webhook's queue. Never waits."""
        sender = self._senders.get(webhook.id)
        if sender is None:
            sender = self._senders[webhook.id] = _Sender(self, webhook)
        sender.put(event)

    def sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return name -> entries of the queues, and name -> bytes."""
        senders = self._senders.values()
        entries = {
            "webhook_queues": len(senders),
            "webhook_deliveries": sum(len(sender.waiting) for sender in senders),
        }
        return entries, {"webhooks": sum(sender.size_bytes for sender in senders)}

    def drop(self, webhook_id: str) -> None:
        """Forget what waits for a webhook."""
        sender = self._senders.pop(webhook_id, None)
        if sender is not None:
            sender.stop()

    def close(self) -> None:
        """Waits a moment for what is in the queues, then gives it up."""
        gevent.sleep(LAST_COMMIT_S)
        self._broker.engine.webhooks.deliver = None
        running = [sender.greenlet for sender in self._senders.values()]
        gevent.joinall(running, GOODBYE_S_MAX)
        waiting = sum(len(sender.waiting) for sender in self._senders.values())
        if waiting:
            log.warning("webhook deliveries given up at the stop count=%d", waiting)
        for webhook_id in list(self._senders):
            self.drop(webhook_id)

    def ended(self, sender: "_Sender", webhook: Webhook) -> None:
        """Note that a queue has run empty."""
        if self._senders.get(webhook.id) is sender:
            del self._senders[webhook.id]

    def count(self, webhook: Webhook, is_delivered: bool) -> None:
        """Count a delivery that succeeded, or was given up."""
        broker = self._broker
        broker.engine.note_delivery(webhook, is_delivered, broker.clock.now())

    def send(self, webhook: Webhook, event: Event) -> None:
        """Waits until the delivery has succeeded, or the last try has failed."""
        body = body_of(event)
        headers = headers_of(event, webhook.secret, body)
        for number in range(1, self._tries_max + 1):
            try:
                with gevent.Timeout(DELIVERY_S_MAX, DeliveryFailed("it took too long")):
                    post(read_url(webhook.url), headers, body, self._allowed, self._resolve)
            except (BunqueueError, OSError, http.client.HTTPException, UnicodeError) as error:
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                log.info(
                    "webhook try failed id=%s try=%d why=%s",
                    webhook.id,
                    number,
                    why[:WHY_CHARS_MAX],
                )
                if number < self._tries_max:
                    gevent.sleep(self._retry_delay_s * number)
                continue
            self.count(webhook, True)
            return
        log.warning("webhook delivery given up id=%s tries=%d", webhook.id, self._tries_max)
        self.count(webhook, False)


class _Sender:
    """The queue of one webhook, and the greenlet that works it off.

    Attributes:
        waiting: Events to deliver, the one in work first; ``size_bytes`` of payload.
        greenlet: Works them off.
    """

    def __init__(self, deliveries: Deliveries, webhook: Webhook) -> None:
        self._deliveries = deliveries
        self._webhook = webhook
        self.waiting: deque[Event] = deque()
        self.size_bytes = 0
        self._is_full = False
        self.greenlet = gevent.spawn(self._run)

    def put(self, event: Event) -> None:
        """Add a delivery, or give it up when too much waits."""
        size = len(event.payload or b"")
        if len(self.waiting) >= WAITING_MAX or (
            self.waiting and self.size_bytes + size > WAITING_BYTES_MAX
        ):
            if not self._is_full:
                self._is_full = True
                log.warning("webhook is too slow, events are given up id=%s", self._webhook.id)
            self._deliveries.count(self._webhook, False)
            return
        self.waiting.append(event)
        self.size_bytes += size

    def stop(self) -> None:
        """Give up what waits, the delivery in work too."""
        self.waiting.clear()
        self.greenlet.kill(block=False)

    def _run(self) -> None:
        try:
            while self.waiting:
                self._deliveries.send(self._webhook, self.waiting[0])
                if self.waiting:
                    self.size_bytes -= len(self.waiting.popleft().payload or b"")
        finally:  # whatever happened: the next event gets a queue that works
            self._deliveries.ended(self, self._webhook)


# -- one request -----------------------------------------------------------------------------------


def body_of(event: Event) -> bytes:
    """Return the JSON that is posted; it is made once per event."""
    body: bytes | None = event.forms.get("webhook")
    if body is None:
        told: dict[str, Any] = {
            "event": WEBHOOK_EVENTS[event.kind],
            "timestamp": event.timestamp,
            "jobId": event.job_id,
            "queue": event.queue_name,
        }
        if event.kind in WITH_DATA and event.payload is not None:
            told["data"] = unpack(event.payload)
        for name in ("error", "progress"):
            if event.extra.get(name) is not None:
                told[name] = event.extra[name]
        body = event.forms["webhook"] = _json(told)
    return body


def _json(value: Any) -> bytes:
    try:
        text = json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
        )
    except ValueError:  # a number that JSON cannot write
        text = json.dumps(
            _without_nan(value), ensure_ascii=False, separators=(",", ":"), default=_plain
        )
    return text.encode("utf-8", "replace")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, bytes) else str(value)


def _without_nan(value: Any) -> Any:
    """Return a copy with null for what is no finite number, as JavaScript writes it."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value


def headers_of(event: Event, secret: str | None, body: bytes) -> dict[str, str]:
    """Return the headers, with the signature if there is a secret."""
    headers = {
        "Content-Type": "application/json",
        "X-Webhook-Event": WEBHOOK_EVENTS[event.kind],
        "X-Webhook-Timestamp": str(event.timestamp),
        "User-Agent": f"bunqueue/{__version__}",
        "Connection": "close",
    }
    if secret:
        key = secret.encode("utf-8", "replace")
        headers["X-Webhook-Signature"] = hmac.new(key, body, "sha256").hexdigest()
    return headers


def post(
    target: Target,
    headers: dict[str, str],
    body: bytes,
    allowed: AllowedTargets,
    resolve: Resolve = resolve,
) -> None:
    """Waits for one try.

    Raises:
        DeliveryFailed: No address may be connected to, or the answer is no success.
        OSError, HTTPException: It cannot be reached, or does not speak HTTP.
    """
    sock = _connected(addresses_of(target, allowed, resolve), target.port)
    try:
        # Head and body leave in two writes; the second must not wait for the first's receipt.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.scheme == "https":
            sock = _encrypted(sock, target.host)
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = sock
        connection.putrequest("POST", target.path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": target.authority, **_authorization(target), **headers}.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        # Its head alone, at most 100 lines of 64 KiB; the body stays unread.
        status = connection.getresponse().status
    finally:
        sock.close()
    if not 200 <= status < 300:
        raise DeliveryFailed(f"status {status}")


def addresses_of(target: Target, allowed: AllowedTargets, resolve: Resolve) -> list[Address]:
    """Waits for the addresses of the target that may be connected to.

    Raises:
        DeliveryFailed: There is none.
    """
    if target.address is not None:
        found: Sequence[Address] = [target.address]
    else:
        found = [as_address(text) for text in resolve(target.host, target.port)]
    good = [address for address in found if allowed.admits(target, address)]
    if not good:
        raise DeliveryFailed("its address is not one that webhooks may go to")
    return list(dict.fromkeys(good))


def _connected(addresses: list[Address], port: int) -> Any:
    """Waits for a connection to the first address that takes one."""
    failure: OSError | None = None
    for address in addresses:
        try:
            sock = gevent.socket.create_connection((str(address), port), CONNECT_S_MAX)
        except OSError as error:
            failure = error
        else:
            sock.settimeout(None)  # the answer may take what is left of the try
            return sock
    assert failure is not None, "there is an address"
    raise failure


def _encrypted(sock: Any, host: str) -> Any:
    return trust().wrap_socket(sock, server_hostname=host.removesuffix("."))


@lru_cache(1)
def trust() -> Any:
    """Return the context with the system's authorities, as they were at the first delivery.

    Reading them takes 50 ms and more, in which nobody else is served: once, not per delivery.
    """
    context = gevent.ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _authorization(target: Target) -> dict[str, str]:
    """Return the header that stands for ``user:password@`` in the URL."""
    if not target.user:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    name, _, password = target.user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}".encode()
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}
