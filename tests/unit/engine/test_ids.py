"""Generated ids and tokens: UUID version 7, strictly increasing."""

from __future__ import annotations

import re
from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bunqueue.engine.ids import Ids

FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
NOW = 1_700_000_000_000


def test_an_id_is_a_lower_case_uuid_of_version_7() -> None:
    made = Ids(Random(1).randbytes).new(NOW)

    assert FORM.fullmatch(made)
    assert 7 == UUID(made).version


def test_the_time_stands_in_the_first_48_bits() -> None:
    assert NOW == UUID(Ids(Random(1).randbytes).new(NOW)).int >> 80


def test_ids_of_one_millisecond_increase_beyond_the_counter() -> None:
    ids = Ids(Random(1).randbytes)
    made = [ids.new(NOW) for _ in range(10_000)]

    assert sorted(made) == made
    assert 10_000 == len(set(made))


@given(st.lists(st.integers(0, 2**44), min_size=2, max_size=50), st.integers(0, 2**32))
def test_ids_increase_whatever_the_clock_does(times: list[int], seed: int) -> None:
    ids = Ids(Random(seed).randbytes)
    made = [ids.new(NOW + offset) for offset in times]

    assert sorted(set(made)) == made
