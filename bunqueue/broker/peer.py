"""A peer without a connection."""

from collections.abc import Callable
from typing import Any

from bunqueue.broker.core import Broker
from bunqueue.commands.peer import Host
from bunqueue.engine.events import Event
from bunqueue.engine.face import EngineFace
from bunqueue.engine.later import Later


class LocalPeer:
    """Someone inside this process who asks: an HTTP request, or an embedded client."""

    __slots__ = (
        "id",
        "held",
        "parked",
        "is_open",
        "engine",
        "host",
        "is_authenticated",
        "int64",
        "now",
        "on_event",
        "runner",
    )

    def __init__(self, broker: Broker, name: str = "local") -> None:
        self.id = name
        self.held: dict[Any, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True
        self.engine: EngineFace = broker.engine
        self.is_authenticated = True
        self.int64 = True
        self.now = broker.clock.now
        self.host: Host = broker.host
        self.on_event: Callable[[Event], None] | None = None
        self.runner: Any = None  # runs ordinary commands where the compiled core is there

    def hear(self, event: Event) -> None:
        """Hand an event of the subscribed queue to ``on_event``, if that was set."""
        if self.on_event is not None:
            self.on_event(event)

    def authenticate(self, token: object) -> bool:  # noqa: ARG002  # nobody is asked in here
        """Refuse, as a server without tokens does."""
        return False
