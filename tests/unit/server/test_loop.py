"""What the hub lends: an alarm that lets others have their turn."""

from __future__ import annotations

import time

import gevent

from bunqueue.server.loop import HubAlarm

ROUNDS = 10


def test_a_ticker_that_never_waits_lets_timers_have_their_turn() -> None:
    alarm, turns = HubAlarm(), []

    def beat() -> None:
        while len(turns) < ROUNDS:
            gevent.sleep(0.001)
            turns.append(1)

    beating = gevent.spawn(beat)
    alarm.wait(0)
    for _ in range(ROUNDS):
        end = time.perf_counter() + 0.002  # a tick that has more to do than it may
        while time.perf_counter() < end:
            pass
        alarm.wait(0)
    beating.kill()

    # After a plain sleep of 0 there was not one turn in 50 ticks.
    assert ROUNDS // 2 <= len(turns)


def test_a_ring_ends_the_next_wait() -> None:
    alarm = HubAlarm()
    alarm.ring()

    start = time.perf_counter()
    alarm.wait(5)

    assert time.perf_counter() - start < 1
