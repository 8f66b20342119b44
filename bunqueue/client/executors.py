"""Executors: where handlers run.

``greenlet``: a greenlet of the caller's hub, ``thread``: a native thread; both out of a pool that
grows to the worker's concurrency. Both take a delivery whenever a slot is free, so neither needs a
bounded queue of its own.
"""

from __future__ import annotations

# The C type itself: ``queue``'s name may be gevent's.
from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
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
    """Greenlets on the hub of the main thread, started when there is none to take a delivery.

    They are kept, since to start and end one costs more than all the rest of a delivery here.
    Context variables that a handler sets are gone with its job all the same; what it hangs on its
    greenlet stays, as it does on a thread.
    """

    def __init__(self, run: Callable[[Any], None]) -> None:
        import gevent

        self._spawn = gevent.spawn
        self._current = gevent.getcurrent
        self._hub: Any = gevent.get_hub()
        self._run = run
        self._deliveries: deque[Any] = deque()
        self._idle: list[Any] = []
        self._is_closed = False

    def submit(self, delivery: Any) -> None:
        """Run a delivery soon."""
        self._deliveries.append(delivery)
        if self._idle:
            self._hub.loop.run_callback(self._idle.pop().switch)
        else:
            self._spawn(self._work)

    def _work(self) -> None:
        task, deliveries = self._current(), self._deliveries
        try:
            while not self._is_closed or deliveries:
                if deliveries:
                    delivery = deliveries.popleft()
                    delivery.task = task
                    copy_context().run(self._run, delivery)
                    delivery.task = None  # also of one whose handler was not even begun
                    del delivery
                else:
                    self._park(task)
        finally:
            if deliveries:  # this one was killed on its way to a delivery
                self._spawn(self._work)

    def _park(self, task: Any) -> None:
        """Wait for a delivery, or for whatever else somebody wakes this greenlet with."""
        self._idle.append(task)
        try:
            self._hub.switch()
        finally:
            if task in self._idle:
                self._idle.remove(task)

    def interrupt(self, delivery: Any) -> bool:
        """Throw a kill into the handler's greenlet at its next switch."""
        task = delivery.task
        if task is None:
            return False
        self._hub.loop.run_callback_threadsafe(partial(_kill, task, delivery))
        return True

    def close(self) -> None:
        """Let idle greenlets go."""
        self._is_closed = True
        while self._idle:
            self._hub.loop.run_callback(self._idle.pop().switch)


def _kill(task: Any, delivery: Any) -> None:
    """Interrupt a handler, unless it has ended by now and its greenlet runs another. In the hub."""
    if delivery.task is task:
        # Not ``kill``, which throws a turn of the loop later.
        task.throw()
