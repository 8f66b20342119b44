"""What becomes of successes, whoever is thrown out while they are under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bunqueue.client.ack_flow import Success
from bunqueue.client.delivery import Delivery
from bunqueue.client.job import Job
from bunqueue.client.outcomes import Outcomes


class Killed:
    """A gate whose waiter is thrown out; the reply may have come by then, but is not told yet."""

    def open(self) -> None:
        return

    def wait(self, _timeout_s: float | None = None) -> bool:
        raise KeyboardInterrupt


def test_a_success_counts_once_though_its_task_is_killed_before_it_is_told() -> None:
    told: list[str] = []
    worker: Any = SimpleNamespace(
        processed=0,
        note_finished=lambda: None,
        has_listeners=lambda _event: True,
        emit=lambda _event, job, _result: told.append(job.id),
        release=lambda _delivery: None,
    )
    outcomes = Outcomes(worker)
    success = Success(Delivery(Job({"id": "a"}), "token"), None)
    success.gate = Killed()
    success.reply = {"ok": True}  # another part of the same batch is still under way

    with pytest.raises(KeyboardInterrupt):
        outcomes._conclude_all([success])
    outcomes.settle(success)

    assert (["a"], 1) == (told, worker.processed)
