"""Places and the moves between them."""

from __future__ import annotations

import pytest

from bunqueue.engine.states import (
    ACTIVE,
    ADMITTED,
    COMPLETED,
    FAILED,
    GONE,
    MOVES,
    PARKED,
    QUEUED,
    STATES,
    move,
    state_of,
)
from tests.unit.engine.test_lanes import fill, make

PLACES = {ADMITTED, QUEUED, PARKED, ACTIVE, COMPLETED, FAILED, GONE}


def test_every_move_leads_to_a_place() -> None:
    assert PLACES == set(MOVES)
    assert {place for moves in MOVES.values() for place in moves.values()} <= PLACES


@pytest.mark.parametrize("place", sorted(PLACES - {GONE}))
def test_a_job_can_be_removed_from_everywhere(place: str) -> None:
    assert GONE == MOVES[place]["remove"]


def test_nothing_ever_becomes_an_admission_again() -> None:
    assert ADMITTED not in {place for moves in MOVES.values() for place in moves.values()}


@pytest.mark.parametrize(
    ("place", "event"), [(COMPLETED, "pull"), (QUEUED, "retry"), (GONE, "ack")]
)
def test_a_move_that_is_not_in_the_table_is_our_bug(place: str, event: str) -> None:
    job = make(1)
    job.place = place

    with pytest.raises(KeyError):
        move(job, event)
    assert place == job.place


@pytest.mark.parametrize(
    ("place", "state"),
    [
        (ADMITTED, "unknown"),
        (PARKED, "waiting-children"),
        (ACTIVE, "active"),
        (COMPLETED, "completed"),
        (FAILED, "failed"),
        (GONE, "unknown"),
    ],
)
def test_a_place_has_its_state(place: str, state: str) -> None:
    job = make(1)
    job.place = place

    assert state == state_of(job, 0)


@pytest.mark.parametrize(
    ("priority", "run_at", "now", "state"),
    [
        (0, 0, 0, "waiting"),
        (-1, 0, 0, "waiting"),
        (1, 0, 0, "prioritized"),
        (1, 10, 9, "delayed"),
        (1, 10, 10, "prioritized"),
        (0, 10, 10, "waiting"),
    ],
)
def test_a_queued_job_is_what_clock_and_priority_say(
    priority: int, run_at: int, now: int, state: str
) -> None:
    job = make(1, priority, run_at)
    fill(job)

    assert state == state_of(job, now)


def test_readers_are_told_seven_states() -> None:
    assert 7 == len(set(STATES))
