"""Deadlines that fire once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.engine import timers as timers_module
from bunqueue.engine.timers import COMPACT_ABOVE, MOVED_PER_CANCEL, Timers

Fired = list[tuple[Any, Any, int]]


@pytest.fixture
def fired() -> Fired:
    return []


@pytest.fixture
def note(fired: Fired) -> Any:
    return lambda first, second, now: fired.append((first, second, now))


def test_a_timer_fires_at_its_time_and_once(fired: Fired, note: Any) -> None:
    timers = Timers()
    timers.add(10, note, "a", "b")

    assert 0 == timers.run(9, 100)
    assert 1 == timers.run(10, 100)
    assert 0 == timers.run(11, 100)
    assert [("a", "b", 10)] == fired


def test_timers_fire_in_order_of_time_then_of_arrival(fired: Fired, note: Any) -> None:
    timers = Timers()
    for at, name in ((20, "c"), (10, "a"), (10, "b")):
        timers.add(at, note, name)

    timers.run(20, 100)

    assert ["a", "b", "c"] == [first for first, _, _ in fired]


def test_a_cancelled_timer_does_not_fire(fired: Fired, note: Any) -> None:
    timers = Timers()
    timer = timers.add(10, note, "a")
    timers.cancel(timer)
    timers.cancel(timer)

    timers.run(10, 100)

    assert [] == fired
    assert 0 == len(timers)


def test_cancelling_what_has_fired_is_harmless(note: Any) -> None:
    timers = Timers()
    timer = timers.add(10, note, "a")
    timers.run(10, 100)

    timers.cancel(timer)

    assert 0 == len(timers)


def test_a_run_is_bounded(note: Any) -> None:
    timers = Timers()
    for number in range(5):
        timers.add(10, note, number)

    assert 3 == timers.run(10, 3)
    assert 10 == timers.next_at
    assert 2 == timers.run(10, 3)
    assert float("inf") == timers.next_at


def test_only_an_earlier_deadline_calls_on_sooner(note: Any) -> None:
    timers = Timers()
    sooner: list[int] = []
    timers.on_sooner = sooner.append
    for at in (50, 60, 40):
        timers.add(at, note, None)

    assert [50, 40] == sooner


def test_an_action_may_add_a_timer(fired: Fired, note: Any) -> None:
    timers = Timers()
    timers.add(10, lambda _first, _second, now: timers.add(now + 5, note, "later"), None)

    timers.run(10, 100)
    assert 15 == timers.next_at
    timers.run(15, 100)

    assert [("later", None, 15)] == fired


def test_a_shift_moves_every_deadline(fired: Fired, note: Any) -> None:
    timers = Timers()
    timers.add(10, note, "a")
    timers.shift(1000)

    assert 1010 == timers.next_at
    timers.run(1009, 100)
    assert [] == fired


def test_cancelled_timers_do_not_pile_up(note: Any) -> None:
    timers = Timers()
    kept = timers.add(10**9, note, "kept")
    for _ in range(3 * COMPACT_ABOVE):
        timers.cancel(timers.add(10**9, note, None))

    assert 1 == len(timers)
    assert timers.size <= 2 * COMPACT_ABOVE + 2
    assert kept in timers._heap + timers._old


def test_no_cancellation_pays_for_the_whole_heap(note: Any) -> None:
    timers = Timers()
    added = [timers.add(number, note, number) for number in range(40_000)]
    steps = []
    for timer in added[::2] + added[1::4]:
        before = sum(map(len, (timers._heap, timers._old)))
        timers.cancel(timer)
        steps.append(before - timers.size)

    assert max(steps) <= MOVED_PER_CANCEL
    assert len(timers) <= timers.size <= 2 * len(timers) + COMPACT_ABOVE + MOVED_PER_CANCEL


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 50)),
            st.tuples(st.just("cancel"), st.integers(0, 10_000)),
            st.tuples(st.just("run"), st.integers(0, 50)),
            st.tuples(st.just("shift"), st.integers(-50, 50)),
        ),
        max_size=200,
    )
)
def test_a_heap_that_is_rebuilt_fires_like_one_that_is_not(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timers_module, "COMPACT_ABOVE", 2)
        timers, fired, expected = Timers(), [], {}
        handles = []
        for number, (step, value) in enumerate(steps):
            if step == "add":
                handles.append(timers.add(value, lambda one, _two, _now: fired.append(one), number))
                expected[number] = [value, handles[-1]]
            elif step == "cancel" and handles:
                gone = handles[value % len(handles)]
                timers.cancel(gone)
                expected = {each: row for each, row in expected.items() if row[1] is not gone}
            elif step == "shift":
                timers.shift(value)
                for row in expected.values():
                    row[0] += value
            elif step == "run":
                fired.clear()
                timers.run(value, 1000)
                due = sorted((row[0], each) for each, row in expected.items() if row[0] <= value)
                assert [each for _, each in due] == fired
                for each in fired:
                    del expected[each]
            assert len(expected) == len(timers)
            if expected and step == "run":
                assert min(row[0] for row in expected.values()) >= timers.next_at


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=50), st.integers(0, 60))
def test_what_is_due_and_not_cancelled_fires(timers_of: list[tuple[int, bool]], now: int) -> None:
    timers = Timers()
    fired: list[int] = []
    for at, is_cancelled in timers_of:
        timer = timers.add(at, lambda first, _second, _now: fired.append(first), at)
        if is_cancelled:
            timers.cancel(timer)

    timers.run(now, 1000)

    live = [at for at, is_cancelled in timers_of if not is_cancelled]
    assert sorted(at for at in live if at <= now) == fired
    assert sum(at > now for at in live) == len(timers)
