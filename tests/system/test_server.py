"""A server process as its peers and its operator see it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.broker_process import BrokerProcess, accepts, clean_environment, free_port
from tests.support.wire import Reader, frame, frame_of, ping, push

pytestmark = pytest.mark.slow

WAIT_S_MAX = 10.0


class Peers:
    """Connections to one broker, closed at the end."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._sockets: list[socket.socket] = []

    def open(self) -> Reader:
        sock = socket.create_connection((self.broker.host, self.broker.port), WAIT_S_MAX)
        self._sockets.append(sock)
        return Reader(sock)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def peers(memory_broker: BrokerProcess) -> Iterator[Peers]:
    made = Peers(memory_broker)
    yield made
    made.close()


def until(is_so: Callable[[], object]) -> None:
    """Waits until something has become so."""
    end = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.01)


def get(broker: BrokerProcess, path: str) -> tuple[int, bytes]:
    url = f"http://{broker.host}:{broker.http_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S_MAX) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def poll(req_id: object, timeout: int = 30_000, **fields: Any) -> bytes:
    request = {"cmd": "PULL", "queue": "emails", "timeout": timeout, "reqId": req_id}
    return frame(request | fields)


# -- the wire --------------------------------------------------------------------------------------

NO_MESSAGE = {"ok": False, "error": "Invalid command format"}
NO_COMMAND = {"ok": False, "error": "Invalid command"}


def test_garbage_is_answered_row_by_row_and_nobody_else_notices(peers: Peers) -> None:
    """Every row of wire.md 1.2 that leaves the connection open, on one connection."""
    bad, good = peers.open(), peers.open()
    rows: list[tuple[bytes, dict[str, Any]]] = [
        (frame_of(b""), NO_MESSAGE),
        (frame_of(b"\xc1"), NO_MESSAGE),
        (frame_of(b"\x82\xa3cmd\xa4Ping"), NO_MESSAGE),
        (frame_of(b"\xc0\xc0"), NO_MESSAGE),
        (frame_of(b'{"cmd":"Ping"}'), NO_MESSAGE),
        (frame_of(b"\xc0"), NO_MESSAGE),
        (frame_of(b"\xc2"), NO_MESSAGE),
        (frame_of(b"\xd4\x05\x00"), NO_MESSAGE),
        (frame([1]), NO_COMMAND),
        (frame("Ping"), NO_COMMAND),
        (frame(5), NO_COMMAND),
        (frame(True), NO_COMMAND),
        (frame({"reqId": "a"}), NO_COMMAND | {"reqId": "a"}),
        (frame({"cmd": "", "reqId": 1}), NO_COMMAND),
        (frame({"cmd": 7, "reqId": "a"}), NO_COMMAND | {"reqId": "a"}),
        (
            frame({"cmd": "Bye", "reqId": 1}),
            {"ok": False, "error": "Unknown command: Bye", "reqId": 1},
        ),
    ]
    for sent, expected in rows:
        bad.sock.sendall(sent)
        assert expected == bad.value()
        assert good.call({"cmd": "Ping"})["ok"]
    assert bad.call({"cmd": "Ping"})["ok"]


@pytest.mark.parametrize("sent", [b"\x04\x00\x00\x01", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_too_long_a_frame_is_answered_and_closed(peers: Peers, sent: bytes) -> None:
    bad, good = peers.open(), peers.open()
    size = struct.unpack(">I", sent[:4])[0]

    bad.sock.sendall(sent)

    text = f"Frame too large: {size} bytes exceeds maximum 67108864"
    assert {"ok": False, "error": text} == bad.value()
    assert bad.is_at_end()
    assert good.call({"cmd": "Ping"})["ok"]


def test_a_frame_of_the_largest_size_is_read(peers: Peers) -> None:
    body = b"\x82\xa3cmd\xa4Ping\xa1x\xc6" + struct.pack(">I", 67_108_864 - 17)
    body += bytes(67_108_864 - len(body))
    peer = peers.open()

    peer.sock.sendall(frame_of(body))

    assert peer.value()["ok"]


def test_pipelined_commands_take_effect_in_order(peers: Peers) -> None:
    peer = peers.open()
    count = {"cmd": "Count", "queue": "emails", "reqId": "n"}

    peer.sock.sendall(push(reqId=1) + push(reqId=2) + frame(count) + push(reqId=3) + frame(count))

    answers = [peer.value() for _ in range(5)]
    assert [2, 3] == [answer["count"] for answer in answers if answer["reqId"] == "n"]


def test_a_ping_overtakes_a_parked_pull(peers: Peers) -> None:
    peer = peers.open()
    peer.sock.sendall(poll("poll") + ping("ping"))
    assert "ping" == peer.value()["reqId"]

    peers.open().call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})

    assert "poll" == peer.value()["reqId"]


