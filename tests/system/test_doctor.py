"""``bunqueue doctor`` on real brokers and files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bunqueue.client.connection import Connection
from tests.model.broker_main import CLOCK, CLOCK_FILE
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.cli import Done, bunqueue

pytestmark = pytest.mark.slow

TOKEN = "a-token-that-nobody-guesses"
NOBODY = {"BUNQUEUE_TCP_PORT": "1"}


def run(
    broker: BrokerProcess | None, *args: str, env: dict[str, str] | None = None
) -> tuple[Done, dict[str, dict[str, str]]]:
    """Run it with ``--json``; returns what it did and check -> finding."""
    done = bunqueue("doctor", "--json", *args, broker=broker, env=NOBODY if not broker else env)
    assert "" == done.err
    told = json.loads(done.out)
    levels = {one["level"] for one in told["findings"]}
    assert ("problem" in levels) == (not told["ok"]) == (done.status == 1)
    return done, {one["check"]: one for one in told["findings"]}


def levels(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return check -> level, of those that are not fine."""
    return {check: one["level"] for check, one in found.items() if one["level"] != "ok"}


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_broker_that_is_well(broker: BrokerProcess) -> None:
    """Its file is found and read beside it, and the broker goes on."""
    bunqueue("push", "emails", "{}", broker=broker)
    bunqueue("pull", "emails", broker=broker)

    done, found = run(broker)

    assert {} == levels(found)
    assert 0 == done.status
    assert "is in use by a broker" in found["file"]["text"]
    assert {"versions", "clock", "storage", "disk", "log", "permissions", "settings"} < set(found)
    assert "OK\n" == bunqueue("queue", "pause", "emails", broker=broker).out


def test_what_is_wrong_with_queues_is_told_in_lines(broker: BrokerProcess) -> None:
    bunqueue("push", "emails", "{}", broker=broker)
    bunqueue("queue", "pause", "emails", broker=broker)
    bunqueue("push", "calls", "{}", broker=broker)

    warned = bunqueue("doctor", broker=broker)

    assert (0, "") == (warned.status, warned.err)
    assert "warning  paused            queue emails is paused with 1 job; " in warned.out
    assert "warning  workers           queue calls has 1 job to do and no worker; " in warned.out
    assert warned.out.splitlines()[-1].startswith("0 problems, 2 warnings, ")

    bunqueue("concurrency", "set", "calls", "0", broker=broker)
    broken = bunqueue("doctor", broker=broker)

    assert 1 == broken.status
    assert "problem  queue settings    queue calls: its concurrency of 0" in broken.out


def test_a_file_alone(broker: BrokerProcess) -> None:
    bunqueue("push", "emails", "{}", broker=broker)
    broker.terminate()
    before = sorted(os.listdir(broker.directory))

    done, found = run(None, "--data-path", str(broker.data_path))

    assert {"broker": "warning"} == levels(found)
    assert "holds 1 job, was closed well" in found["file"]["text"]
    assert 0 == done.status
    assert before == sorted(os.listdir(broker.directory))


def test_a_file_whose_broker_was_killed_is_left_as_it_is(broker: BrokerProcess) -> None:
    bunqueue("push", "emails", "{}", "--durable", broker=broker)
    broker.kill()

    _, found = run(None, "-d", str(broker.data_path))
    assert "holds 1 job, was not closed" in found["file"]["text"]

    broker.start()
    assert "Count: 1\n" == bunqueue("queue", "count", "emails", broker=broker).out


def test_a_damaged_file(broker: BrokerProcess) -> None:
    bunqueue("push", "emails", "{}", broker=broker)
    broker.terminate()
    path = broker.data_path
    assert path is not None
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    before = path.read_bytes()

    done, found = run(None, "--data-path", str(path))

    assert 1 == done.status
    assert "problem" == found["file"]["level"]
    assert ".recover" in found["file"]["cure"]
    assert before == path.read_bytes()


def test_a_file_that_is_not_there() -> None:
    done, found = run(None, "--data-path", "/nowhere/queue.db")

    assert (1, "problem") == (done.status, found["file"]["level"])


def test_a_broker_in_memory(memory_broker: BrokerProcess) -> None:
    done, found = run(memory_broker)

    assert (0, {"storage": "warning"}) == (done.status, levels(found))
    assert "file" not in found


def test_a_file_of_another_broker_beside_the_one_that_is_asked(
    broker: BrokerProcess, memory_broker: BrokerProcess
) -> None:
    _, found = run(memory_broker, "--data-path", str(broker.data_path))

    assert "memory only" in found["storage"]["text"]
    assert "is in use by a broker" in found["file"]["text"]


