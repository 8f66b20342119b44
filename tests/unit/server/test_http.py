"""HTTP: the routes of health, and the guards around every request."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event as Flag
from gevent.socket import create_connection
from gevent.socket import socket as HubSocket

from bunqueue.broker import LocalPeer
from bunqueue.commands import dispatch
from bunqueue.compiled import CORE
from bunqueue.config import Settings
from bunqueue.errors import ConfigError
from bunqueue.server import http
from bunqueue.server.app import App
from bunqueue.server.http import HttpServer
from bunqueue.server.routes import ROUTES
from tests.support.logs import said
from tests.support.wire import make_broker

WAIT_S_MAX = 5.0


class Site:
    """A broker with an HTTP port."""

    def __init__(self, tokens: tuple[str, ...] = (), **settings: Any) -> None:
        self.broker = make_broker(tokens=tokens)
        self.is_draining = False
        given = Settings(host="127.0.0.1", http_port=0, **settings)
        self.server = HttpServer(App(self, given.cors_origins), given)
        self.server.start()
        self.sockets: list[Any] = []

    def connections(self) -> dict[str, int]:
        return {"tcp": 3, "ws": 0, "sse": 0}

    def open(self) -> Any:
        sock = create_connection(self.server.address)
        self.sockets.append(sock)
        return sock

    def say(self, raw: bytes) -> bytes:
        """Send raw bytes and return everything until the server closes."""
        sock = self.open()
        sock.sendall(raw)
        return read_all(sock)

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        raw = self.say(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n".encode()
        )
        top, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.server.stop(timeout=0)


def read_all(sock: Any) -> bytes:
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


@pytest.fixture
def site() -> Iterator[Site]:
    with gevent.Timeout(WAIT_S_MAX):
        made = Site()
        yield made
        made.close()


# -- health ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/live", "/healthz"])
def test_alive_is_a_word(site: Site, path: str) -> None:
    status, headers, body = site.ask("GET", path)

    assert (200, b"OK") == (status, body)
    assert "text/plain" == headers["Content-Type"].partition(";")[0]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_health_answers_any_method_with_figures(site: Site, method: str) -> None:
    status, _, body = site.ask(method, "/health")
    reply = json.loads(body)

    assert 200 == status
    assert (True, "healthy", "0.1.0") == (reply["ok"], reply["status"], reply["version"])
    assert (CORE, None) == (reply["core"], reply["writer"])
    assert {"waiting", "active", "delayed", "completed", "dlq"} == set(reply["queues"])
    assert {"tcp": 3, "ws": 0, "sse": 0} == reply["connections"]
    assert {"heapUsed", "heapTotal", "rss"} == set(reply["memory"])
    assert "storage" not in reply


def test_ready_until_a_stop_begins(site: Site) -> None:
    assert {"ok": True, "ready": True} == json.loads(site.ask("GET", "/ready")[2])

    site.is_draining = True
    status, _, body = site.ask("GET", "/ready")

    assert 503 == status
    assert json.loads(body)["ready"] is False
    assert 200 == site.ask("GET", "/live")[0]


def test_a_storage_in_trouble_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = {"diskFull": True, "error": "no space", "since": 1}
    monkeypatch.setattr(site.broker.storage, "status", lambda: trouble)

    status, _, body = site.ask("GET", "/health")
    assert (503, "degraded", trouble) == (
        status,
        json.loads(body)["status"],
        json.loads(body)["storage"],
    )
    status, _, body = site.ask("GET", "/ready")
    assert (503, trouble) == (status, json.loads(body)["storage"])
    assert 200 == site.ask("GET", "/live")[0]


# -- rules for all routes --------------------------------------------------------------------------


def test_a_job_is_explained(site: Site) -> None:
    dispatch(LocalPeer(site.broker), {"cmd": "PUSH", "queue": "q", "jobId": "a/b", "delay": 60_000})

    status, _, body = site.ask("GET", "/jobs/a/b/explain")

    assert (200, "delayed") == (status, json.loads(body)["explanation"]["state"])
    assert 404 == site.ask("GET", "/jobs/nobody/explain")[0]


def test_an_unknown_path_is_not_found(site: Site) -> None:
    status, _, body = site.ask("GET", "/nothing")

    assert (404, {"ok": False, "error": "Not found"}) == (status, json.loads(body))


def test_a_token_is_asked_for_but_not_by_health() -> None:
    with gevent.Timeout(WAIT_S_MAX):
        site = Site(tokens=("secret",))
        for row in ROUTES:
            assert row.is_open is (site.ask("GET", row.path)[0] != 401)
        status, _, body = site.ask("GET", "/nothing")
        assert (401, {"ok": False, "error": "Unauthorized"}) == (status, json.loads(body))
        for bad in ("secret", "bearer secret", "Bearer wrong", "Bearer", "Basic secret"):
            assert 401 == site.ask("GET", "/nothing", Authorization=bad)[0]
        assert 404 == site.ask("GET", "/nothing", Authorization="Bearer secret")[0]
        site.close()


def test_options_tell_what_browsers_may_send(site: Site) -> None:
    status, headers, body = site.ask("OPTIONS", "/anything")

    assert (204, b"") == (status, body)
    assert "GET, POST, PUT, DELETE, OPTIONS" == headers["Access-Control-Allow-Methods"]
    assert "Content-Type, Authorization" == headers["Access-Control-Allow-Headers"]
    assert "86400" == headers["Access-Control-Max-Age"]
    assert "Access-Control-Allow-Origin" not in headers


def test_no_origin_is_allowed_unless_it_is_configured(site: Site) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        _, headers, _ = site.ask(method, "/live", Origin="https://a.example")
        assert "Access-Control-Allow-Origin" not in headers


def test_the_origin_that_matches_is_echoed() -> None:
    with gevent.Timeout(WAIT_S_MAX):
        site = Site(cors_origins=("https://a.example", "https://b.example"))
        _, good, _ = site.ask("GET", "/live", Origin="https://b.example")
        _, bad, _ = site.ask("GET", "/live", Origin="https://c.example")
        site.close()

    assert "https://b.example" == good["Access-Control-Allow-Origin"]
    assert "Access-Control-Allow-Origin" not in bad
    assert "Origin" == good["Vary"] == bad["Vary"]


def test_every_route_says_what_it_does() -> None:
    assert all(row.run.__doc__ for row in ROUTES)


# -- guards ----------------------------------------------------------------------------------------

LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n"


def test_keep_alive_answers_several_requests_on_one_link(site: Site) -> None:
    raw = site.say(LIVE + b"\r\n" + LIVE + b"Connection: close\r\n\r\n")

    assert 2 == raw.count(b"200 OK")


def test_answers_leave_without_delay(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[int] = []
    real = http.prepare

    def look(sock: Any) -> bool:
        is_there = real(sock)
        accepted.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return is_there

    monkeypatch.setattr(http, "prepare", look)
    site.ask("GET", "/live")

    assert [1] == [min(1, flag) for flag in accepted]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (LIVE + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (LIVE + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (LIVE + b"Content-Length: +3\r\n\r\nabc", b"400"),
        (LIVE + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"400"),
        (LIVE + b"Content-Length: 67108865\r\n\r\n", b"413"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x00\x00\x00\x05hello\r\n\r\n", b"400"),
        (LIVE + b"X: y\r\n" * 200 + b"\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
)
def test_a_bad_head_is_refused_and_ends_the_link(
    site: Site, raw: bytes, status: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = site.say(raw)

    assert b"HTTP/1.1 " + status == answer[: 9 + len(status)]
    assert ("", "") == capfd.readouterr()


POST = b"POST /health HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length:\r\n 5\r\n\r\nhello",
        b"X: a\r\n\tb\r\n\r\n",
        b" X: a\r\n\r\n",
        b"Content-Length : 5\r\n\r\nhello",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"X: y\0\r\n\r\n",
        b"Content-Length: \x0b5\r\n\r\nhello",
        b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5, 5\r\n\r\nhello",
        b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
        b"Content-Length: -5\r\n\r\nhello",
        b"Content-Length: 0x5\r\n\r\nhello",
        b"Content-Length: 1_0\r\n\r\nhellohello",
        b"Content-Length: \xb2\r\n\r\nhe",
        b"Content-Length: \r\n\r\n",
        b"nonsense\r\n\r\n",
        b": nameless\r\n\r\n",
        b"Host: y\r\n\r\n",
        b"X: y\nContent-Length: 5\r\n\r\nhello",
        b"X: y\r\n\n",
        b"X: y\n\n",
    ],
)
def test_what_others_may_read_differently_is_refused_and_nothing_behind_it_is_answered(
    site: Site, lines: bytes
) -> None:
    answer = site.say(POST + lines + SMUGGLED)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    "line",
    [
        b"GET /live HTTP/1.1\n",
        b"GET\x0b/live\x0bHTTP/1.1\r\n",
        b"GET\t/live\tHTTP/1.1\r\n",
        b"GET  /live HTTP/1.1\r\n",
        b"GET /live\xa0HTTP/1.1\r\n",
        b" GET /live HTTP/1.1\r\n",
        b"GET /live HTTP/1.1 \r\n",
        b"GET /live HTTP/1.1\r\r\n",
        b"G\0T /live HTTP/1.1\r\n",
        b"G(T /live HTTP/1.1\r\n",
        b"GET /li\0ve HTTP/1.1\r\n",
        b"GET /live HTTP/1.2\r\n",
        b"GET /live HTTP/2.0\r\n",
        b"GET /live http/1.1\r\n",
        b"GET /live\r\n",
    ],
)
def test_a_request_line_that_others_may_read_differently_is_refused(
    site: Site, line: bytes
) -> None:
    answer = site.say(line + b"Host: x\r\n\r\n" + SMUGGLED)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


def test_chunks_of_a_version_that_has_none_are_refused(site: Site) -> None:
    old = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n"
    answer = site.say(old + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


def test_garbage_behind_a_request_is_refused_after_its_answer(site: Site) -> None:
    answer = site.say(LIVE + b"\r\n" + b"\x00\x01\x02\r\n\r\n" + SMUGGLED)

    assert 2 == answer.count(b"HTTP/1.1 ")
    assert 1 == answer.count(b"HTTP/1.1 200 OK")


def test_a_request_in_a_body_is_none(site: Site) -> None:
    head = f"Connection: close\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n".encode()

    assert 1 == site.say(POST + head + SMUGGLED).count(b"HTTP/1.1 ")


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def echo() -> Iterator[Site]:
    """A site that answers a body with itself, as a route that reads one does."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        try:
            body = environ["wsgi.input"].read()
        except OSError as error:
            start_response("400 Bad Request", [])
            return [str(error).encode()]
        start_response("200 OK", [])
        return [b"body=" + body]

    with gevent.Timeout(WAIT_S_MAX):
        made = Site()
        made.server.application = app
        yield made
        made.close()


