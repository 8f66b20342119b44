"""When a schedule runs, on ordinary days and on the nights when clocks are moved.

The tables were read off the reference server, and ``cron_runs.json`` was recorded from its parser
(``tests/support/record_cron_runs.mjs``); ``moments_by_the_rules`` is the rule itself, applied to
every minute in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bunqueue.engine.cron_text import Schedule, parse
from bunqueue.engine.cron_times import (
    MOMENT_MS_MAX,
    _zone_of,
    after_interval,
    next_run,
    zone_of,
)

ROME = "Europe/Rome"
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"
SAO_PAULO = "America/Sao_Paulo"
KATHMANDU = "Asia/Kathmandu"


def ms(zone: str, local: str) -> int:
    """Return the epoch ms of a local time; its first pass if it is read twice."""
    return int(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def runs(expression: str, zone: str, start: str, count: int) -> list[str]:
    """Return the next runs after a local time, in local time with offset."""
    found = []
    at: int | None = ms(zone, start)
    for _ in range(count):
        assert at is not None
        at = next_run(parse(expression), zone_of(zone), at)
        assert at is not None
        local = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        found.append(local.strftime("%d %H:%M:%S %z").replace(":00 ", " "))
    return found


SPRING = [
    (ROME, "2026-03-29 01:50", "30 2 * * *", ["29 03:30 +0200", "30 02:30 +0200"]),
    (ROME, "2026-03-29 01:50", "*/30 2 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
    (ROME, "2026-03-29 01:50", "*/10 2 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
    (ROME, "2026-03-29 01:50", "15,45 2 * * *", ["29 03:15 +0200", "30 02:15 +0200"]),
    (ROME, "2026-03-29 01:50", "*/20 30 2 * * *", ["29 03:30 +0200", "30 02:30 +0200"]),
    (ROME, "2026-03-29 01:50", "15 2,3 * * *", ["29 03:15 +0200", "30 02:15 +0200"]),
    (ROME, "2026-03-29 00:50", "0 * * * *", ["29 01:00 +0100", "29 03:00 +0200"]),
    (ROME, "2026-03-29 00:50", "30 * * * *", ["29 01:30 +0100", "29 03:30 +0200"]),
    (NEW_YORK, "2026-03-08 01:50", "30 2 * * *", ["08 03:30 -0400", "09 02:30 -0400"]),
    (NEW_YORK, "2026-03-08 01:50", "*/30 2 * * *", ["08 03:00 -0400", "09 02:00 -0400"]),
    (NEW_YORK, "2026-03-08 01:50", "0 * * * *", ["08 03:00 -0400", "08 04:00 -0400"]),
    (LORD_HOWE, "2026-10-04 00:50", "0 2 * * *", ["04 02:30 +1100", "05 02:00 +1100"]),
    (LORD_HOWE, "2026-10-04 00:50", "15,45 2 * * *", ["04 02:45 +1100", "05 02:15 +1100"]),
    (LORD_HOWE, "2026-10-04 00:50", "0 * * * *", ["04 01:00 +1030", "04 02:30 +1100"]),
    (LORD_HOWE, "2026-10-04 00:50", "15 * * * *", ["04 01:15 +1030", "04 02:45 +1100"]),
    (SAO_PAULO, "2018-11-03 23:30", "0 0 * * *", ["04 01:00 -0200", "05 00:00 -0200"]),
    (SAO_PAULO, "2018-11-03 23:30", "30 0 * * *", ["04 01:30 -0200", "05 00:30 -0200"]),
    (SAO_PAULO, "2018-11-03 23:30", "0 * * * *", ["04 01:00 -0200", "04 02:00 -0200"]),
    (KATHMANDU, "1985-12-31 23:50", "0 0 * * *", ["01 00:15 +0545", "02 00:00 +0545"]),
    (KATHMANDU, "2026-03-29 01:50", "30 2 * * *", ["29 02:30 +0545", "30 02:30 +0545"]),
    ("UTC", "2026-03-29 01:50", "*/30 2 * * *", ["29 02:00 +0000", "29 02:30 +0000"]),
    ("Pacific/Apia", "2011-12-29 13:00", "0 12 * * *", ["31 12:00 +1400", "01 12:00 +1400"]),
]
AUTUMN = [
    (ROME, "2026-10-25 01:50", "30 2 * * *", ["25 02:30 +0200", "26 02:30 +0100"]),
    (ROME, "2026-10-25 02:10", "*/30 2 * * *", ["25 02:30 +0200", "26 02:00 +0100"]),
    (ROME, "2026-10-25 02:45", "*/30 1-3 * * *", ["25 03:00 +0100", "25 03:30 +0100"]),
    (ROME, "2026-10-25 01:50", "0 * * * *", ["25 02:00 +0200", "25 02:00 +0100"]),
    (ROME, "2026-10-25 02:45", "30 * * * *", ["25 02:30 +0100", "25 03:30 +0100"]),
    (ROME, "2026-10-25 01:50", "30 0-23 * * *", ["25 02:30 +0200", "25 02:30 +0100"]),
    (ROME, "2026-10-25 01:50", "30 */2 * * *", ["25 02:30 +0200", "25 04:30 +0100"]),
    (NEW_YORK, "2026-11-01 00:50", "30 1 * * *", ["01 01:30 -0400", "02 01:30 -0500"]),
    (NEW_YORK, "2026-11-01 00:50", "30 * * * *", ["01 01:30 -0400", "01 01:30 -0500"]),
    (LORD_HOWE, "2026-04-05 01:10", "45 1 * * *", ["05 01:45 +1100", "06 01:45 +1030"]),
    (LORD_HOWE, "2026-04-05 01:10", "45 * * * *", ["05 01:45 +1100", "05 01:45 +1030"]),
    (LORD_HOWE, "2026-04-05 00:50", "0 * * * *", ["05 01:00 +1100", "05 02:00 +1030"]),
    (SAO_PAULO, "2019-02-16 22:50", "30 23 * * *", ["16 23:30 -0200", "17 23:30 -0300"]),
    (SAO_PAULO, "2019-02-16 22:50", "30 * * * *", ["16 23:30 -0200", "16 23:30 -0300"]),
    (KATHMANDU, "2026-10-25 01:50", "30 2 * * *", ["25 02:30 +0545", "26 02:30 +0545"]),
    ("UTC", "2026-10-25 01:50", "30 * * * *", ["25 02:30 +0000", "25 03:30 +0000"]),
]


@pytest.mark.parametrize(("zone", "start", "expression", "expected"), SPRING)
def test_a_skipped_slot_runs_once_later_by_the_gap(
    zone: str, start: str, expression: str, expected: list[str]
) -> None:
    assert expected == runs(expression, zone, start, len(expected))


@pytest.mark.parametrize(("zone", "start", "expression", "expected"), AUTUMN)
def test_a_repeated_slot_runs_once_but_every_hour_is_every_real_hour(
    zone: str, start: str, expression: str, expected: list[str]
) -> None:
    assert expected == runs(expression, zone, start, len(expected))


def test_a_slot_behind_a_short_gap_runs_before_the_one_that_was_moved() -> None:
    # The reference leaves out 02:40 here, a reading that its clock does show.
    assert ["04 02:40 +1100", "04 02:50 +1100", "05 02:20 +1100"] == runs(
        "20,40 2 * * *", LORD_HOWE, "2026-10-04 00:50", 3
    )


def test_a_moved_slot_is_found_from_within_its_delay() -> None:
    # The reference asked at 03:10 has lost the run of 03:30; we may be restarted at any moment.
    assert ["29 03:30 +0200"] == runs("30 2 * * *", ROME, "2026-03-29 03:10", 1)


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("0 9 * * MON-FRI", "2026-03-27 09:00", ["30 09:00", "31 09:00"]),
        ("0 0 13 * 5", "2026-03-01 00:00", ["06 00:00", "13 00:00", "20 00:00", "27 00:00"]),
        ("0 0 */2 * 1", "2026-03-29 00:00", ["30 00:00", "31 00:00", "01 00:00"]),
        ("0 0 31 * *", "2026-03-31 00:00", ["31 00:00", "31 00:00"]),
        ("59 23 31 12 *", "2026-03-01 00:00", ["31 23:59", "31 23:59"]),
        ("*/25 10 8 * * *", "2026-03-01 08:10:25", ["01 08:10:50", "02 08:10"]),
    ],
)
def test_days_are_chosen_by_date_and_weekday(
    expression: str, start: str, expected: list[str]
) -> None:
    found = runs(expression, "UTC", start, len(expected))

    assert [f"{text} +0000" for text in expected] == found


def test_a_leap_day_is_waited_for() -> None:
    years = []
    at = ms("UTC", "2094-01-01 00:00")
    for _ in range(3):
        found = next_run(parse("0 0 29 2 *"), UTC, at)
        assert found is not None
        at = found
        years.append(datetime.fromtimestamp(at / 1000, UTC).year)

    assert [2096, 2104, 2108] == years


def test_a_moment_is_strictly_later_to_the_millisecond() -> None:
    minute = 60_000
    every_minute = parse("* * * * *")

    assert 2 * minute == next_run(every_minute, UTC, minute)
    assert minute == next_run(every_minute, UTC, minute - 1)


@pytest.mark.parametrize("after", [-1, MOMENT_MS_MAX + 1])
def test_beyond_the_calendar_there_is_no_run(after: int) -> None:
    assert next_run(parse("* * * * *"), UTC, after) is None


@pytest.mark.parametrize("name", ["europe/rome", "Etc/GMT+5", "UTC", "utc", "EST", "US/Pacific"])
def test_zones_go_by_their_iana_names(name: str) -> None:
    assert zone_of(name) is not None


@pytest.mark.parametrize("name", ["Nope/X", "", "+05:30", "UTC ", "localtime", "../etc/passwd"])
def test_an_unknown_zone_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        zone_of(name)


@pytest.mark.parametrize(
    ("now", "expected"), [(0, 1_100), (1_099, 1_100), (1_100, 2_100), (5_000, 5_100)]
)
def test_an_interval_stays_on_its_grid(now: int, expected: int) -> None:
    assert expected == after_interval(100, 1_000, now)


def test_the_calendar_is_not_loaded_before_there_is_a_schedule() -> None:
    program = "import sys, bunqueue.engine.schedules; print('croniter' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "False" == done.stdout.strip(), done.stderr


# -- what the reference's parser said --------------------------------------------------------------

RECORDED = json.loads(Path(__file__).with_name("cron_runs.json").read_text("utf-8"))
# (zone, start, schedule) -> ours; where we differ, and which rule of ours is why.
GAP_RUNS_ONCE = [10800, 93600, 93620, 93640]  # the first skipped slot; the reference runs three
DIFFERENT = {
    ("Europe/Rome", "2026-03-28T22:00Z", "*/20 0 2 * * *"): GAP_RUNS_ONCE,
    (NEW_YORK, "2026-03-08T04:00Z", "*/20 0 2 * * *"): GAP_RUNS_ONCE,
    (LORD_HOWE, "2026-10-03T13:00Z", "*/20 0 2 * * *"): [9000, 93600, 93620, 93640],
    # 00:15 is the first reading behind the gap; the reference leaves it out.
    (KATHMANDU, "1985-12-31T15:00Z", "5-20/5 0 * * *"): [12600, 12900, 98400, 98700],
}


@pytest.mark.parametrize(("zone", "start", "schedules"), RECORDED)
def test_schedules_run_when_the_reference_runs_them(
    zone: str, start: str, schedules: dict[str, list[int]]
) -> None:
    begin = int(datetime.fromisoformat(start).timestamp())
    found = {}
    for expression, runs_s in schedules.items():
        at = begin * 1000
        found[expression] = []
        for _ in runs_s:
            following = next_run(parse(expression), zone_of(zone), at)
            assert following is not None
            at = following
            found[expression].append(at // 1000 - begin)

    ours = {
        text: moments for (*night, text), moments in DIFFERENT.items() if night == [zone, start]
    }
    assert {**schedules, **ours} == found


# -- the rules, applied to every minute ------------------------------------------------------------

NIGHTS = [
    (ROME, "2026-03-29"),
    (ROME, "2026-10-25"),
    (NEW_YORK, "2026-03-08"),
    (NEW_YORK, "2026-11-01"),
    (LORD_HOWE, "2026-04-05"),
    (LORD_HOWE, "2026-10-04"),
    (SAO_PAULO, "2018-11-04"),
    (SAO_PAULO, "2019-02-17"),
    (KATHMANDU, "1986-01-01"),
    ("UTC", "2026-03-29"),
]
MINUTE_LISTS = ["0", "30", "*/30", "*/10", "15,45", "20,40", "5-20/5"]
HOUR_LISTS = ["*", "0", "1", "2", "3", "0-3", "*/2", "1,2", "23", "0-23"]


def matches(schedule: Schedule, reading: datetime) -> bool:
    return reading.minute in schedule.minutes and reading.hour in schedule.hours


HOUR = 3_600_000
MINUTE = 60_000


@lru_cache(1)
def readings(zone: str, start: int, end: int) -> list[tuple[int, datetime, int]]:
    """Return every minute of a span: moment, reading of the clock, and which pass it is."""
    found = []
    for at in range(start, end, MINUTE):
        local = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        found.append((at, local.replace(tzinfo=None), local.fold))
    return found


def moments_by_the_rules(schedule: Schedule, zone: str, start: int, end: int) -> list[int]:
    """Return the moments of a schedule without days, looking at every minute of the span."""
    found = set()
    minute = timedelta(minutes=1)
    before = None
    for at, reading, fold in readings(zone, start, end):
        skipped = reading if before is None else before + minute
        while skipped < reading:
            if matches(schedule, skipped):
                late = skipped - before - minute
                found.add(at + int(late.total_seconds()) * 1000)
                break
            skipped += minute
        before = reading
        if matches(schedule, reading) and (schedule.is_every_hour or not fold):
            found.add(at)
    return sorted(found)


@pytest.mark.parametrize(("zone", "night"), NIGHTS)
@settings(deadline=None, max_examples=60)
@given(some.sampled_from(MINUTE_LISTS), some.sampled_from(HOUR_LISTS), some.integers(0, 900))
def test_the_runs_of_a_night_are_those_of_the_rules(
    zone: str, night: str, minutes: str, hours: str, late: int
) -> None:
    schedule = parse(f"{minutes} {hours} * * *")
    begin, end = (ms("UTC", f"{night} 00:00") + hour * HOUR for hour in (-10, 10))
    start = begin + late * MINUTE
    expected = [at for at in moments_by_the_rules(schedule, zone, begin, end) if start < at < end]
    found = []
    at: int | None = start
    while at is not None and (at := next_run(schedule, zone_of(zone), at)) and at < end:
        found.append(at)

    assert expected == found


@settings(deadline=None)
@given(
    some.sampled_from([zone for zone, _ in NIGHTS]),
    some.sampled_from(MINUTE_LISTS),
    some.sampled_from(HOUR_LISTS),
    some.sampled_from(["* * *", "1 * *", "* * 1", "*/3 * 5", "29 2 *", "* 3,10 *"]),
    some.integers(0, 4_000_000_000),
)
def test_the_next_run_is_always_later(
    zone: str, minutes: str, hours: str, days: str, start_s: int
) -> None:
    schedule = parse(f"{minutes} {hours} {days}")
    before = start_s * 1000
    for _ in range(3):
        at = next_run(schedule, zone_of(zone), before)
        assert at is not None
        assert before < at
        # Asked from anywhere in between, the answer is the same: nothing is kept between calls.
        assert at == next_run(schedule, zone_of(zone), (before + at) // 2)
        before = at


def test_a_zone_in_any_case_is_kept_once() -> None:
    zone_of("Europe/Berlin")
    before = _zone_of.cache_info().currsize

    for number in range(1, 200):
        letters = [
            letter.upper() if number >> place & 1 else letter.lower()
            for place, letter in enumerate("europe/berlin")
        ]
        assert zone_of("Europe/Berlin") is zone_of("".join(letters))

    assert before == _zone_of.cache_info().currsize
