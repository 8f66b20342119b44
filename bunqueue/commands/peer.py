"""Who asks, as a command sees it, and the process that is asked."""

from typing import Any, Protocol

from bunqueue.commands.targets import AllowedTargets
from bunqueue.engine.face import EngineFace
from bunqueue.engine.latency import Latencies
from bunqueue.engine.ports import Peer as EnginePeer
from bunqueue.protocol.findings import Finding


class Host(Protocol):
    """The process around the engine, for the commands that tell of it.

    Attributes:
        targets: Where webhooks may go beside global addresses.
        latencies: How long pushes, pulls and acknowledgements took.
    """

    targets: AllowedTargets
    latencies: Latencies

    def prometheus(self) -> str:
        """Return all figures as text for Prometheus.

        Raises:
            Refused: This process has none.
        """

    def compact(self) -> None:
        """Hand free memory back to the system."""

    def memory_bytes(self) -> dict[str, int]:
        """Return ``{heapUsed, heapTotal, rss}``."""

    def connections(self) -> dict[str, int]:
        """Count the open connections: ``{tcp, ws, sse}``."""

    def storage_status(self) -> dict[str, Any]:
        """Return ``{diskFull, error, since}``."""

    def file_bytes(self) -> int | None:
        """Return the size of the data file, None if there is none."""

    def facts(self) -> dict[str, Any]:
        """Return ``{version, core, python, sqlite, writer, pid, dataPath}``."""

    def findings(self) -> list[Finding]:
        """Look at what is not the engine's: storage, file, clock, settings."""


class Peer(EnginePeer, Protocol):
    """A connection, an HTTP request or an embedded client.

    Attributes:
        engine: The engine, or whatever wears its face.
        host: The process around it.
        is_authenticated: It may send more than ``Auth``.
        int64: It announced that it takes 64-bit integers.
    """

    engine: EngineFace
    host: Host
    is_authenticated: bool
    int64: bool

    def now(self) -> int:
        """Return the broker's time in epoch ms; read it once per command."""

    def authenticate(self, token: object) -> bool:
        """Compare the token with every configured one in constant time; True lets the peer in."""
