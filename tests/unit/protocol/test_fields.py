"""The vocabulary of request fields: what is accepted, and how no is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.fields import (
    INT64_MAX,
    QUEUE_NAMES_KNOWN_MAX,
    Anything,
    Field,
    Flag,
    IdList,
    JobName,
    KnownNames,
    List,
    Map,
    Number,
    OneOf,
    QueueName,
    SafeInteger,
    Text,
    TextList,
    compile_check,
)
from bunqueue.protocol.options import Backoff, CustomId, GroupId

ABSENT = object()
NAN, INFINITY = float("nan"), float("inf")


def case_name(value: object) -> str:
    """Name a case alike in every process that collects it: a bare object's repr is its address."""
    if value.__class__ is object:
        return "absent" if value is ABSENT else "object"
    return repr(value)


def problem(field: Field, value: Any) -> str | None:
    return compile_check({"x": field})({} if value is ABSENT else {"x": value})


ACCEPTED: list[tuple[Field, Any]] = [
    (Anything(), ABSENT),
    (Anything(), None),
    (Anything(), object()),
    (Text(), ABSENT),
    (Text(), None),
    (Text(), ""),
    (Text(empty=False), "a"),
    (Text(required=True), ""),
    (Flag(), True),
    (Flag(), False),
    (Flag(), None),
    (Flag(truthy=True), "yes"),
    (Flag(truthy=True), {"age": 1}),
    (Number(), 0),
    (Number(), 0.5),
    (Number(), ABSENT),
    (Number(), None),
    (Number(min=-5, max=5), -5),
    (Number(min=-5, max=5), 5.0),
    (Number(integer=True), 3.0),
    (Number(min=None), -(2**53) + 1),
    (SafeInteger(), 1),
    (SafeInteger(), 2**53 - 1),
    (SafeInteger(), 4.0),
    (SafeInteger(), None),
    (SafeInteger(positive=False), 0),
    (QueueName(), "a"),
    (QueueName(), "A-Z_a.b:9"),
    (QueueName(), "q" * 256),
    (JobName(), ABSENT),
    (JobName(), "n" * 256),
    (JobName(), "\u00e4"),
    (TextList(), []),
    (TextList(), ["a", ""]),
    (TextList(chars_max=2), ["ab"]),
    (IdList(), ["a"]),
    (List(), [1, None]),
    (Map(), {}),
    (Map(fields={"a": Number()}), {"a": 1, "b": "x"}),
    (Map(fields={"a": Number()}), {"a": None}),
    (OneOf(fields=(((str,), Text()),)), "a"),
    (Backoff(), 0),
    (Backoff(), 86_400_000),
    (Backoff(), {"type": "fixed"}),
    (Backoff(), {"type": "exponential", "delay": 0.5, "maxDelay": 0}),
    (CustomId(), ""),
    (CustomId(), "a:b\u00e4"),
    (GroupId(), "g" * 256),
]
REFUSED: list[tuple[Field, Any, str]] = [
    (Anything(required=True), ABSENT, "x is required"),
    (Anything(required=True), None, "x is required"),
    (Text(), 5, "x must be a string"),
    (Text(), b"bytes", "x must be a string"),
    (Text(required=True), ABSENT, "x is required"),
    (Text(required=True), None, "x is required"),
    (Text(required=True, empty=False), "", "x is required"),
    (Flag(), 1, "x must be a boolean"),
    (Flag(), "true", "x must be a boolean"),
    (Flag(required=True), ABSENT, "x is required"),
    (Number(), "5", "x must be a number"),
    (Number(), True, "x must be a number"),
    (Number(), [], "x must be a number"),
    (Number(), NAN, "x must be a finite number"),
    (Number(), INFINITY, "x must be a finite number"),
    (Number(integer=True), 1.5, "x must be an integer"),
    (Number(integer=True), -INFINITY, "x must be a finite number"),
    (Number(), -1, "x must be at least 0"),
    (Number(min=None), -1e300, f"x must be at least -{INT64_MAX}"),
    (Number(), 1e300, f"x must be at most {INT64_MAX}"),
    (Number(min=1), 0, "x must be at least 1"),
    (Number(max=5), 6, "x must be at most 5"),
    (Number(max=5), 5.1, "x must be at most 5"),
    (Number(max=2.5), 3, "x must be at most 2.5"),
    (Number(max=5, between=True), 6, "x must be between 0 and 5"),
    (Number(max=5, between=True), -1, "x must be between 0 and 5"),
    (Number(required=True), ABSENT, "x is required"),
    (Number(required=True), None, "x is required"),
    (SafeInteger(), 0, "x must be a positive safe integer"),
    (SafeInteger(), 2**53, "x must be a positive safe integer"),
    (SafeInteger(), 1.5, "x must be a positive safe integer"),
    (SafeInteger(), NAN, "x must be a positive safe integer"),
    (SafeInteger(), "1", "x must be a positive safe integer"),
    (SafeInteger(), True, "x must be a positive safe integer"),
    (SafeInteger(positive=False), -1, "x must be a non-negative safe integer"),
    (QueueName(), ABSENT, "Queue name is required"),
    (QueueName(), None, "Queue name is required"),
    (QueueName(), "", "Queue name is required"),
    (QueueName(), 5, "Queue name is required"),
    (QueueName(), ["q"], "Queue name is required"),
    (QueueName(), "q" * 257, "Queue name too long (max 256 characters)"),
    (QueueName(), "a b", "Queue name contains invalid characters"),
    (QueueName(), "a/b", "Queue name contains invalid characters"),
    (QueueName(), "\u00e4", "Queue name contains invalid characters"),
    (QueueName(), "a\n", "Queue name contains invalid characters"),
    (QueueName(), "\u0661", "Queue name contains invalid characters"),
    (TextList(), "ab", "x must be an array of strings"),
    (TextList(), ["a", 1], "x must be an array of strings"),
    (TextList(chars_max=2), ["abc"], "x must be an array of strings of at most 2 characters"),
    (IdList(), [""], "x must be an array of valid string job ids"),
    (IdList(), [5], "x must be an array of valid string job ids"),
    (List(), {}, "x must be a list"),
    (List(required=True), ABSENT, "x is required"),
    (Map(), [], "x must be an object"),
    (Map(), "a", "x must be an object"),
    (Map(required=True), None, "x is required"),
    (Map(fields={"a": Number()}), {"a": "x"}, "x.a must be a number"),
    (Map(fields={"a": Number(required=True)}), {}, "x.a is required"),
    (OneOf(fields=(((str,), Text()),), otherwise=List()), 5, "x must be a list"),
    (OneOf(required=True), None, "x is required"),
    (Backoff(), -1, "x must be at least 0"),
    (Backoff(), 86_400_001, "x must be at most 86400000"),
    (Backoff(), "fast", "x must be a number"),
    (Backoff(), {}, "x.type must be 'fixed' or 'exponential'"),
    (Backoff(), {"type": "linear", "delay": 1}, "x.type must be 'fixed' or 'exponential'"),
    (Backoff(), {"type": "fixed", "delay": -1}, "x.delay must be at least 0"),
    (Backoff(), {"type": "fixed", "delay": 1e9}, "x.delay must be at most 86400000"),
    (Backoff(), {"type": "fixed", "delay": "1"}, "x.delay must be a number"),
    (Backoff(), {"type": "fixed", "maxDelay": INFINITY}, "x.maxDelay must be a finite number"),
    (CustomId(), 5, "x must be a string"),
    (CustomId(), "\ud800", "custom ID must be well-formed Unicode"),
    (GroupId(), 5, "x must be a string"),
    (GroupId(), "", "x must be a non-empty string"),
    (GroupId(), "g" * 257, "x must be at most 256 characters"),
    (GroupId(), "a\0", "x must not contain NUL characters"),
]
NAME_REFUSAL = "Job name must be a non-empty string of at most 256 characters"
REFUSED += [(JobName(), name, NAME_REFUSAL) for name in (None, "", "n" * 257, 5, [])]


