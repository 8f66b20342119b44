"""Telemetry: what a connection tells an observer, never tokens, payloads or results."""

import logging
import time
from collections.abc import Callable
from typing import Any

TelemetryEvent = dict[str, Any]
TelemetryHandler = Callable[[TelemetryEvent], None]

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

    @staticmethod
    def now_ms() -> float:
        """Return a steady clock's milliseconds, to measure durations with."""
        return time.monotonic() * 1000

    @property
    def is_on(self) -> bool:
        """Whether anybody listens."""
        return bool(self.handlers)

    def emit(self, event_type: str, **fields: Any) -> None:
        """Tell every observer."""
        for handler in self.handlers:
            try:
                handler({"type": event_type, **fields})
            except Exception:
                log.debug("telemetry handler raised event=%s", event_type, exc_info=True)
