"""The load tests' ledger, which says whether a job is missing after a run."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.load.ledger import Ledger

OK = {"ok": True}
LATE = {"ok": True, "data": {"applied": False}}


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.mark.parametrize(
    ("command", "added"),
    [
        ({"cmd": "PUSH", "queue": "q"}, 1),
        ({"cmd": "PUSHB", "queue": "q", "jobs": [{}, {}, {}]}, 3),
        ({"cmd": "PUSHF", "jobs": [{}, {}]}, 2),
        ({"cmd": "Ping"}, 0),
    ],
)
def test_jobs_are_added_by_every_way_to_push(
    command: dict[str, Any], added: int, ledger: Ledger
) -> None:
    ledger.note(command, OK)

    assert (added, 0) == (ledger.added, ledger.completed)


@pytest.mark.parametrize(
    ("command", "reply", "completed"),
    [
        ({"cmd": "ACK", "id": "a"}, OK, 1),
        ({"cmd": "ACK", "id": "a"}, LATE, 0),
        ({"cmd": "ACKB", "ids": ["a", "b"]}, OK, 2),
        ({"cmd": "ACKB", "ids": ["a", "b"]}, {"ok": True, "data": {"ignoredIds": ["b"]}}, 1),
    ],
)
def test_only_what_an_ack_has_completed_counts(
    command: dict[str, Any], reply: dict[str, Any], completed: int, ledger: Ledger
) -> None:
    ledger.note(command, reply)

    assert (0, completed) == (ledger.added, ledger.completed)


@pytest.mark.parametrize(("left", "missing"), [(3, 0), (2, 1), (5, -2)])
def test_a_job_that_is_neither_completed_nor_left_is_missing(
    left: int, missing: int, ledger: Ledger
) -> None:
    ledger.note({"cmd": "PUSHB", "jobs": [{}] * 5}, OK)
    ledger.note({"cmd": "ACKB", "ids": ["a", "b"]}, OK)

    assert missing == ledger.missing(left)


@pytest.mark.parametrize(("left", "missing"), [(0, 0), (2, 0), (3, -3)])
def test_a_command_without_an_answer_widens_what_is_accepted(
    left: int, missing: int, ledger: Ledger
) -> None:
    ledger.note_unknown({"cmd": "PUSHB", "jobs": [{}, {}]})
    ledger.note_unknown({"cmd": "Ping"})

    assert missing == ledger.missing(left)
