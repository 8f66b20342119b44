"""HTTP requests read off the table of routes, with odd methods, paths, heads and bodies.

They go to a broker in a process of its own, over plain sockets. Whatever is asked, no answer is a
500, none is late, and nothing is a traceback in the log; who asks well is answered.
"""

from __future__ import annotations

import atexit
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from bunqueue.server.app import ROUTES
from tests.fuzz.choices import Choices
from tests.support.broker_process import BrokerProcess

ANSWER_S_MAX: Final = 20.0  # on a machine that is busy
RECV_BYTES: Final = 65_536
PATHS: Final = sorted({row.path for row in ROUTES})
METHODS: Final = (
    b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"get",
    b"", b"G\x00T", b"X" * 300, b"PRI", b"\xff",
)  # fmt: skip
PARTS: Final = (
    b"a", b"", b"..", b"%00", b"%", b"%ff%fe", b"%2e%2e%2f", b"a/b", b"x" * 2_000, b"\xc3\xa9",
    b"*", b"a?b=1&b=2&c", b"?" + b"q=" * 500, b"#f", b";x", b"//", b"http://x/", b"0", b"-1", b" ",
    b"\t",
)  # fmt: skip
VERSIONS: Final = (
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.99", b"HTTP/x", b"", b"http/1.1",
)  # fmt: skip
HEADERS: Final = (
    b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: +5",
    b"Content-Length: 5, 5", b"Content-Length: 99999999999999999999", b"Content-Length: x",
    b"Content-Length: 67108865", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: Chunked ", b"Connection: close",
    b"Connection: keep-alive, x", b"Expect: 100-continue", b"Expect: x", b"Upgrade: websocket",
    b"Connection: Upgrade", b"Host: ", b"Host: a b", b"Host: x" + b"y" * 300,
    b"Authorization: Bearer x",
    b"Authorization: ", b"Authorization: Basic \xff\xfe", b"Origin: http://evil.example",
    b"Origin: null", b"Content-Type: application/json", b"Content-Type: \xff", b"Range: bytes=0-",
    b"X-A: " + b"a" * 9_000, b" folded", b"No-Colon", b": empty", b"A\x00B: c", b"Cookie: =;=,;\"",
    b"Accept: */*;q=x", b"If-None-Match: *", b"X-Forwarded-For: ::1", b"Last-Event-ID: -1",
)  # fmt: skip
BODIES: Final = (
    b"", b"{}", b"[]", b'{"cmd": "Ping"}', b"\xff\xfe", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n",
    b"-5\r\nhello", b"ffffffffffffffff\r\n", b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", b"x" * 70_000,
    b"5\nhello\n0\n\n", b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n",
)  # fmt: skip
STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
REFUSED_WELL: Final = (503,)  # of /ready and /health only

_brokers: list[BrokerProcess] = []


def broker() -> BrokerProcess:
    """Return the broker under test; it is started once, and ends with this process."""
    if not _brokers:
        directory = tempfile.TemporaryDirectory()
        started = BrokerProcess(Path(directory.name), env={"LOG_LEVEL": "error"})
        started.start()
        _brokers.append(started)
        atexit.register(directory.cleanup)
        atexit.register(stop)
    return _brokers[0]


def stop() -> None:
    """End the broker under test."""
    while _brokers:
        _brokers.pop().kill()


def path(choices: Choices) -> bytes:
    """Return the path of a route, with odd values for its variables, or something odd."""
    if choices.chance(6):
        return b"/" + choices.of(PARTS)
    found = choices.of(PATHS).encode()
    for variable in re.findall(rb"<[^>]*>", found):
        found = found.replace(variable, choices.of(PARTS), 1)
    if choices.chance(4):
        found += choices.of((b"?", b"/", b"")) + choices.of(PARTS)
    return found


def request(choices: Choices) -> bytes:
    """Return one request, whole or damaged."""
    method = choices.of(METHODS[:4]) if choices.chance(2) else choices.of(METHODS)
    version = choices.of(VERSIONS) if choices.chance(5) else VERSIONS[0]
    lines = [b" ".join((method, path(choices), version)), b"Host: x"]
    lines += [choices.of(HEADERS) for _ in range(choices.below(4))]
    body = choices.of(BODIES) if choices.chance(2) else b""
    if choices.chance(3):
        lines.append(b"Content-Length: %d" % len(body))
    made = (b"\n" if choices.chance(20) else b"\r\n").join([*lines, b"", b""]) + body
    if choices.chance(10):
        at = choices.below(len(made))
        made = made[:at] + choices.taken(4) + made[at + choices.below(5) :]
    return made


def well_made(choices: Choices) -> bytes:
    """Return a request that must be answered."""
    method = choices.of((b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS"))
    where = re.sub(rb"<[^>]*>", b"a", choices.of(PATHS).encode())
    head = b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % (method, where)
    body = choices.of((b"", b"{}", b"[1]", b"\xff", b"x" * 70_000))
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def http(data: bytes) -> None:
    """Send what the bytes choose, and judge what comes back."""
    choices = Choices(data)
    is_well_made = choices.chance(4)
    if is_well_made:
        sent = well_made(choices)
    else:
        sent = b"".join(request(choices) for _ in range(1 + choices.below(3)))
        if choices.chance(6):
            sent = sent[: choices.below(len(sent))]
    began = time.monotonic()
    said = exchange(sent, is_well_made)
    assert time.monotonic() - began < ANSWER_S_MAX, sent[:200]
    statuses = [int(status) for status in STATUS.findall(said)]
    assert all(status < 500 or status in REFUSED_WELL for status in statuses), (sent[:300], said)
    if is_well_made:
        assert len(statuses) == 1, (sent[:300], said[:300])
        assert said.startswith(b"HTTP/1.1 "), said[:100]
    assert broker().process is not None
    assert broker().process.poll() is None, "the broker has ended"  # type: ignore[union-attr]
    assert "Traceback" not in broker().log, broker().log[-3_000:]


def exchange(sent: bytes, is_left_open: bool) -> bytes:
    """Return everything that comes back. Waits."""
    said = b""
    with socket.create_connection((broker().host, broker().http_port), ANSWER_S_MAX) as sock:
        try:
            sock.sendall(sent)
            if not is_left_open:
                sock.shutdown(socket.SHUT_WR)
            while more := sock.recv(RECV_BYTES):
                said += more
        except TimeoutError:
            raise
        except OSError:  # reset, maybe before all was sent
            assert not is_left_open, "a good request was cut off"
    return said