def test_a_poll_ends_empty_when_its_time_is_up(peers: Peers) -> None:
    began = time.monotonic()
    reply = peers.open().call({"cmd": "PULL", "queue": "emails", "timeout": 200})

    assert {"ok": True, "job": None} == reply
    assert 0.15 < time.monotonic() - began < 2


def test_the_51st_command_waits_for_one_to_end(peers: Peers) -> None:
    peer, other = peers.open(), peers.open()
    peer.sock.sendall(b"".join(poll(number) for number in range(50)) + ping("51st"))
    peer.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        peer.value()
    peer.sock.settimeout(WAIT_S_MAX)

    other.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})

    assert {0, "51st"} == {peer.value()["reqId"], peer.value()["reqId"]}


def test_a_closed_peer_gives_its_job_to_the_next(peers: Peers) -> None:
    leaves, stays = peers.open(), peers.open()
    job = leaves.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})["id"]
    leaves.call({"cmd": "PULL", "queue": "emails", "owner": "a"})
    stays.sock.sendall(poll(1))

    leaves.sock.close()

    answer = stays.value()["job"]
    assert (job, 0, 0) == (answer["id"], answer["attempts"], answer["stallCount"])


def test_half_a_close_still_gets_its_answers(peers: Peers) -> None:
    peer = peers.open()
    peer.sock.sendall(push(reqId=1) + ping(2))
    peer.sock.shutdown(socket.SHUT_WR)

    assert [1, 2] == [peer.value()["reqId"], peer.value()["reqId"]]
    assert peer.is_at_end()


def test_silence_inside_a_frame_is_reset_and_between_frames_it_is_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"TCP_IDLE_TIMEOUT_MS": "200"}) as broker:
        peers = Peers(broker)
        silent, idle = peers.open(), peers.open()
        idle.call({"cmd": "Ping"})
        silent.sock.sendall(ping(1)[:7])

        assert silent.is_at_end()
        assert idle.call({"cmd": "Ping"})["ok"]
        peers.close()


def test_the_request_limit_is_honoured_per_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"RATE_LIMIT_MAX_REQUESTS": "2"}) as broker:
        peers = Peers(broker)
        peer = peers.open()
        peer.sock.sendall(ping(1) + ping(2) + ping("a"))
        peer.value()
        peer.value()

        refused = {"ok": False, "error": "Rate limit exceeded", "reqId": "a"}
        assert refused == peer.value()
        assert peers.open().call({"cmd": "Ping"})["ok"]
        peers.close()


def test_tokens_are_asked_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": "one, two"}) as broker:
        peers = Peers(broker)
        peer = peers.open()
        assert {"ok": False, "error": "Not authenticated"} == peer.call({"cmd": "Hello"})
        assert {"ok": False, "error": "Invalid token"} == peer.call({"cmd": "Auth", "token": "x"})
        peer.sock.sendall(frame({"cmd": "Auth", "token": "two"}) + ping(1))
        assert {"ok": True} == peer.value()
        assert peer.value()["ok"]
        assert "Not authenticated" == peers.open().call({"cmd": "Ping"})["error"]
        assert 200 == get(broker, "/health")[0]
        assert 401 == get(broker, "/queues")[0]
        peers.close()


