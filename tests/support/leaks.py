"""Finds what a test leaves behind that goes on by itself: running workers, and their heartbeats.

It looks only at modules that are loaded already, so a test without workers pays next to nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

GRACE_S = 5.0  # the keeper drops a beater in its own thread; a busy machine may take a while
LOOK_S = 0.002


def running_workers() -> set[Any]:
    """Return every worker of this process that has started and has not closed."""
    forks, module = (sys.modules.get(f"bunqueue.client.{name}") for name in ("forks", "worker"))
    if forks is None or module is None:
        return set()
    return {
        thing for thing in forks._watched if isinstance(thing, module.Worker) and thing.is_running()
    }


def beaters() -> set[Any]:
    """Return everything the lease keeper beats for, without starting a keeper."""
    lease = sys.modules.get("bunqueue.client.lease")
    keeper = None if lease is None else lease._keeper
    return set() if keeper is None else set(keeper._tasks)


class WorkersLeft:
    """Remembers which workers run and beat now, to tell later which came and did not go."""

    def __init__(self) -> None:
        self._running = running_workers()
        self._beaters = beaters()

    def clear(self) -> list[str]:
        """Return what was left behind, after a grace, and end it. Waits."""
        deadline = time.monotonic() + GRACE_S
        while (running := running_workers() - self._running) | (
            beating := beaters() - self._beaters
        ):
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        for worker in running:
            worker.close(GRACE_S, force=True)
        for beater in beating:
            sys.modules["bunqueue.client.lease"]._keeper.remove(beater)
        return [f"running {one!r}" for one in running] + [
            f"heartbeats of {one._worker!r}" for one in beating
        ]
