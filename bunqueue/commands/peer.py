"""Who asks, as a command sees it."""

from typing import Protocol

from bunqueue.engine.face import EngineFace
from bunqueue.engine.ports import Peer as EnginePeer


class Peer(EnginePeer, Protocol):
    """A connection, an HTTP request or an embedded client.

    Attributes:
        engine: The engine, or whatever wears its face.
        is_authenticated: It may send more than ``Auth``.
        int64: It announced that it takes 64-bit integers.
    """

    engine: EngineFace
    is_authenticated: bool
    int64: bool

    def now(self) -> int:
        """Return the broker's time in epoch ms; read it once per command."""

    def authenticate(self, token: object) -> bool:
        """Compare the token with every configured one in constant time; True lets the peer in."""
