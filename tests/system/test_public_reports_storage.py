"""Reports of other queues about what is kept on disk: A11, A17 and A18 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Connection
from bunqueue.errors import CommandError
from tests.support.broker_process import BrokerProcess
from tests.system.test_traps_on_disk import writer_of

pytestmark = pytest.mark.slow

WAIT_S = 20.0  # for what takes a moment, on a busy machine
WRITERS = ({}, {"BUNQUEUE_PURE": "1"})
LARGE = "x" * 1_000_000
ERROR_CHARS_MAX = 32_768

writers = pytest.mark.parametrize("env", WRITERS, ids=("compiled", "pure"))


def until(claim: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline, f"did not come true in {WAIT_S} s"
        time.sleep(0.02)


def get(broker: BrokerProcess, path: str) -> tuple[int, str]:
    """Read a route of HTTP."""
    try:
        with urllib.request.urlopen(
            f"http://{broker.host}:{broker.http_port}{path}", timeout=WAIT_S
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Peer(Connection):
    """A connection with a short form of ``call``."""

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        return self.call({"cmd": cmd, **fields})

    def push(self, **fields: Any) -> str:
        job = {"queue": "q", "name": "n", "data": {}, "durable": True}
        return str(self.ask("PUSH", **job | fields)["id"])

    def pull(self) -> tuple[str, str]:
        answer = self.ask("PULL", queue="q", owner="w", lockTtl=3_600_000)
        return answer["job"]["id"], answer["token"]

    def state(self, job_id: str) -> str:
        return str(self.ask("GetState", id=job_id)["state"])


# -- A11: what would fill memory and file ----------------------------------------------------------


def test_a11_a_huge_error_text_is_cut(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db") as broker:
        with Peer(broker.host, broker.port) as peer:
            peer.push()
            job_id, token = peer.pull()
            peer.ask("FAIL", id=job_id, token=token, error=LARGE, unrecoverable=True)
            kept = peer.ask("GetJob", id=job_id)["job"]["failedReason"]
        assert LARGE[:ERROR_CHARS_MAX] == kept
        broker.restart()
        with Peer(broker.host, broker.port) as peer:
            assert kept == peer.ask("GetJob", id=job_id)["job"]["failedReason"]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("BUNQUEUE_MAX_COMPLETED_JOBS", "0", 0),
        ("BUNQUEUE_MAX_COMPLETED_JOBS", "1", 1),
        ("BUNQUEUE_MAX_COMPLETED_JOBS", "1000000000", 5),
        (None, None, 5),
    ],
)
def test_a11_each_special_value_of_retention_means_what_is_written(
    setting: str | None, value: str | None, expected: int, tmp_path: Path
) -> None:
    """0 keeps none, and not for ever; a result that is gone is no error to ask for."""
    env = {} if setting is None or value is None else {setting: value}
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        with Peer(broker.host, broker.port) as peer:
            ids = [peer.push() for _ in range(5)]
            for _ in ids:
                job_id, token = peer.pull()
                peer.ask("ACK", id=job_id, token=token, result=1)
            counts = peer.ask("GetJobCounts", queue="q")["counts"]
            assert expected == counts["completed"]
            states = [peer.state(job_id) for job_id in ids]
            assert ["unknown"] * (5 - expected) + ["completed"] * expected == states
            assert None is peer.ask("GetResult", id="nobody").get("result")
        broker.restart()
        with Peer(broker.host, broker.port) as peer:
            assert states == [peer.state(job_id) for job_id in ids]


def test_a11_a_retention_of_nothing_is_refused_at_the_start(tmp_path: Path) -> None:
    """It could be read as "at once" and as "never"."""
    broker = BrokerProcess(tmp_path, env={"BUNQUEUE_COMPLETED_RETENTION_MS": "0"})

    with pytest.raises(AssertionError, match="BUNQUEUE_COMPLETED_RETENTION_MS"), broker:
        pass


# -- A17: another process has the file -------------------------------------------------------------


@writers
def test_a17_a_file_locked_for_a_while_makes_answers_slow_and_none_an_error(
    env: dict[str, str], tmp_path: Path
) -> None:
    locked_s, path = 2.0, tmp_path / "q.db"
    with BrokerProcess(tmp_path, data_path=path, env=env) as broker:
        ids: list[str] = []

        def produce() -> None:
            with Peer(broker.host, broker.port) as peer:
                for _ in range(5):
                    ids.append(peer.push())

        with Peer(broker.host, broker.port) as peer:
            peer.push()
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            producers = [threading.Thread(target=produce) for _ in range(4)]
            began = time.monotonic()
            for producer in producers:
                producer.start()
            assert peer.ask("Ping")["ok"]  # who wants nothing of the disk is not held up
            time.sleep(locked_s)
            assert [] == ids
            other.execute("ROLLBACK")
            other.close()
            for producer in producers:
                producer.join(WAIT_S)
            assert locked_s < time.monotonic() - began
            assert 20 == len(ids)
        broker.restart()
        with Peer(broker.host, broker.port) as peer:
            assert ["waiting"] * 20 == [peer.state(job_id) for job_id in ids]


@writers
def test_a17_a_reader_that_stays_makes_the_log_grow_no_longer_than_it_does(
    env: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "q.db"
    with (
        BrokerProcess(tmp_path, data_path=path, env=env) as broker,
        Peer(broker.host, broker.port) as peer,
    ):
        peer.push()
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        batch = [{"name": "n", "data": "x" * 10_000, "durable": True}] * 100

        def write(rounds: int) -> int:
            for _ in range(rounds):
                peer.ask("PUSHB", queue="q", jobs=batch)
            return (tmp_path / "q.db-wal").stat().st_size

        grown = write(20)
        assert 15 << 20 < grown  # nothing of it can be taken over while somebody reads the old
        reader.execute("ROLLBACK")
        reader.close()

        until(lambda: write(1) < grown * 1.2)
        assert write(30) < grown * 1.2


# -- A18: no room ----------------------------------------------------------------------------------


@writers
def test_a18_a_full_disk_is_told_and_loses_nothing_that_was_acknowledged(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Filled, asked, killed while full, and given room again."""
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        with Peer(broker.host, broker.port) as peer:
            kept = [peer.push() for _ in range(3)]
            held, token = peer.pull()
            room = resource.prlimit(writer_of(broker), resource.RLIMIT_FSIZE)
            small = (4 << 20, room[1])
            resource.prlimit(writer_of(broker), resource.RLIMIT_FSIZE, small)

            with pytest.raises(CommandError):
                fill(peer, kept)

            # Reads are answered, and so is an outcome that fits no more: it leaves the job active.
            until(lambda: get(broker, "/ready")[0] == 503)
            assert peer.ask("StorageStatus")["data"]["error"]
            assert 1 == gauge(peer, "bunqueue_storage_degraded")
            assert 200 == get(broker, "/live")[0]
            assert "waiting" == peer.state(kept[1])
            with pytest.raises(CommandError):
                peer.ask("ACK", id=held, token=token, result=LARGE)
            assert "active" == peer.state(held)

            # Given room again it recovers by itself
            resource.prlimit(writer_of(broker), resource.RLIMIT_FSIZE, room)
            until(lambda: get(broker, "/ready")[0] == 200)
            peer.ask("ACK", id=held, token=token, result=LARGE)
            kept.append(peer.push(data=LARGE))

            # And killed while it is full again it has all that it said yes to
            resource.prlimit(writer_of(broker), resource.RLIMIT_FSIZE, small)
            with pytest.raises(CommandError):
                fill(peer, kept)
            broker.kill()
        broker.start()
        with Peer(broker.host, broker.port) as peer:
            states = {job_id: peer.state(job_id) for job_id in kept}
            assert "completed" == states.pop(held)
            assert {"waiting"} == set(states.values())


def fill(peer: Peer, kept: list[str]) -> None:
    """Push until there is no room; at most 10 MB."""
    for _ in range(10):
        kept.append(peer.push(data=LARGE))


def gauge(peer: Peer, name: str) -> float:
    lines = str(peer.ask("Prometheus")["data"]["metrics"]).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
