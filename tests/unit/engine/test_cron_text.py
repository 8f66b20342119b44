"""What a cron expression may say, and what is said about the rest."""

import pytest

from bunqueue.engine.cron_text import EXPRESSION_CHARS_MAX, parse

EVERY_MINUTE = tuple(range(60))


@pytest.mark.parametrize(
    ("expression", "field", "values"),
    [
        ("* * * * *", "minutes", EVERY_MINUTE),
        ("* * * * *", "seconds", (0,)),
        ("* * * * * *", "seconds", EVERY_MINUTE),
        ("*/15 * * * *", "minutes", (0, 15, 30, 45)),
        ("*/70 * * * *", "minutes", (0,)),
        ("1-10/70 * * * *", "minutes", (1,)),
        ("50/4 * * * *", "minutes", (50, 54, 58)),
        ("1-3,5,3 * * * *", "minutes", (1, 2, 3, 5)),
        ("*/20,7 * * * *", "minutes", (0, 7, 20, 40)),
        ("10-20/3,50 0 0 * * *", "seconds", (10, 13, 16, 19, 50)),
        ("00 09 * * *", "hours", (9,)),
        ("0\t0 *   * *", "hours", (0,)),
        ("0 0 1 jan,DEC *", "months", (1, 12)),
        ("0 0 1 January-March *", "months", (1, 2, 3)),
        ("0 0 * * 7", "weekdays", (0,)),
        ("0 0 * * 5-7", "weekdays", (0, 5, 6)),
        ("0 0 * * mon-FRI", "weekdays", (1, 2, 3, 4, 5)),
        ("0 0 * * Sunday,wednesday", "weekdays", (0, 3)),
        ("0 0 * * MON/2", "weekdays", (0, 1, 3, 5)),
        ("@Daily", "hours", (0,)),
        (" @yearly ", "months", (1,)),
        ("@weekly", "weekdays", (0,)),
        ("@hourly", "minutes", (0,)),
    ],
)
def test_an_expression_says_which_values_match(
    expression: str, field: str, values: tuple[int, ...]
) -> None:
    assert values == getattr(parse(expression), field)


@pytest.mark.parametrize(
    ("alias", "same"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_an_alias_is_an_expression(alias: str, same: str) -> None:
    assert parse(same) == parse(alias)


FIELDS = "Cron expression must have 5 fields, or 6 fields with leading seconds"
NEVER = "Cron expression has no future occurrences"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", FIELDS),
        ("* * * *", FIELDS),
        ("* * * * * * *", FIELDS),
        ("@reboot", FIELDS),
        ("0 0 30 2 *", NEVER),
        ("0 0 31 2,4,6,9,11 *", NEVER),
        ("60 * * * *", "60 in minutes is not within 0..59"),
        ("60 0 0 * * *", "60 in seconds is not within 0..59"),
        ("0 24 * * *", "24 in hours is not within 0..23"),
        ("0 0 0 * *", "0 in days is not within 1..31"),
        ("0 0 * 13 *", "13 in months is not within 1..12"),
        ("0 0 * * 8", "8 in weekdays is not within 0..7"),
        ("5-1 * * * *", "range '5-1' in minutes is not ascending"),
        ("0 0 * * FRI-SUN", "range 'FRI-SUN' in weekdays is not ascending"),
        ("*/0 * * * *", "step '0' in minutes is not a positive integer"),
        ("*/ * * * *", "step '' in minutes is not a positive integer"),
        ("5/20 * * * * *", "'5/20' in seconds: a step needs a wildcard or a range"),
        ("1,,2 * * * *", "'' in minutes is not understood"),
        ("-5 * * * *", "'' in minutes is not understood"),
        ("1.5 * * * *", "'1.5' in minutes is not understood"),
        ("٣ * * * *", "'٣' in minutes is not understood"),
        ("? * * * *", "'?' in minutes is not understood"),
        ("~ * * * *", "'~' in minutes is not understood"),
        ("H * * * *", "'H' in minutes is not understood"),
        ("0 0 L * *", "'L' in days is not understood"),
        ("0 0 1W * *", "'1W' in days is not understood"),
        ("0 0 * * 1#2", "'1#2' in weekdays is not understood"),
        ("0 0 * sept *", "'sept' in months is not understood"),
        ("0 0 * * tues", "'tues' in weekdays is not understood"),
        ("mon * * * *", "'mon' in minutes is not understood"),
        ("1-2-3 * * * *", "'2-3' in minutes is not understood"),
        ("*-5 * * * *", "'*' in minutes is not understood"),
        ("9999999999 * * * *", "'9999999999' in minutes is not understood"),
    ],
)
def test_what_other_dialects_say_is_refused_with_a_reason(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=".") as refusal:
        parse(expression)

    assert why == str(refusal.value)


def test_an_endless_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        parse("0," * EXPRESSION_CHARS_MAX + "0 * * * *")


@pytest.mark.parametrize(
    ("expression", "any_day", "any_weekday"),
    [
        ("0 0 * * *", True, True),
        ("0 0 1 * *", False, True),
        ("0 0 * * 1", True, False),
        ("0 0 */1 * 1", False, False),
        ("0 0 1-31 * *", False, True),
    ],
)
def test_only_a_lone_star_leaves_a_day_open(
    expression: str, any_day: bool, any_weekday: bool
) -> None:
    schedule = parse(expression)

    assert (any_day, any_weekday) == (schedule.is_any_day, schedule.is_any_weekday)


@pytest.mark.parametrize(
    ("hours", "is_every_hour"), [("*", True), ("*/1", True), ("0-23", True), ("*/2", False)]
)
def test_all_hours_are_every_hour_however_they_are_written(hours: str, is_every_hour: bool) -> None:
    assert is_every_hour is parse(f"0 {hours} * * *").is_every_hour
