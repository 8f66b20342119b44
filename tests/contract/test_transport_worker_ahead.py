"""Jobs that a worker has pulled beyond its slots: they run next, or go back as if never pulled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue import Job
from bunqueue.client import ahead
from bunqueue.client.delivery import Delivery
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Scene:
    """A worker with one slot, whose handler waits in the first job, and two jobs read ahead."""

    def __init__(self, transport: Transport, **options: Any) -> None:
        self.queue = transport.queue()
        self.may_end = threading.Event()
        self.began: list[str] = []
        self.worker = transport.worker(self._handle, concurrency=1, autorun=False, **options)
        self.heard = Heard(self.worker, "completed", "error")
        self.ids = [self.queue.add(name).id for name in ("first", "second", "third")]

    def _handle(self, job: Job[Any]) -> None:
        self.began.append(job.name)
        assert self.may_end.wait(WAIT_S)

    def begin(self) -> None:
        self.worker.ahead.limit = 2  # as after a pull during which two slots came free
        self.worker.start()
        until(lambda: len(self.worker.leases.held) == 3 and self.began == ["first"])

    def active_and_waiting(self) -> tuple[int, int]:
        counts = self.queue.get_job_counts()
        return counts["active"], counts["waiting"]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STALE_S", 60.0)


@pytest.mark.usefixtures("patience")
def test_they_run_in_order_as_the_slot_comes_free(transport: Transport) -> None:
    scene = Scene(transport)
    scene.begin()

    assert (3, 0) == scene.active_and_waiting()
    scene.may_end.set()
    scene.heard.wait_for("completed", 3)

    assert ["first", "second", "third"] == scene.began
    assert [1, 1, 1] == [scene.queue.get_job(one).attempts_started for one in scene.ids]
    assert "error" not in scene.heard.names


@pytest.mark.usefixtures("patience")
def test_they_go_back_when_no_slot_comes_free_soon(transport: Transport) -> None:
    scene = Scene(transport)
    scene.begin()

    scene.worker.ahead._stale_at = time.monotonic()
    scene.worker.wake.open()
    until(lambda: (1, 2) == scene.active_and_waiting())

    assert ["first"] == scene.began
    assert {scene.ids[0]} == set(scene.worker.leases.held)
    assert [0, 0] == [scene.queue.get_job(one).attempts_made for one in scene.ids[1:]]
    scene.may_end.set()
    scene.heard.wait_for("completed", 3)
    assert ["first", "second", "third"] == scene.began


@pytest.mark.usefixtures("patience")
def test_a_pause_sends_them_back(transport: Transport) -> None:
    scene = Scene(transport)
    scene.begin()

    scene.worker.pause()
    until(lambda: (1, 2) == scene.active_and_waiting())
    scene.may_end.set()
    scene.heard.wait_for("completed")

    assert ["first"] == scene.began
    scene.worker.resume()
    scene.heard.wait_for("completed", 3)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("force", [False, True], ids=["gently", "by_force"])
def test_a_close_sends_them_back(transport: Transport, force: bool) -> None:
    scene = Scene(transport)
    scene.begin()

    scene.worker.close(0, force=force)
    until(lambda: 2 <= scene.active_and_waiting()[1])
    scene.may_end.set()
    assert scene.worker.close(WAIT_S)

    assert ["first"] == scene.began
    assert {} == scene.worker.leases.held
    assert (0, 3 if force else 2) == scene.active_and_waiting()


@pytest.mark.parametrize(
    "options",
    [
        {"limiter": {"max": 100, "duration": 1000}},
        {"limiter": {"max": 1, "group_key": "customer"}},
        {"group": {"concurrency": 5}},
        {"batch": {"size": 4}},
        {"max_jobs": 50},
        {"use_locks": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_nothing_is_read_ahead_where_more_than_slots_says_what_starts(
    transport: Transport, options: dict[str, Any]
) -> None:
    reader = transport.worker(lambda _job: None, autorun=False, **options).ahead
    reader.pull_begins()
    with reader.lock:
        reader.note_freed()
    reader.pull_ends(True, 10)

    assert 0 == reader.room


def test_as_many_are_read_ahead_as_slots_came_free_during_a_full_pull() -> None:
    reader = ahead.Ahead(is_wanted=True)
    rooms = []
    for freed, was_filled, most in ((3, True, 10), (3, False, 10), (30, True, 10), (0, True, 10)):
        reader.pull_begins()
        for _ in range(freed):
            reader.note_freed()
        reader.pull_ends(was_filled, most)
        rooms.append(reader.room)

    assert [3, 0, 10, 0] == rooms


def test_a_job_is_stale_a_while_after_the_one_before_it_went() -> None:
    reader = ahead.Ahead(is_wanted=True)
    assert reader.rest_s is None
    reader.put(Delivery(Job({"id": "a"}, None), "token"))  # type: ignore[arg-type]  # no connection

    rest_s = reader.rest_s
    assert rest_s is not None
    assert 0 < rest_s <= ahead.STALE_S
