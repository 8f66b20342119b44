"""A circuit breaker: after too many failures in a row the worker rests for a while.

Closed, all goes on; open, the worker is paused; half-open, it runs again and the next outcome
decides. The user's callbacks never run under the lock, and never in the timer: one that blocks
holds up nothing but itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.simple.settings import Settings
from bunqueue.client.timer import Timer

KEYS = ("threshold", "reset_timeout", "on_open", "on_close", "on_half_open")
THRESHOLD_DEFAULT = 5
RESET_TIMEOUT_MS_DEFAULT = 30_000

log = logging.getLogger("bunqueue")


class WorkerCircuitBreaker:
    """Pauses a worker while its jobs keep failing.

    Args:
        config: ``{"threshold", "reset_timeout", "on_open", "on_close", "on_half_open"}``.
        worker: What is paused and resumed.

    Raises:
        TypeError, ValueError: A value that cannot work.
    """

    def __init__(self, config: Mapping[str, Any], worker: Any) -> None:
        settings = Settings("circuit_breaker", config, KEYS)
        self._threshold = settings.whole("threshold", THRESHOLD_DEFAULT)
        self._reset_s = settings.number("reset_timeout", RESET_TIMEOUT_MS_DEFAULT) / 1000
        self._callbacks = {
            name: settings.function(name) for name in ("on_open", "on_close", "on_half_open")
        }
        self._worker = worker
        self._lock = worlds.native_lock()  # nothing waits inside
        self._state = "closed"
        self._failures = 0
        self._timer: Timer | None = None

    def guard(self, worker: Any) -> None:
        """Pause and resume another worker from now on."""
        self._worker = worker

    @property
    def current_state(self) -> str:
        """``"closed"``, ``"open"`` or ``"half-open"``."""
        return self._state

    def is_open(self) -> bool:
        """Tell whether no job may run."""
        return self._state == "open"

    def on_success(self) -> None:
        """Note that a job succeeded."""
        with self._lock:
            if self._state == "open":
                return  # it had begun before
            was_half_open = self._state == "half-open"
            self._state = "closed"
            self._failures = 0
        if was_half_open:
            self._call("on_close")

    def on_failure(self) -> None:
        """Note that a job failed; the failure too many opens the circuit."""
        with self._lock:
            self._failures += 1
            failures = self._failures
            if self._state == "open":
                return  # it had begun before
            if self._state == "closed" and failures < self._threshold:
                return
            self._state = "open"
            self._timer = Timer(self._reset_s, self._half_open)
        self._worker.pause()
        self._call("on_open", failures)

    def _half_open(self) -> None:
        with self._lock:
            if self._state != "open":
                return
            self._state = "half-open"
        if self._callbacks["on_half_open"] is not None:
            worlds.current().spawn(lambda: self._call("on_half_open"), "bunqueue-breaker")
        self._worker.resume()

    def _call(self, name: str, *args: Any) -> None:
        callback: Callable[..., Any] | None = self._callbacks[name]
        if callback is None:
            return
        try:
            callback(*args)
        except Exception:
            log.warning("circuit breaker callback raised name=%s", name, exc_info=True)

    def reset(self) -> None:
        """Close the circuit, forget the failures, and let the worker run."""
        with self._lock:
            self._state = "closed"
            self._failures = 0
            self._cancel_timer_locked()
        if self._worker.is_paused():
            self._worker.resume()

    def destroy(self) -> None:
        """Stop the timer."""
        with self._lock:
            self._cancel_timer_locked()

    def _cancel_timer_locked(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
