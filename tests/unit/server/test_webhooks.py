"""Delivering webhooks to a receiver in this hub, and to nobody else."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import gevent.ssl
import pytest
import trustme
from gevent.event import Event as Flag
from gevent.server import StreamServer

from bunqueue.broker import Event, LocalPeer
from bunqueue.commands import dispatch
from bunqueue.commands.targets import AllowedTargets, read_url
from bunqueue.server import webhooks
from bunqueue.server.webhooks import Deliveries, DeliveryFailed, body_of, post
from tests.support.wire import make_broker

LOOPBACK = AllowedTargets(["127.0.0.1"])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
WAIT_S_MAX = 5.0


class Receiver:
    """An HTTP server that keeps what it gets and answers as the test says.

    Attributes:
        got: (request line, headers, body) of each request.
        answers: Given in order; the last one for good.
    """

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[bytes] = [OK]
        self.gate: Flag | None = None
        self._came = Flag()
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()

    @property
    def port(self) -> int:
        port: int = self._server.server_port
        return port

    def _serve(self, sock: Any, _address: Any) -> None:
        head, _, body = b"", b"", b""
        while b"\r\n\r\n" not in head:
            data = sock.recv(65_536)
            if not data:
                return
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        while len(body) < int(headers["Content-Length"]):
            body += sock.recv(65_536)
        self.got.append((line, headers, body))
        self._came.set()
        if self.gate is not None:
            self.gate.wait()
        sock.sendall(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        sock.close()

    def await_requests(self, count: int) -> None:
        """Waits for so many requests in all."""
        with gevent.Timeout(WAIT_S_MAX):
            while len(self.got) < count:
                self._came.wait()
                self._came.clear()

    def close(self) -> None:
        if self.gate is not None:
            self.gate.set()
        self._server.stop(timeout=0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Talk:
    """A broker whose webhooks are delivered."""

    def __init__(
        self, allowed: AllowedTargets = LOOPBACK, resolve: Any = None, tries_max: int = 3
    ) -> None:
        self.broker = make_broker()
        self.broker.host.targets = allowed  # type: ignore[misc]
        more = {} if resolve is None else {"resolve": resolve}
        self.deliveries = Deliveries(
            self.broker, allowed, tries_max=tries_max, retry_delay_ms=1, **more
        )
        self.peer = LocalPeer(self.broker)

    def go(self, cmd: str, **fields: Any) -> Any:
        return dispatch(self.peer, {"cmd": cmd, **fields})

    def add(self, url: str, *events: str, **fields: Any) -> str:
        reply = self.go("AddWebhook", url=url, events=list(events), **fields)
        assert reply["ok"], reply
        webhook_id: str = reply["data"]["webhookId"]
        return webhook_id

    def push(self, **fields: Any) -> None:
        self.go("PUSH", queue="q", name="n", **fields)

    def counts(self) -> tuple[int, int]:
        webhook = self.go("ListWebhooks")["data"]["webhooks"][0]
        return webhook["successCount"], webhook["failureCount"]

    def settle(self, is_so: Callable[[], bool]) -> None:
        """Waits until something has become so."""
        with gevent.Timeout(WAIT_S_MAX):
            while not is_so():
                gevent.sleep(0.001)


def test_an_event_is_posted_with_its_headers_and_signature(receiver: Receiver) -> None:
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/hook?a=1", "job.pushed", secret="s3")
    talk.push(data={"to": "ü"}, jobId="a")
    receiver.await_requests(1)

    line, headers, body = receiver.got[0]
    told = json.loads(body)
    assert "POST /hook?a=1 HTTP/1.1" == line
    assert {"event": "job.pushed", "jobId": "a", "queue": "q", "data": {"to": "ü"}} == {
        key: told[key] for key in told if key != "timestamp"
    }
    assert hmac.new(b"s3", body, hashlib.sha256).hexdigest() == headers["X-Webhook-Signature"]
    assert "job.pushed" == headers["X-Webhook-Event"]
    assert str(told["timestamp"]) == headers["X-Webhook-Timestamp"]
    assert "application/json" == headers["Content-Type"]
    assert f"127.0.0.1:{receiver.port}" == headers["Host"]
    talk.settle(lambda: talk.counts() == (1, 0))


def test_without_a_secret_there_is_no_signature(receiver: Receiver) -> None:
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    receiver.await_requests(1)

    assert "X-Webhook-Signature" not in receiver.got[0][1]


def test_events_arrive_in_order_although_one_is_tried_again(receiver: Receiver) -> None:
    talk = Talk()
    receiver.answers = [b"HTTP/1.1 500 No\r\n\r\n", OK]
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    for name in ("a", "b", "c"):
        talk.push(jobId=name)
    receiver.await_requests(4)

    assert ["a", "a", "b", "c"] == [json.loads(body)["jobId"] for _, _, body in receiver.got]
    talk.settle(lambda: talk.counts() == (3, 0))


@pytest.mark.parametrize("status", [199, 300, 302, 404, 500])
def test_any_other_answer_is_given_up_after_all_tries(receiver: Receiver, status: int) -> None:
    talk = Talk()
    receiver.answers = [b"HTTP/1.1 %d No\r\nLocation: http://127.0.0.1/\r\n\r\n" % status]
    if status == 199:
        receiver.answers = [b"SSH-2.0-x\r\n"]
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.settle(lambda: talk.counts() == (0, 1))

    assert 3 == len(receiver.got)


def test_a24_what_a_receiver_says_instead_of_http_does_not_fill_the_log(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    receiver.answers = [b"x" * 50_000 + b"\r\n\r\n"]
    talk = Talk(tries_max=1)
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.settle(lambda: talk.counts() == (0, 1))

    (line,) = [line for line in caplog.messages if "try failed" in line]
    assert "BadStatusLine" in line
    assert 400 > len(line)


def test_a24_a_redirect_is_not_followed(receiver: Receiver) -> None:
    other = Receiver()
    receiver.answers = [b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:%d/\r\n\r\n" % other.port]
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.settle(lambda: talk.counts() == (0, 1))

    assert [] == other.got
    other.close()


def test_a24_a_receiver_that_is_silent_is_given_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DELIVERY_S_MAX", 0.5)
    receiver.gate = Flag()
    talk = Talk(tries_max=2)
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.settle(lambda: talk.counts() == (0, 1))

    assert 2 == len(receiver.got)


def test_a_receiver_may_take_all_the_time_of_a_try_for_its_answer(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the connecting alone ended the wait for the answer too, after half the time."""
    monkeypatch.setattr(webhooks, "CONNECT_S_MAX", 0.05)
    receiver.gate = Flag()
    talk = Talk(tries_max=1)
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    receiver.await_requests(1)
    gevent.sleep(0.2)
    receiver.gate.set()
    talk.settle(lambda: talk.counts() != (0, 0))

    assert (1, 0) == talk.counts()


