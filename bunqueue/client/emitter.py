"""EventEmitter: listeners by event name; one that raises is logged and harms nobody."""

import logging
from collections.abc import Callable
from typing import Any, Self, overload

from bunqueue.client import worlds

Listener = Callable[..., Any]

log = logging.getLogger("bunqueue")


class EventEmitter:
    """Keeps listeners and calls them; safe to use from any thread."""

    def __init__(self) -> None:
        # Tuples that are replaced, never changed: emit reads without a lock.
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        self._once: dict[str, tuple[Listener, ...]] = {}
        self._lasting: set[str] = set()  # events that were told and hold from then on
        # Threads and greenlets meet here; nothing waits inside.
        self._listeners_lock = worlds.native_lock()

    @overload
    def on(self, event: str, listener: Listener) -> Self: ...
    @overload
    def on(self, event: str) -> Callable[[Listener], Listener]: ...

    def on(self, event: str, listener: Listener | None = None) -> Any:
        """Call ``listener`` at every ``event``; without one, act as a decorator."""
        if listener is None:

            def decorate(listener: Listener) -> Listener:
                self.on(event, listener)
                return listener

            return decorate
        with self._listeners_lock:
            self._listeners[event] = (*self._listeners.get(event, ()), listener)
            is_late = event in self._lasting
        if is_late:
            self._tell_late(listener)
        return self

    def once(self, event: str, listener: Listener) -> Self:
        """Call ``listener`` at the next ``event`` only."""
        with self._listeners_lock:
            is_late = event in self._lasting
            if not is_late:
                self._once[event] = (*self._once.get(event, ()), listener)
        if is_late:
            self._tell_late(listener)
        return self

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling ``listener``; one registration of it goes."""
        with self._listeners_lock:
            for registry in (self._listeners, self._once):
                kept = list(registry.get(event, ()))
                if listener in kept:
                    kept.remove(listener)
                    registry[event] = tuple(kept)
        return self

    def remove_all_listeners(self, event: str | None = None) -> None:
        """Forget the listeners of one event, or of all."""
        with self._listeners_lock:
            for registry in (self._listeners, self._once):
                if event is None:
                    registry.clear()
                else:
                    registry.pop(event, None)

    def has_listeners(self, event: str) -> bool:
        """Tell whether anybody listens to ``event``; ask before building its arguments."""
        return bool(self._listeners.get(event) or self._once.get(event))

    def emit(self, event: str, *args: Any) -> None:
        """Call the listeners of ``event`` in the order they came."""
        listeners = self._listeners.get(event, ())
        if self._once:
            with self._listeners_lock:
                listeners += self._once.pop(event, ())
        self._call(event, listeners, args)

    def _emit_lasting(self, event: str) -> None:
        """Call the listeners of ``event``, and whoever begins to listen to it later."""
        with self._listeners_lock:
            self._lasting.add(event)
            listeners = self._listeners.get(event, ()) + self._once.pop(event, ())
        self._call(event, listeners, ())

    def _tell_late(self, listener: Listener) -> None:
        """Call a listener of a lasting event that was told before."""
        listener()

    def _call(self, event: str, listeners: tuple[Listener, ...], args: tuple[Any, ...]) -> None:
        for listener in listeners:
            try:
                listener(*args)
            except Exception:
                log.warning("listener raised event=%s", event, exc_info=True)
