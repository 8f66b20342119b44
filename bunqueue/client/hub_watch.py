"""Tells when the main hub is blocked: some greenlet computes or sleeps natively without yielding.

Leases are safe from that, the rest of the process is not: every other greenlet stands still. One
warning names the code that holds the hub.
"""

import logging
import sys
import time
import traceback
from typing import Any

BLOCKED_HUB_WARN_S = 5.0  # client.md 0.2
LOOK_S = 1.0

log = logging.getLogger("bunqueue.worker")


class HubWatch:
    """Watches one hub from the lease keeper's thread."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._answered_at = time.monotonic()
        self._warned = False

    def run(self) -> None:
        """Look at the hub for ever."""
        import gevent

        while True:
            self._hub.loop.run_callback_threadsafe(self._answer)
            gevent.sleep(LOOK_S)
            self.look(time.monotonic())

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._warned = False

    def look(self, now_s: float) -> None:
        """Warn once when the hub has not answered for too long."""
        silent_s = now_s - self._answered_at
        if self._warned or silent_s < BLOCKED_HUB_WARN_S:
            return
        self._warned = True
        frame = sys._current_frames().get(self._hub.thread_ident)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
        log.warning(
            "the gevent hub has been blocked for %.1f s; a handler does not yield:\n%s",
            silent_s,
            stack,
        )
