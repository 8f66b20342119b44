"""Reports of other queues about clocks and calendars: A3, A5, A6, A13 and A16 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bunqueue import Connection
from tests.model.world import World
from tests.support.broker_process import BrokerProcess
from tests.support.program import Program

pytestmark = pytest.mark.slow

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
PROGRAM = Path(__file__).parent / "schedules" / "program.py"
EACH_SECOND, EACH_OTHER = "* * * * * *", "*/2 * * * * *"
BUSY_S = 1.3  # longer than the period: each slot in between is left out


# -- A3: schedulers, and starts of both sides ------------------------------------------------------


def test_a03_starts_and_kills_make_no_run_twice_and_none_at_once(tmp_path: Path) -> None:
    """The program defines its scheduler at every start, in the end with another pattern."""
    said: list[list[str]] = []
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db") as broker:
        for life, pattern in enumerate((EACH_SECOND, EACH_SECOND, EACH_SECOND, EACH_OTHER)):
            args = [broker.port, pattern, BUSY_S]
            with Program(PROGRAM, args, directory=tmp_path) as program:
                program.wait_for("begin")
                if life == 1:
                    broker.restart()
                    program.wait_for("begin", count=2)
                if life == 2:
                    program.wait_for("end")
            said.append([line for line in program.lines if line.split()[0] in ("begin", "end")])
        with Connection(broker.host, broker.port) as connection:
            told = connection.call({"cmd": "CronGet", "name": "tick"})["cron"]

    begun = [line.split() for lines in said for line in lines if line.startswith("begin")]
    slots = [int(created_at) // SECOND_MS for _, _, created_at, _ in begun]
    # Each slot made one job at most, and never before its moment
    assert sorted(set(slots)) == slots
    assert len(begun) <= told["executions"]
    assert (EACH_OTHER, 0) == (told["schedule"], told["nextRun"] % (2 * SECOND_MS))
    # And no two ran at once, unless the broker was killed below them: it drops what was running
    for lines in (said[0], *said[2:]):
        assert [line.split()[0] for line in lines] == (["begin", "end"] * len(lines))[: len(lines)]


@pytest.fixture
def world() -> Iterator[World]:
    """A broker on a file whose clocks the test moves."""
    world = World()
    yield world
    world.close()


# -- A5: the nights on which the clocks change -----------------------------------------------------

# A moment before a change, and what becomes of rules in zones that change then: local times of the
# runs of five hours. An hour that is fixed runs once; every hour is every real hour.
EVERY_HOUR = "0 * * * *"
HALF_AN_HOUR = "Australia/Lord_Howe"  # its clocks go back by that: one full hour comes later
NIGHTS = {
    "2027-03-27T23:15+00:00": {
        ("30 2 * * *", "Europe/Rome"): ["03:30+0200"],
        ("*/30 2 * * *", "Europe/Rome"): ["03:00+0200"],
        ("30 1 * * *", "Europe/London"): ["02:30+0100"],
    },
    "2027-10-30T23:15+00:00": {
        ("30 2 * * *", "Europe/Rome"): ["02:30+0200"],
        ("*/30 2 * * *", "Europe/Rome"): ["02:00+0200", "02:30+0200"],
        ("30 1 * * *", "Europe/London"): ["01:30+0100"],
    },
    "2027-03-14T05:15+00:00": {("30 2 * * *", "America/New_York"): ["03:30-0400"]},
    "2027-11-07T04:15+00:00": {("30 1 * * *", "America/New_York"): ["01:30-0400"]},
    "2027-04-03T14:15+00:00": {
        ("30 2 * * *", "Australia/Sydney"): ["02:30+1100"],
        ("30 1 * * *", HALF_AN_HOUR): ["01:30+1100"],
    },
    "2027-09-25T12:15+00:00": {("30 2 * * *", "Pacific/Auckland"): ["03:30+1300"]},
}
HOURS = 5


def test_a05_no_run_comes_twice_or_not_at_all_when_the_clocks_change(world: World) -> None:
    """Six zones, both nights, half an hour at a time, with a stop and a start in the midst."""
    for begin, rules in NIGHTS.items():
        world.set_clock(int(datetime.fromisoformat(begin).timestamp() * 1000) - world.now())
        queues = {}
        for schedule, zone in [*rules, *((EVERY_HOUR, zone) for _, zone in rules)]:
            queues[schedule, zone] = queue = world.name("night")
            fields = {"name": queue, "schedule": schedule, "timezone": zone}
            world.ok("Cron", queue=queue, preventOverlap=False, **fields)
        for step in range(2 * HOURS):
            world.sleep(HOUR_MS // 2)
            world.eventually([], lambda: overdue(world))
            if step == HOURS:
                world.stop()
                world.sleep(SECOND_MS)  # it has looked at its schedulers
        told = {rule: runs_of(world, queues[rule], rule[1]) for rule in rules}
        each_hour = {zone: runs_of(world, queues[EVERY_HOUR, zone], zone) for _, zone in rules}
        for queue in queues.values():
            world.ok("CronDelete", name=queue)

        assert rules == told
        for zone, runs in each_hour.items():
            assert len(set(runs)) == len(runs) == HOURS - (zone == HALF_AN_HOUR), each_hour


def overdue(world: World) -> list[str]:
    now = world.now()
    return [cron["name"] for cron in world.ok("CronList")["crons"] if cron["nextRun"] <= now]


def runs_of(world: World, queue: str, zone: str) -> list[str]:
    """Return when jobs were made, to the half hour, as clocks show it there."""
    span_ms = HOUR_MS // 2
    jobs = world.ok("GetJobs", queue=queue, limit=100)["jobs"]
    moments = [job["createdAt"] // span_ms * span_ms / SECOND_MS for job in jobs]
    return [datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%H:%M%z") for at in moments]


# -- A6: somebody sets the clock -------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS], ids=["a day on", "a day back"])
def test_a06_a_step_of_the_clock_floods_nothing_and_stops_nothing(
    world: World, step_ms: int
) -> None:
    """Leases, limits, delays and schedulers are pending when the clock is set."""
    lease = {"queue": "leased", "owner": "w", "lockTtl": HOUR_MS}
    world.ok("PUSH", queue="leased", data={}, durable=True)
    leased = world.ok("PULL", **lease)
    world.ok("PUSH", queue="soon", data={}, delay=10 * MINUTE_MS)
    world.ok("RateLimit", queue="limited", limit=1, duration=HOUR_MS)
    for _ in range(3):
        world.ok("PUSH", queue="limited", data={})
    assert world.ok("PULL", queue="limited")["job"] is not None
    for name, skips in (("leaves", True), ("makes-up", False)):
        for kind in ({"repeatEvery": MINUTE_MS}, {"schedule": "* * * * *"}):
            queue = f"{name}-{next(iter(kind))}"
            fields = {"name": queue, "skipMissedOnRestart": skips, "preventOverlap": False}
            world.ok("Cron", queue=queue, **fields, **kind)

    world.set_clock(step_ms)
    world.eventually([], lambda: overdue(world))

    # The lease and the limit go on as if nothing had been: neither has ended.
    assert "active" == world.state(leased["job"]["id"])
    assert world.ok("JobHeartbeat", id=leased["job"]["id"], token=leased["token"])["ok"]
    assert world.ok("PULL", queue="limited")["job"] is None
    # No scheduler makes up for more than one run, and none is more than a period away.
    crons = world.ok("CronList")["crons"]
    for cron in crons:
        made = world.ok("Count", queue=cron["queue"])["count"]
        assert made <= (1 if cron["queue"].startswith("makes-up") and step_ms > 0 else 0)
        assert cron["nextRun"] - world.now() <= MINUTE_MS
    # A delay is a moment: it has come, or it comes a day later by the clock, which is told.
    is_due = world.ok("PULL", queue="soon")["job"] is not None
    assert (step_ms > 0) is is_due
    assert "the clock was set" in world.broker.log
    assert "schedulers are looked at again crons=4" in world.broker.log

    # And all runs on: after a minute each scheduler has made its next job.
    before = {cron["queue"]: world.ok("Count", queue=cron["queue"])["count"] for cron in crons}
    world.sleep(MINUTE_MS)
    world.eventually([], lambda: overdue(world))
    for cron in crons:
        assert before[cron["queue"]] + 1 == world.ok("Count", queue=cron["queue"])["count"]
    world.sleep(HOUR_MS)
    world.eventually(True, lambda: world.state(leased["job"]["id"]) != "active")
    assert world.ok("PULL", queue="limited")["job"] is not None