def test_chunks_are_put_together(echo: Site) -> None:
    head = CHUNKED.replace(b"Host: x", b"Host: x\r\nConnection: close")
    answer = echo.say(head + b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"body=hello!")


def test_a_link_goes_on_after_a_body_in_chunks(echo: Site) -> None:
    last = POST + b"Connection: close\r\nContent-Length: 1\r\n\r\n?"
    answer = echo.say(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + last)

    assert 2 == answer.count(b"HTTP/1.1 200 OK")
    assert b"body=hello" in answer
    assert answer.endswith(b"body=?")


@pytest.mark.parametrize(
    "chunks",
    [
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"1_0\r\nhellohellohello!\r\n0\r\n\r\n",
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b";a\r\nhello\r\n0\r\n\r\n",
        b"f" * 40 + b"\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
        b"ffffffff\r\nhello\r\n",
    ],
)
def test_chunks_of_a_wrong_size_are_refused_and_nothing_behind_them_is_answered(
    echo: Site, chunks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BODY_S_MAX", 0.5)  # one waits for the rest of its chunk

    answer = echo.say(CHUNKED + chunks + SMUGGLED)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") <= 1


def test_a_body_in_chunks_is_bounded(echo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 100)

    answer = echo.say(CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n1\r\nx\r\n0\r\n\r\n" + SMUGGLED)

    assert b"body too large" in answer
    assert 1 == answer.count(b"HTTP/1.1 ")


def test_a_head_that_never_ends_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S_MAX", 0.02)

    assert b"HTTP/1.1 408" == site.say(LIVE + b"X-Slow: ")[:12]


def test_a_silent_link_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.02)

    assert b"" == site.say(b"")


@pytest.mark.parametrize("half", [b"", b"GET /li", LIVE + b"X-Slow: "])
def test_half_a_request_makes_room_for_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http, "ROOM_S", 0.01)
    with gevent.Timeout(WAIT_S_MAX):
        site = Site()
        slow = []
        for _ in range(10):  # more than there is room for
            sock = site.open()
            sock.sendall(half)
            slow.append(sock)

        assert 200 == site.ask("GET", "/live")[0]
        assert b"" == read_all(slow[0])  # the longest wait ends first
        assert site.server.connections() <= 3
        site.close()


