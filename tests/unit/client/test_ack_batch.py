"""ACKs that are held back to leave together."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bunqueue.client.ack_batch import AckBatcher, AckItem

WAIT_S = 10.0


class Interrupted(BaseException):
    """What may be thrown into any task."""


class Line:
    """Takes batches, the first of them badly."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.batches: list[list[str]] = []

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        self.batches.append(command["ids"])
        if len(self.batches) <= self.failures:
            raise Interrupted
        return {"ok": True}


class Item(AckItem):
    """One whose outcome can be waited for."""

    def __init__(self, job_id: str) -> None:
        self.errors: list[BaseException | None] = []
        self.is_settled = threading.Event()
        super().__init__(job_id, None, None, self._settle)

    def _settle(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self.is_settled.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_acks_leave_in_time_though_the_task_that_sends_them_was_interrupted(failures: int) -> None:
    """All later ones waited for a full batch."""
    line = Line(failures)
    batcher = AckBatcher(line, max_size=9, max_delay_ms=1)
    items = [Item(name) for name in "abc"]
    for item in items:
        batcher.add(item)
        assert item.is_settled.wait(WAIT_S)
    batcher.close()
    for thread in threading.enumerate():
        if thread.name == "bunqueue-ack":
            thread.join(WAIT_S)  # one that was interrupted would be noticed in the next test

    assert [["a"], ["b"], ["c"]] == line.batches
    assert failures == sum(item.errors != [None] for item in items)
    assert 0 == batcher.waiting
