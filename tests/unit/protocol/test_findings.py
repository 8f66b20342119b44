"""Findings: their words and their order."""

from __future__ import annotations

import pytest

from bunqueue.protocol.findings import (
    NAMED_MAX,
    OK,
    PROBLEM,
    WARNING,
    counted,
    finding,
    size_text,
    span_text,
    summed_up,
    worst,
)


def test_what_is_fine_needs_no_cure() -> None:
    assert {"check": "c", "level": "ok", "text": "t"} == finding("c", OK, "t", "do it")
    assert "do it" == finding("c", WARNING, "t", "do it")["cure"]


def test_a_sum_tells_the_worst_first_and_counts_the_rest() -> None:
    notes = [(WARNING, f"w{number}") for number in range(NAMED_MAX + 1)] + [(PROBLEM, "bad")]

    told = summed_up("c", notes, "all is well", "do it")

    assert (PROBLEM, "do it") == (told["level"], told["cure"])
    assert "bad; w0; w1; w2; w3; and 2 more" == told["text"]


def test_a_sum_of_nothing_is_fine() -> None:
    assert finding("c", OK, "all is well") == summed_up("c", [], "all is well", "do it")


def test_the_worst_level() -> None:
    assert OK == worst([])
    assert WARNING == worst([finding("c", OK, ""), finding("c", WARNING, "")])
    assert PROBLEM == worst([finding("c", PROBLEM, ""), finding("c", WARNING, "")])


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (90_000_000, "1 d"),
        (7_200_000, "2 h"),
        (3_599_800, "1 h"),
    ],
)
def test_a_span_in_its_largest_unit(span_ms: int, text: str) -> None:
    assert text == span_text(span_ms)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 30, "5 GiB"),
        (1 << 51, "2048.0 TiB"),
    ],
)
def test_a_size_in_its_largest_unit(size: int, text: str) -> None:
    assert text == size_text(size)


def test_numbers_of_things() -> None:
    assert ["0 jobs", "1 job", "2 jobs"] == [counted(number, "job") for number in range(3)]
