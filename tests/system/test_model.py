"""A real broker is held against the model, in short; the long form is ``python -m tests.model``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from bunqueue.broker import Broker
from bunqueue.commands.registry import COMMANDS
from tests.model.checks import INVARIANTS, unchecked
from tests.model.episodes import EPISODES
from tests.model.machine import WORLD, Histories, forget_world, the_world
from tests.model.oracle import HOUR_MS, LOSS_WINDOW_S
from tests.model.run import run
from tests.model.world import World

pytestmark = pytest.mark.slow

assert Broker  # the commands are declared

SEED: Final = 1
HISTORIES, STEPS = 2, 25
# Every rule of a random history takes its turn once in this one, so that nothing is left to luck.
OPTIONS: Final = {
    "priority": 0, "lifo": False, "delay": 0, "maxAttempts": 3, "backoff": 0,
    "removeOnComplete": False, "removeOnFail": False,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def broker() -> Iterator[None]:
    try:
        yield
    finally:
        forget_world()


def test_random_histories_go_as_the_model_says() -> None:
    run(Histories, SEED, HISTORIES, STEPS, shrinks=False)


def test_each_episode_ends_as_it_should() -> None:
    for episode in EPISODES:
        for end in episode(the_world()) or ():
            the_world().end(end)


def test_one_history_of_every_rule_goes_as_the_model_says() -> None:
    history = Histories()
    history.start([dict(OPTIONS)] * 2)
    every_rule(history)
    history.teardown()


def test_a_job_whose_worker_was_lost_is_kept_whatever_it_says_of_failures() -> None:
    history = Histories()
    history.start([OPTIONS | {"maxAttempts": 1, "removeOnFail": True}])
    history.pull(0, 0, True)
    history.kill()
    history.teardown()


def test_a_plain_push_is_safe_once_the_loss_window_is_over() -> None:
    push_wait_and_kill()


def test_a_broker_that_writes_too_late_is_found() -> None:
    with late_world(200), pytest.raises(AssertionError, match="not found"):
        push_wait_and_kill()


def test_a_charge_that_was_not_written_yet_is_made_anew() -> None:
    class Patient(Histories):
        patience = 100.0

    with late_world(60_000):
        history = Patient()
        history.start([OPTIONS | {"backoff": HOUR_MS}])
        history.pull(0, 0, True)
        for _ in range(3):
            history.kill()
        history.teardown()


@contextmanager
def late_world(flush_ms: int) -> Iterator[None]:
    """Have another broker meanwhile, which keeps plain pushes in memory for long."""
    seen = WORLD.copy()
    WORLD[:] = [World(flush_ms=flush_ms)]
    try:
        yield
    finally:
        forget_world()
        WORLD[:] = seen


def push_wait_and_kill() -> None:
    """Push, wait out the loss window, kill."""
    history = Histories()
    history.start([])
    history.push(0, dict(OPTIONS), False)
    time.sleep(LOSS_WINDOW_S)
    history.kill()
    history.teardown()


def test_no_command_that_changes_something_was_left_out() -> None:
    sent = the_world().counts
    assert [] == [row.name for row in COMMANDS.values() if row.mutates and not sent[row.name]]


def test_each_invariant_was_looked_at() -> None:
    assert 50 == len(INVARIANTS)
    assert [] == unchecked()


def every_rule(history: Histories) -> None:
    """Take each rule once, in an order in which each finds something to do."""
    history.push(0, dict(OPTIONS), True)
    history.push_again(1, 0, dict(OPTIONS))
    history.push_many(0, [dict(OPTIONS)] * 4)
    history.pull(0, 0, True)
    history.what_is_not_legal_changes_nothing(0)
    history.end_with_a_wrong_token(0, "ACK")
    history.progress(0, 50)
    history.renew(0, "JobHeartbeat")
    history.renew(0, "ExtendLock")
    history.move_to_delayed(0, 3_600_000)
    history.promote(0, "ChangeDelay")
    history.pull(0, 0, True)
    history.move_to_wait(0)
    history.pull_many(0, 2)
    history.fail(0, True)
    history.retry_dead(0)
    history.pull(0, 0, False)
    history.sleep()
    history.pull(0, 0, True)
    history.kill()
    history.ack_late(0)
    history.retry_completed(0)
    history.pull(0, 1, True)
    history.drop(1)
    history.pull(0, 0, True)
    history.stop()
    history.pull(0, 0, True)
    history.ack(0, 7)
    history.pull_many(0, 1)
    history.ack_many(0)
    history.update(0, 3)
    history.change_priority(0, 4, True)
    history.push(2, OPTIONS | {"delay": 3_600_000}, False)
    history.promote(0, "Promote")
    history.end_unworked(0, "Cancel")
    history.push(1, dict(OPTIONS), True)
    history.pull(1, 0, True)
    history.fail(0, True)
    history.remove_dead(0)
    history.pause(0, True)
    history.pause(0, False)
    for command in ("Drain", "PurgeDlq", "Obliterate", "Clean"):
        history.empty(0, command)
