"""Waiting by events, with an emitter and a broker that the test speaks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue import CommandError, EventEmitter, JobFailedError
from bunqueue.client import event_waiting
from bunqueue.client.event_data import EventData
from bunqueue.client.event_waiting import NOTHING, wait_by_events


class Wait:
    """A wait in a thread of its own."""

    def __init__(self, look: Callable[[], Any], wait_s: float | None = 10.0) -> None:
        self.events = EventEmitter()
        self.outcome: Any = None
        self._look = look
        self._wait_s = wait_s
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._looked.wait(10)

    def _run(self) -> None:
        def look() -> Any:
            try:
                return self._look()
            finally:
                self._looked.set()

        try:
            self.outcome = wait_by_events(self.events, "7", self._wait_s, look)
        except Exception as error:
            self.outcome = error

    def join(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert not any(self.events.has_listeners(name) for name in ("completed", "failed"))
        return self.outcome


def under_way() -> Any:
    return NOTHING


def test_the_event_of_the_job_ends_the_wait_and_others_do_not() -> None:
    wait = Wait(under_way, wait_s=None)

    wait.events.emit("completed", EventData(jobId="8", returnvalue="other"))
    wait.events.emit("failed", EventData(jobId="7", terminal=False, failedReason="retried"))
    wait.events.emit("completed", EventData(jobId="7", returnvalue=None))

    assert None is wait.join()


@pytest.mark.parametrize(
    ("name", "event", "kind", "text"),
    [
        ("failed", {"terminal": True, "failedReason": "broken"}, JobFailedError, "broken"),
        ("failed", {"failedReason": None}, JobFailedError, "job failed"),
        ("removed", {"prev": "waiting"}, CommandError, "Job not found"),
    ],
)
def test_other_ends_are_raised(
    name: str, event: dict[str, Any], kind: type[Exception], text: str
) -> None:
    wait = Wait(under_way)

    wait.events.emit(name, EventData(jobId="7", **event))

    outcome = wait.join()
    assert (kind, text) == (type(outcome), str(outcome))


def test_what_is_over_already_needs_no_event() -> None:
    assert "done" == Wait(lambda: "done").join()


def test_after_a_gap_the_state_is_read_again() -> None:
    answers = iter([NOTHING, "done meanwhile"])
    wait = Wait(lambda: next(answers))

    wait.events.emit("resubscribed", EventData())

    assert "done meanwhile" == wait.join()


def test_without_events_the_state_is_looked_at_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_waiting, "LOOK_PERIOD_S", 0.001)
    answers = iter([NOTHING, NOTHING, "done unheard"])

    assert "done unheard" == Wait(lambda: next(answers)).join()


def test_a_wait_that_is_over_has_found_nothing() -> None:
    assert NOTHING is Wait(under_way, wait_s=0.01).join()