@pytest.mark.parametrize(("field", "value"), ACCEPTED, ids=case_name)
def test_a_good_value_is_accepted(field: Field, value: Any) -> None:
    assert problem(field, value) is None


@pytest.mark.parametrize(("field", "value", "text"), REFUSED, ids=case_name)
def test_a_bad_value_is_refused_in_these_words(field: Field, value: Any, text: str) -> None:
    assert text == problem(field, value)


@pytest.mark.parametrize(("field", "value"), ACCEPTED, ids=case_name)
def test_a_field_says_what_it_takes(field: Field, value: Any) -> None:
    assert field.kind()
    assert value is value


def test_problems_are_reported_in_the_order_of_declaration() -> None:
    check = compile_check({"b": Number(required=True), "a": Text(required=True)})

    assert "b is required" == check({})
    assert "a is required" == check({"b": 1})
    assert check({"a": "x", "b": 1}) is None


def test_a_queue_name_that_passed_is_not_looked_at_again() -> None:
    check = compile_check({"queue": QueueName()})

    assert [None, None] == [check({"queue": "some-name"}) for _ in range(2)]
    assert "Queue name contains invalid characters" == check({"queue": "some name"})


def test_known_names_are_bounded() -> None:
    names = KnownNames()
    for number in range(QUEUE_NAMES_KNOWN_MAX + 1):
        names.learn(str(number))

    assert 1 == len(names)


WORDS: dict[str, Field] = {
    "number": Number(min=-10, max=10),
    "integer": Number(min=0, integer=True),
    "between": Number(min=1, max=3, between=True),
    "flag": Flag(),
    "text": Text(empty=False),
    "job name": JobName(),
    "backoff": Backoff(),
    "id": CustomId(),
}
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-20, 20)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=1)
    | st.dictionaries(st.sampled_from(["type", "delay"]), st.sampled_from(["fixed", 1]))
)


@given(st.sampled_from(sorted(WORDS)), VALUES)
def test_the_compiled_check_agrees_with_the_field(word: str, value: Any) -> None:
    field = WORDS[word]
    expected = field.problem("x", value)
    if value is None and not field.required and word != "job name":
        expected = None

    assert expected == problem(field, value)