def test_no_broker_and_no_file_is_a_problem() -> None:
    done, found = run(None)

    assert (1, {"broker": "problem"}) == (done.status, levels(found))
    assert "bunqueue start" in found["broker"]["cure"]


def test_without_a_broker_the_file_of_the_settings_is_looked_at(broker: BrokerProcess) -> None:
    broker.terminate()
    env = {"BUNQUEUE_DATA_PATH": str(broker.data_path), "BUNQUEUE_TCP_PORT": "1"}

    done = bunqueue("doctor", "--json", env=env)

    found = {one["check"]: one["level"] for one in json.loads(done.out)["findings"]}
    assert (1, "problem", "ok") == (done.status, found["broker"], found["file"])


def test_an_open_broker_and_a_lax_file_are_told(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, data_path=tmp_path / "queue.db")
    broker.host = "0.0.0.0"
    with broker:
        broker.host = "127.0.0.1"
        (tmp_path / "queue.db").chmod(0o644)

        done, found = run(broker)

    assert (1, {"settings": "problem", "permissions": "problem"}) == (done.status, levels(found))
    assert "OPEN TO EVERYONE" in found["settings"]["text"]
    assert "chmod 600" in found["permissions"]["cure"]


def test_a_wrong_token_is_a_problem_and_the_right_one_is_not_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, env={"AUTH_TOKENS": TOKEN}) as broker:
        done, found = run(broker, "--token", "a-wrong-one")
        assert ("problem", 1) == (found["broker"]["level"], done.status)
        assert "AUTH_TOKENS" in found["broker"]["cure"]

        done, found = run(broker, "--token", TOKEN)

    assert {"storage": "warning"} == levels(found)
    assert TOKEN not in done.out


class Shifted(BrokerProcess):
    """A broker whose clock the test sets."""

    def __init__(self, directory: Path) -> None:
        self.clock = directory / "clock"
        self.set_clock(0)
        root = str(Path(__file__).parents[2])
        super().__init__(directory, env={CLOCK_FILE: str(self.clock), "PYTHONPATH": root})

    def set_clock(self, set_ms: int, slept_ms: int = 0) -> None:
        """Set the wall clock, and let everything sleep, by so much from the start."""
        with self.clock.open("r+b" if self.clock.exists() else "w+b") as file:
            file.write(CLOCK.pack(set_ms, slept_ms))

    def command(self) -> list[str]:
        """Return the arguments that run it."""
        command = super().command()
        command[command.index("bunqueue")] = "tests.model.broker_main"
        return command


def test_a_clock_that_was_set_and_is_off_is_told(tmp_path: Path) -> None:
    with Shifted(tmp_path) as broker:
        assert "clock" not in levels(run(broker)[1])

        broker.set_clock(-3_600_000)
        until(lambda: "clock was set" in broker.log)
        _, found = run(broker)

    assert ("problem", "warning") == (found["clock"]["level"], found["clock steps"]["level"])
    assert "1 h behind this machine's" in found["clock"]["text"]
    assert "set 1 time since the start, last back by 1 h" in found["clock steps"]["text"]


def test_jobs_that_wait_for_long_are_told(tmp_path: Path) -> None:
    with Shifted(tmp_path) as broker, Connection(broker.host, broker.port) as link:
        for queue in ("emails", "calls"):
            link.call({"cmd": "PUSH", "queue": queue, "data": {}, "jobId": queue})
        broker.set_clock(0, slept_ms=400_000)
        link.call({"cmd": "RegisterWorker", "name": "w", "queues": ["emails", "calls"]})

        _, found = run(broker)

    assert "warning" == found["overdue"]["level"]
    assert "queue emails has 1 job due, emails for 7 min" in found["overdue"]["text"]


def test_a_webhook_that_fails_is_told(tmp_path: Path) -> None:
    closed = free_port()
    env = {"WEBHOOK_ALLOWED_TARGETS": "127.0.0.1", "WEBHOOK_MAX_RETRIES": "1"}
    with BrokerProcess(tmp_path, env=env) as broker:
        added = bunqueue(
            "webhook", "add", f"http://ann:hush@127.0.0.1:{closed}/", "-e", "job.pushed",
            broker=broker,
        )  # fmt: skip
        assert 0 == added.status
        bunqueue("push", "emails", "{}", broker=broker)

        until(lambda: "webhooks" in levels(run(broker)[1]))
        done, found = run(broker)

    assert "1 of 1 deliveries were given up" in found["webhooks"]["text"]
    assert "hush" not in done.out


def test_bad_usage_is_exit_2() -> None:
    assert 2 == bunqueue("doctor", "--data-path").status
    assert 2 == bunqueue("doctor", "emails").status
