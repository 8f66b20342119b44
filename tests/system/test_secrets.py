"""Secrets are planted everywhere they may come from; all that is said is searched for them.

What is said: the logs of brokers at their most talkative, as text and as JSON, with failing
commands and crashes in them; every answer over TCP and HTTP; all that the command line prints;
what everyone sees of a process; the data file.
"""

from __future__ import annotations

import base64
import http.client
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from bunqueue import Connection, Queue, Worker
from bunqueue.cli.dispatch import dispatch
from bunqueue.cli.table import SUBCOMMANDS
from bunqueue.commands import COMMANDS
from bunqueue.config import ROWS, Settings, load_settings
from bunqueue.errors import BunqueueError
from bunqueue.server.routes import ROUTES
from tests.support.broker_process import BrokerProcess, clean_environment, free_port
from tests.support.wire import Reader, frame_of

pytestmark = pytest.mark.slow

TOKEN = "hush-token-7f3a91c0d2"
SECOND = "hush-second-55e1b6aa04"
WRONG = "hush-wrong-0c9d8e7f61"  # somebody's password for something else, typed here
SIGNING = "hush-signing-b1d4f2a893"
URL_PASSWORD = "hush-basic-64c0ffee11"
ABROAD = "hush-abroad-9a8b7c6d5e"  # keys of a bucket and of a cloud, which are not ours to use
SECRETS = (TOKEN, SECOND, WRONG, SIGNING, URL_PASSWORD, ABROAD)
CANARY = "canary-queue"  # is no secret: what is said is searched indeed

WAIT_S_MAX = 20.0
ENV_ABROAD = {
    name: ABROAD
    for name in (
        "S3_ACCESS_KEY_ID",
        "S3_SECRET_ACCESS_KEY",
        "S3_SESSION_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "S3_BACKUP_PREFIX",
        "BUNQUEUE_CLOUD_API_KEY",
        "BUNQUEUE_CLOUD_SIGNING_SECRET",
    )
}
FAILING_BROKER = f"""
import sys
from bunqueue.cli.main import main
from bunqueue.commands.registry import command

@command("Boom")
def boom(peer, request):
    '''Fail as nobody foresaw.'''
    token = {TOKEN!r}
    raise RuntimeError("as planned") from KeyError("token")

if __name__ == "__main__":
    sys.exit(main())
"""
HANDLERS = """
def fails(job):
    raise RuntimeError("as planned")
"""


class Said:
    """All that was said, by whom."""

    def __init__(self, *secrets: str) -> None:
        """Search for these too."""
        self._secrets = (*SECRETS, *secrets)
        self._said: list[tuple[str, bytes]] = []

    def add(self, who: str, what: str | bytes) -> None:
        """Keep it."""
        self._said.append(
            (who, what.encode("utf-8", "surrogateescape") if isinstance(what, str) else what)
        )

    def has(self, what: str) -> bool:
        """Say whether it was said by anyone."""
        return any(form in text for _, text in self._said for form in _forms(what))

    def tellers(self, *allowed: tuple[str, str]) -> list[tuple[str, str]]:
        """Return (secret, who) of all that was told, but for what is ``allowed``."""
        return [
            (secret, who)
            for who, text in self._said
            for secret in self._secrets
            if any(form in text for form in _forms(secret)) and (secret, who) not in allowed
        ]


