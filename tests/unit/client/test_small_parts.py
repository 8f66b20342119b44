"""The small parts of the client: emitter, signals of cancellation, rate gate, latches."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from bunqueue import CancellationManager, CancelSignal, EventEmitter, JobCancelledError
from bunqueue.client import rate_gate as rate_gate_module
from bunqueue.client import worlds
from bunqueue.client.rate_gate import ROOM_UNBOUNDED, RateGate

# -- emitter --------------------------------------------------------------------------------------


def test_listeners_are_called_in_order_and_once_only_once() -> None:
    emitter, heard = EventEmitter(), []
    emitter.on("x", lambda n: heard.append(("on", n)))
    emitter.once("x", lambda n: heard.append(("once", n)))

    emitter.emit("x", 1)
    emitter.emit("x", 2)

    assert [("on", 1), ("once", 1), ("on", 2)] == heard


def test_a_listener_that_raises_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    emitter, heard = EventEmitter(), []

    @emitter.on("x")
    def broken() -> None:
        raise RuntimeError("listener")

    emitter.on("x", lambda: heard.append(1))
    with caplog.at_level(logging.WARNING, "bunqueue"):
        emitter.emit("x")

    assert [1] == heard
    assert "listener raised event=x" in caplog.text


def test_listeners_can_be_taken_away() -> None:
    emitter, heard = EventEmitter(), []
    listener = heard.append
    emitter.on("x", listener).once("x", listener)

    emitter.off("x", listener)
    emitter.emit("x", 1)
    assert [] == heard

    emitter.on("x", listener)
    emitter.remove_all_listeners()
    assert not emitter.has_listeners("x")


# -- cancellation ---------------------------------------------------------------------------------


def test_a_signal_keeps_its_first_reason_and_calls_back_once() -> None:
    signal, called = CancelSignal(), []
    signal.on_abort(lambda: called.append(signal.reason))

    signal.abort("first")
    signal.abort("second")
    signal.on_abort(lambda: called.append("late"))

    assert signal.aborted
    assert ["first", "late"] == called
    with pytest.raises(JobCancelledError, match="first"):
        signal.raise_if_aborted()


def test_a_callback_that_raises_keeps_no_other_from_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ValueError("mine")

    signal, called = CancelSignal(), []
    for callback in (fail, lambda: called.append("in between"), fail):
        signal.on_abort(callback)

    signal.abort()
    signal.on_abort(fail)

    assert ["in between"] == called
    assert 3 == caplog.text.count("ValueError: mine")


def test_waiting_for_a_signal() -> None:
    signal = CancelSignal()
    assert not signal.wait(0.001)
    waiter = threading.Thread(target=signal.wait, args=(10,))
    waiter.start()

    signal.abort()

    waiter.join(5)
    assert not waiter.is_alive()


def test_the_manager_knows_running_jobs() -> None:
    manager = CancellationManager()
    one, two = manager.register("a"), manager.register("b")

    manager.cancel("a")
    manager.cancel("nobody")
    assert (True, False) == (one.aborted, two.aborted)
    assert (True, False) == (manager.is_cancelled("a"), manager.is_cancelled("nobody"))
    manager.destroy_all()
    assert two.aborted
    assert manager.get_signal("a") is None


def test_a_run_that_ends_late_takes_nothing_from_the_next_run_of_its_job() -> None:
    manager = CancellationManager()
    first, second = manager.register("a"), manager.register("a")
    manager.cancel("a", 1_000_000)

    manager.unregister("a", first)
    assert second is manager.get_signal("a")
    manager.cancel("a", 1)
    assert second.wait(5)
    manager.unregister("a", second)
    assert manager.get_signal("a") is None


def test_a_grace_period_ends_with_the_job_or_with_the_signal() -> None:
    manager = CancellationManager()
    ended, running = manager.register("ended"), manager.register("running")

    manager.cancel("ended", 1_000_000)
    manager.cancel("running", 1_000_000)
    assert (False, False) == (ended.aborted, running.aborted)
    manager.cancel("running", 1)
    manager.unregister("ended")

    assert running.wait(5)
    assert not ended.aborted


# -- rate gate ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(rate_gate_module, "now", lambda: moment[0])
    return moment


def test_a_rest_that_a_handler_asks_for_while_the_loop_looks_is_kept(clock: list[float]) -> None:
    gate = RateGate()
    gate.rest(1)

    class Moment(float):
        """A handler comes in just when the loop has found the last rest to be over."""

        def __lt__(self, until: float) -> bool:
            gate.rest(5)
            return float(self) < until

    clock[0] = Moment(1002.0)
    gate.room()
    clock[0] = 1003.0

    assert 0 == gate.room()


def test_a_window_rolls(clock: list[float]) -> None:
    gate = RateGate({"max": 2, "duration": 1000})
    gate.note_start()
    clock[0] += 0.6
    gate.note_start()

    assert 0 == gate.room()
    assert pytest.approx(0.4) == gate.rest_s()
    clock[0] += 0.5
    assert 1 == gate.room()
    assert {"max": 2, "duration": 1000.0, "current": 1} == gate.info()


def test_a_rest_ends(clock: list[float]) -> None:
    gate = RateGate()
    assert ROOM_UNBOUNDED == gate.room()

    gate.rest(2)

    assert (0, True) == (gate.room(), gate.is_resting)
    clock[0] += 2.1
    assert (ROOM_UNBOUNDED, False) == (gate.room(), gate.is_resting)


@pytest.mark.parametrize("limiter", [{"max": 0}, {"max": 1, "duration": 0}, {"max": "x"}])
def test_a_limiter_that_cannot_work_is_refused(limiter: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="limiter"):
        RateGate(limiter)


# -- worlds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [worlds.standard, worlds.native], ids=["standard", "native"])
def test_a_gate_lets_one_through_per_opening(make: Any) -> None:
    gate = make().gate()
    gate.open()
    gate.open()

    assert gate.wait(0)
    assert not gate.wait(0.001)


def test_a_gate_is_opened_from_a_native_thread() -> None:
    gate = worlds.standard().gate()
    worlds.native().spawn(gate.open, "opener")

    assert gate.wait(5)


def test_a_latch_wakes_waiters_of_every_world() -> None:
    latch = worlds.Latch()
    woken = [worlds.Latch(), worlds.Latch()]

    def wait(done: worlds.Latch) -> None:
        if latch.wait(5):
            done.set()

    worlds.standard().spawn(lambda: wait(woken[0]), "here")
    worlds.native().spawn(lambda: wait(woken[1]), "there")
    worlds.native().spawn(latch.set, "setter")

    assert [True, True] == [done.wait(5) for done in woken]


def test_importing_the_package_brings_neither_gevent_nor_threads() -> None:
    import subprocess
    import sys

    code = (
        "import sys, threading, bunqueue; bunqueue.Queue('q'); bunqueue.Worker; "
        "assert not [m for m in sys.modules if m.startswith('gevent')]; "
        "assert 1 == threading.active_count()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
