"""Native threads beside gevent: the client waits there without a hub, and leaves none behind.

A hub that a thread made and did not destroy outlives it, with its descriptors. In a patched process
every lock and sleep of the standard names makes one, so the client must not use them there.
"""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent._hub_local import get_hub_if_exists

from bunqueue import CommandTimeoutError, EventEmitter, Queue, Worker
from bunqueue.client import worlds
from bunqueue.client.executors import ThreadExecutor
from bunqueue.client.waiting import wait_for_job
from tests.support.native import hub_after, run_natively

ADDS = 20  # greenlets look for company once in sixteen adds


def test_adds_of_native_threads_are_no_business_of_the_greenlets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("q")
    monkeypatch.setattr(queue.connection, "call", lambda _command: {"id": "1"})
    queue.add("from the main thread")

    def add() -> None:
        for _ in range(ADDS):
            queue.add("from a native thread")

    assert None is hub_after(add)


class Unfinished:
    """A connection to a broker that has the job, and answers a wait at once."""

    tells_failures = True

    def call(self, command: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        del timeout
        return {"WaitJob": {"completed": False}, "GetState": {"state": "waiting"}}[command["cmd"]]


def test_a_native_thread_waits_for_a_job_in_its_own_way() -> None:
    def wait() -> None:
        with pytest.raises(CommandTimeoutError):
            wait_for_job(Unfinished(), "1", 1)

    assert None is hub_after(wait)


def test_emitters_are_locked_for_every_kind_of_thread() -> None:
    assert type(worlds.native().lock()) is type(EventEmitter()._listeners_lock)


def test_a_hub_that_a_handler_made_goes_with_its_thread() -> None:
    hubs: list[Any] = []
    ended = worlds.Latch()

    def handle(_delivery: object) -> None:
        gevent.sleep(0)
        hubs.append(get_hub_if_exists())
        ended.set()

    executor = ThreadExecutor(worlds.native(), handle, "handlers")
    executor.submit(object())
    assert ended.wait(10)
    executor.close()

    deadline = worlds.now() + 10
    while hubs[0].loop is not None and worlds.now() < deadline:
        worlds.standard().sleep(0.001)
    assert None is hubs[0].loop


def test_a_worker_made_in_a_native_thread_works_in_threads() -> None:
    """The greenlets of a thread that waits natively would never get their turn."""
    made: list[str] = []

    run_natively(lambda: made.append(Worker("q", print, autorun=False).executor))

    assert ["thread"] == made


@pytest.mark.skipif(not worlds.is_patched(), reason="in a plain process every thread is native")
@pytest.mark.parametrize(
    ("executor", "processor"), [("greenlet", print), ("process", print), ("auto", "time:sleep")]
)
def test_executors_that_need_the_hub_say_so_in_a_native_thread(
    executor: str, processor: Any
) -> None:
    with pytest.raises(ValueError, match="needs the main thread's hub"):
        run_natively(lambda: Worker("q", processor, executor=executor, autorun=False))


def test_a_gate_that_a_thread_lets_go_of_last_leaves_its_loop_in_the_loops_own_thread() -> None:
    """A thread that takes a watcher off a loop while that runs brings the process down."""
    shut_by: list[int] = []

    class Watcher:
        def __init__(self, loop: Any) -> None:
            self.loop = loop

        def stop(self) -> None:
            shut_by.append(worlds._thread_ident())

        def close(self) -> None:
            shut_by.append(worlds._thread_ident())

    gates = [worlds.HubGate()]
    real, gates[0]._watcher = gates[0]._watcher, Watcher(gevent.get_hub().loop)
    real.stop()
    real.close()

    run_natively(gates.clear)
    with gevent.Timeout(10):
        while len(shut_by) < 2:
            gevent.sleep(0.001)

    assert [worlds._thread_ident()] * 2 == shut_by