def _forms(secret: str) -> list[bytes]:
    plain = secret.encode()
    return [plain, base64.b64encode(plain).rstrip(b"="), plain.hex().encode(), plain[::-1]]


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """A certificate and its key, whose lines are secrets too."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain, key, ca = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    key.chmod(0o600)
    ca.write_bytes(authority.cert_pem.bytes())
    return {"TLS_CERT_FILE": str(chain), "TLS_KEY_FILE": str(key)}


class Talkative(BrokerProcess):
    """A broker with secrets, that says all it can, and a command that fails."""

    def __init__(self, directory: Path, tls: dict[str, str], log_format: str, pure: str) -> None:
        self.program = directory / "broker.py"
        self.program.write_text(FAILING_BROKER)
        env = {
            **tls,
            **ENV_ABROAD,
            "AUTH_TOKENS": f"{TOKEN},{SECOND}",
            "LOG_LEVEL": "debug",
            "LOG_FORMAT": log_format,
            "BUNQUEUE_PURE": pure,
            "PYTHONFAULTHANDLER": "1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "WEBHOOK_ALLOWED_TARGETS": "127.0.0.1",
            "WEBHOOK_MAX_RETRIES": "1",
        }
        super().__init__(directory, data_path=directory / "queue.db", env=env)

    def command(self) -> list[str]:
        """Return the arguments that run it."""
        command = super().command()
        place = command.index("-m")
        command[place : place + 2] = [str(self.program)]
        return command

    def tcp(self) -> ssl.SSLSocket:
        """Connect over TLS."""
        return _trusting().wrap_socket(
            socket.create_connection((self.host, self.port), WAIT_S_MAX),
            server_hostname="localhost",
        )

    def http(self) -> ssl.SSLSocket:
        """Connect over TLS to the other port."""
        return _trusting().wrap_socket(
            socket.create_connection((self.host, self.http_port), WAIT_S_MAX),
            server_hostname="localhost",
        )


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- driving ---------------------------------------------------------------------------------------


def ask_everything_over_tcp(broker: Talkative, said: Said) -> None:
    """Send each command as nobody, with a wrong token, and let in; empty and with odd fields."""
    odd = {
        "queue": CANARY,
        "id": 5,
        "jobs": "x",
        "data": {"a": 1},
        "token": WRONG,
        "url": "http://:",
    }
    with broker.tcp() as sock:
        reader = Reader(sock)
        for token in (None, WRONG, 7, TOKEN):
            said.add("tcp", repr(reader.call({"cmd": "Auth", "token": token})))
            for name in sorted([*COMMANDS, "Boom", "Nonsense"]):
                if name in ("SubscribeEvents", "Auth"):
                    continue
                for fields in ({}, odd):
                    said.add("tcp", repr(reader.call({"cmd": name, **fields, "reqId": 1})))
        sock.sendall(frame_of(b"\xc1" + WRONG.encode()))
        said.add("tcp", repr(reader.value()))


def ask_everything_over_http(broker: Talkative, said: Said) -> None:
    """Ask each route with any method, with each kind of token; send damaged heads with tokens."""
    paths = [
        row.path.replace("<path:job_id>", "j").replace("<", "").replace(">", "") for row in ROUTES
    ]
    for token in (None, WRONG, TOKEN):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        link = http.client.HTTPSConnection(
            broker.host, broker.http_port, timeout=WAIT_S_MAX, context=_trusting()
        )
        for path in (*paths, "/metrics", "/prometheus", "/nowhere", f"/nowhere?token={TOKEN}"):
            for method in ("GET", "POST", "OPTIONS", "TRACE"):
                link.request(method, path, body=b"{", headers=headers)
                answer = link.getresponse()
                said.add("http", f"{answer.status} {answer.headers}".encode() + answer.read())
        link.close()
    bearer = f"Authorization: Bearer {TOKEN}\r\n".encode()
    for head in (
        b"GET /live HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + bearer + b"\r\n",
        b"GET /live HTTP/9.9\r\n" + bearer + b"\r\n",
        b"GE T /live?" + TOKEN.encode() + b" HTTP/1.1\r\n" + bearer + b"\r\n",
        b"GET /live HTTP/1.1\r\n" + bearer.replace(b": ", b" ") + b"\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\n " + TOKEN.encode() + b"\r\n\r\n",
        TOKEN.encode() + b"\r\n\r\n",
        b"\x00\x01" + TOKEN.encode() + b"\r\n\r\n",
        b"GET /" + TOKEN.encode() * 2000 + b" HTTP/1.1\r\n\r\n",
    ):
        with broker.http() as sock:
            sock.settimeout(WAIT_S_MAX)
            with suppress(OSError):
                sock.sendall(head)
                said.add("http", sock.recv(65_536))


def use_the_command_line(
    broker: Talkative,
    said: Said,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run each subcommand and each of its actions, plain and as JSON, let in and not."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(broker.directory)
    at = ["--host", broker.host, "--port", str(broker.port), "--tls-no-verify"]
    url = ["--tls-no-verify", "--url", f"bunqueues://:{TOKEN}@{broker.host}:{broker.port}"]
    for words in command_lines():
        for how in (
            [*at, "--token", TOKEN],
            [*at, "--token", TOKEN, "--json"],
            [*at, "--token", WRONG],
            url,
        ):
            if how is url and len(words) > 1:
                continue
            dispatch([words[0], *how, *words[1:]])
            told = capfd.readouterr()
            form = [word for word in how if word == "--json"]
            said.add(f"bunqueue {' '.join([*words[:2], *form])}", told.out + told.err)
    for row in SUBCOMMANDS.values():
        said.add("help", row.usage)


def command_lines() -> Iterator[list[str]]:
    """Yield a call of each action, with arguments that it takes or refuses."""
    for name, row in SUBCOMMANDS.items():
        if name in ("start", "demo", "import-db", "worker"):
            continue
        actions = [""] if callable(row.run) else list(row.run)
        for action in actions:
            words = [name] + ([action] if action else [])
            yield words
            yield [*words, "--", CANARY, "5"]
            yield [*words, "--", CANARY]
    yield ["push", CANARY, "{}"]
    yield ["queue", "clean", "--grace", "1h", CANARY]
    yield ["worker", "list"]
    yield ["webhook", "add", "--secret", SIGNING, f"http://ann:{URL_PASSWORD}@10.0.0.1/", "-e", "x"]


def deliver_a_webhook_in_vain(broker: Talkative, said: Said) -> None:
    """Add one with a signing key and a password in its URL, to a port where nobody listens."""
    url = f"http://ann:{URL_PASSWORD}@127.0.0.1:{free_port()}/hook"
    with broker.tcp() as sock:
        reader = Reader(sock)
        reader.call({"cmd": "Auth", "token": SECOND})
        added = reader.call(
            {"cmd": "AddWebhook", "url": url, "events": ["job.pushed"], "secret": SIGNING}
        )
        assert added["ok"], added
        reader.call({"cmd": "PUSH", "queue": CANARY, "data": {}, "durable": True})
        until(lambda: "webhook delivery given up" in broker.log)
        said.add("doctor", repr(reader.call({"cmd": "Diagnose"})))
        listed = reader.call({"cmd": "ListWebhooks"})["data"]["webhooks"]
        assert [True] == ["secret" not in webhook for webhook in listed]


def look_from_outside(broker: BrokerProcess, said: Said) -> None:
    """Read what every user of the machine can, of the writer's process too."""
    for pid in (broker.pid, *children_of(broker.pid)):
        for name in ("cmdline", "comm", "status", "stat"):
            said.add(f"process {pid}", Path(f"/proc/{pid}/{name}").read_bytes())


