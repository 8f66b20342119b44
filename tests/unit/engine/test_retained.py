"""The order of the completed jobs that are kept, and how its room grows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bunqueue.engine import retained
from bunqueue.engine.retained import Retained


@pytest.fixture(autouse=True)
def _short_shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "SHELF_JOBS", 4)


def jobs(kept: Any) -> list[Any]:
    return list(kept)


def test_they_stand_in_the_order_in_which_they_came() -> None:
    kept: Any = Retained()
    counts = [kept.add(number) for number in range(10)]

    assert list(range(1, 11)) == counts
    assert list(range(10)) == jobs(kept)
    assert list(range(9, -1, -1)) == list(reversed(kept))
    assert (10, 0) == (len(kept), kept.oldest())


def test_it_is_a_set_that_remembers_the_order_whatever_goes_and_comes() -> None:
    kept: Any = Retained()
    plain: dict[int, None] = {}
    rng = random.Random(7)
    for number in range(500):
        kept.add(number)
        plain[number] = None
        for _ in range(rng.randrange(3)):
            gone = rng.choice([next(iter(plain), 0), rng.randrange(number + 1)])
            kept.discard(gone)
            plain.pop(gone, None)
        assert (list(plain), len(plain)) == (jobs(kept), len(kept))
        assert next(iter(plain), None) == kept.oldest()


def test_an_empty_one_has_no_oldest_and_begins_anew() -> None:
    kept: Any = Retained()
    assert kept.oldest() is None
    for number in range(9):
        kept.add(number)
    kept.clear()
    assert (0, [], None) == (len(kept), jobs(kept), kept.oldest())
    assert 1 == kept.add(5)


def test_no_table_grows_with_the_number_of_jobs() -> None:
    """One of all was copied now and then: 9 ms for the 50,000 that are kept by default."""
    kept: Any = Retained()
    for number in range(1_000):
        kept.add(number)
    for number in range(990):
        kept.discard(number)

    assert max(map(len, kept._shelves)) <= 4
    assert len(kept._shelves) <= 3


def test_shelves_with_few_jobs_left_become_one() -> None:
    """The room of a shelf is that of all who once stood there."""
    kept: Any = Retained()
    for number in range(4_000):
        kept.add(number)
        if number >= 40 and number % 4:
            kept.discard(number - 40)

    assert len(kept._shelves) <= len(kept) + 1
    for number in range(4_000):
        if number % 8:
            kept.discard(number)

    assert list(range(0, 4_000, 8)) == jobs(kept)
    assert len(kept._shelves) <= len(kept) // 2 + 1