def test_running_out_of_descriptors_is_survived(tmp_path: Path) -> None:
    script = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (40, 40))"
    (tmp_path / "sitecustomize.py").write_text(script)
    with BrokerProcess(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as broker:
        peers = Peers(broker)
        first = peers.open()
        crowd = [peers.open() for _ in range(60)]
        until(lambda: "cannot accept" in broker.log)
        assert first.call({"cmd": "Ping"})["ok"]
        for peer in crowd[:50]:
            peer.sock.close()

        assert crowd[-1].call({"cmd": "Ping"})["ok"]
        assert 1 == broker.log.count("cannot accept")
        peers.close()


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_env(tmp_path: Path, authority: trustme.CA) -> dict[str, str]:
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return {"TLS_CERT_FILE": str(chain), "TLS_KEY_FILE": str(key)}


def test_tls_serves_on_the_same_ports_and_stalled_handshakes_hold_nobody_up(
    tmp_path: Path, authority: trustme.CA, tls_env: dict[str, str]
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with BrokerProcess(tmp_path, env=tls_env) as broker:
        peers = Peers(broker)
        stalled = [peers.open() for _ in range(20)]
        plain = peers.open()
        plain.sock.sendall(ping(1))
        with pytest.raises((EOFError, ConnectionResetError)):
            plain.value()

        with context.wrap_socket(peers.open().sock, server_hostname="localhost") as sock:
            peer = Reader(sock)
            assert "TLSv1.3" == sock.version()
            assert peer.call({"cmd": "Ping", "reqId": 1})["ok"]
            big = {"text": "x" * 2_000_000}
            peer.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": big})
            assert big == peer.call({"cmd": "PULL", "queue": "emails"})["job"]["data"]
        with urllib.request.urlopen(
            f"https://127.0.0.1:{broker.http_port}/live", context=context, timeout=WAIT_S_MAX
        ) as response:
            assert b"OK" == response.read()
        assert 20 == len(stalled)
        peers.close()


def test_hup_takes_a_new_certificate_and_keeps_connections(
    tmp_path: Path, authority: trustme.CA, tls_env: dict[str, str]
) -> None:
    old, new = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(old)
    other = trustme.CA()
    other.configure_trust(new)
    certificate = other.issue_cert("localhost")
    with BrokerProcess(tmp_path, env=tls_env) as broker:
        peers = Peers(broker)
        with old.wrap_socket(peers.open().sock, server_hostname="localhost") as sock:
            peer = Reader(sock)
            assert peer.call({"cmd": "Ping"})["ok"]
            chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
            Path(tls_env["TLS_CERT_FILE"]).write_bytes(chain)
            os.kill(broker.pid, signal.SIGHUP)
            until(lambda: "the old certificate stays" in broker.log)
            with old.wrap_socket(peers.open().sock, server_hostname="localhost") as still:
                assert Reader(still).call({"cmd": "Ping"})["ok"]

            Path(tls_env["TLS_KEY_FILE"]).write_bytes(certificate.private_key_pem.bytes())
            os.kill(broker.pid, signal.SIGHUP)
            until(lambda: "certificate reloaded" in broker.log)
            assert peer.call({"cmd": "Ping"})["ok"]
        with new.wrap_socket(peers.open().sock, server_hostname="localhost") as sock:
            assert Reader(sock).call({"cmd": "Ping"})["ok"]
        peers.close()


@pytest.mark.parametrize("port", ["port", "http_port"])
def test_an_old_version_of_tls_is_refused(
    tmp_path: Path, tls_env: dict[str, str], port: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with BrokerProcess(tmp_path, env=tls_env) as broker:
        address = broker.host, getattr(broker, port)
        until(lambda: accepts(*address))  # that of HTTP listens a moment after that of TCP
        with (
            socket.create_connection(address, WAIT_S_MAX) as sock,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
        ):
            context.wrap_socket(sock)


# -- starting --------------------------------------------------------------------------------------


def start_fails(tmp_path: Path, *flags: str, **env: str) -> str:
    """Start a server that must not come up; return what it printed, which is one line."""
    command = [sys.executable, "-m", "bunqueue", "start"]
    ports = ["--tcp-port", str(free_port()), "--http-port", str(free_port())]
    done = subprocess.run(
        [*command, *(flags if "--tcp-port" in flags else [*ports, *flags])],
        env=clean_environment() | {"HOST": "127.0.0.1"} | env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert 1 == done.returncode, done.stderr
    lines = [line for line in done.stderr.splitlines() if " WARNING " not in line]
    assert 1 == len(lines), done.stderr
    return lines[0]


def test_a_port_in_use_is_one_line(memory_broker: BrokerProcess, tmp_path: Path) -> None:
    flags = ("--tcp-port", str(memory_broker.port), "--http-port", str(free_port()))
    line = start_fails(tmp_path, *flags)

    assert f"127.0.0.1:{memory_broker.port} (TCP_PORT): Address already in use" in line


def test_a_file_in_use_is_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    line = start_fails(tmp_path, "--data-path", str(broker.data_path))

    assert f"{broker.data_path} is in use by another process (pid {broker.pid}" in line


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"TLS_CERT_FILE": "/nowhere/c.pem", "TLS_KEY_FILE": "/nowhere/k.pem"}, "/nowhere/c.pem"),
        ({"TLS_CERT_FILE": "/nowhere/c.pem"}, "TLS_KEY_FILE"),
        ({"BUNQUEUE_STORAGE_DRIVER": "postgres"}, "Unsupported storage driver: postgres"),
        ({"SHUTDOWN_TIMEOUT_MS": "soon"}, "SHUTDOWN_TIMEOUT_MS"),
        ({"HOST": "192.0.2.1"}, "TCP_PORT"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(
    tmp_path: Path, env: dict[str, str], part: str
) -> None:
    assert part in start_fails(tmp_path, **env)


def test_a_certificate_without_its_key_is_one_line(tmp_path: Path, tls_env: dict[str, str]) -> None:
    other = trustme.CA().issue_cert("localhost").private_key_pem.bytes()
    Path(tls_env["TLS_KEY_FILE"]).write_bytes(other)

    assert "cannot be used" in start_fails(tmp_path, **tls_env)


def test_what_is_risky_is_told_at_the_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.host = "0.0.0.0"
    with broker:
        until(lambda: "OPEN TO EVERYONE" in broker.log)
        assert 1 == broker.log.count("no data path")


def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.host = "::1"
    with broker:
        peers = Peers(broker)
        assert peers.open().call({"cmd": "Ping"})["ok"]
        peers.close()


def test_libuv_is_not_used(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"GEVENT_LOOP": "libuv-cffi"}) as broker:
        until(lambda: "GEVENT_LOOP=libuv-cffi is not used" in broker.log)


def test_the_log_can_be_json(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"LOG_FORMAT": "json"}) as broker:
        until(lambda: '"msg": "started' in broker.log)
        lines = [line for line in broker.log.splitlines() if line.startswith("{")]
        assert {"ts", "level", "logger", "msg"} <= set(json.loads(lines[-1]))


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once_with_status_0(
    broker: BrokerProcess, number: signal.Signals
) -> None:
    peers = Peers(broker)
    peer = peers.open()
    peer.sock.sendall(poll(1) + ping(2))
    assert 2 == peer.value()["reqId"]
    began = time.monotonic()

    assert 0 == broker.terminate(number)

    assert time.monotonic() - began < 5
    assert {"ok": True, "job": None, "reqId": 1} == peer.value()
    assert peer.is_at_end()
    peers.close()


def test_a_stop_waits_for_the_active_job_and_takes_its_outcome(broker: BrokerProcess) -> None:
    peers = Peers(broker)
    worker, other = peers.open(), peers.open()
    job = worker.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})["id"]
    pulled = worker.call({"cmd": "PULL", "queue": "emails", "owner": "w"})
    other.sock.sendall(poll("parked"))

    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    assert None is other.value()["job"]
    status, body = get(broker, "/ready")
    assert (503, False) == (status, json.loads(body)["ready"])
    assert (200, b"OK") == get(broker, "/live")
    with pytest.raises(OSError, match="refused"):
        peers.open()
    later = other.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})["id"]
    assert None is other.call({"cmd": "PULL", "queue": "emails"})["job"]
    beat = {"cmd": "JobHeartbeat", "id": job, "token": pulled["token"]}
    assert worker.call(beat)["ok"]
    assert worker.call({"cmd": "ACK", "id": job, "token": pulled["token"]})["ok"]

    assert 0 == broker.process.wait(WAIT_S_MAX)
    assert worker.is_at_end()
    broker.restart()
    again = peers.open()
    assert "completed" == again.call({"cmd": "GetState", "id": job})["state"]
    assert "waiting" == again.call({"cmd": "GetState", "id": later})["state"]
    peers.close()


