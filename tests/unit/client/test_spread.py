"""Waits drawn apart."""

from bunqueue.client.spread import SPREAD, spread

MANY = 1_000


def test_no_wait_is_shorter_than_planned_nor_longer_than_promised() -> None:
    waits = [spread(2.0) for _ in range(MANY)]

    assert 2.0 <= min(waits)
    assert max(waits) <= 2.0 * (1 + SPREAD)


def test_waits_fill_their_span_evenly() -> None:
    """So that of a crowd that is dropped at once, no large part comes back at once."""
    tenths = [int((spread(1.0) - 1.0) / SPREAD * 10) for _ in range(MANY)]

    assert all(MANY / 20 < tenths.count(tenth) < MANY / 5 for tenth in range(10))


def test_nothing_stays_nothing() -> None:
    assert 0.0 == spread(0.0)
