"""Telemetry: what a connection tells an observer, never tokens, payloads or results."""

import logging
import time
from collections.abc import Callable
from typing import Any

TelemetryEvent = dict[str, Any]
TelemetryHandler = Callable[[TelemetryEvent], None]

LOSSY_PATHS_MAX = 1000  # paths are the application's; nobody reads more of them

log = logging.getLogger("bunqueue.connection")


class Telemetry:
    """Calls the observers; one that raises is logged and never disturbs the work.

    Attributes:
        is_on: Somebody listens; ask first, so that nothing is built for nobody.
        is_extended: The wider set of client.md 5.2 is wanted.
    """

    def __init__(self, handler: TelemetryHandler | None = None, extended: bool = False) -> None:
        self.handlers: list[TelemetryHandler] = [handler] if handler is not None else []
        self.is_extended = extended
        self._lossy_paths: set[str] = set()

    @staticmethod
    def now_ms() -> float:
        """Return a steady clock's milliseconds, to measure durations with."""
        return time.monotonic() * 1000

    @property
    def is_on(self) -> bool:
        """Whether anybody listens."""
        return bool(self.handlers)

    @property
    def is_wide(self) -> bool:
        """Whether somebody listens to the wider set; ask before measuring anything for it."""
        return self.is_extended and bool(self.handlers)

    def emit_wide(self, event_type: str, **fields: Any) -> None:
        """Tell every observer about an event of the wider set, if that is wanted."""
        if self.is_extended:
            self.emit(event_type, **fields)

    def note_loss(self, path: str) -> None:
        """Tell once per path that integers there did not go out exactly."""
        if path not in self._lossy_paths and len(self._lossy_paths) < LOSSY_PATHS_MAX:
            self._lossy_paths.add(path)
            self.emit_wide("precision_loss", path=path)

    def emit(self, event_type: str, **fields: Any) -> None:
        """Tell every observer."""
        for handler in self.handlers:
            try:
                handler({"type": event_type, **fields})
            except Exception:
                log.debug("telemetry handler raised event=%s", event_type, exc_info=True)
