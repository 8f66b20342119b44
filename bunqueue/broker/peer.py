"""A peer without a connection."""

from typing import Any

from bunqueue.broker.core import Broker
from bunqueue.engine.face import EngineFace
from bunqueue.engine.later import Later


class LocalPeer:
    """Someone inside this process who asks: an HTTP request, or an embedded client."""

    __slots__ = ("id", "held", "parked", "is_open", "engine", "is_authenticated", "int64", "now")

    def __init__(self, broker: Broker, name: str = "local") -> None:
        self.id = name
        self.held: dict[Any, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True
        self.engine: EngineFace = broker.engine
        self.is_authenticated = True
        self.int64 = True
        self.now = broker.clock.now

    def authenticate(self, token: object) -> bool:  # noqa: ARG002  # nobody is asked in here
        """Refuse, as a server without tokens does."""
        return False
