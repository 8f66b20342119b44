"""When a schedule runs next: readings of a wall clock, turned into moments (engine.md 7).

A schedule names readings of a local clock, *slots*. On most days a slot is one moment. On two
nights a year it is none or two, and then these rules hold:

- Skipped (the clock jumps over the slot): the first skipped slot runs, later by as much as the
  clock was moved; the others of that gap do not. ``30 2`` runs at 03:30.
- Repeated (the clock reads the slot twice): it runs the first time only; but a schedule over all
  24 hours means real hours and runs both times.

So every schedule is one fixed set of moments in each zone, and ``next_run`` finds the first of
them after a given moment. It keeps nothing between calls: asked again from within a repeated hour,
say after a restart, it gives the same answers.

An own evaluator, because libraries have other rules for those nights: croniter fires ``30 2``
twice in autumn, and takes several times as long. Zones come from the standard library; their
names are those of the ``tzdata`` package, the same on every machine, in any case of letters.
"""

from bisect import bisect_left
from calendar import monthrange
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from bunqueue.engine.cron_text import Schedule

DAY_S: Final = 86_400
# A month and day that exist come again within 8 years (29 February over 1900 or 2100).
MONTHS_MAX: Final = 12 * 9
MOMENT_MS_MAX: Final = 250_000_000_000_000  # year 9892: dates end at 9999

_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)


@lru_cache(None)
def zone_of(name: str) -> tzinfo:
    """Return the zone of an IANA name; letters in any case.

    Raises:
        ValueError: There is no such zone.
    """
    known = _zone_names().get(name.casefold())
    if known is None:
        raise ValueError(f"unknown time zone {name!r}")
    return UTC if known in ("UTC", "Etc/UTC") else ZoneInfo(known)


@lru_cache(1)
def _zone_names() -> dict[str, str]:
    names = (files("tzdata") / "zones").read_text("utf-8").split()
    return {name.casefold(): name for name in names}


def next_run(schedule: Schedule, zone: tzinfo, after_ms: int) -> int | None:
    """Return the first moment of the schedule after another one.

    Args:
        schedule: Parsed.
        zone: Whose clock it reads.
        after_ms: Epoch ms; the answer is later than this.

    Returns:
        Epoch ms, or None if there is none before the end of dates.
    """
    if not 0 <= after_ms <= MOMENT_MS_MAX:
        return None
    after = after_ms // 1000
    if zone is UTC:
        slot = next_slot(schedule, _EPOCH + timedelta(seconds=after))
        found = None if slot is None else _seconds(slot)
    else:
        found = _in_zone(schedule, zone, after)
    return None if found is None else found * 1000


def after_interval(planned_at: int, every_ms: int, now: int) -> int:
    """Return the first moment after ``now`` on the grid of a planned moment and an interval."""
    following = planned_at + every_ms
    if following <= now:
        following += ((now - following) // every_ms + 1) * every_ms
    return following


def _in_zone(schedule: Schedule, zone: tzinfo, after: int) -> int | None:
    offset = _offset(zone, after)
    local = _EPOCH + timedelta(seconds=after + offset)
    moments = [
        moment
        for moment in (
            _ahead(schedule, zone, after, local),
            _second_pass(schedule, zone, after, local, offset),
            _moved(schedule, zone, after, offset),
        )
        if moment is not None
    ]
    return min(moments, default=None)


def _ahead(schedule: Schedule, zone: tzinfo, after: int, local: datetime) -> int | None:
    """Return the moment of the first slot that lies ahead on the local clock."""
    slot = next_slot(schedule, local)
    while slot is not None:
        reading = _seconds(slot)
        before, behind = _offsets(zone, slot)
        moment = reading - before
        if before == behind:
            return moment
        if before > behind:  # repeated
            if moment > after:
                return moment
            if schedule.is_every_hour:
                return reading - behind
            changed_at = _change(zone, moment, reading - behind, behind)
            slot = _slot_from(schedule, changed_at + before)
            continue
        # Skipped; a slot behind the gap may still come before the one that is moved.
        changed_at = _change(zone, reading - behind, moment, behind)
        slot = _slot_from(schedule, changed_at + behind)
        return moment if slot is None else min(moment, _seconds(slot) - behind)
    return None


def _second_pass(
    schedule: Schedule, zone: tzinfo, after: int, local: datetime, offset: int
) -> int | None:
    """Return the first moment of the second pass, if ``after`` lies in the first one."""
    if not schedule.is_every_hour:
        return None
    before, behind = _offsets(zone, local)
    if before <= behind or before != offset:
        return None
    changed_at = _change(zone, after, after + before - behind, behind)
    slot = _slot_from(schedule, changed_at + behind)
    if slot is None or _seconds(slot) >= changed_at + before:
        return None
    return _seconds(slot) - behind


def _moved(schedule: Schedule, zone: tzinfo, after: int, offset: int) -> int | None:
    """Return the moment of a skipped slot that is still to come, shortly after a gap."""
    before = _offset(zone, after - DAY_S)
    if before >= offset:
        return None
    changed_at = _change(zone, after - DAY_S, after, offset)
    slot = _slot_from(schedule, changed_at + before)
    if slot is None or _seconds(slot) >= changed_at + offset:
        return None
    moment = _seconds(slot) - before
    return moment if moment > after else None


def _change(zone: tzinfo, low: int, high: int, offset: int) -> int:
    """Return the first moment in ``low < moment <= high`` that has the offset."""
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: tzinfo, moment: int) -> int:
    """Return how far the zone's clock is ahead of UTC at a moment, in seconds."""
    span = (_EPOCH + timedelta(seconds=moment)).replace(tzinfo=zone)
    found = zone.fromutc(span).utcoffset()
    assert found is not None
    return found.days * DAY_S + found.seconds


