"""Greenlets that run one delivery after the other, each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from bunqueue.client.executors import GreenletExecutor

MARK: ContextVar[str] = ContextVar("mark", default="none")


def delivery(handler: Callable[[], object]) -> Any:
    return SimpleNamespace(handler=handler, task=None)


def run(one: Any) -> None:
    """Do what ``Outcomes.run`` does with a handler, as far as executors are concerned."""
    try:
        one.handler()
    except gevent.GreenletExit:
        one.was_interrupted = True
    finally:
        one.task = None


def let_run(turns: int = 5) -> None:
    for _ in range(turns):
        gevent.sleep(0)


@pytest.fixture
def executor() -> GreenletExecutor:
    return GreenletExecutor(run)


def test_a_greenlet_takes_one_delivery_after_the_other(executor: GreenletExecutor) -> None:
    seen: list[Any] = []
    for _ in range(3):
        executor.submit(delivery(lambda: seen.append(gevent.getcurrent())))
        let_run()

    assert 3 == len(seen)
    assert 1 == len(set(seen))


def test_deliveries_run_side_by_side(executor: GreenletExecutor) -> None:
    ended: list[int] = []

    def handler(number: int) -> None:
        gevent.sleep(0)
        ended.append(number)

    for number in range(3):
        executor.submit(delivery(lambda number=number: handler(number)))
    gevent.sleep(0)
    assert [] == ended

    let_run()
    assert [0, 1, 2] == ended


def test_a_context_variable_ends_with_its_job(executor: GreenletExecutor) -> None:
    seen: list[str] = []

    def handler() -> None:
        seen.append(MARK.get())
        MARK.set("left behind")

    for _ in range(2):
        executor.submit(delivery(handler))
        let_run()

    assert ["none", "none"] == seen


def test_an_interrupt_reaches_the_handler_that_runs(executor: GreenletExecutor) -> None:
    one = delivery(lambda: gevent.sleep(60))
    executor.submit(one)
    let_run()

    assert executor.interrupt(one)
    let_run()

    assert one.was_interrupted


def test_an_interrupt_that_comes_too_late_spares_the_next_handler(
    executor: GreenletExecutor,
) -> None:
    ended: list[str] = []
    first = delivery(lambda: executor.interrupt(first))  # noticed once it has ended
    second = delivery(lambda: (gevent.sleep(0), ended.append("second")))
    executor.submit(first)
    executor.submit(second)
    let_run()
    third = delivery(lambda: (executor.interrupt(first), gevent.sleep(0), ended.append("third")))
    executor.submit(third)
    let_run()

    assert ["second", "third"] == ended
    assert not executor.interrupt(first)


def test_a_delivery_outlives_the_greenlet_that_was_to_take_it(executor: GreenletExecutor) -> None:
    tasks: list[Any] = []
    executor.submit(delivery(lambda: tasks.append(gevent.getcurrent())))
    let_run()
    ended: list[str] = []

    tasks[0].kill(block=False)
    executor.submit(delivery(lambda: ended.append("taken")))
    let_run()

    assert ["taken"] == ended
    assert tasks[0].dead


def test_idle_greenlets_end_when_it_closes(executor: GreenletExecutor) -> None:
    tasks: list[Any] = []
    for _ in range(2):
        executor.submit(delivery(lambda: (tasks.append(gevent.getcurrent()), gevent.sleep(0))))
    let_run()

    executor.close()
    let_run()

    assert [True, True] == [task.dead for task in tasks]
