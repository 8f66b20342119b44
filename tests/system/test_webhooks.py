"""Webhooks of a real broker, posted to a real receiver."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.cli import bunqueue
from tests.support.wire import Reader

pytestmark = pytest.mark.slow

WAIT_S_MAX = 10.0
EVENTS = ["job.pushed", "job.started", "job.progress", "job.failed", "job.completed"]


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets, and answers with ``status``."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_address[1]}/hook"

    def await_events(self, count: int) -> list[Any]:
        """Waits for so many requests in all; returns their bodies."""
        end = time.monotonic() + WAIT_S_MAX
        while len(self.got) < count:
            assert time.monotonic() < end, f"only {len(self.got)} requests came"
            time.sleep(0.01)
        return [json.loads(body) for _, body in self.got]

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:  # noqa: N802  # the name that the library calls
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.end()


@pytest.fixture
def allowing(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on a file whose webhooks may go to this machine's loopback address."""
    env = {"WEBHOOK_ALLOWED_TARGETS": "127.0.0.1", "WEBHOOK_RETRY_DELAY_MS": "20"}
    with BrokerProcess(tmp_path, data_path=tmp_path / "broker.db", env=env) as process:
        yield process


class Client:
    """A connection to a broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), WAIT_S_MAX)
        self._reader = Reader(self._socket)

    def ok(self, cmd: str, **fields: Any) -> Any:
        reply = self._reader.call({"cmd": cmd, **fields})
        assert reply["ok"], reply
        return reply

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


def live(client: Client) -> str:
    """Take a job through all that webhooks tell of."""
    job_id: str = client.ok("PUSH", queue="q", name="n", data={"n": 1}, backoff=1)["id"]
    client.ok("PULL", queue="q", timeout=5_000)
    client.ok("FAIL", id=job_id, error="boom")
    client.ok("PULL", queue="q", timeout=5_000)
    client.ok("Progress", id=job_id, progress=50)
    client.ok("ACK", id=job_id, result="done")
    return job_id


def test_a_jobs_life_is_posted_in_order_and_signed(
    allowing: BrokerProcess, receiver: Receiver
) -> None:
    with Client(allowing) as client:
        client.ok("AddWebhook", url=receiver.url(), events=EVENTS, secret="s3")
        job_id = live(client)
        told = receiver.await_events(6)

    assert [
        "job.pushed", "job.started", "job.failed", "job.started", "job.progress", "job.completed",
    ] == [each["event"] for each in told]  # fmt: skip
    assert {job_id} == {each["jobId"] for each in told}
    assert ("boom", "done") == (told[2]["error"], told[5]["data"])
    for headers, body in receiver.got:
        expected = hmac.new(b"s3", body, hashlib.sha256).hexdigest()
        assert expected == headers["X-Webhook-Signature"]


def test_a_webhook_survives_a_kill(allowing: BrokerProcess, receiver: Receiver) -> None:
    with Client(allowing) as client:
        client.ok("AddWebhook", url=receiver.url(), events=["job.pushed"])
    allowing.restart()
    with Client(allowing) as client:
        client.ok("PUSH", queue="q", name="n")
        assert ["job.pushed"] == [each["event"] for each in receiver.await_events(1)]


def test_a_failing_receiver_is_tried_and_counted(
    allowing: BrokerProcess, receiver: Receiver
) -> None:
    receiver.status = 503
    with Client(allowing) as client:
        client.ok("AddWebhook", url=receiver.url(), events=["job.pushed"])
        client.ok("PUSH", queue="q", name="n")
        receiver.await_events(3)
        end = time.monotonic() + WAIT_S_MAX
        while not (webhook := client.ok("ListWebhooks")["data"]["webhooks"][0])["failureCount"]:
            assert time.monotonic() < end, "the delivery was not given up"
            time.sleep(0.01)

    assert (0, 1, None) == (
        webhook["successCount"], webhook["failureCount"], webhook["lastTriggered"],
    )  # fmt: skip


def test_trap_13_a_name_of_this_machine_leads_nowhere(
    broker: BrokerProcess, receiver: Receiver
) -> None:
    """Without an allowance not even a name that passes the check by text gets a connection."""
    name = socket.gethostname()
    try:
        found = {row[4][0] for row in socket.getaddrinfo(name, None)}
    except OSError:
        pytest.skip("this machine's own name does not resolve")
    with Client(broker) as client:
        client.ok("AddWebhook", url=receiver.url(name), events=["job.pushed"])
        client.ok("PUSH", queue="q", name="n")
        client.ok("Ping")
        time.sleep(0.3)

    assert [] == receiver.got, f"{name} resolves to {found}"


def test_the_command_line_adds_lists_and_removes(allowing: BrokerProcess) -> None:
    added = bunqueue("webhook", "add", "http://127.0.0.1:9/x", "-e", "job.failed", broker=allowing)
    webhook_id = added.out.removeprefix("Webhook added: ").strip()
    listed = bunqueue("webhook", "list", broker=allowing)
    removed = bunqueue("webhook", "remove", webhook_id, broker=allowing)
    empty = bunqueue("webhook", "list", broker=allowing)

    assert webhook_id in listed.out
    assert "job.failed" in listed.out
    assert ("OK", "No webhooks registered") == (removed.out.strip(), empty.out.strip())


def test_the_command_line_prints_metrics(memory_broker: BrokerProcess) -> None:
    told = bunqueue("metrics", broker=memory_broker)

    assert "bunqueue_jobs_waiting 0.0" in told.out.splitlines()
