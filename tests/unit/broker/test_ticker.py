"""When timed work runs."""

from contextlib import nullcontext

import pytest

from bunqueue.broker.clock import Clock
from bunqueue.broker.ticker import TICK_MS_MAX, Ticker


class FakeEngine:
    """Wants to be called again ``every_ms`` after each call; what it raises comes from the test."""

    def __init__(self) -> None:
        self.on_sooner = None
        self.every_ms = 400
        self.ticks: list[int] = []
        self.error: Exception | None = None

    def tick(self, now: int) -> int:
        self.ticks.append(now)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return now + self.every_ms


class FakeAlarm:
    """Notes how long it was to wait and ends the ticker's run after some waits."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []
        self.rings = 0
        self.ticker: Ticker
        self.left = 1

    def ring(self) -> None:
        self.rings += 1

    def wait(self, timeout_s: float) -> None:
        self.waits_ms.append(round(timeout_s * 1000))
        self.left -= 1
        if not self.left:
            self.ticker.stop()


class Parts:
    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.alarm = FakeAlarm()
        clock = Clock(lambda: 1_700_000_000_000_000_000, lambda: 5.0)
        self.ticker = Ticker(self.engine, clock, self.alarm, nullcontext())
        self.alarm.ticker = self.ticker


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_it_waits_as_long_as_the_engine_says(parts: Parts) -> None:
    parts.ticker.run()

    assert [400] == parts.alarm.waits_ms


def test_it_looks_now_and_then_even_if_nothing_is_due(parts: Parts) -> None:
    parts.engine.every_ms = 3_600_000
    parts.ticker.run()

    assert [TICK_MS_MAX] == parts.alarm.waits_ms


def test_it_lets_others_run_between_two_ticks_that_are_due_at_once(parts: Parts) -> None:
    parts.engine.every_ms = 0
    parts.alarm.left = 2
    parts.ticker.run()

    assert [0, 0] == parts.alarm.waits_ms


def test_work_that_becomes_due_sooner_rings(parts: Parts) -> None:
    parts.ticker.run()
    rings = parts.alarm.rings
    assert parts.engine.on_sooner is not None

    parts.engine.on_sooner(1_700_000_000_500)
    assert rings == parts.alarm.rings

    parts.engine.on_sooner(1_700_000_000_100)
    assert rings + 1 == parts.alarm.rings


def test_a_tick_that_raises_is_logged_and_tried_again(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    parts.engine.error = RuntimeError("boom")
    parts.alarm.left = 2
    parts.ticker.run()

    assert 2 == len(parts.engine.ticks)
    assert "timed work failed" in caplog.text
