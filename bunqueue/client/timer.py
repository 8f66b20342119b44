"""A call that is made later unless somebody takes it back, in the world of whoever asked for it.

``threading.Timer`` will not do: started by a native thread of a patched process, it would be a
greenlet of a hub that never runs.
"""

from __future__ import annotations

from collections.abc import Callable

from bunqueue.client import worlds


class Timer:
    """Makes ``call`` after ``delay_s`` in a task of its own."""

    def __init__(self, delay_s: float, call: Callable[[], object]) -> None:
        world = worlds.current()
        self._delay_s = delay_s
        self._call = call
        self._gate = world.gate()
        world.spawn(self._run, "bunqueue-timer")

    def _run(self) -> None:
        if not self._gate.wait(self._delay_s):
            self._call()

    def cancel(self) -> None:
        """Do not make the call, unless it is made already. From any native thread."""
        self._gate.open()
