"""The TCP port: a greenlet per connection, and the sweep of peers that fell silent in a frame."""

import logging
import ssl
from typing import Any, Final

import gevent

from bunqueue.broker import Broker
from bunqueue.config import Settings
from bunqueue.server.accept import BACKLOG, Acceptor, name_of, prepare, shake_hands
from bunqueue.server.link import Endings, Link, Turns
from bunqueue.server.rate import RequestRate

log = logging.getLogger(__name__)

SILENCE_LOOK_S: Final = 1.0  # time between two looks for connections silent inside a frame


class TcpServer(Acceptor):
    """Accepts connections and serves each in a greenlet of its own.

    Attributes:
        links: The open connections.
    """

    def __init__(
        self, broker: Broker, settings: Settings, tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepare; ``start`` binds.

        Args:
            broker: What commands act on.
            settings: Address and limits.
            tls: Speak TLS with this context.
        """
        super().__init__((settings.host, settings.tcp_port), backlog=BACKLOG)
        self.links: set[Link] = set()
        self._broker = broker
        self._settings = settings
        self._tls = tls
        self._sweeper: Any = None
        self._endings = Endings(gevent.get_hub().loop)
        self._turns = Turns(gevent.get_hub().loop)

    def start(self) -> None:
        """Bind and accept.

        Raises:
            OSError: The address is in use, or not ours.
        """
        super().start()
        if self._settings.tcp_idle_ms:
            self._sweeper = gevent.spawn(self._sweep)

    def finish(self) -> None:
        """Close every connection once what it has written is sent."""
        if self._sweeper is not None:
            self._sweeper.kill(block=False)
        for link in list(self.links):
            link.finish(discard_s=0)

    def sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return name -> entries of what the connections hold, and name -> bytes."""
        waiting = held = unsent = unread = 0
        for link in self.links:
            connection = link.connection
            waiting += len(connection.parked)
            held += len(connection.held)
            unsent += link.unsent_bytes
            unread += connection.unread_bytes
        entries = {"connections": len(self.links), "waiting_commands": waiting, "held_jobs": held}
        return entries, {"unsent": unsent, "unread": unread}

    def handle(self, sock: Any, address: Any) -> None:
        """Serve one connection. Waits until it has ended."""
        name = name_of(address)
        if not prepare(sock):
            return
        if self._tls is None:
            line = sock._sock  # gevent's layer would only cost: the link waits by itself
        else:
            line = shake_hands(self._tls, sock, name)
            if line is None:
                return
        line.setblocking(False)
        settings = self._settings
        limit = settings.rate_limit_requests_max
        link = Link(
            self._broker,
            line,
            name,
            unsent_bytes_max=settings.tcp_unsent_bytes_max,
            rate=RequestRate(limit, settings.rate_limit_window_ms) if limit else None,
            is_tls=self._tls is not None,
            endings=self._endings,
            turns=self._turns,
        )
        self.links.add(link)
        log.debug("connection opened peer=%s", name)
        try:
            link.run()
        finally:
            self.links.discard(link)
            log.debug("connection closed peer=%s", name)

    def _sweep(self) -> None:
        """Waits; resets connections that have been silent inside a frame for too long."""
        limit_s = self._settings.tcp_idle_ms / 1000
        steady = self._broker.clock.steady
        while True:
            gevent.sleep(min(SILENCE_LOOK_S, limit_s / 4))
            oldest = steady() - limit_s
            for link in list(self.links):
                partial_at = link.connection.partial_at
                if partial_at is not None and partial_at < oldest:
                    log.debug("connection reset: silent in a frame peer=%s", link.connection.id)
                    link.abort()
