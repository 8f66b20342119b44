"""The server's process, as commands see it."""

from collections.abc import Callable

from bunqueue.broker import Broker, LocalHost
from bunqueue.commands.targets import AllowedTargets
from bunqueue.server import memory
from bunqueue.server.prometheus import Prometheus


class ServerHost(LocalHost):
    """Fulfils ``commands.peer.Host`` for a server: ports, figures for Prometheus, webhooks."""

    def __init__(
        self,
        broker: Broker,
        connections: Callable[[], dict[str, int]],
        *,
        targets: AllowedTargets,
        queues_max: int,
    ) -> None:
        """Prepare.

        Args:
            broker: Whose host it is.
            connections: Counts the open connections by kind.
            targets: Where webhooks may go beside global addresses.
            queues_max: Queues that get series of their own.
        """
        super().__init__(broker.storage, broker.engine.latencies)
        self.targets = targets
        self._connections = connections
        self._prometheus = Prometheus(broker, queues_max)

    def prometheus(self) -> str:
        """Return all figures as text for Prometheus."""
        return self._prometheus.text()

    def compact(self) -> None:
        """Hand free memory back to the system."""
        memory.give_back(is_thorough=True)

    def connections(self) -> dict[str, int]:
        """Count the open connections by kind."""
        return self._connections()
