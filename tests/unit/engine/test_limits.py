"""Token bucket and gate, engine.md 10."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.engine.limits import Gate, TokenBucket


def test_a_bucket_starts_full() -> None:
    assert 5 == TokenBucket(5, 1000, None, 0).tokens(0)


def test_a_bucket_refills_continuously_and_not_above_its_limit() -> None:
    bucket = TokenBucket(4, 1000, None, 0)
    bucket.take(4)

    assert 1 == bucket.tokens(250)
    assert 2 == bucket.tokens(500)
    assert 4 == bucket.tokens(10_000)


def test_a_bucket_tells_when_the_next_token_is_there() -> None:
    bucket = TokenBucket(2, 1000, None, 0)
    bucket.take(2)

    assert 500 == bucket.wait_ms(0)
    assert 100 == bucket.wait_ms(400)
    assert 0 == bucket.wait_ms(500)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_never_lets_go(limit: int) -> None:
    bucket = TokenBucket(limit, 1000, None, 0)

    assert 0 == bucket.tokens(10**9)
    assert math.inf == bucket.wait_ms(10**9)


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(2, 1000, None, 1000)
    bucket.take(1)

    assert 1 == bucket.tokens(0)


def test_a_shift_follows_the_wall_clock() -> None:
    bucket = TokenBucket(2, 1000, None, 0)
    bucket.take(2)
    bucket.shift(3_600_000)

    assert 1 == bucket.tokens(3_600_500)


@given(
    st.integers(1, 20),
    st.integers(1, 2000),
    st.lists(st.integers(0, 500), min_size=1, max_size=100),
)
def test_in_any_window_at_most_twice_the_limit_goes(
    limit: int, duration: int, pauses: list[int]
) -> None:
    bucket, now, taken = TokenBucket(limit, duration, None, 0), 0, []
    for pause in pauses:
        now += pause
        while bucket.tokens(now) >= 1:
            bucket.take()
            taken.append(now)

    for start in taken:
        assert sum(start <= at < start + duration for at in taken) <= 2 * limit
    windows = now // duration + 1
    assert len(taken) <= (windows + 1) * limit


def gate(**settings: object) -> Gate:
    made = Gate()
    for name, value in settings.items():
        setattr(made, name, value)
    made.changed()
    return made


def test_a_gate_without_limits_is_open() -> None:
    assert gate().is_open


def test_a_paused_gate_has_no_room() -> None:
    assert 0 == gate(is_paused=True).room(0, 0)
    assert not gate(is_paused=True).is_open


@pytest.mark.parametrize(("limit", "active", "room"), [(3, 1, 2), (3, 5, 0), (0, 0, 0), (-1, 0, 0)])
def test_concurrency_leaves_room_for_what_is_not_active(limit: int, active: int, room: int) -> None:
    assert room == gate(concurrency=limit).room(active, 0)


def test_the_narrower_limit_decides() -> None:
    both = gate(concurrency=10, rate=TokenBucket(2, 1000, None, 0))

    assert 2 == both.room(0, 0)
    assert 1 == both.room(9, 0)


def test_what_went_is_paid_for() -> None:
    limited = gate(rate=TokenBucket(2, 1000, None, 0))

    limited.took(2)

    assert 0 == limited.room(0, 0)
    assert 500 == limited.next_token_at(0)


def test_a_temporary_limit_is_gone_at_its_end() -> None:
    limited = gate(rate=TokenBucket(0, 1000, 500, 0))

    assert 0 == limited.room(0, 499)
    assert 500 == limited.next_token_at(0)
    assert limited.room(0, 500) > 1000
    assert limited.is_open


def test_a_gate_that_never_opens_by_itself_names_no_moment() -> None:
    assert gate(rate=TokenBucket(0, 1000, None, 0)).next_token_at(0) is None
    assert gate(is_paused=True, rate=TokenBucket(1, 1000, None, 0)).next_token_at(0) is None
