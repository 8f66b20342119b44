"""Cancellation: a signal that a handler can look at, wait for, or be called back by."""

import logging
from collections.abc import Callable
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.timer import Timer
from bunqueue.client.worlds import Latch
from bunqueue.errors import JobCancelledError

log = logging.getLogger("bunqueue.worker")


class CancelSignal:
    """Tells a handler that its work is no longer wanted.

    Attributes:
        reason: Why, once aborted: ``"shutdown"``, ``"lease-lost"``, ``"timeout"``, or the caller's.
    """

    __slots__ = ("_callbacks", "_latch", "reason")

    def __init__(self) -> None:
        self._latch = Latch()
        self._callbacks: list[Callable[[], Any]] = []
        self.reason: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether the work was called off."""
        return self._latch.is_set()

    def abort(self, reason: str | None = None) -> None:
        """Call the work off; the first reason stays."""
        self.flip(reason)
        self.call_back()

    def flip(self, reason: str | None = None) -> None:
        """Call the work off, but leave the callbacks to a later ``call_back`` elsewhere."""
        if not self._latch.is_set():
            self.reason = reason
            self._latch.set()

    def call_back(self) -> None:
        """Run the callbacks, once each; one that raises is logged."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return  # another thread runs the last one
            try:
                callback()
            except Exception:
                log.warning("cancellation callback raised", exc_info=True)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work is called off; False when ``timeout`` seconds pass first."""
        return self._latch.wait(timeout)

    def on_abort(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the work is called off, at once if it has been."""
        self._callbacks.append(callback)
        if self._latch.is_set():
            self.call_back()

    def raise_if_aborted(self) -> None:
        """Raise ``JobCancelledError`` once the work was called off."""
        if self._latch.is_set():
            raise JobCancelledError(self.reason or "job cancelled")


class CancellationManager:
    """Signals by job id, which can be aborted now or after a grace period."""

    def __init__(self) -> None:
        self._signals: dict[str, CancelSignal] = {}
        self._timers: dict[str, Timer] = {}
        self._lock = worlds.native_lock()  # nothing waits inside

    def register(self, job_id: str, signal: CancelSignal | None = None) -> CancelSignal:
        """Return the signal of a job that starts.

        Args:
            job_id: The job.
            signal: One it has already; None makes a new one.
        """
        with self._lock:
            registered = self._signals[job_id] = signal or CancelSignal()
        return registered

    def unregister(self, job_id: str, signal: CancelSignal | None = None) -> None:
        """Forget a job that has ended.

        Args:
            job_id: The job.
            signal: That of its run; if the job runs again by now, that run's is kept.
        """
        with self._lock:
            if signal is not None and self._signals.get(job_id) is not signal:
                return
            self._signals.pop(job_id, None)
            timer = self._timers.pop(job_id, None)
        if timer is not None:
            timer.cancel()

    def cancel(self, job_id: str, grace_period_ms: float = 0) -> None:
        """Call a job off, after a while if told so; nothing happens to one that does not run."""
        with self._lock:
            signal = self._signals.get(job_id)
            if signal is None:
                return
            if grace_period_ms > 0:
                earlier = self._timers.pop(job_id, None)
                self._timers[job_id] = Timer(grace_period_ms / 1000, signal.abort)
        if grace_period_ms <= 0:
            signal.abort()
        elif earlier is not None:
            earlier.cancel()

    def is_cancelled(self, job_id: str) -> bool:
        """Tell whether a running job was called off."""
        signal = self.get_signal(job_id)
        return signal is not None and signal.aborted

    def get_signal(self, job_id: str) -> CancelSignal | None:
        """Return the signal of a running job."""
        with self._lock:
            return self._signals.get(job_id)

    def destroy_all(self) -> None:
        """Call every job off and forget them."""
        with self._lock:
            signals, timers = list(self._signals.values()), list(self._timers.values())
            self._signals.clear()
            self._timers.clear()
        for timer in timers:
            timer.cancel()
        for signal in signals:
            signal.abort()
