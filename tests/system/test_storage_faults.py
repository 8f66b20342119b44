"""Faults of the disk and of the file, under real brokers with either writer.

What is wanted of each: what was acknowledged is there afterwards; while nothing can be written the
broker says so at ``/ready``, with the cause and the cure, and it goes on by itself; a file that
cannot be trusted is refused at the start, in one line that says what to do, and not a byte of it or
of the log beside it is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bunqueue.storage.sqlite import BUSY_MS
from tests.model.world import CLOCK, CLOCK_FILE, ROOT, MovableBroker
from tests.support.broker_process import BrokerProcess, clean_environment, free_port
from tests.system.kill.wire import Link

pytestmark = pytest.mark.slow

SOON_S = 15.0
POLL_S = 0.02
HOUR_MS = 3_600_000
INTERNAL = {"ok": False, "error": "Internal server error"}
WRITERS = {"native": {}, "process": {"BUNQUEUE_PURE": "1"}}
LARGE = "x" * 200_000
JOBS = 400  # of 2 KB: a hundred pages of the file


@pytest.fixture(params=WRITERS)
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of a broker with the writer of that name, where it can be had."""
    return dict(WRITERS[request.param])


class Client:
    """A broker on a file, asked over one connection that outlives it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        broker.start()
        self._link = Link(broker.port)

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Return the reply, whatever it says."""
        reply = self._link.call({"cmd": cmd, **fields})
        del reply["reqId"]
        return reply

    def ok(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Return the reply of a command that must succeed."""
        reply = self.ask(cmd, **fields)
        assert reply["ok"], f"{cmd}: {reply}"
        return reply

    def push(self, job_id: str, **fields: Any) -> dict[str, Any]:
        """Push a job, durable unless told otherwise; return the reply."""
        return self.ask("PUSH", queue="q", jobId=job_id, **{"durable": True, **fields})

    def states(self, *job_ids: str) -> list[str]:
        """Return the states of the jobs."""
        return [self.ok("GetState", id=job_id)["state"] for job_id in job_ids]

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Ask ``/ready``; return the status and the storage's part."""
        url = f"http://{self.broker.host}:{self.broker.http_port}/ready"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, {}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["storage"]

    def is_ready(self) -> bool:
        """Say whether ``/ready`` says so."""
        return self.readiness()[0] == 200

    def crash(self) -> None:
        """Kill the broker and start it again on the same file."""
        self.broker.kill()
        self._link.close()
        self.broker.start()
        self._link = Link(self.broker.port)

    def close(self) -> None:
        """End both."""
        self._link.close()
        self.broker.kill()


@contextmanager
def client_of(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker)
    try:
        yield client
    finally:
        client.close()


def until(is_so: Callable[[], object]) -> None:
    """Waits until something has become so."""
    end = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < end, "it never became so"
        time.sleep(POLL_S)


def writer_of(broker: BrokerProcess) -> int:
    """Return the process that writes the broker's file: compiled, that is the broker."""
    path = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
    if not path.exists():
        pytest.skip("this system does not list a process's children")
    children = [int(pid) for pid in path.read_text().split()]
    return children[0] if children else broker.pid


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "none", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(directory: Path) -> Path:
    """Leave no byte free beside a file; return what to delete for room."""
    path = directory / "ballast"
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4_096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def start_fails(path: Path, env: dict[str, str]) -> str:
    """Start a broker that must refuse the file; return its one line.

    Nothing that lay in the file's directory may be changed by that, but the lock.
    """
    before = contents(path.parent)
    ports = ["--tcp-port", str(free_port()), "--http-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, "-m", "bunqueue", "start", "--data-path", str(path), *ports],
        env=clean_environment() | {"HOST": "127.0.0.1"} | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 1 == done.returncode, done.stderr
    lines = [line for line in done.stderr.splitlines() if " WARNING " not in line]
    assert 1 == len(lines), done.stderr
    assert before.items() <= contents(path.parent).items()
    return lines[0]


def contents(directory: Path) -> dict[str, str]:
    """Return name -> digest of what a broker must not touch; ``-shm`` is only an index."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.iterdir())
        if file.is_file() and not file.name.endswith((".lock", "-shm"))
    }


# -- while it runs ---------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_outlived(tmp_path: Path, disk: Path, env: dict[str, str]) -> None:
    path = disk / "jobs.db"
    with client_of(BrokerProcess(tmp_path, data_path=path, env=env)) as client:
        client.push("before")
        ballast = fill(disk)

        assert INTERNAL == client.push("refused", data=LARGE)
        assert INTERNAL == client.push("refused", data=LARGE)
        assert {"ok": True, "id": "plain"} == client.push("plain", durable=False, data=LARGE)
        status, storage = client.readiness()
        assert (503, True) == (status, storage["diskFull"])
        assert "full" in storage["error"]
        assert "make room on its disk" in storage["error"]

        # A start finds no room either: it serves what it has, and says so.
        client.crash()
        assert ["waiting", "unknown"] == client.states("before", "refused")
        assert INTERNAL == client.push("refused", data=LARGE)
        client.push("plain", durable=False, data=LARGE)
        assert not client.is_ready()

        ballast.unlink()
        until(client.is_ready)
        assert {"ok": True, "id": "after"} == client.push("after")
        client.crash()
        assert ["waiting", "unknown", "waiting", "waiting"] == client.states(
            "before", "refused", "plain", "after"
        )
        assert client.is_ready()
        assert "make room on its disk" in client.broker.log
        assert "storage works again" in client.broker.log


def test_a_new_file_on_a_full_disk_is_refused_with_cause_and_cure(
    disk: Path, env: dict[str, str]
) -> None:
    fill(disk)

    line = start_fails(disk / "jobs.db", env)

    assert str(disk / "jobs.db") in line
    assert "make room on its disk" in line


def test_io_errors_are_told_and_outlived(tmp_path: Path, env: dict[str, str]) -> None:
    with client_of(BrokerProcess(tmp_path, data_path=tmp_path / "jobs.db", env=env)) as client:
        client.push("before", data=LARGE)
        token = client.ok("PULL", queue="q", owner="w")["token"]
        writer = writer_of(client.broker)
        unlimited = resource.prlimit(writer, resource.RLIMIT_FSIZE)
        # No write beyond the first page works: SQLite hears of no lack of room, but of an error.
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (4_096, unlimited[1]))

        assert INTERNAL == client.push("refused")
        assert INTERNAL == client.ask("ACK", id="before", token=token)
        assert {"ok": True, "id": "plain"} == client.push("plain", durable=False)
        status, storage = client.readiness()
        assert (503, False) == (status, storage["diskFull"])
        assert storage["error"].startswith("IOError: disk I/O error; look after its disk")

        resource.prlimit(writer, resource.RLIMIT_FSIZE, unlimited)
        until(client.is_ready)
        client.ok("ACK", id="before", token=token)
        client.crash()
        assert ["completed", "unknown", "waiting"] == client.states("before", "refused", "plain")


def test_a_file_that_another_has_locked_is_waited_for_and_then_told(
    tmp_path: Path, env: dict[str, str]
) -> None:
    path = tmp_path / "jobs.db"
    with (
        client_of(BrokerProcess(tmp_path, data_path=path, env=env)) as client,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        client.push("before")

        # For a moment: the answer comes late, and is a yes.
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.5, other.execute, ["COMMIT"])
        release.start()
        assert {"ok": True, "id": "short"} == client.push("short")
        release.join()
        assert client.is_ready()

        # For longer than SQLite is patient.
        other.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        assert INTERNAL == client.push("refused")
        assert time.monotonic() - begin >= BUSY_MS / 1000 - 0.5
        assert {"ok": True, "id": "plain"} == client.push("plain", durable=False)
        status, storage = client.readiness()
        assert 503 == status
        assert storage["error"].startswith("BusyError: database is locked; another program")
        other.execute("COMMIT")

        until(client.is_ready)
        assert {"ok": True, "id": "after"} == client.push("after")
        client.crash()
        assert ["waiting", "waiting", "unknown", "waiting", "waiting"] == client.states(
            "before", "short", "refused", "plain", "after"
        )


# -- at the start ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=WRITERS)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """What a broker that was killed has left: a file, and a log with the newest jobs."""
    directory = tmp_path_factory.mktemp("killed")
    env = dict(WRITERS[request.param])
    home = directory / "home"
    home.mkdir()
    with client_of(BrokerProcess(directory, data_path=home / "jobs.db", env=env)) as client:
        client.ok("PUSHB", queue="old", jobs=[{"data": "o" * 2_000, "durable": True}] * JOBS)
        assert 0 == client.broker.terminate()  # brings all of that into the file
        client.crash()
        for number in range(30):
            client.push(f"one-{number}")
            ids = [f"two-{number}-{half}" for half in "ab"]
            jobs = [{"customId": job_id, "durable": True} for job_id in ids]
            client.ok("PUSHB", queue="q", jobs=jobs)
        # Both at once: a writer that is a process would else end in good order.
        writer = writer_of(client.broker)
        os.kill(client.broker.pid, signal.SIGSTOP)
        os.kill(writer, signal.SIGKILL)
    assert (home / "jobs.db-wal").stat().st_size > 8_192
    return Killed(home, env)


class Killed:
    """Files to be damaged, and the settings of a broker for them."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home = home
        self.env = env

    def copy(self, directory: Path) -> Path:
        """Return the path of a copy of the file, with its log beside it."""
        shutil.copytree(self.home, directory / "copy")
        return directory / "copy" / "jobs.db"


def test_of_a_torn_log_whole_commits_are_kept(tmp_path: Path, killed: Killed) -> None:
    path = killed.copy(tmp_path)
    log = Path(f"{path}-wal")
    size = log.stat().st_size
    end = random.randrange(size // 10, size)
    os.truncate(log, end)

    with client_of(BrokerProcess(tmp_path, data_path=path, env=killed.env)) as client:
        commits = [[f"one-{n}"] for n in range(30)]
        pairs = [[f"two-{n}-a", f"two-{n}-b"] for n in range(30)]
        in_order = [commit for both in zip(commits, pairs, strict=True) for commit in both]
        found = [client.states(*commit) for commit in in_order]
        kept = [states for states in found if states != ["unknown"] * len(states)]
        assert all(set(states) == {"waiting"} for states in kept)
        assert kept == found[: len(kept)], f"one is missing before one that is there: cut at {end}"
        assert len(kept) < len(found)
        assert JOBS == client.ok("GetJobCounts", queue="old")["counts"]["waiting"]
        assert {"ok": True, "id": "after"} == client.push("after")


def test_a_write_that_was_cut_off_costs_nothing_that_was_acknowledged(
    tmp_path: Path, killed: Killed
) -> None:
    path = killed.copy(tmp_path)
    with Path(f"{path}-wal").open("ab") as log:
        log.write(random.Random(1).randbytes(5_000))

    with client_of(BrokerProcess(tmp_path, data_path=path, env=killed.env)) as client:
        assert 90 == client.ok("GetJobCounts", queue="q")["counts"]["waiting"]
        assert JOBS == client.ok("GetJobCounts", queue="old")["counts"]["waiting"]


def _cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_within_a_page(path: Path) -> None:
    Path(f"{path}-wal").unlink()  # which may still have that page
    os.truncate(path, path.stat().st_size - 1_000)


def _without_its_first_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(8_192))


def _with_a_page_of_garbage(path: Path) -> None:
    pages = path.stat().st_size // 8_192
    with path.open("r+b") as file:
        file.seek(pages // 2 * 8_192)
        file.write(random.Random(1).randbytes(8_192))


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "cause", "cure"),
    [
        (_cut_short, "jobs.db is damaged", "restore it from a backup"),
        (_cut_within_a_page, "jobs.db is damaged", "restore it from a backup"),
        (_without_its_first_page, "jobs.db is damaged", "restore it from a backup"),
        (_with_a_page_of_garbage, "jobs.db is damaged", "restore it from a backup"),
        (_empty, "jobs.db is empty, but its log", "bring back the file or a backup"),
        (_missing, "jobs.db is missing, but its log", "bring back the file or a backup"),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(
    tmp_path: Path, killed: Killed, damage: Callable[[Path], None], cause: str, cure: str
) -> None:
    path = killed.copy(tmp_path)
    damage(path)
    before = contents(path.parent)

    line = start_fails(path, killed.env)

    assert before == contents(path.parent)
    assert cause in line
    assert cure in line
    assert "left as" in line


def test_damage_that_is_met_at_work_ends_the_broker_before_it_writes_more(
    tmp_path: Path, killed: Killed
) -> None:
    path = killed.copy(tmp_path)
    broker = BrokerProcess(tmp_path, data_path=path, env=killed.env)
    with client_of(broker) as client:
        assert {"ok": True, "id": "before"} == client.push("before")
        _with_a_page_of_garbage(path)
        before = contents(path.parent)

        assert INTERNAL == client.ask("Drain", queue="old")

        assert broker.process is not None
        assert 1 == broker.process.wait(SOON_S)
        broker.process = None
        assert before == contents(path.parent)
        assert "CorruptError: database disk image is malformed; stop the broker" in broker.log
        assert "jobs.db is damaged" in start_fails(path, killed.env)
        assert before == contents(path.parent)


def test_a_directory_that_cannot_be_written_is_refused_with_cause_and_cure(
    tmp_path: Path, request: pytest.FixtureRequest, killed: Killed
) -> None:
    if os.geteuid():
        path = killed.copy(tmp_path)
        path.parent.chmod(0o500)
        cause = "Permission denied"
    else:  # who may write everywhere but to a file system that takes nothing
        disk = request.getfixturevalue("disk")
        path = killed.copy(disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        cause = "Read-only file system"

    line = start_fails(path, killed.env)

    assert f"cannot write {path}" in line
    assert f"{cause}; make it, the files beside it and their directory writable" in line


def test_a_clock_in_the_past_at_a_restart_holds_nothing_up(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(CLOCK.pack(HOUR_MS, 0))
    settings = {CLOCK_FILE: str(clock), "PYTHONPATH": str(ROOT)}
    broker = MovableBroker(tmp_path, data_path=tmp_path / "jobs.db", env=settings)
    with client_of(broker) as client:
        client.push("failed", backoff={"type": "fixed", "delay": 300})
        token = client.ok("PULL", queue="q", owner="w")["token"]
        client.push("running", backoff={"type": "fixed", "delay": 300})
        client.ok("FAIL", id="failed", token=token, error="no")
        assert "running" == client.ok("PULL", queue="q", owner="w")["job"]["id"]
        client.push("ready")
        client.push("delayed", delay=2 * HOUR_MS)

        clock.write_bytes(CLOCK.pack(0, 0))
        client.crash()

        assert ["waiting", "delayed"] == client.states("ready", "delayed")
        new = client.ok("PUSH", queue="q", durable=True)["id"]
        found = [client.ok("PULL", queue="q", timeout=5_000)["job"]["id"] for _ in range(4)]
        assert {"ready", new, "failed", "running"} == set(found)
        assert "ready" == found[0]
        assert 2 == client.ok("GetJob", id="running")["job"]["attempts"] + 1
        assert client.is_ready()
        assert "the clock is behind the data file" in client.broker.log