def test_what_does_not_fit_into_the_queue_is_given_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "WAITING_MAX", 2)
    receiver.gate = Flag()
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    for name in ("a", "b", "c"):
        talk.push(jobId=name)
    assert (0, 1) == talk.counts()
    receiver.gate.set()
    talk.settle(lambda: talk.counts() == (2, 1))

    assert ["a", "b"] == [json.loads(body)["jobId"] for _, _, body in receiver.got]


def test_a_slow_webhook_holds_up_no_other(receiver: Receiver) -> None:
    slow = Receiver()
    slow.gate = Flag()
    talk = Talk()
    talk.add(f"http://127.0.0.1:{slow.port}/", "job.pushed")
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    for _ in range(3):
        talk.push()
    receiver.await_requests(3)

    assert 1 == len(slow.got)
    slow.close()


def test_a_webhook_that_is_removed_gets_nothing_that_waits(receiver: Receiver) -> None:
    talk = Talk()
    receiver.gate = Flag()
    webhook_id = talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.push()
    receiver.await_requests(1)
    talk.go("RemoveWebhook", webhookId=webhook_id)
    receiver.gate.set()
    gevent.sleep(0.01)

    assert 1 == len(receiver.got)


def test_a_stop_lets_what_waits_go_out(receiver: Receiver) -> None:
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    talk.push()
    talk.push()
    talk.deliveries.close()

    assert 2 == len(receiver.got)
    talk.push()
    gevent.sleep(0.01)
    assert 2 == len(receiver.got)


# -- the guard -------------------------------------------------------------------------------------

HEADERS: dict[str, str] = {}


def resolving(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda _host, _port: list(addresses)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "::127.0.0.1",
     "2002:7f00:1::", "64:ff9b::7f00:1", "fe80::1%eth0", "fd00::1", "0.0.0.0", "100.64.0.1"],
)  # fmt: skip
def test_a24_a_name_that_resolves_into_the_own_network_is_not_connected_to(
    receiver: Receiver, address: str
) -> None:
    target = read_url(f"http://hook.example.com:{receiver.port}/")
    with pytest.raises(DeliveryFailed, match="not one that webhooks may go to"):
        post(target, HEADERS, b"{}", AllowedTargets(), resolving(address))

    assert [] == receiver.got


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:7f00:1]", "[::1]"]
)
def test_a_spelled_address_is_judged_at_delivery_too(receiver: Receiver, host: str) -> None:
    with pytest.raises(DeliveryFailed):
        post(read_url(f"http://{host}:{receiver.port}/"), HEADERS, b"{}", AllowedTargets())

    assert [] == receiver.got