def test_a_stop_waits_for_a_long_command_and_answers_it(broker: BrokerProcess) -> None:
    peers = Peers(broker)
    peer = peers.open()
    batch = {"cmd": "PUSHB", "queue": "emails", "jobs": [{}] * 10_000}
    for _ in range(3):
        assert peer.call(batch)["ok"]
    peer.sock.sendall(frame({"cmd": "Drain", "queue": "emails", "reqId": 1}) + ping(2))
    assert 2 == peer.value()["reqId"]  # a part of the jobs has gone

    assert 0 == broker.terminate()

    assert {"ok": True, "count": 30_000, "reqId": 1} == peer.value()
    peers.close()


def test_a_job_that_outlasts_the_stop_comes_back_uncharged(tmp_path: Path) -> None:
    env = {"SHUTDOWN_TIMEOUT_MS": "300"}
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        peers = Peers(broker)
        worker = peers.open()
        worker.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})
        worker.call({"cmd": "PULL", "queue": "emails", "owner": "w"})

        assert 0 == broker.terminate()
        broker.restart()

        job = peers.open().call({"cmd": "PULL", "queue": "emails"})["job"]
        assert (0, 0) == (job["attempts"], job["stallCount"])
        peers.close()


def test_a_second_signal_ends_it_at_once(broker: BrokerProcess) -> None:
    peers = Peers(broker)
    worker = peers.open()
    worker.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})
    worker.call({"cmd": "PULL", "queue": "emails", "owner": "w"})
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in broker.log)
    time.sleep(0.25)  # what comes sooner counts as the same signal

    broker.process.send_signal(signal.SIGTERM)

    assert -signal.SIGTERM == broker.process.wait(2)
    peers.close()


