"""An answer that is not ready yet."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from bunqueue.engine.later import Later

Given = list[tuple[Any, int]]


def listening(later: Later) -> Given:
    given: Given = []
    later.then(lambda answer, commits: given.append((answer, commits)))
    return given


def test_an_answer_is_given_to_who_asked_before() -> None:
    later = Later()
    given = listening(later)

    later.resolve("a", 2)

    assert [("a", 2)] == given
    assert later.is_done


def test_an_answer_is_given_to_who_asks_after() -> None:
    later = Later()
    later.resolve("a", 1)

    assert [("a", 1)] == listening(later)


def test_only_the_first_answer_counts() -> None:
    later = Later()
    given = listening(later)
    later.resolve("a")
    later.resolve("b")

    assert [("a", 0)] == given


def test_an_answer_is_shaped() -> None:
    later = Later()
    later.shape = len
    given = listening(later)
    later.resolve("abc")

    assert [(3, 0)] == given


def test_a_cancelled_answer_is_given_to_nobody() -> None:
    left: list[str] = []
    later = Later(lambda: left.append("left"))
    given = listening(later)
    later.cancel()
    later.cancel()
    later.resolve("a")

    assert ([], ["left"]) == (given, left)


def test_an_answer_that_came_cannot_be_cancelled() -> None:
    left: list[str] = []
    later = Later(lambda: left.append("left"))
    later.resolve("a")
    later.cancel()

    assert [] == left


class Large:
    """Something that must not be kept."""


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_an_answer_that_was_given_is_not_held(is_asked_before: bool) -> None:
    """Who asks often holds the answer's ``Later``: a cycle that kept frames of 64 MiB."""
    later = Later()
    answer = Large()
    there = weakref.ref(answer)

    def given(_answer: Any, _commits: int) -> None:
        assert later.is_done

    gc.disable()
    try:
        if is_asked_before:
            later.then(given)
        later.resolve(answer)
        if not is_asked_before:
            later.then(given)
        del answer
        assert there() is None
    finally:
        gc.enable()