def test_a24_what_was_judged_is_what_is_connected_to(receiver: Receiver) -> None:
    """A name that resolves to something else the second time is asked once only."""
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    target = read_url(f"http://hook.example.com:{receiver.port}/")
    post(target, HEADERS, b"{}", LOOPBACK, lambda _host, _port: answers.pop(0))

    assert 1 == len(answers)
    assert f"hook.example.com:{receiver.port}" == receiver.got[0][1]["Host"]


def test_a_bad_address_beside_a_good_one_is_left_out(receiver: Receiver) -> None:
    target = read_url(f"http://hook.example.com:{receiver.port}/")
    post(target, HEADERS, b"{}", LOOPBACK, resolving("10.255.255.1", "::1", "127.0.0.1"))

    assert 1 == len(receiver.got)


def test_a_name_that_does_not_resolve_is_a_failed_delivery() -> None:
    def unknown(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    talk = Talk(AllowedTargets(), unknown)
    talk.add("http://hook.example.com/", "job.pushed")
    talk.push()

    talk.settle(lambda: talk.counts() == (0, 1))


def test_a_name_and_password_of_the_url_are_sent(receiver: Receiver) -> None:
    target = read_url(f"http://ann:s%33@127.0.0.1:{receiver.port}/")
    post(target, HEADERS, b"{}", LOOPBACK)

    assert "Basic YW5uOnMz" == receiver.got[0][1]["Authorization"]


def test_over_tls_the_certificate_must_be_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    authority = trustme.CA()
    served = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hook.example.com").configure_cert(served)
    got: list[bytes] = []

    def serve(sock: Any, _address: Any) -> None:
        data = b""
        while not data.endswith(b"{}"):
            data += sock.recv(65_536)
        got.append(data)
        sock.sendall(OK)
        sock.close()

    server = StreamServer(("127.0.0.1", 0), serve, ssl_context=served)
    server.start()

    def trusting() -> Any:
        context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(context)
        made.append(context)
        return context

    monkeypatch.setattr(gevent.ssl, "create_default_context", trusting)
    webhooks.trust.cache_clear()
    here = resolving("127.0.0.1")
    post(read_url(f"https://hook.example.com:{server.server_port}/"), {}, b"{}", LOOPBACK, here)
    with pytest.raises(ssl.SSLError):
        post(read_url(f"https://other.example.com:{server.server_port}/"), {}, b"", LOOPBACK, here)

    assert 1 == len(got)
    assert 1 == len(made)  # reading the authorities stops everybody else
    server.stop(timeout=0)
    webhooks.trust.cache_clear()


def test_a_fault_of_ours_ends_no_webhook_for_good(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    talk = Talk()
    talk.add(f"http://127.0.0.1:{receiver.port}/", "job.pushed")
    with monkeypatch.context() as broken:
        broken.setattr(webhooks, "body_of", lambda _event: 1 / 0)
        talk.push(data=1)
        talk.settle(lambda: not talk.deliveries._senders)
    talk.push(data=2)
    receiver.await_requests(1)

    assert 2 == json.loads(receiver.got[0][2])["data"]
    assert "ZeroDivisionError" in capfd.readouterr().err
    talk.deliveries.close()


# -- the body --------------------------------------------------------------------------------------


def body(kind: str, payload: bytes | None = None, **extra: Any) -> Any:
    return json.loads(body_of(Event(kind, "q", "a", 5, payload, extra)))


def test_a_body_has_only_what_there_is() -> None:
    common = {"timestamp": 5, "jobId": "a", "queue": "q"}

    assert {"event": "job.completed", **common} == body("completed")
    assert {"event": "job.completed", **common, "data": None} == body("completed", b"\xc0")
    assert {"event": "job.failed", **common, "error": "e", "data": 1} == body(
        "failed", b"\x01", error="e", terminal=True
    )
    progress = {"progress": 5, "message": None}
    assert {"event": "job.progress", **common, "progress": 5} == body(
        "progress", progress=5, data=progress
    )


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (b"\xcb\x7f\xf8\0\0\0\0\0\0", None),
        (b"\x91\xcb\x7f\xf0\0\0\0\0\0\0", [None]),
        (b"\xc4\x02\x01\x02", [1, 2]),
        (b"\x81\xa1a\xcf\x00\x20\x00\x00\x00\x00\x00\x01", {"a": 2**53 + 1}),
    ],
)
def test_values_that_json_lacks_are_written_all_the_same(packed: bytes, expected: object) -> None:
    assert expected == body("completed", packed)["data"]
