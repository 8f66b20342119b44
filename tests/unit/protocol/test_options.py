"""The job options: bounds and texts of wire.md 4.2, and their sharing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bunqueue.protocol import options
from bunqueue.protocol.codec import DEPTH_MAX
from bunqueue.protocol.options import (
    BY_WIRE,
    DEFAULT_OPTIONS,
    OPTIONS,
    JobOptions,
    check_options,
    sets_no_option,
    shared_options,
)
from bunqueue.storage import rows

YEAR, DAY = 31_536_000_000, 86_400_000

# option -> least, most, whether integral, whether refused with "between"
NUMBERS: dict[str, tuple[float, float | None, bool, bool]] = {
    "priority": (-1_000_000, 1_000_000, True, False),
    "delay": (0, YEAR, False, False),
    "ttl": (0, YEAR, False, False),
    "timeout": (0, DAY, False, False),
    "maxAttempts": (1, 1000, True, False),
    "backoff": (0, DAY, False, False),
    "timestamp": (0, None, False, False),
    "stallTimeout": (0, DAY, False, True),
    "stackTraceLimit": (0, 10_000, True, True),
    "keepLogs": (0, 1_000_000, True, True),
    "sizeLimit": (0, 10_485_760, True, True),
}
FLAGS = ("lifo", "durable")
TRUTHY = ("removeOnComplete", "removeOnFail")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_touch_its_bounds(name: str) -> None:
    least, most, _, _ = NUMBERS[name]

    for value in (least, most, float(least)):
        assert check_options({name: value}) is None


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_beyond_its_bounds_is_refused(name: str) -> None:
    least, most, _, is_between = NUMBERS[name]
    between = f"{name} must be between {least} and {most}"

    text = between if is_between else f"{name} must be at least {least}"
    assert text == check_options({name: least - 1})
    if most is not None:
        text = between if is_between else f"{name} must be at most {most}"
        assert text == check_options({name: most + 1})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["5", [], True])
def test_a_number_must_be_one(name: str, value: object) -> None:
    assert f"{name} must be a number" == check_options({name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_must_be_finite(name: str, value: float) -> None:
    assert f"{name} must be a finite number" == check_options({name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_a_fraction_is_refused_where_an_integer_is_wanted(name: str) -> None:
    expected = f"{name} must be an integer" if NUMBERS[name][2] else None

    assert expected == check_options({name: 1.5})


@pytest.mark.parametrize("name", [*NUMBERS, *FLAGS, *TRUTHY, "jobId", "uniqueKey", "dedup", "tags"])
def test_null_counts_as_absent(name: str) -> None:
    assert check_options({name: None}) is None
    shared = shared_options({name: None})
    assert DEFAULT_OPTIONS.given == shared.given


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, "true", {}])
def test_a_flag_must_be_a_boolean(name: str, value: object) -> None:
    assert f"{name} must be a boolean" == check_options({name: value})


@pytest.mark.parametrize("name", TRUTHY)
@pytest.mark.parametrize(
    ("value", "read"), [(1, True), ({"age": 1}, True), (0, False), (True, True)]
)
def test_removal_reads_the_truth_of_anything(name: str, value: object, read: bool) -> None:
    assert check_options({name: value}) is None
    assert read is getattr(JobOptions({name: value}), BY_WIRE[name].python)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backoff": {"type": "linear"}}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay must be at least 0"),
        (
            {"backoff": {"type": "fixed", "maxDelay": DAY + 1}},
            f"backoff.maxDelay must be at most {DAY}",
        ),
        ({"tags": "a"}, "tags must be an array of strings of at most 256 characters"),
        ({"tags": ["a" * 257]}, "tags must be an array of strings of at most 256 characters"),
        ({"jobId": 5}, "jobId must be a string"),
        ({"uniqueKey": 5}, "uniqueKey must be a string"),
        ({"dedup": "x"}, "dedup must be an object"),
        ({"dedup": {"ttl": "x"}}, "dedup.ttl must be a number"),
        ({"groupId": ""}, "groupId must be a non-empty string"),
        ({"groupId": 5}, "groupId must be a string"),
        ({"groupId": "g" * 257}, "groupId must be at most 256 characters"),
        ({"groupId": "a\0b"}, "groupId must not contain NUL characters"),
        ({"dependsOn": "x"}, "dependsOn must be an array of valid string job ids"),
        ({"childrenIds": [1]}, "childrenIds must be an array of valid string job ids"),
    ],
)
def test_other_refusals(options: dict[str, Any], text: str) -> None:
    assert text == check_options(options)


DEFAULTS = {
    "ttl": None,
    "timeout": None,
    "attempts": 3,
    "backoff_ms": 1000,
    "backoff_type": "exponential",
    "backoff_max_ms": 3_600_000,
    "deduplication": None,
    "lifo": False,
    "remove_on_complete": False,
    "remove_on_fail": False,
    "durable": False,
    "stall_timeout": None,
    "stack_trace_limit": 10,
    "keep_logs": None,
    "size_limit": None,
    "tags": (),
    "debounce_id": None,
    "debounce_ttl": None,
    "repeat": None,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_an_absent_option_has_its_default(name: str, value: object) -> None:
    assert value == getattr(DEFAULT_OPTIONS, name)


def test_equal_option_sets_are_one_object() -> None:
    given = {"maxAttempts": 7, "backoff": {"type": "fixed", "delay": 5}, "tags": ["a"]}

    assert shared_options(given) is shared_options({**given, "queue": "q", "data": 1, "delay": 9})
    assert shared_options(given) is not shared_options({**given, "maxAttempts": 8})


def test_options_as_deep_as_a_frame_may_be_are_shared_too() -> None:
    deep: dict[str, Any] = {}
    for number in range(DEPTH_MAX):
        deep = {"a": deep} if number % 2 else {"a": [deep], "b": 1}

    assert shared_options({"repeat": deep}) is shared_options({"repeat": deep})


def test_the_default_set_is_one_object() -> None:
    assert DEFAULT_OPTIONS is shared_options({"queue": "q", "priority": 5, "jobId": "a"})


@pytest.mark.parametrize(("a", "b"), [(True, 1), (1, 1.0), (False, 0)])
def test_equal_looking_values_of_other_types_mean_the_same(a: object, b: object) -> None:
    first = shared_options({"removeOnComplete": a, "timeout": 1})
    second = shared_options({"removeOnComplete": b, "timeout": 1.0})

    assert first.remove_on_complete is second.remove_on_complete
    assert first.timeout == second.timeout


def test_a_request_without_options_is_seen_as_such() -> None:
    assert sets_no_option({"cmd": "PUSH", "queue": "q", "name": "n", "data": {}, "reqId": 1})
    assert not sets_no_option({"priority": None})


def test_every_option_is_one_row() -> None:
    assert len(OPTIONS) == len(BY_WIRE) == len({option.python for option in OPTIONS})
    for option in OPTIONS:
        assert option.field.kind()


def test_what_was_given_makes_the_same_set_again() -> None:
    given = {"maxAttempts": 7.0, "backoff": {"type": "fixed", "delay": 5}, "removeOnFail": {"a": 1}}
    options = shared_options(given)
    again = JobOptions(options.given)

    for slot in JobOptions.__slots__:
        if slot != "reply":
            assert getattr(options, slot) == getattr(again, slot)


def test_sets_that_come_once_do_not_end_the_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_interned", {})
    monkeypatch.setattr(options, "OPTION_SETS_MAX", 4)
    for number in range(20):
        shared_options({"timeout": number})

    assert shared_options({"timeout": 99}) is shared_options({"timeout": 99})
    assert shared_options({}) is DEFAULT_OPTIONS
    assert 4 >= len(options._interned)


@pytest.mark.parametrize(
    ("value", "is_true"),
    [(1, True), ("no", True), ({}, True), ([], True), (0, False), ("", False), (math.nan, False)],
)
def test_a_flag_is_read_as_javascript_reads_it(value: object, is_true: bool) -> None:
    options = shared_options({"removeOnComplete": value, "failParentOnFailure": value})

    assert (is_true, is_true) == (options.remove_on_complete, options.fail_parent_on_failure)


def test_sets_of_options_that_hold_much_are_not_kept() -> None:
    small = {"tags": ["a"] * 10}
    large = {"tags": [f"tag {number}" for number in range(1_000)]}

    assert shared_options(small) is shared_options(dict(small))
    assert shared_options(large) is not shared_options(dict(large))
    assert large["tags"] == shared_options(large).tags


def test_the_stored_form_of_a_set_that_holds_much_is_not_kept() -> None:
    before = len(rows._packed)
    large = shared_options({"tags": [f"tag {number}" for number in range(1_000)]})

    assert rows._packed_options(large) == rows._packed_options(large)
    assert before == len(rows._packed)
