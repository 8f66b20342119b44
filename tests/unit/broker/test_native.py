import os

import pytest

from bunqueue.broker.native import NativeThread, StorageLoop
from bunqueue.storage.native import original

WAIT_S = 5.0  # well below the longest poll


@pytest.fixture
def loop():
    loop = StorageLoop(original("_thread", "allocate_lock")())
    yield loop
    loop.close()


@pytest.fixture
def start(loop):
    """Return what runs the loop in a native thread of its own."""
    threads = []
    yield lambda: threads.append(NativeThread(loop.run))
    loop.stop()
    for thread in threads:
        thread.join(WAIT_S)


def closed_gate():
    """Return a native lock that is taken; letting it go from another thread opens it."""
    gate = original("_thread", "allocate_lock")()
    gate.acquire()
    return gate


def test_a_call_asked_for_while_the_pipe_is_drained_does_not_mute_later_ones(
    loop, start, monkeypatch
):
    read, during, after = os.read, closed_gate(), closed_gate()

    def interrupted_read(fd, size):
        """Somebody asks for a call right before the pipe is emptied."""
        monkeypatch.undo()
        loop.call_soon(during.release)
        return read(fd, size)

    monkeypatch.setattr(os, "read", interrupted_read)
    loop.call_soon(lambda: None)
    start()
    assert during.acquire(True, WAIT_S)

    loop.call_soon(after.release)

    assert after.acquire(True, WAIT_S)
