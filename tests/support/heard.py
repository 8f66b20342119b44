"""What listeners heard, for a test to wait for."""

from __future__ import annotations

import threading
import time
from typing import Any

WAIT_S = 10.0


class Heard:
    """Listens to an emitter's events.

    Attributes:
        events: ``(name, *arguments)`` in the order in which they came.
    """

    def __init__(self, emitter: Any, *events: str) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._changed = threading.Condition()
        for event in events:
            emitter.on(event, lambda *args, event=event: self._note(event, *args))

    def _note(self, *words: Any) -> None:
        with self._changed:
            self.events.append(words)
            self._changed.notify_all()

    def wait_for(self, event: str, count: int = 1) -> tuple[Any, ...]:
        """Return the ``count``-th event of a name. Waits."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while len(found := [one for one in self.events if one[0] == event]) < count:
                assert self._changed.wait(deadline - time.monotonic()), self.events
            return found[count - 1]

    @property
    def names(self) -> list[str]:
        """The names alone."""
        return [one[0] for one in self.events]
