"""The server's process, as commands see it."""

from collections.abc import Callable

from bunqueue.broker import Broker, LocalHost
from bunqueue.commands.targets import AllowedTargets
from bunqueue.config import Settings
from bunqueue.protocol.findings import Finding
from bunqueue.server import memory, risks
from bunqueue.server.prometheus import Prometheus

Sizes = Callable[[], tuple[dict[str, int], dict[str, int]]]


def _no_sizes() -> tuple[dict[str, int], dict[str, int]]:
    return {}, {}


class ServerHost(LocalHost):
    """Fulfils ``commands.peer.Host`` for a server: ports, figures for Prometheus, webhooks."""

    def __init__(
        self,
        broker: Broker,
        connections: Callable[[], dict[str, int]],
        settings: Settings,
        targets: AllowedTargets,
        sizes: Sizes = _no_sizes,
    ) -> None:
        """Prepare.

        Args:
            broker: Whose host it is.
            connections: Counts the open connections by kind.
            settings: The server's.
            targets: Where webhooks may go beside global addresses.
            sizes: Returns what server and storage hold: name -> entries, and name -> bytes.
        """
        super().__init__(broker.storage, broker.engine.latencies, broker.clock)
        self.targets = targets
        self._broker = broker
        self._connections = connections
        self._settings = settings
        self._prometheus = Prometheus(broker, settings.metrics_queues_max, sizes)

    def prometheus(self) -> str:
        """Return all figures as text for Prometheus."""
        return self._prometheus.text()

    def compact(self) -> None:
        """Hand free memory back to the system.

        With many jobs that the collector would have to look at, only what is young is collected.
        """
        memory.give_back(len(self._broker.engine.index))

    def connections(self) -> dict[str, int]:
        """Count the open connections by kind."""
        return self._connections()

    def findings(self) -> list[Finding]:
        """Look at the storage, its file, the clock and the settings."""
        return super().findings() + risks.findings(self._settings)