def test_who_is_being_answered_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http, "ROOM_S", 0.01)
    with gevent.Timeout(WAIT_S_MAX):
        site = Site()
        gate = Flag()
        inside = Flag()

        def wait_for_gate() -> dict[str, int]:
            inside.set()
            gate.wait()
            return {}

        monkeypatch.setattr(site, "connections", wait_for_gate)
        busy = gevent.spawn(site.ask, "GET", "/health")
        inside.wait()
        idle = [site.open() for _ in range(4)]

        assert 200 == site.ask("GET", "/live")[0]
        gate.set()
        assert 200 == busy.get()[0]
        assert b"" == read_all(idle[0])
        site.close()


def test_an_answer_that_nobody_takes_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SEND_S_MAX", 0.02)
    sock = site.open()
    sock.sendall((LIVE + b"\r\n") * 20_000)  # in answers: more than the buffers take

    while site.server.connections():
        gevent.sleep(0.005)


def test_a_short_body_nobody_reads_keeps_the_link(site: Site) -> None:
    raw = site.say(LIVE + b"Content-Length: 3\r\n\r\nabc" + LIVE + b"Connection: close\r\n\r\n")

    assert 2 == raw.count(b"200 OK")


def test_a_short_body_in_chunks_nobody_reads_keeps_the_link(site: Site) -> None:
    first = LIVE + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    raw = site.say(first + LIVE + b"Connection: close\r\n\r\n")

    assert 2 == raw.count(b"200 OK")


