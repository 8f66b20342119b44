"""Cron expressions: what is accepted, and what is said about the rest (engine.md 7).

Five fields, or six with the seconds in front; any blanks between them. A field is a list of parts
with commas between them, a part is ``*``, a value, an ascending range, or one of these with
``/step``; a single value with a step runs to the field's end. Months and weekdays have names,
Sunday is 0 and 7. What other dialects add (``L W # ? ~ H``, ranges that wrap around) is refused
here, so that an expression means the same on every broker or nothing at all.

An own parser and not a library's, since every library takes some of those; what it has read is
given to one in ``cron_times``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

EXPRESSION_CHARS_MAX: Final = 1000  # far beyond any list of values that means something
SCHEDULES_PARSED_MAX: Final = 1024  # kept parsed; a repeating job asks at every completion

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_WEEKDAYS: Final = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: its name for refusals, its bounds, and the names of its values."""

    name: str
    least: int
    most: int
    names: dict[str, int]
    steps_from_value: bool = True


def _named(words: list[str], first: int) -> dict[str, int]:
    """Return word -> number, for the whole words and for their first three letters."""
    return {text: number for number, word in enumerate(words, first) for text in (word, word[:3])}


_FIELDS: Final = (
    _Field("seconds", 0, 59, {}, steps_from_value=False),
    _Field("minutes", 0, 59, {}),
    _Field("hours", 0, 23, {}),
    _Field("days", 1, 31, {}),
    _Field("months", 1, 12, _named(_MONTHS, 1)),
    _Field("weekdays", 0, 7, _named(_WEEKDAYS, 0)),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A parsed expression; every field holds the values that match, in order.

    Attributes:
        is_any_day, is_any_weekday: The field was ``*``. If neither was, one match is enough.
        is_every_hour: All 24 hours match: it means real hours, not readings of a clock.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_any_day: bool
    is_any_weekday: bool

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24


@lru_cache(SCHEDULES_PARSED_MAX)
def parse(expression: str) -> Schedule:
    """Read an expression.

    Raises:
        ValueError: It cannot be read, or no day ever matches it; the text says why.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ValueError(f"Cron expression is longer than {EXPRESSION_CHARS_MAX} characters")
    texts = expression.split()
    if len(texts) == 1:
        texts = ALIASES.get(texts[0].lower(), texts[0]).split()
    if len(texts) == 5:
        texts.insert(0, "0")
    if len(texts) != 6:
        raise ValueError("Cron expression must have 5 fields, or 6 fields with leading seconds")
    seconds, minutes, hours, days, months, weekdays = (
        _values(field, text) for field, text in zip(_FIELDS, texts, strict=True)
    )
    schedule = Schedule(
        seconds,
        minutes,
        hours,
        days,
        months,
        tuple(sorted({day % 7 for day in weekdays})),
        is_any_day=texts[3] == "*",
        is_any_weekday=texts[5] == "*",
    )
    if schedule.is_any_weekday and all(days[0] > _MONTH_DAYS[month - 1] for month in months):
        raise ValueError("Cron expression has no future occurrences")
    return schedule


def _values(field: _Field, text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        found.update(_part(field, part))
    return tuple(sorted(found))


def _part(field: _Field, part: str) -> range:
    span, slash, step_text = part.partition("/")
    step = 1
    if slash:
        step = _digits(step_text) or 0
        if step < 1:
            raise ValueError(f"step {step_text!r} in {field.name} is not a positive integer")
    if span == "*":
        return range(field.least, field.most + 1, step)
    low_text, dash, high_text = span.partition("-")
    low = _value(field, low_text)
    if dash:
        high = _value(field, high_text)
        if high < low:
            raise ValueError(f"range {span!r} in {field.name} is not ascending")
        return range(low, high + 1, step)
    if not slash:
        return range(low, low + 1)
    if not field.steps_from_value:
        raise ValueError(f"{part!r} in {field.name}: a step needs a wildcard or a range")
    return range(low, field.most + 1, step)


def _value(field: _Field, text: str) -> int:
    value = field.names.get(text.lower())
    if value is None:
        value = _digits(text)
    if value is None:
        raise ValueError(f"{text!r} in {field.name} is not understood")
    if not field.least <= value <= field.most:
        raise ValueError(f"{text} in {field.name} is not within {field.least}..{field.most}")
    return value


def _digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
