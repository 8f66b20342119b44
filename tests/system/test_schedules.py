"""Schedulers of a broker process; ``BUNQUEUE_TEST_REFERENCE`` drives the reference instead.

What the broker says of the next run is compared with the evaluator here, so that driving the
reference compares the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue import CommandError, Connection
from bunqueue.engine.cron_text import parse
from bunqueue.engine.cron_times import next_run, zone_of
from tests.support.broker_process import BrokerProcess
from tests.support.reference import broker_under_test

pytestmark = pytest.mark.slow

EXPRESSIONS = [
    "*/5 * * * *",
    "30 2 * * *",
    "0 9 * * MON-FRI",
    "0 0 1 * *",
    "15,45 */3 * * *",
    "*/7 * * * * *",
    "0 0 29 2 *",
    "0 12 13 * 5",
    "@weekly",
    "5/20 6-18/3 * jan,JULY 7",
]
ZONES = [
    "Europe/Rome",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "UTC",
]
REFUSED = ["", "* * * *", "L * * * *", "0 0 1W * *", "0 0 * * 1#2", "? * * * *", "0 22-2 * * *"]
REFUSED += ["0 0 30 2 *", "61 * * * *", "5/20 * * * * *", "@reboot", "* * * * * * *", "~ * * * *"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_under_test(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Connection]:
    with Connection(broker.host, broker.port) as connection:
        yield connection


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("zone", ZONES)
def test_the_next_run_is_the_calendars(connection: Connection, zone: str) -> None:
    told, expected = {}, {}
    for expression in EXPRESSIONS:
        before = now_ms()
        name = f"{expression} {zone}"
        connection.call(
            {"cmd": "Cron", "name": name, "queue": "q", "schedule": expression, "timezone": zone}
        )
        told[expression] = connection.call({"cmd": "CronGet", "name": name})["cron"]["nextRun"]
        moments = (next_run(parse(expression), zone_of(zone), at) for at in (before, now_ms()))
        expected[expression] = set(moments)
        connection.call({"cmd": "CronDelete", "name": name})

    assert {} == {text: told[text] for text in told if told[text] not in expected[text]}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_no_broker_understands_is_refused(connection: Connection, expression: str) -> None:
    with pytest.raises(CommandError, match="Invalid cron expression: |must have either schedule"):
        connection.call({"cmd": "Cron", "name": "x", "queue": "q", "schedule": expression})


def test_a_killed_broker_makes_no_run_twice_and_keeps_its_grid(tmp_path: Path) -> None:
    every_ms = 200
    # Ours only: the reference begins a new grid at every start.
    with BrokerProcess(tmp_path, data_path=tmp_path / "broker.db") as broker:
        with Connection(broker.host, broker.port) as connection:
            cron = connection.call(
                {
                    "cmd": "Cron",
                    "name": "tick",
                    "queue": "ticks",
                    "repeatEvery": every_ms,
                    "preventOverlap": False,
                }
            )["cron"]
        first = int(cron["nextRun"])
        for _ in range(3):
            time.sleep(1)
            broker.kill()
            broker.start()
        with Connection(broker.host, broker.port) as connection:
            told = connection.call({"cmd": "CronGet", "name": "tick"})["cron"]
            request = {"cmd": "GetJobs", "queue": "ticks", "state": "waiting", "limit": 1000}
            jobs = connection.call(request)["jobs"]

    slots = [(job["createdAt"] - first) // every_ms for job in jobs]
    assert 0 == (told["nextRun"] - first) % every_ms
    assert len(set(slots)) == len(slots)
    assert 3 <= len(slots) <= told["executions"]
