"""Adds that meet leave together; each caller hears its own outcome."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
from typing import Any

import gevent
import gevent.event
import pytest

from bunqueue import CommandError, ConnectionClosedError
from bunqueue.client import worlds
from bunqueue.client.add_batch import AddBatcher, batch_settings
from tests.support.interrupts import LEAVES_LOCKS, interrupted_at

Command = dict[str, Any]


class Broker:
    """Takes pushes; holds the first until told, so that the others meet."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.go_on = threading.Event()
        self.arrived = threading.Event()
        self.refuse: Any = lambda _job: None

    def __call__(self, command: Command) -> Command:
        self.commands.append(command)
        if len(self.commands) == 1:
            self.arrived.set()
            assert self.go_on.wait(10)
        jobs = command["jobs"] if command["cmd"] == "PUSHB" else [command]
        for index, job in enumerate(jobs):
            error = self.refuse(job)
            if error is not None:
                prefix = f"jobs[{index}]: " if command["cmd"] == "PUSHB" else ""
                raise error if not prefix else type(error)(prefix + str(error))
        ids = [f"id-{job['name']}" for job in jobs]
        return {"ids": ids} if command["cmd"] == "PUSHB" else {"id": ids[0]}


class Adds:
    """Callers in threads (or greenlets)."""

    def __init__(self, batcher: AddBatcher) -> None:
        self._batcher = batcher
        self._threads: list[threading.Thread] = []
        self.outcomes: dict[str, Any] = {}

    def add(self, name: str) -> None:
        thread = threading.Thread(target=self._main, args=(name,))
        thread.start()
        self._threads.append(thread)

    def _main(self, name: str) -> None:
        try:
            self.outcomes[name] = self._batcher.add({"name": name})
        except BaseException as error:
            self.outcomes[name] = error

    def wait_until_waiting(self, count: int) -> None:
        while self._batcher.waiting < count:
            worlds.standard().sleep(0.001)

    def join(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(10)
        return self.outcomes


@pytest.fixture
def broker() -> Broker:
    return Broker()


def batcher_on(broker: Broker, max_size: int = 50, max_delay_ms: float = 60_000) -> AddBatcher:
    return AddBatcher(broker, "q", worlds.standard(), max_size, max_delay_ms)


def test_a_lone_add_is_an_ordinary_push(broker: Broker) -> None:
    broker.go_on.set()

    assert "id-a" == batcher_on(broker).add({"name": "a", "jobId": "mine"})

    assert [{"cmd": "PUSH", "queue": "q", "name": "a", "jobId": "mine"}] == broker.commands


def test_adds_that_meet_leave_as_one_batch(broker: Broker) -> None:
    adds = Adds(batcher_on(broker))
    adds.add("first")
    broker.arrived.wait()
    for name in "abcde":
        adds.add(name)
    adds.wait_until_waiting(5)

    broker.go_on.set()

    assert {name: f"id-{name}" for name in ("first", *"abcde")} == adds.join()
    assert ["PUSH", "PUSHB"] == [command["cmd"] for command in broker.commands]


def test_a_full_batch_does_not_wait_for_the_flush_under_way(broker: Broker) -> None:
    adds = Adds(batcher_on(broker, max_size=2))
    adds.add("first")
    broker.arrived.wait()

    adds.add("a")
    adds.wait_until_waiting(1)
    adds.add("b")
    while len(adds.outcomes) < 2:
        worlds.standard().sleep(0.001)

    assert {"a": "id-a", "b": "id-b"} == adds.outcomes
    broker.go_on.set()
    adds.join()


def test_an_entry_that_has_waited_long_enough_leaves(broker: Broker) -> None:
    adds = Adds(batcher_on(broker, max_delay_ms=1))
    adds.add("first")
    broker.arrived.wait()

    adds.add("late")
    while "late" not in adds.outcomes:
        worlds.standard().sleep(0.001)

    assert "first" not in adds.outcomes
    broker.go_on.set()
    assert "id-first" == adds.join()["first"]


def test_a_refused_batch_is_sent_again_one_by_one(broker: Broker) -> None:
    def refuse(job: Command) -> CommandError | None:
        return CommandError("priority must be at most 5") if job["name"] == "bad" else None

    broker.refuse = refuse
    adds = Adds(batcher_on(broker))
    adds.add("first")
    broker.arrived.wait()
    for name in ("a", "bad", "b"):
        adds.add(name)
    adds.wait_until_waiting(3)
    broker.go_on.set()

    outcomes = adds.join()

    assert ("id-a", "id-b") == (outcomes["a"], outcomes["b"])
    assert "priority must be at most 5" == str(outcomes["bad"])
    assert ["PUSH", "PUSHB", "PUSH", "PUSH", "PUSH"] == [one["cmd"] for one in broker.commands]


def test_callers_of_a_refused_batch_hear_as_soon_as_their_own_job_is_in(broker: Broker) -> None:
    heard: list[bool] = []
    is_drained: list[bool] = []

    def refuse(job: Command) -> CommandError | None:
        if job.get("cmd") == "PUSH" and job["name"] == "c":
            deadline = worlds.now() + 5
            while "b" not in adds.outcomes and worlds.now() < deadline:
                worlds.standard().sleep(0.001)
            heard.append("b" in adds.outcomes)
            is_drained.append(batcher.drain(0))
        return CommandError("no batches") if "cmd" not in job else None

    broker.refuse = refuse
    batcher = batcher_on(broker, max_size=3)
    adds = Adds(batcher)
    adds.add("first")
    broker.arrived.wait()
    for count, name in enumerate("ab", 1):
        adds.add(name)
        adds.wait_until_waiting(count)
    adds.add("c")  # fills the batch and sends it
    broker.go_on.set()

    assert {name: f"id-{name}" for name in ("first", "a", "b", "c")} == adds.join()
    assert [True] == heard
    assert [False] == is_drained
    assert batcher.drain(10)


def test_a_lost_batch_fails_all_its_callers_and_is_not_sent_again(broker: Broker) -> None:
    def lose(job: Command) -> ConnectionClosedError | None:
        return None if job["name"] == "first" else ConnectionClosedError("connection lost")

    broker.refuse = lose
    adds = Adds(batcher_on(broker))
    adds.add("first")
    broker.arrived.wait()
    for name in "abc":
        adds.add(name)
    adds.wait_until_waiting(3)
    broker.go_on.set()

    outcomes = adds.join()

    assert [ConnectionClosedError] * 3 == [type(outcomes[name]) for name in "abc"]
    assert ["PUSH", "PUSHB"] == [command["cmd"] for command in broker.commands]


def test_an_interrupted_greenlet_takes_no_other_down_with_it() -> None:
    commands: list[Command] = []

    def call(command: Command) -> Command:
        commands.append(command)
        gevent.sleep(0.02)
        jobs = command.get("jobs", [command])
        ids = [f"id-{job['name']}" for job in jobs]
        return {"ids": ids} if "jobs" in command else {"id": ids[0]}

    batcher = AddBatcher(call, "emails", worlds.cooperative(), max_delay_ms=10_000)
    names = "abcdefgh"
    adds = [gevent.spawn(batcher.add, {"name": name}) for name in names]
    with gevent.Timeout(10):
        while not commands:
            gevent.sleep(0.001)
        sender = adds[0]
        sender.kill()
        gevent.joinall(adds)

    assert [list(names)] == [[job["name"] for job in command["jobs"]] for command in commands]
    assert isinstance(sender.value, gevent.GreenletExit)
    assert [f"id-{name}" for name in names[1:]] == [add.value for add in adds[1:]]


@pytest.mark.skipif(worlds.is_patched(), reason="threads wake one another in a row, greenlets not")
def test_a_thread_interrupted_while_its_batch_is_under_way_breaks_no_chain(broker: Broker) -> None:
    batch_is_out, main_has_left = threading.Event(), threading.Event()

    def hold(job: Command) -> None:
        if job["name"] == "a":
            batch_is_out.set()
            assert main_has_left.wait(10)

    def interrupt() -> None:
        assert batch_is_out.wait(10)
        os.kill(os.getpid(), signal.SIGUSR2)

    def leave(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    def fill_the_batch() -> None:
        adds.wait_until_waiting(2)
        adds.add("c")

    broker.refuse = hold
    batcher = batcher_on(broker, max_size=3)
    adds = Adds(batcher)
    before = signal.signal(signal.SIGUSR2, leave)
    try:
        adds.add("first")
        broker.arrived.wait()
        adds.add("a")
        adds.wait_until_waiting(1)
        threads = [threading.Thread(target=run) for run in (fill_the_batch, interrupt)]
        for thread in threads:
            thread.start()
        with pytest.raises(KeyboardInterrupt):
            batcher.add({"name": "b"})
        main_has_left.set()
        broker.go_on.set()
        for thread in threads:
            thread.join(10)
    finally:
        signal.signal(signal.SIGUSR2, before)

    assert {"first": "id-first", "a": "id-a", "c": "id-c"} == adds.join()
    assert ["first", "a", "b", "c"] == [
        job["name"] for command in broker.commands for job in command.get("jobs", [command])
    ]
    assert batcher.drain(1)


@pytest.mark.skipif(worlds.is_patched(), reason="with greenlets the last one ends the flush")
def test_another_caller_looks_at_the_clock_when_the_first_has_been_interrupted() -> None:
    is_held = gevent.event.Event()
    commands: list[Command] = []

    def call(command: Command) -> Command:
        commands.append(command)
        if len(commands) == 1:
            is_held.wait()
        jobs = command.get("jobs", [command])
        ids = [f"id-{job['name']}" for job in jobs]
        return {"ids": ids} if "jobs" in command else {"id": ids[0]}

    batcher = AddBatcher(call, "emails", worlds.cooperative(), max_delay_ms=200)
    first = gevent.spawn(batcher.add, {"name": "first"})
    with gevent.Timeout(10):
        while not commands:
            gevent.sleep(0.001)
        killed, *others = (gevent.spawn(batcher.add, {"name": name}) for name in "abc")
        while batcher.waiting < 3:
            gevent.sleep(0.001)
        killed.kill()
        gevent.sleep(0.001)
        assert 2 == batcher.waiting
        gevent.joinall(others)

        assert ["id-b", "id-c"] == [add.value for add in others]
        assert not first.ready()
        is_held.set()
        first.join()

    assert [["first"], ["b", "c"]] == [
        [job["name"] for job in command.get("jobs", [command])] for command in commands
    ]
    assert batcher.drain(1)


class InterruptedLock:
    """A lock that raises in the caller who has just left it, when told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_armed: Any = lambda: False

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)
        if self.is_armed():
            self.is_armed = lambda: False
            raise KeyboardInterrupt


@pytest.mark.parametrize("max_size", [3, 50])
def test_a_caller_interrupted_before_it_sends_the_batch_fails_it_for_all(
    broker: Broker, max_size: int
) -> None:
    batcher = batcher_on(broker, max_size)
    lock = batcher._lock = InterruptedLock()  # type: ignore[assignment]
    adds = Adds(batcher)
    adds.add("first")
    broker.arrived.wait()
    opened = batcher._open
    lock.is_armed = lambda: opened.is_taken
    for number, name in enumerate("abc"):
        adds.add(name)
        if number < 2:
            adds.wait_until_waiting(number + 1)
    if max_size > 3:
        adds.wait_until_waiting(3)
    broker.go_on.set()

    outcomes = adds.join()

    kinds = [type(outcomes[name]) for name in "abc"]
    assert 1 == kinds.count(KeyboardInterrupt)
    assert 2 == kinds.count(ConnectionClosedError)
    assert ["PUSH"] == [command["cmd"] for command in broker.commands]
    assert batcher.drain(1)


def test_own_ids_are_called_custom_ids_in_a_batch(broker: Broker) -> None:
    batcher = batcher_on(broker)
    adds = Adds(batcher)
    adds.add("first")
    broker.arrived.wait()
    for name in "ab":
        thread = threading.Thread(target=batcher.add, args=({"name": name, "jobId": name},))
        thread.start()
        adds._threads.append(thread)
    adds.wait_until_waiting(2)
    broker.go_on.set()
    adds.join()

    assert ["a", "b"] == sorted(job["customId"] for job in broker.commands[1]["jobs"])
    assert all("jobId" not in job for job in broker.commands[1]["jobs"])


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (None, (50, 5)),
        (True, (50, 5)),
        (False, None),
        ({"enabled": False}, None),
        ({"max_size": 3, "max_delay_ms": 0}, (3, 0)),
    ],
)
def test_settings_of_batches(given: Any, settings: Any) -> None:
    assert settings == batch_settings(given)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(TypeError, match="maxsize"):
        batch_settings({"maxsize": 3})
    with pytest.raises(ValueError, match="max_size"):
        batch_settings({"max_size": 0})
    with pytest.raises(ValueError, match="max_delay_ms"):
        batch_settings({"max_delay_ms": float("inf")})


def test_draining_waits_for_what_is_under_way_and_no_longer(broker: Broker) -> None:
    batcher = batcher_on(broker)
    assert batcher.drain(0)
    adds = Adds(batcher)
    adds.add("first")
    broker.arrived.wait()
    adds.add("second")
    adds.wait_until_waiting(1)

    assert not batcher.drain(0.001)
    broker.go_on.set()

    assert batcher.drain(10)
    assert {"first": "id-first", "second": "id-second"} == adds.outcomes
    adds.join()


def test_two_turns_that_end_in_one_batch_leave_none_behind() -> None:
    """The first caller lets others run for long; meanwhile a flush has handed its turn on."""
    world = copy.copy(worlds.cooperative())
    first_may_go = gevent.event.Event()
    world.sleep = lambda _seconds: first_may_go.wait(10)
    commands: list[list[str]] = []
    adds: list[Any] = []

    def call(command: Command) -> Command:
        jobs = command.get("jobs", [command])
        commands.append([job["name"] for job in jobs])
        if commands[-1] == ["b"]:
            adds.append(gevent.spawn(batcher.add, {"name": "c"}))
            gevent.sleep(0)
            first_may_go.set()  # so it goes on before the one who is handed the turn now
        ids = [f"id-{job['name']}" for job in jobs]
        return {"ids": ids} if "jobs" in command else {"id": ids[0]}

    batcher = AddBatcher(call, "q", world, max_delay_ms=20)
    with gevent.Timeout(10):
        for name in "ab":
            adds.append(gevent.spawn(batcher.add, {"name": name}))
        gevent.joinall(adds)
        gevent.joinall(adds)

    assert [["b"], ["a", "c"]] == commands
    assert batcher.drain(0)


@pytest.mark.skipif(LEAVES_LOCKS, reason="a signal may leave a lock held")
@pytest.mark.skipif(worlds.is_patched(), reason="a hub does not run Python's handlers")
def test_a_lone_add_interrupted_anywhere_keeps_no_turn(broker: Broker) -> None:
    broker.go_on.set()
    point, stuck = 1, []
    while True:
        batcher = batcher_on(broker)
        if not interrupted_at(point, lambda: batcher.add({"name": "a"})):  # noqa: B023
            break
        if not batcher.drain(0):
            stuck.append(point)
        point += 1

    assert point > 10
    assert [] == stuck


@pytest.mark.skipif(LEAVES_LOCKS, reason="a signal may leave a lock held")
@pytest.mark.skipif(worlds.is_patched(), reason="a hub does not run Python's handlers")
@pytest.mark.parametrize("max_size", [2, 50])
def test_an_add_interrupted_anywhere_keeps_nobody_else_waiting(max_size: int) -> None:
    """With 2 it sends the batch it has filled, with 50 the other one or it does in its turn."""
    gc.collect()  # or what others have left is interrupted as it is freed
    point, stuck, is_over = 1, [], False
    while not is_over:
        broker = Broker()
        batcher = batcher_on(broker, max_size, max_delay_ms=500)
        adds = Adds(batcher)
        adds.add("first")
        broker.arrived.wait()
        adds.add("other")
        adds.wait_until_waiting(1)
        opened, has_left = batcher._open, threading.Event()

        def go_on_once_it_waits(broker=broker, opened=opened, has_left=has_left) -> None:  # type: ignore[no-untyped-def]
            while len(opened.jobs) < 2 and not has_left.is_set():
                worlds.standard().sleep(0.0005)
            broker.go_on.set()

        helper = threading.Thread(target=go_on_once_it_waits)
        helper.start()
        is_over = not interrupted_at(point, lambda: batcher.add({"name": "it"}))  # noqa: B023
        has_left.set()
        helper.join(10)
        outcomes = adds.join()
        told = outcomes.get("other")
        if told != "id-other" and not isinstance(told, ConnectionClosedError):
            stuck.append((point, told))
        if outcomes["first"] != "id-first" or not batcher.drain(1):
            stuck.append((point, "flush"))
        point += 1

    assert point > 10
    assert [] == stuck