@pytest.mark.parametrize("chunks", [b"", b"5\r\nhel", b"zz\r\n", b"fffff\r\n" + bytes(99_999)])
def test_a_body_in_chunks_that_is_long_or_bad_ends_the_link(
    site: Site, chunks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DISCARD_S_MAX", 0.02)
    raw = site.say(LIVE + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)

    assert 1 == raw.count(b"HTTP/1.1 ")


def test_a_long_body_nobody_reads_ends_the_link(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DISCARD_S_MAX", 0.02)
    raw = site.say(LIVE + b"Content-Length: 60000000\r\n\r\nabc")

    assert 1 == raw.count(b"200 OK")


def test_a_long_body_nobody_reads_does_not_reset_the_answer(site: Site) -> None:
    sock = site.open()
    sock.sendall(LIVE + b"Content-Length: 5000000\r\n\r\n" + bytes(5_000_000))
    raw = b""
    while more := sock.recv(65_536):
        raw += more

    assert 1 == raw.count(b"200 OK")


def test_a_failure_inside_is_one_line_and_an_internal_error(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site.broker.storage, "status", lambda: 1 / 0)

    status, _, body = site.ask("GET", "/health")

    assert (500, "Internal server error") == (status, json.loads(body)["error"])
    assert ["request failed path=/health"] == said(caplog, "bunqueue.server")


# -- the Unix socket -------------------------------------------------------------------------------


def test_a_unix_socket_serves_instead_of_the_port(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with gevent.Timeout(WAIT_S_MAX):
        site = Site(http_socket_path=str(path))
        with HubSocket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(LIVE + b"Connection: close\r\n\r\n")
            assert read_all(sock).endswith(b"OK")
        site.close()
    assert not path.exists()


def test_a_socket_left_by_a_dead_process_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with HubSocket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with gevent.Timeout(WAIT_S_MAX):
        site = Site(http_socket_path=str(path))
        with pytest.raises(ConfigError, match="in use"):
            Site(http_socket_path=str(path))
        site.close()


def test_a_file_is_never_replaced_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")

    with pytest.raises(ConfigError, match="no socket"):
        Site(http_socket_path=str(path))
    assert "data" == path.read_text()
