"""The wait before the next attempt, engine.md 4.1."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.engine.backoff import retry_delay_ms
from bunqueue.protocol.options import BACKOFF_MS_CAP, JobOptions

BASE = st.integers(1, 86_400_000)
SEEDS = st.integers(0, 2**32)


def delays(backoff: Any, attempts: int) -> list[int]:
    rng = Random(1)
    given = {} if backoff is None else {"backoff": backoff}
    return [retry_delay_ms(attempts, JobOptions(given), rng) for _ in range(2000)]


@pytest.mark.parametrize(
    ("backoff", "attempts", "least", "most"),
    [
        (None, 1, 1_000, 3_000),
        (None, 2, 2_000, 6_000),
        (1_000, 1, 1_000, 3_000),
        (100, 5, 1_600, 4_800),
        ({"type": "exponential", "delay": 1_000}, 3, 4_000, 12_000),
        ({"type": "fixed", "delay": 1_000}, 1, 800, 1_200),
        ({"type": "fixed", "delay": 1_000}, 9, 800, 1_200),
        ({"type": "fixed"}, 1, 800, 1_200),
    ],
)
def test_the_spread_fills_its_range(backoff: Any, attempts: int, least: int, most: int) -> None:
    found = delays(backoff, attempts)

    assert least <= min(found) < least + (most - least) * 0.02
    assert most >= max(found) > most - (most - least) * 0.02


@pytest.mark.parametrize("backoff", [0, {"type": "fixed", "delay": 0}])
def test_no_backoff_is_immediate(backoff: Any) -> None:
    assert {0} == set(delays(backoff, 3))


@pytest.mark.parametrize("kind", ["fixed", "exponential"])
def test_max_delay_caps_after_the_spread(kind: str) -> None:
    assert {100} == set(delays({"type": kind, "delay": 1_000, "maxDelay": 100}, 1))


def test_max_delay_cannot_raise_the_general_cap() -> None:
    backoff = {"type": "exponential", "delay": 86_400_000, "maxDelay": 86_400_000}

    assert {BACKOFF_MS_CAP} == set(delays(backoff, 10))


@given(BASE, st.integers(1, 1000), SEEDS)
def test_exponential_backoff_stays_in_its_range(base: int, attempts: int, seed: int) -> None:
    delay = retry_delay_ms(attempts, JobOptions({"backoff": base}), Random(seed))

    assert isinstance(delay, int)
    whole = base * 2 ** min(attempts, 60)
    assert min(BACKOFF_MS_CAP, int(whole * 0.5)) <= delay <= min(BACKOFF_MS_CAP, whole * 1.5 + 1)


@given(BASE, st.integers(1, 1000), SEEDS)
def test_fixed_backoff_stays_in_its_range(base: int, attempts: int, seed: int) -> None:
    options = JobOptions({"backoff": {"type": "fixed", "delay": base}})
    delay = retry_delay_ms(attempts, options, Random(seed))

    assert isinstance(delay, int)
    assert min(BACKOFF_MS_CAP, int(base * 0.8)) <= delay <= min(BACKOFF_MS_CAP, base * 1.2 + 1)
