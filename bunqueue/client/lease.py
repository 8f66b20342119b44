"""The lease keeper: heartbeats that no handler can starve.

One native thread per process, with a gevent hub of its own, one link per broker and one greenlet
per worker. A handler may spin in a greenlet, sleep in C, or hold its thread for minutes: the keeper
needs nothing from it but the interpreter's lock now and then. In a process patched by gevent the
thread is made from the original primitives, and gevent gives it a hub of its own there as well.

What the keeper finds out it only notes (a flag, a gate, a posted call); everything that could wait
or run user code happens in the worker's own world.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from bunqueue.client import forks, worlds
from bunqueue.client.connection import refusal
from bunqueue.client.hub_watch import HubWatch
from bunqueue.client.spread import spread
from bunqueue.errors import BunqueueError, CommandTimeoutError, ConnectionClosedError

BEAT_TIMEOUT_S_MIN = 1.0  # a beat may take half a period, but not less than this
RETRY_S = (0.5, 1.0, 2.0, 5.0)  # after a beat that did not get through; never longer than a period
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 1.0

log = logging.getLogger("bunqueue.worker")

Call = Callable[[dict[str, Any]], dict[str, Any]]


class Beater(Protocol):
    """What the keeper beats for: a worker."""

    beat_s: float
    beat_timeout_s: float
    connection: Any

    def beat(self, call: Call) -> None:
        """Send one beat through ``call``. Must not run user code."""

    def on_silence(self) -> None:
        """Note that the broker did not answer a beat. Must not wait."""


def beat_timeout_s(beat_s: float) -> float:
    """Return how long an answer to a beat may take."""
    return max(BEAT_TIMEOUT_S_MIN, beat_s / 2)


class LeaseKeeper:
    """The thread and its hub; one per process, see ``keeper()``."""

    def __init__(self) -> None:
        import gevent.event  # imported here, so that its idea of the main thread is right

        self._gevent: Any = gevent
        is_watchable = not worlds.standard().is_native and worlds.is_main_thread()
        self._main_hub: Any = gevent.get_hub() if is_watchable else None
        self._loop: Any = None
        self._over: Any = None
        self._started = worlds.Latch()
        self._ended = worlds.Latch()
        self._links: dict[tuple[Any, ...], Any] = {}
        self._users: dict[Any, int] = {}
        self._tasks: dict[Beater, Any] = {}
        self._thread = worlds.native().spawn(self._main, "bunqueue-lease")
        if not self._started.wait(START_TIMEOUT_S):
            raise BunqueueError("the lease keeper did not start")

    def _main(self) -> None:
        hub = self._gevent.get_hub()
        worlds.keep_hub(hub)  # at the end the beats' greenlets are still there
        _load_resolver(hub)
        self._loop = hub.loop
        # A started async watcher keeps the loop alive while nobody beats.
        alive = hub.loop.async_()
        alive.start(lambda: None)
        self._over = self._gevent.event.Event()
        if self._main_hub is not None:
            self._gevent.spawn(HubWatch(self._main_hub).run)
        self._started.set()
        self._over.wait()
        self._ended.set()

    def end(self) -> None:
        """End the thread, for the interpreter is about to end. Waits, but not for long.

        A thread with greenlets that is still there then takes the process down with it: the
        interpreter unwinds it from outside, greenlet stacks and all.
        """
        self._loop.run_callback_threadsafe(self._over.set)
        self._ended.wait(END_TIMEOUT_S)

    # -- called by workers, from any native thread ---------------------------------------------

    def add(self, beater: Beater) -> None:
        """Beat for a worker from now on."""
        self._loop.run_callback_threadsafe(self._add, beater)

    def remove(self, beater: Beater) -> None:
        """Beat for a worker no longer."""
        self._loop.run_callback_threadsafe(self._remove, beater)

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Make a call that must not wait, after ``delay_s``."""
        self._loop.run_callback_threadsafe(self._gevent.spawn_later, delay_s, call)

    # -- in the keeper's thread ----------------------------------------------------------------

    def _add(self, beater: Beater) -> None:
        if beater not in self._tasks:
            self._tasks[beater] = self._gevent.spawn(self._beat_until_removed, beater)

    def _remove(self, beater: Beater) -> None:
        task = self._tasks.pop(beater, None)
        if task is not None:
            task.kill(block=False)

    def _beat_until_removed(self, beater: Beater) -> None:
        timeout_s = beater.beat_timeout_s
        key = beater.connection.identity
        if key not in self._links:
            self._links[key] = self._dial_later(beater.connection, timeout_s)
        links = self._links[key]
        self._users[key] = self._users.get(key, 0) + 1
        try:
            self._beat_on(beater, links, timeout_s)
        finally:
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._links[key], self._users[key]
                links.close()

    def _dial_later(self, connection: Any, timeout_s: float) -> Any:
        """Return the keeper's own link to a broker; it is dropped at its first timeout."""
        links = connection.new_pool(worlds.cooperative(), size=1, is_private=True)
        links.endpoint = replace(
            links.endpoint,
            connect_timeout=timeout_s,
            command_timeout=timeout_s,
            timeouts_max=1,
        )
        return links

    def _beat_on(self, beater: Beater, links: Any, timeout_s: float) -> None:
        def call(command: dict[str, Any]) -> dict[str, Any]:
            reply: dict[str, Any] = links.call(command, timeout_s)
            if not reply.get("ok"):
                raise refusal(reply, command)
            return reply

        failures = 0
        wait_s = beater.beat_s
        next_at = time.monotonic() + wait_s
        while True:
            self._gevent.sleep(max(0.0, next_at - time.monotonic()))
            try:
                beater.beat(call)
            except (ConnectionClosedError, CommandTimeoutError) as error:
                log.warning("heartbeat failed error=%s", error)
                beater.on_silence()
                wait_s = spread(RETRY_S[min(failures, len(RETRY_S) - 1)])
                wait_s = min(beater.beat_s, wait_s)
                failures += 1
                next_at = time.monotonic() + wait_s
            except BunqueueError as error:
                log.warning("heartbeat refused error=%s", error)
                next_at = time.monotonic() + beater.beat_s
            else:
                failures = 0
                next_at = max(next_at + beater.beat_s, time.monotonic())


def _load_resolver(hub: Any) -> None:
    """Give a hub its resolver now; gevent would at the first dial, which may be too late.

    Once the main thread has ended, while other threads still work, Python refuses to load thread
    pools. A keeper that starts then looks names up in its own thread: its beats may wait for that.
    """
    try:
        _ = hub.resolver
    except RuntimeError:
        from gevent.resolver.blocking import Resolver

        hub.resolver = Resolver()


_keeper: LeaseKeeper | None = None


def keeper() -> LeaseKeeper:
    """Return the keeper of this process, starting it if it is the first time. Waits."""
    global _keeper
    if _keeper is None:
        forks.watch(_forgetter)
        _keeper = LeaseKeeper()
        atexit.register(_end_at_exit)
    return _keeper


def _end_at_exit() -> None:
    if _keeper is not None:  # a forked child has none
        _keeper.end()


class _Forgetter:
    """Drops the parent's keeper in a forked child; its thread does not exist there."""

    def forget_parent(self) -> None:
        global _keeper
        _keeper = None


_forgetter = _Forgetter()
