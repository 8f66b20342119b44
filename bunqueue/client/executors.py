"""Executors: where handlers run.

``greenlet``: a greenlet of the caller's hub per job. ``thread``: a native thread out of a pool that
grows to the worker's concurrency. Both take a delivery whenever a slot is free, so neither needs a
bounded queue of its own.
"""

from __future__ import annotations

# The C type itself: ``queue``'s name may be gevent's.
from _queue import SimpleQueue
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from bunqueue.client.worlds import World


class Executor(Protocol):
    """Runs deliveries."""

    def submit(self, delivery: Any) -> None:
        """Run a delivery soon."""

    def interrupt(self, delivery: Any) -> bool:
        """Throw a kill into a running handler; False where that is impossible."""

    def close(self) -> None:
        """Let idle threads go."""


class ThreadExecutor:
    """Native threads, started when there is none to take a delivery."""

    def __init__(self, world: World, run: Callable[[Any], None], name: str) -> None:
        self._world = world
        self._run = run
        self._name = name
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._lock = world.lock()
        self._idle = 0
        self._is_closed = False

    def submit(self, delivery: Any) -> None:
        """Run a delivery soon."""
        with self._lock:
            needs_thread = self._idle == 0
            if not needs_thread:
                self._idle -= 1  # that thread is spoken for
        self._jobs.put(delivery)
        if needs_thread:
            self._world.spawn(self._work, self._name)

    def _work(self) -> None:
        while (delivery := self._jobs.get()) is not None:
            self._run(delivery)
            del delivery
            with self._lock:
                if self._is_closed:
                    return
                self._idle += 1

    def interrupt(self, delivery: Any) -> bool:
        """Threads cannot be interrupted."""
        del delivery
        return False

    def close(self) -> None:
        """Let idle threads go."""
        with self._lock:
            self._is_closed = True
            count, self._idle = self._idle, 0
        for _ in range(count):
            self._jobs.put(None)


class GreenletExecutor:
    """One greenlet per delivery, on the hub of the main thread."""

    def __init__(self, run: Callable[[Any], None]) -> None:
        import gevent

        self._spawn = gevent.spawn
        self._hub: Any = gevent.get_hub()
        self._run = run

    def submit(self, delivery: Any) -> None:
        """Run a delivery soon."""
        delivery.task = self._spawn(self._run, delivery)

    def interrupt(self, delivery: Any) -> bool:
        """Kill the handler's greenlet at its next switch."""
        task = delivery.task
        if task is None or task.dead:
            return False
        self._hub.loop.run_callback_threadsafe(partial(_kill, task, delivery))
        return True

    def close(self) -> None:
        """Nothing is idle here."""


def _kill(task: Any, delivery: Any) -> None:
    """Kill a handler's greenlet, unless the handler has ended by now. In its own hub."""
    if delivery.task is task:
        task.kill(block=False)