def test_what_is_acknowledged_at_the_last_moment_is_on_disk(broker: BrokerProcess) -> None:
    peers = Peers(broker)
    peer = peers.open()
    jobs = [
        peer.call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})["id"]
        for _ in range(50)
    ]
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    assert 0 == broker.process.wait(WAIT_S_MAX)

    broker.restart()

    answer = peers.open().call({"cmd": "Count", "queue": "emails"})
    assert len(jobs) == answer["count"]
    peers.close()


def test_usr1_shows_what_every_greenlet_does(memory_broker: BrokerProcess) -> None:
    os.kill(memory_broker.pid, signal.SIGUSR1)

    until(lambda: "Greenlet" in memory_broker.log and "Current thread" in memory_broker.log)
    assert 200 == get(memory_broker, "/live")[0]


def test_a_writer_that_cannot_be_replaced_ends_the_server_with_status_1(
    tmp_path: Path,
) -> None:
    """The data file's directory goes away together with the writer: no new one can open it."""
    directory = tmp_path / "data"
    pure = {"BUNQUEUE_PURE": "1"}  # compiled, the writer is no process that could be killed
    with BrokerProcess(tmp_path, data_path=directory / "q.db", env=pure) as broker:
        peers = Peers(broker)
        peers.open().call({"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}})
        children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
        directory.rename(tmp_path / "gone")
        for child in children:
            os.kill(int(child), signal.SIGKILL)

        assert broker.process is not None
        assert 1 == broker.process.wait(60)
        assert "nothing can be written any more" in broker.log
        peers.close()
