"""The job record and its timeline."""

from __future__ import annotations

import pytest

from bunqueue.engine.job import NO_EXTRA, TIMELINE_FIRST_KEPT, TIMELINE_MAX, note, timeline_of
from tests.unit.engine.test_lanes import make


def test_a_plain_job_has_no_extra_of_its_own() -> None:
    assert NO_EXTRA is make(1).extra


def test_writing_a_rare_field_does_not_touch_other_jobs() -> None:
    job = make(1)
    job.own_extra().last_error = "x"

    assert NO_EXTRA.last_error is None
    assert job.extra is job.own_extra()
    assert make(2).extra.last_error is None


@pytest.mark.parametrize(
    ("priority", "run_at", "state"),
    [(0, 0, "waiting"), (-1, 0, "waiting"), (1, 0, "prioritized"), (1, 5, "delayed")],
)
def test_the_first_line_is_derived(priority: int, run_at: int, state: str) -> None:
    assert [[state, 0, None, None]] == timeline_of(make(1, priority, run_at))


def test_a_plain_life_is_derived() -> None:
    job = make(1)
    job.started_at, job.finished_at = 5, 9

    assert [["waiting", 0], ["active", 5], ["completed", 9]] == [
        line[:2] for line in timeline_of(job)
    ]


def test_a_note_keeps_what_was_derived_before_it() -> None:
    job = make(1)
    job.started_at = 5
    note(job, "failed", 7, "no", 1)

    assert [
        ["waiting", 0, None, None],
        ["active", 5, None, None],
        ["failed", 7, "no", 1],
    ] == timeline_of(job)


def test_a_full_timeline_keeps_its_first_and_its_newest_lines() -> None:
    job = make(1)
    for number in range(1, 40):
        note(job, "failed", number)

    timeline = timeline_of(job)
    assert TIMELINE_MAX == len(timeline)
    first = list(range(TIMELINE_FIRST_KEPT))
    newest = list(range(40 - (TIMELINE_MAX - TIMELINE_FIRST_KEPT), 40))
    assert [*first, *newest] == [line[1] for line in timeline]


def test_a_job_says_who_it_is() -> None:
    assert "<Job job-0001 queued>" == repr(make(1))
