"""Accepting connections, for both ports: without descriptors, and over TLS."""

import errno
import logging
import socket
import ssl
import time
from typing import Any, Final

import gevent
from gevent.server import StreamServer
from gevent.socket import socket as HubSocket

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTED_AT_ONCE: Final = 20  # then others have their turn: a connection takes 0.2 ms to set up
HANDSHAKE_S_MAX: Final = 10.0
RETRY_S: Final = 0.5  # wait before accepting again when no descriptor is left
TELL_S: Final = 10.0  # time between two lines about that
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# A peer whose host has vanished is noticed after about two minutes, so that its jobs go back.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Acceptor(StreamServer):  # type: ignore[misc]  # gevent ships no types
    """A server that survives running out of descriptors, and says so without a flood."""

    max_accept = ACCEPTED_AT_ONCE
    _told_at = float("-inf")

    def do_read(self) -> tuple[Any, Any] | None:
        """Accept one connection; None when there is none to be had now."""
        try:
            number, address = self.socket._accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                self._pause(error)
            return None  # otherwise the peer gave up before it was accepted
        return HubSocket(fileno=number), address

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment: the backlog keeps what comes, and the loop does not spin."""
        now = time.monotonic()
        if now - self._told_at > TELL_S:
            self._told_at = now
            log.error("cannot accept: %s; raise the limit of open files", error.strerror)
        self.stop_accepting()
        self._timer = self.loop.timer(RETRY_S)
        self._timer.start(self._start_accepting_if_started)


def prepare(sock: Any) -> bool:
    """Set the options of an accepted TCP socket; False if it has gone already."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:
        return False
    return True


def shake_hands(context: ssl.SSLContext, sock: Any, name: str) -> Any:
    """Waits for the TLS handshake; returns the TLS socket, or None when there is none to be had."""
    wrapped = None
    try:
        with gevent.Timeout(HANDSHAKE_S_MAX, TimeoutError):
            wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            wrapped.do_handshake()
    except (OSError, ValueError) as error:  # TLS errors and time-outs are OSErrors
        log.debug("connection closed: no TLS handshake peer=%s error=%s", name, error)
        (wrapped or sock).close()
        return None
    return wrapped


def name_of(address: Any) -> str:
    """Name a peer by its address, for logs."""
    if not isinstance(address, tuple):
        return "unix"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"