@pytest.mark.parametrize(("log_format", "pure"), [("text", ""), ("json", "1")])
def test_a22_no_secret_is_in_any_output(
    tmp_path: Path,
    tls: dict[str, str],
    log_format: str,
    pure: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = Path(tls["TLS_KEY_FILE"]).read_text().splitlines()
    said = Said(*(line for line in key if "-" not in line))
    broker = Talkative(tmp_path, tls, log_format, pure)
    with broker:
        ask_everything_over_tcp(broker, said)
        ask_everything_over_http(broker, said)
        deliver_a_webhook_in_vain(broker, said)
        use_the_command_line(broker, said, capfd, monkeypatch)
        look_from_outside(broker, said)
        os.kill(broker.pid, signal.SIGHUP)
        os.kill(broker.pid, signal.SIGUSR1)
        until(lambda: "certificate reloaded" in broker.log and "greenlet" in broker.log.lower())
        os.kill(broker.pid, signal.SIGABRT)
        assert broker.process is not None
        broker.process.wait(WAIT_S_MAX)
    said.add("log", broker.log)

    assert "as planned" in broker.log
    assert "Fatal Python error: Aborted" in broker.log
    assert said.has(CANARY)
    for file in tmp_path.glob("queue.db*"):
        said.add(file.name, file.read_bytes())
    # The file keeps webhooks whole: it cannot sign otherwise. A URL is told as it was given to
    # those who are let in.
    in_file = [
        (one, file) for one in (SIGNING, URL_PASSWORD) for file in ("queue.db", "queue.db-wal")
    ]
    assert [] == said.tellers(*in_file, (URL_PASSWORD, "bunqueue webhook list --json"))


@pytest.mark.parametrize(
    ("way", "extra"),
    [("--token", ()), ("--token", ("--processes", "2")), ("--url", ()), ("leading", ())],
)
def test_a22_a_worker_shows_no_token(tmp_path: Path, way: str, extra: tuple[str, ...]) -> None:
    """Neither to those who list processes, nor in its log with a failing handler in it."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": TOKEN, "LOG_LEVEL": "debug"}) as broker:
        url = f"bunqueue://:{TOKEN}@{broker.host}:{broker.port}"
        before, behind = {
            "--token": ([], ["--token", TOKEN]),
            "--url": ([], ["--url", url]),
            "leading": (["-t", TOKEN], []),
        }[way]
        words = [*before, "worker", *behind, *extra, "handlers:fails", "-q", CANARY]
        words += ["--log-level", "debug"]
        environ = clean_environment() | {"BUNQUEUE_TCP_PORT": str(broker.port)}
        with Connection(broker.host, broker.port, token=TOKEN) as link:
            job = link.call({"cmd": "PUSH", "queue": CANARY, "data": {}, "maxAttempts": 1})["id"]
            worker = subprocess.Popen(
                [sys.executable, "-m", "bunqueue", *words],
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            said = Said()
            try:
                until(lambda: link.call({"cmd": "GetState", "id": job})["state"] == "failed")
                failed = repr(link.call({"cmd": "Dlq", "queue": CANARY}))
                said.add("dead letter", failed)
                for pid in (worker.pid, *children_of(worker.pid)):
                    said.add(f"process {pid}", Path(f"/proc/{pid}/cmdline").read_bytes())
            finally:
                worker.send_signal(signal.SIGTERM)
                out, _ = worker.communicate(timeout=WAIT_S_MAX)
    said.add("worker's log", out)
    said.add("broker's log", broker.log)

    assert 0 == worker.returncode
    assert said.has(CANARY)
    assert "as planned" in failed
    assert [] == said.tellers()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a22_a_setting_that_cannot_work_is_refused_without_a_secret(
    tmp_path: Path, row: Any
) -> None:
    """The wrong one is named with its value, a secret without."""
    environ = {**ENV_ABROAD, "AUTH_TOKENS": f"{TOKEN},{SECOND}", row.env[0]: "\x00?"}
    try:
        settings = load_settings(environ=environ, directory=tmp_path)
    except BunqueueError as error:
        told = str(error)
    else:
        told = f"{settings!r} {settings.warnings} {settings.sources}"
    said = Said()
    said.add(row.name, told)

    assert [] == said.tellers()


@pytest.mark.parametrize(
    "text",
    [
        f'[auth]\ntokens = "{TOKEN}',
        f'[auth]\ntokens = "{TOKEN}" x',
        f'[auth]\ntokens = ["{TOKEN}", 5]',
        f'[auth]\ntoken = "{TOKEN}"',
        f'[auth]\n"{TOKEN[:0]}tokens" = {{ a = "{TOKEN}" }}',
        f'[backup]\nsecretAccessKey = "{TOKEN}"\n[auth]\ntokens = 5',
        f'tokens = "{TOKEN}"',
    ],
)
def test_a22_a_config_file_that_cannot_be_read_is_refused_without_a_secret(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "bunqueue.toml").write_text(text)

    with pytest.raises(BunqueueError) as caught:
        load_settings(environ={}, directory=tmp_path)

    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "bunqueue://:{}@host:port",
        "bunqueue://u:{}/x@host",
        "bunqueue://u:x{}/x@host",
        "bunqueue://u:1?{}@host",
        "bunqueue://:{}#@host",
        "bunqueue://:{}@",
        "bunqueue://:{}@[host",
        "bunqueue://:{}\u2100@host",
        "bunqueue://:{}@host?nonsense=1",
        "bunqueue://:{}@host?pool_size=x",
        "http://:{}@host",
        "{}:@host",
        "{}",
    ],
)
def test_a22_a_url_that_cannot_be_read_is_refused_without_its_token(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 2 == dispatch(["ping", "--url", url.format(TOKEN)])

    told = capfd.readouterr()
    assert "--url" in told.err
    assert TOKEN not in told.err + told.out


def test_a22_no_object_of_the_client_shows_its_token(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": TOKEN}) as broker:
        at = {"host": broker.host, "port": broker.port}
        connection = Connection(**at, token=TOKEN)
        queue = Queue(CANARY, **at, token=TOKEN)
        worker = Worker(CANARY, print, **at, token=TOKEN, autorun=False)
        queue.count()
        shown = _insides(connection, queue, worker)
        with pytest.raises(BunqueueError) as caught:
            Queue(CANARY, **at, token=WRONG).count()
        errors = list(_chain(caught.value))
        queue.close()
        connection.close()

    said = Said()
    said.add("repr", " ".join([*shown, *map(repr, errors), *map(str, errors)]))
    said.add("settings", repr(Settings(auth_tokens=(TOKEN,))))
    assert [] == said.tellers()


def _insides(*objects: Any) -> Iterator[str]:
    """Yield how objects are shown, and what of ours they hold."""
    left, seen = list(objects), set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each).__module__.startswith("bunqueue"):
            yield repr(each)
            names = [*getattr(each, "__dict__", {}), *getattr(type(each), "__slots__", ())]
            left += [getattr(each, name, None) for name in names]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("pure", ["", "1"])
def test_the_files_belong_to_their_owner_alone_whatever_the_umask(
    tmp_path: Path, pure: str
) -> None:
    path = tmp_path / "new" / "queue.db"
    before = os.umask(0)
    try:
        with BrokerProcess(tmp_path, data_path=path, env={"BUNQUEUE_PURE": pure}) as broker:
            with Connection(broker.host, broker.port) as link:
                link.call({"cmd": "PUSH", "queue": CANARY, "data": {}, "durable": True})
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)

    names = ("queue.db", "queue.db-shm", "queue.db-wal", "queue.db.lock")
    assert dict.fromkeys(names, 0o600) == modes
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
