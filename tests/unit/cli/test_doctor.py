"""What the doctor finds by itself, and how it tells it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bunqueue.cli import doctor
from bunqueue.protocol.findings import OK, PROBLEM, WARNING, finding

FACTS = {"client": "1.0", "protocolVersion": 3, "compatibility": "2.9.5"}
BROKER = {
    "version": "1.0",
    "core": "pure",
    "python": "3.12.1",
    "sqlite": "3.50.0",
    "writer": "process",
}


class Pings:
    """A connection to a broker whose clock is off."""

    def __init__(self, apart_ms: float, trip_s: float = 0.0) -> None:
        self.apart_ms = apart_ms
        self.now_s = 1_700_000_000.0
        self.trip_s = trip_s

    def call(self, _command: dict[str, Any]) -> dict[str, Any]:
        """Answer half way through the round trip."""
        self.now_s += self.trip_s / 2
        told = self.now_s * 1000 + self.apart_ms
        self.now_s += self.trip_s / 2
        return {"data": {"time": told}}


@pytest.mark.parametrize(
    ("apart_ms", "level", "words"),
    [
        (0, OK, "0 ms behind"),
        (1_900, OK, "2 s ahead of"),
        (2_100, WARNING, "2 s ahead of"),
        (-50_000, WARNING, "50 s behind"),
        (-3_600_000, PROBLEM, "1 h behind"),
    ],
)
def test_two_clocks_are_compared(
    monkeypatch: pytest.MonkeyPatch, apart_ms: int, level: str, words: str
) -> None:
    pings = Pings(apart_ms)
    monkeypatch.setattr(time, "time", lambda: pings.now_s)

    told = doctor._clock(pings)  # type: ignore[arg-type]  # as much as is asked of it

    assert (level, f"the broker's clock is {words} this machine's") == (
        told["level"],
        told["text"],
    )


def test_half_a_slow_round_trip_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    pings = Pings(0, trip_s=20)
    monkeypatch.setattr(time, "time", lambda: pings.now_s)
    assert OK == doctor._clock(pings)["level"]  # type: ignore[arg-type]

    pings.apart_ms = 11_000  # within what the trip leaves open

    assert OK == doctor._clock(pings)["level"]  # type: ignore[arg-type]


def test_versions_are_told_and_compared() -> None:
    told = doctor._versions(FACTS, BROKER)

    assert OK == told["level"]
    assert "broker 1.0 (pure), Python 3.12.1, SQLite 3.50.0, written by a process" in told["text"]
    assert "protocol 3, compatible with 2.9.5" in told["text"]
    assert WARNING == doctor._versions(FACTS, BROKER | {"version": "0.9"})["level"]
    assert OK == doctor._versions(FACTS, {})["level"]


def test_a_line_for_each_finding_and_one_that_counts() -> None:
    findings = [
        finding("file", OK, "sound"),
        finding("dead letters", WARNING, "many", "look"),
        finding("leases", PROBLEM, "stuck", "mend"),
    ]

    assert [
        "ok       file              sound",
        "warning  dead letters      many; look",
        "problem  leases            stuck; mend",
        "1 problem, 1 warning, 1 fine",
    ] == list(doctor.lines(findings))


def test_names_that_would_move_the_cursor_are_escaped() -> None:
    assert "a\\x1b[2J\\n\\u202eb é" == doctor.printable("a\x1b[2J\n\u202eb é")
