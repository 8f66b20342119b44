"""The engine's timed work: done when due, slept between."""

import logging
from typing import Any, Final, Protocol

from bunqueue.broker.clock import Clock

log = logging.getLogger(__name__)

TICK_MS_MAX: Final = 1_000  # the ticker looks at least this often, so that a jump is noticed
TICK_FAILED_MS: Final = 1_000  # wait after a tick that raised


class Alarm(Protocol):
    """How the ticker waits, and how it is woken."""

    def ring(self) -> None:
        """End the wait that runs, or the next one. Callable from wherever the engine runs."""

    def wait(self, timeout_s: float) -> None:
        """Waits for a ring, at most ``timeout_s``; lets others run even if that is 0."""


class Ticker:
    """Runs the engine's timed work whenever the engine wants it."""

    def __init__(self, engine: Any, clock: Clock, alarm: Alarm, gate: Any) -> None:
        """Prepare.

        Args:
            engine: Whose ``tick`` to call.
            clock: Its time.
            alarm: How to wait.
            gate: Context manager that excludes everyone else from the engine.
        """
        self._engine = engine
        self._clock = clock
        self._alarm = alarm
        self._gate = gate
        self._next_at: float = float("-inf")
        self._is_stopped = False
        engine.on_sooner = self._sooner

    def run(self) -> None:
        """Tick until ``stop``. Waits."""
        while not self._is_stopped:
            with self._gate:
                wait_ms = self._tick()
            self._alarm.wait(max(0.0, wait_ms / 1000))

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._is_stopped = True
        self._alarm.ring()

    def _tick(self) -> float:
        """Do what is due; return how long to wait."""
        self._next_at = float("-inf")  # whatever becomes due meanwhile, the tick's answer covers it
        now = self._clock.look()
        try:
            self._next_at = min(self._engine.tick(now), now + TICK_MS_MAX)
        except Exception:
            log.exception("timed work failed")
            self._next_at = now + TICK_FAILED_MS
        return self._next_at - self._clock.now()

    def _sooner(self, at: float) -> None:
        if at < self._next_at:
            self._next_at = at
            self._alarm.ring()
