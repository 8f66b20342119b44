"""Reports of other queues about what comes over the network: A19, A21, A23 and A24 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import struct
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trustme

from bunqueue import Connection
from bunqueue.client import endpoint
from bunqueue.errors import BunqueueError, CommandError, ConnectionClosedError
from bunqueue.server.routes import ROUTES
from tests.support.broker_process import BrokerProcess
from tests.support.wire import Reader, frame_of

pytestmark = pytest.mark.slow

WAIT_S = 20.0
FRAME_BYTES_MAX = 64 << 20
DATA_CHARS_MAX = 10 << 20  # of the JSON text


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    with BrokerProcess(directory, data_path=directory / "q.db") as broker:
        yield broker


class Raw:
    """A link that sends what no client would."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.sock = socket.create_connection((broker.host, broker.port), WAIT_S)
        self.reader = Reader(self.sock)
        self.call({"cmd": "Hello", "protocolVersion": 3, "capabilities": ["int64"]})

    def call(self, request: dict[str, Any]) -> Any:
        return self.send(msgpack.packb(request))

    def send(self, body: bytes) -> Any:
        self.sock.sendall(frame_of(body))
        return self.reader.value()

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[Raw]:
    link = Raw(broker)
    yield link
    link.close()


# -- A19: odd and huge values ----------------------------------------------------------------------

INTEGERS = (2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0, -1)
FLOATS = (0.1, -0.0, 1e308, 5e-324)
TEXTS = ("", "\U0001f600", "\u0000", "x" * 70_000)
VALUES = (*INTEGERS, *FLOATS, *TEXTS, b"\x00\xff", {"": 1}, [], {}, None, True)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a19_a_value_comes_back_as_it_was_on_every_way(value: object, raw: Raw) -> None:
    """As data, alone and in bulk, as a result, and beside others as progress and log."""
    push = {"cmd": "PUSH", "queue": "odd", "name": "n", "data": {"value": value}}
    first = raw.call(push)["id"]
    (second,) = raw.call({"cmd": "PUSHB", "queue": "odd", "jobs": [{"data": value}]})["ids"]
    for job_id, expected in ((first, {"value": value}), (second, value)):
        pulled = raw.call({"cmd": "PULL", "queue": "odd"})["job"]
        assert job_id == pulled["id"]
        assert repr(expected) == repr(pulled["data"])
        assert raw.call({"cmd": "ACK", "id": job_id, "result": value})["ok"]
        assert repr(value) == repr(raw.call({"cmd": "GetResult", "id": job_id})["result"])


@pytest.mark.parametrize(
    "packed",
    [
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
        b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinity
        b"\xcb\xff\xf0\x00\x00\x00\x00\x00\x00",
        b"\xa3\xed\xa0\x80",  # half of a pair of surrogates
        b"\x91" * 100 + b"\xc0",
        b"\x91" * 1_000 + b"\xc0",
        b"\x91" * 100_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",  # four billion members, none of which comes
        b"\xc9\x00\x00\x00\x02\x05ab",  # an extension nobody knows
        b"\xc1",
    ],
    ids=["nan", "inf", "-inf", "surrogate", "100", "1000", "100000", "endless", "ext", "never"],
)
def test_a19_what_has_no_form_is_an_answer_and_harms_nobody(
    packed: bytes, raw: Raw, broker: BrokerProcess
) -> None:
    """As data and as a result: an answer on the same link, and HTTP stays JSON."""
    fields = {"cmd": "PUSH", "queue": "hard", "name": "n", "jobId": "hard"}
    body = b"\x85" + b"".join(msgpack.packb(part) for pair in fields.items() for part in pair)
    told = raw.send(body + b"\xa4data" + packed)
    assert told["ok"] or told["error"]
    assert raw.call({"cmd": "Ping"})["ok"]
    if told["ok"]:
        assert raw.call({"cmd": "GetJob", "id": "hard"})["ok"]
        url = f"http://{broker.host}:{broker.http_port}/jobs/hard/explain"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            json.loads(answer.read(), parse_constant=lambda name: pytest.fail(name))
        raw.call({"cmd": "Cancel", "id": "hard"})


def test_a19_the_limits_of_data_and_frames_are_exact_and_named(
    raw: Raw, broker: BrokerProcess
) -> None:
    quotes = 2
    push = {"cmd": "PUSH", "queue": "big", "name": "n"}
    fits = raw.call(push | {"data": "x" * (DATA_CHARS_MAX - quotes)})
    assert fits["ok"], fits
    refused = raw.call(push | {"data": "x" * (DATA_CHARS_MAX - quotes + 1)})
    assert (False, "Job data too large (max 10MB)") == (refused["ok"], refused["error"])

    raw.sock.sendall(struct.pack(">I", FRAME_BYTES_MAX + 1))
    assert not (too_long := raw.reader.value())["ok"]
    assert "too large" in too_long["error"].lower()
    assert raw.reader.is_at_end()
    with Connection(broker.host, broker.port) as neighbour:
        assert neighbour.call({"cmd": "Ping"})["ok"]


# -- A21: what a browser could be made to do -------------------------------------------------------

MARKUP = "<script>alert(1)</script>\"'&"


