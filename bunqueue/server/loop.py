"""What the hub lends to the parts that must not know gevent: a loop, an alarm, locks."""

from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

READ = 1
WRITE = 2
NEXT_TURN_S = 1e-6  # a sleep of 0 is a callback, and dozens of those run before a look at sockets

Callback = Callable[[], None]


class HubLoop:
    """The hub of the current thread, as the storage's event loop; fulfils ``storage.loop.Loop``."""

    def __init__(self) -> None:
        self._loop = gevent.get_hub().loop
        # The method itself, since every commit asks.
        self.call_soon: Callable[[Callback], Any] = self._loop.run_callback

    def call_later(self, delay_ms: float, fn: Callback) -> Callback:
        """Call ``fn`` once after ``delay_ms``; returns what calls it off."""
        timer = self._loop.timer(delay_ms / 1000)

        def stop() -> None:
            timer.stop()
            timer.close()

        def fire() -> None:
            stop()
            fn()

        timer.start(fire, update=True)
        return stop

    def watch_readable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has something to read; returns what ends the watch."""
        return self._watch(fd, READ, fn)

    def watch_writable(self, fd: int, fn: Callback) -> Callback:
        """Call ``fn`` whenever ``fd`` has room for more; returns what ends the watch."""
        return self._watch(fd, WRITE, fn)

    def _watch(self, fd: int, event: int, fn: Callback) -> Callback:
        watcher = self._loop.io(fd, event)
        watcher.start(fn)

        def stop() -> None:
            watcher.stop()
            watcher.close()

        return stop


class HubAlarm:
    """Wakes the ticker's greenlet; fulfils ``broker.Alarm``."""

    def __init__(self) -> None:
        self._event = Event()

    def ring(self) -> None:
        """End the wait that runs, or the next one."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Waits for a ring, at most ``timeout_s``; lets others run even if that is 0."""
        if timeout_s <= 0:
            gevent.sleep(NEXT_TURN_S)
        else:
            self._event.wait(timeout_s)
        self._event.clear()


def hub_lock(rank: Any, number: int) -> Semaphore:  # noqa: ARG001  # the factory's signature
    """Build one of the engine's locks for greenlets."""
    return Semaphore(1)


class NoGate:
    """Excludes nobody: in one hub, what never switches needs no gate."""

    def __enter__(self) -> None:
        """Go on."""

    def __exit__(self, *error: object) -> None:
        """Go on."""