def _offsets(zone: tzinfo, reading: datetime) -> tuple[int, int]:
    """Return the offsets before and behind the change in which a local reading lies.

    They are equal where it lies in none. ``astimezone`` would do, but for skipped readings it is
    right only since Python 3.12.
    """
    before = reading.replace(tzinfo=zone, fold=0).utcoffset()
    behind = reading.replace(tzinfo=zone, fold=1).utcoffset()
    assert before is not None
    assert behind is not None
    return before.days * DAY_S + before.seconds, behind.days * DAY_S + behind.seconds


def _seconds(reading: datetime) -> int:
    """Return a reading as seconds since the epoch's reading."""
    span = reading - _EPOCH
    return span.days * DAY_S + span.seconds


def _slot_from(schedule: Schedule, reading: int) -> datetime | None:
    """Return the first slot at a reading or after it."""
    return next_slot(schedule, _EPOCH + timedelta(seconds=reading - 1))


# -- on the clock itself, which knows no zones ----------------------------------------------------


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the first reading after another one that matches; None near the end of dates."""
    start = after.replace(microsecond=0) + _SECOND
    year, month, day = start.year, start.month, start.day
    if month in schedule.months and day in _days(schedule, year, month):
        time = _time_from(schedule, start.hour, start.minute, start.second)
        if time is not None:
            return datetime(year, month, day, *time)
    day += 1
    for _ in range(MONTHS_MAX):
        if month in schedule.months:
            days = _days(schedule, year, month)
            place = bisect_left(days, day)
            if place < len(days):
                first = schedule.hours[0], schedule.minutes[0], schedule.seconds[0]
                return datetime(year, month, days[place], *first)
        day = 1
        month += 1
        if month > 12:
            year, month = year + 1, 1
            if year > 9998:
                return None
    return None


def _days(schedule: Schedule, year: int, month: int) -> list[int]:
    """Return the days of a month that match, in order."""
    first, count = monthrange(year, month)
    if schedule.is_any_weekday:
        return [day for day in schedule.days if day <= count]
    weekdays = schedule.weekdays
    # The first is a Monday when ``first`` is 0; our Sunday is 0.
    of_week = [day for day in range(1, count + 1) if (first + day) % 7 in weekdays]
    if schedule.is_any_day:
        return of_week
    return sorted({*of_week, *(day for day in schedule.days if day <= count)})


def _time_from(
    schedule: Schedule, hour: int, minute: int, second: int
) -> tuple[int, int, int] | None:
    """Return the first time of day that matches, at the given one or later."""
    hours, minutes, seconds = schedule.hours, schedule.minutes, schedule.seconds
    if hour in hours:
        if minute in minutes:
            place = bisect_left(seconds, second)
            if place < len(seconds):
                return hour, minute, seconds[place]
        place = bisect_left(minutes, minute + 1)
        if place < len(minutes):
            return hour, minutes[place], seconds[0]
    place = bisect_left(hours, hour + 1)
    return (hours[place], minutes[0], seconds[0]) if place < len(hours) else None