def test_a21_no_page_and_no_route_that_changes_anything(broker: BrokerProcess) -> None:
    """There is no dashboard here. What there is answers GET, with JSON or plain text."""
    assert all(route.methods in (None, ("GET",)) for route in ROUTES)
    with Connection(broker.host, broker.port) as connection:
        push = {
            "cmd": "PUSH",
            "queue": MARKUP[:30],
            "name": MARKUP,
            "jobId": MARKUP,
            "data": MARKUP,
        }
        try:
            connection.call(push)
        except CommandError:  # such a queue name is refused
            connection.call(push | {"queue": "markup"})
    quoted = "/jobs/%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27%26/explain"
    for path in ("/", "/health", "/ready", "/live", "/queues", quoted, "/" + "%3Cb%3E"):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
            link = http.client.HTTPConnection(broker.host, broker.http_port, timeout=WAIT_S)
            head = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
            link.request(method, path, body=b"{}", headers=head)
            answer = link.getresponse()
            text = answer.read().decode()
            assert answer.status < 500
            kind = answer.getheader("Content-Type", "")
            assert kind.startswith(("application/json", "text/plain")) or not text, (path, kind)
            assert None is answer.getheader("Access-Control-Allow-Origin")
            link.close()


# -- A23: TLS that is silently weak ----------------------------------------------------------------


def chain_of(certificate: trustme.LeafCert) -> bytes:
    return b"".join(part.bytes() for part in certificate.cert_chain_pems)


def test_a23_every_weakness_of_a_certificate_fails_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the wrong authority, for another host, too old; in plain text, and the reverse."""
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ours.pem"))
    others.cert_pem.write_to_path(str(tmp_path / "others.pem"))
    long_ago = datetime.now(UTC) - timedelta(days=1)
    certificates = {
        "good": ours.issue_cert("127.0.0.1"),
        "host": ours.issue_cert("elsewhere.example"),
        "expired": ours.issue_cert("127.0.0.1", not_after=long_ago),
    }
    right, wrong = (
        {"ca_file": str(tmp_path / "ours.pem")},
        {"ca_file": str(tmp_path / "others.pem")},
    )
    expected = [
        ("good", wrong, "self.signed certificate|unable to get local issuer|verify failed"),
        ("good", True, "self.signed certificate|unable to get local issuer|verify failed"),
        ("host", right, "IP address mismatch|Hostname mismatch"),
        ("expired", right, "expired"),
        ("good", {"ca_file": "None"}, "No such file"),
        ("good", None, "."),
    ]
    (tmp_path / "key.pem").touch()
    (tmp_path / "chain.pem").touch()
    env = {
        "TLS_CERT_FILE": str(tmp_path / "chain.pem"),
        "TLS_KEY_FILE": str(tmp_path / "key.pem"),
    }
    broker = BrokerProcess(tmp_path, env=env)
    for name, certificate in certificates.items():
        (tmp_path / "chain.pem").write_bytes(chain_of(certificate))
        (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
        with broker:
            for _, tls, why in [row for row in expected if row[0] == name]:
                connection = Connection(
                    broker.host, broker.port, tls=tls, connect_timeout=2, command_timeout=2
                )
                with connection, pytest.raises(BunqueueError, match=f"(?i){why}"):
                    connection.call({"cmd": "Ping"})
            if name == "good":
                with Connection(broker.host, broker.port, tls=right) as connection:
                    assert connection.call({"cmd": "Ping"})["ok"]
            else:  # weakening takes an explicit word, which is logged
                endpoint._tell_unverified.cache_clear()
                with (
                    caplog.at_level(logging.WARNING),
                    Connection(broker.host, broker.port, tls={"verify": False}) as connection,
                ):
                    assert connection.call({"cmd": "Ping"})["ok"]
                assert "certificate is not checked" in caplog.text
                caplog.clear()


def test_a23_a_tls_client_does_not_fall_back_to_plain_text(broker: BrokerProcess) -> None:
    with (
        Connection(broker.host, broker.port, tls=True, connect_timeout=5) as connection,
        pytest.raises(ConnectionClosedError, match="TLS handshake failed"),
    ):
        connection.call({"cmd": "Ping"})


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        ({"ca_fil": "x"}, "unknown tls option: ca_fil"),
        ({"verify": "false"}, "verify must be True or False, not 'false'"),
        ({"verify": 0}, "verify must be True or False, not 0"),
        ({"key_file": "key.pem"}, "key_file is given without cert_file"),
    ],
)
def test_a23_an_option_that_means_nothing_is_refused(tls: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Connection("127.0.0.1", 1, tls=tls)


# -- A24: webhooks into the own network ------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://2130706433/", "http://0x7f.1/", "http://017700000001/",
        "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "http://localhost/",
        "http://localhost./", "http://user:secret@127.0.0.1/", "http://example.com@127.0.0.1/",
        "ftp://example.com/", "file:///etc/passwd", "gopher://127.0.0.1/", "http://0/",
        "http://metadata.google.internal/", "http://127.0.0.1.:80/",
    ],
)  # fmt: skip
def test_a24_an_address_of_the_own_network_is_refused_when_it_is_added(url: str, raw: Raw) -> None:
    told = raw.call({"cmd": "AddWebhook", "url": url, "events": ["job.pushed"]})

    assert not told["ok"]
    assert "secret" not in told["error"]
    assert [] == raw.call({"cmd": "ListWebhooks"})["data"]["webhooks"]
