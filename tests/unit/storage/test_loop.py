"""The plain loop."""

import os

import pytest

from bunqueue.storage.loop import PollLoop
from bunqueue.storage.native import close_fd


@pytest.fixture
def loop():
    return PollLoop()


def test_soon_is_the_end_of_the_turn(loop):
    calls = []
    loop.call_later(0, lambda: calls.append("timer"))
    loop.call_soon(lambda: (calls.append("soon"), loop.call_soon(lambda: calls.append("next"))))
    loop.run_once(0)
    assert ["timer", "soon"] == calls

    loop.run_once(0)
    assert ["timer", "soon", "next"] == calls


def test_timers_go_off_in_the_order_of_their_time(loop):
    calls = []
    loop.call_later(2, lambda: calls.append(2))
    loop.call_later(1, lambda: calls.append(1))
    loop.call_later(0, lambda: calls.append(0))()

    assert loop.run_until(lambda: len(calls) == 2)
    assert [1, 2] == calls


def test_a_readable_descriptor_calls_until_its_watch_ends(loop):
    read_end, write_end = os.pipe()
    calls = []
    stop = loop.watch_readable(read_end, lambda: calls.append(os.read(read_end, 1)))
    os.write(write_end, b"ab")
    assert loop.run_until(lambda: len(calls) == 2)
    stop()
    stop()
    os.write(write_end, b"c")
    loop.run_once(0)

    assert [b"a", b"b"] == calls
    close_fd(read_end)
    close_fd(write_end)


def test_a_descriptor_may_be_watched_both_ways(loop):
    read_end, write_end = os.pipe()
    calls = []
    stop_writing = loop.watch_writable(write_end, lambda: calls.append("room"))
    stop_reading = loop.watch_readable(write_end, lambda: calls.append("broken"))
    loop.run_once(0)
    assert ["room"] == calls

    stop_writing()
    close_fd(read_end)
    loop.run_once(0)
    assert ["room", "broken"] == calls
    stop_reading()
    close_fd(write_end)


def test_run_until_gives_up(loop):
    assert not loop.run_until(lambda: False, timeout_ms=1)
