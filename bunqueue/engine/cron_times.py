"""When a schedule runs next: readings of a wall clock, turned into moments (engine.md 7).

A schedule names readings of a local clock, *slots*; croniter finds the next of them, on a calendar
that knows no zones. On most days a slot is one moment. On two nights a year it is none or two, and
then these rules hold, which no library has (croniter itself runs ``30 2`` twice in autumn):

- Skipped (the clock jumps over the slot): the first skipped slot runs, later by as much as the
  clock was moved; the others of that gap do not. ``30 2`` runs at 03:30.
- Repeated (the clock reads the slot twice): it runs the first time only; but a schedule over all
  24 hours means real hours and runs both times.

So every schedule is one fixed set of moments in each zone, and ``next_run`` finds the first of
them after a given moment. It keeps nothing between calls: asked again from within a repeated hour,
say after a restart, it gives the same answers.

croniter gets the values that ``cron_text`` has read, never the user's text, and always a start, so
it asks no clock. It is imported with the first schedule: brokers without one do not pay its 40 ms.
The next run costs 0.2 ms (``loadtests/micro.py cron``), and a calendar of our own 0.05 ms. That was
left: a calendar is not what this project is for. Zones come from the standard library; their names
are those of the ``tzdata`` package, the same on every machine, in any case of letters.
"""

from copy import copy
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from bunqueue.engine.cron_text import Schedule

if TYPE_CHECKING:
    from croniter import croniter

DAY_S: Final = 86_400
# A month and day that exist come again within 8 years (29 February over 1900 or 2100).
YEARS_MAX: Final = 9
MOMENT_MS_MAX: Final = 250_000_000_000_000  # year 9892: dates end at 9999
CALENDARS_MAX: Final = 10_000  # kept ready: as many different schedules as a broker is built for

_EPOCH: Final = datetime(1970, 1, 1)


def zone_of(name: str) -> tzinfo:
    """Return the zone of an IANA name; letters in any case.

    Raises:
        ValueError: There is no such zone.
    """
    known = _zone_names().get(name.casefold())
    if known is None:
        raise ValueError(f"unknown time zone {name!r}")
    return _zone_of(known)


@lru_cache(None)
def _zone_of(known: str) -> tzinfo:
    """Return the zone of a name as it is spelled: there are some 600 of them."""
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
    found = _slot(schedule, after) if zone is UTC else _in_zone(schedule, zone, after)
    return None if found is None else found * 1000


def after_interval(planned_at: int, every_ms: int, now: int) -> int:
    """Return the first moment after ``now`` on the grid of a planned moment and an interval."""
    following = planned_at + every_ms
    if following <= now:
        following += ((now - following) // every_ms + 1) * every_ms
    return following


# -- moments: all in seconds since the epoch, readings as if the clock showed UTC ------------------


def _in_zone(schedule: Schedule, zone: tzinfo, after: int) -> int | None:
    offset = _offset(zone, after)
    earlier, later = _offset(zone, after - DAY_S), _offset(zone, after + DAY_S)
    reading = after + offset
    moments = []
    if earlier < offset:  # shortly after a gap: its first slot may be still to come
        gap = _change(zone, after - DAY_S, after) + earlier
        slot = _slot(schedule, gap - 1)
        if slot is not None and slot < gap + offset - earlier:
            moments.append(slot - earlier)
    elif earlier > offset and not schedule.is_every_hour:  # what is repeated has had its turn
        reading = max(reading, _change(zone, after - DAY_S, after) + earlier - 1)
    if later < offset and schedule.is_every_hour:  # the second pass starts with earlier readings
        changed_at = _change(zone, after, after + DAY_S)
        slot = _slot(schedule, changed_at + later - 1)
        if slot is not None and slot < changed_at + offset:
            moments.append(slot - later)
    slot = _slot(schedule, reading)
    if slot is not None:
        before, behind = _offsets(zone, slot)
        moments.append(slot - before)
        if before > behind:  # repeated: if the first pass is over, this is the second
            moments.append(slot - behind)
        elif before < behind:  # skipped: a slot behind the gap may come before the moved one
            changed_at = _change(zone, slot - behind, slot - before)
            slot = _slot(schedule, changed_at + behind - 1)
            if slot is not None:
                moments.append(slot - behind)
    return min((moment for moment in moments if moment > after), default=None)


def _change(zone: tzinfo, low: int, high: int) -> int:
    """Return the first moment after ``low`` that has the offset of ``high``."""
    offset = _offset(zone, high)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: tzinfo, moment: int) -> int:
    """Return how far the zone's clock is ahead of UTC at a moment."""
    return _span(zone.fromutc(_date(moment).replace(tzinfo=zone)).utcoffset())


def _offsets(zone: tzinfo, reading: int) -> tuple[int, int]:
    """Return the offsets before and behind the change in which a local reading lies.

    They are equal where it lies in none. ``astimezone`` would do, but for skipped readings it is
    right only since Python 3.12.
    """
    local = _date(reading).replace(tzinfo=zone)
    return _span(local.utcoffset()), _span(local.replace(fold=1).utcoffset())


def _date(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _span(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * DAY_S + offset.seconds


# -- readings: a clock that knows no zones ---------------------------------------------------------


def _slot(schedule: Schedule, after: int) -> int | None:
    """Return the first reading after another one that matches; None near the end of dates."""
    from croniter import CroniterBadDateError

    calendar = copy(_calendar(schedule))  # it keeps where it stands; other threads may ask too
    try:
        return int(calendar.get_next(float, start_time=after))
    except CroniterBadDateError:
        return None


@lru_cache(CALENDARS_MAX)
def _calendar(schedule: Schedule) -> "croniter":
    from croniter import croniter

    days = _values(schedule.days, 31)
    weekdays = _values(schedule.weekdays, 7)
    # Both are restricted, so one match is enough, and one of them matches always.
    if "*" in (days, weekdays) and not (schedule.is_any_day or schedule.is_any_weekday):
        days = weekdays = "*"
    fields = (
        _values(schedule.minutes, 60),
        _values(schedule.hours, 24),
        days,
        _values(schedule.months, 12),
        weekdays,
        _values(schedule.seconds, 60),
    )
    return croniter(" ".join(fields), 0, max_years_between_matches=YEARS_MAX)


def _values(values: tuple[int, ...], count: int) -> str:
    return "*" if len(values) == count else ",".join(map(str, values))
