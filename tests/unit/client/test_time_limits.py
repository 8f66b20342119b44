"""Looks at running jobs: in time, and no more of them than it takes."""

from __future__ import annotations

import heapq
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from bunqueue.client import lease, time_limits
from bunqueue.client.time_limits import GRACE_S, TimeLimits


class Played:
    """A keeper and its clock under the test's hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[Any] = []
        self._numbers = itertools.count()
        self.active: dict[str, Any] = {}
        self.told: list[tuple[str, float]] = []
        monkeypatch.setattr(time_limits, "now", lambda: self.now)
        monkeypatch.setattr(lease, "keeper", lambda: SimpleNamespace(later=self._later))
        worker: Any = SimpleNamespace(active=self.active, outlived=self._outlived)
        self.limits = TimeLimits(worker)

    def _later(self, delay_s: float, call: Any) -> None:
        heapq.heappush(self.calls, (self.now + delay_s, next(self._numbers), call))

    def _outlived(self, delivery: Any) -> None:
        self.told.append((delivery.id, self.now))

    def start(self, job_id: str, timeout_s: float) -> None:
        delivery: Any = SimpleNamespace(id=job_id, overdue_at=None)
        self.active[job_id] = delivery
        self.limits.note(delivery, timeout_s)

    def run(self, until: float) -> None:
        while self.calls and self.calls[0][0] <= until:
            self.now, _, call = heapq.heappop(self.calls)
            call()
        self.now = until


def test_looks_do_not_multiply_beside_a_long_job(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.start("long", 86_400)
    for second in range(10, 2_000, 10):
        played.start("short", 1)
        del played.active["short"]
        played.run(second)

    assert len(played.calls) <= 2
    assert [] == played.told


def test_each_job_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    for job_id, timeout_s in [("c", 200.0), ("a", 30.0), ("b", 90.0)]:
        played.start(job_id, timeout_s)
    played.run(300)

    assert ["a", "b", "c"] == [job_id for job_id, _ in played.told]
    at = [30 + GRACE_S, 90 + GRACE_S, 200 + GRACE_S]
    assert pytest.approx(at) == [moment for _, moment in played.told]
