"""The HTTP port: gevent's WSGI server behind guards.

What they keep off was seen live (conventions.md 4.1): answers in two small packets, a request head
that never ends, bodies without bound, a body with two lengths, tracebacks that anyone may cause.

Every connection has a limit of time for each thing it may keep us waiting for. That alone would let
a peer that opens more connections than we take, each with half a request, lock all others out for
as long: so when there is no room, whoever has kept us waiting longest makes it. A bound per address
was weighed: it would hit whoever stands behind a proxy first.
"""

import logging
import os
import re
import socket
import ssl
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import gevent
import gevent.socket
from gevent.pool import Pool
from gevent.pywsgi import Input, WSGIHandler, WSGIServer

from bunqueue.config import Settings
from bunqueue.errors import ConfigError
from bunqueue.server.accept import BACKLOG, Acceptor, name_of, prepare, shake_hands

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1_000
ROOM_S: Final = 0.05  # when there is no room: time for a request that is here to be answered
ROOM_PART: Final = 10  # then one connection in so many goes, of those that keep us waiting
KEEP_ALIVE_S: Final = 75.0  # silence between two requests, and the time for a request line
HEAD_S_MAX: Final = 10.0
BODY_S_MAX: Final = 30.0
SEND_S_MAX: Final = 75.0  # for the peer to take a piece of an answer; as patient as KEEP_ALIVE_S
BODY_BYTES_MAX: Final = 67_108_864  # as a frame on the TCP port
DISCARD_S_MAX: Final = 1.0  # for what a peer still sends of a body that nobody wants
LEFTOVER_BYTES_MAX: Final = 65_536  # a body nobody read is skipped up to here, else the link ends

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rf"{_TOKEN} [\x21-\x7e\x80-\xff]+ HTTP/1\.[01]\r\n")
_HEADER_LINE: Final = re.compile(rf"{_TOKEN}:[\t\x20-\x7e\x80-\xff]*\r\n".encode("latin-1"))
_ENDS: Final = (b"\r\n", b"")

_TEXT: Final = {400: "Bad Request", 408: "Request Timeout", 413: "Content Too Large"}


class _Refused(ValueError):
    """The head of a request is answered with ``status``, and the connection ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _HeaderLines:
    """The lines of a head, each as it has to be (RFC 9112, 5).

    What reads them next takes more: a name with a space behind it, which is another name to others;
    lines that go on in the next one, or that end with half of a line's end; text without a colon.
    A proxy in front that reads such a line differently would see other requests than we do.
    """

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    def readline(self, limit: int) -> bytes:
        """Waits for the next line."""
        line: bytes = self._lines.readline(limit)
        if line not in _ENDS and not _HEADER_LINE.fullmatch(line):
            raise _Refused(400, "a header line that is none")
        return line


class Connections(Pool):  # type: ignore[misc]  # gevent ships no types
    """The greenlets of all connections, and which of them wait for their peer."""

    def __init__(self, count_max: int) -> None:
        super().__init__(count_max)
        self._waiting: dict[Any, None] = {}  # in the order in which they began to
        self._is_making_room = False

    def begin_wait(self) -> None:
        """Note that from now on the running greenlet waits for its peer."""
        self.end_wait()
        self._waiting[gevent.getcurrent()] = None

    def end_wait(self) -> None:
        """Note that the running greenlet has something to do."""
        self._waiting.pop(gevent.getcurrent(), None)

    def full(self) -> bool:
        """Tell whether there is no room; if so, see to it that there will be."""
        is_full: bool = super().full()
        if is_full and not self._is_making_room:
            self._is_making_room = True
            gevent.spawn_later(ROOM_S, self._make_room)
        return is_full

    def _make_room(self) -> None:
        """End those who have waited longest; if nobody waits for his peer, look again later."""
        self._is_making_room = False
        if not super().full():
            return
        leaving = list(islice(self._waiting, max(1, self.size // ROOM_PART)))
        for greenlet in leaving:
            del self._waiting[greenlet]
            greenlet.kill(block=False)
        if not leaving:
            self.full()


class Body(Input):  # type: ignore[misc]  # gevent ships no types
    """A request's body: bounded in time and, when its length was not announced, in size."""

    def read(self, length: int | None = None) -> bytes:
        """Waits for the next ``length`` bytes, or for all.

        Raises:
            OSError: It is too long, comes too slowly, or is not in chunks as it says.
        """
        try:
            return self._read(length)
        except ValueError as error:  # of a chunk without a size
            raise OSError("bad chunk") from error

    def _read(self, length: int | None) -> bytes:
        with gevent.Timeout(BODY_S_MAX, TimeoutError):
            if not self.chunked_input or (length is not None and length >= 0):
                data: bytes = super().read(length)
                return data
            pieces: list[bytes] = []
            size = 0
            while piece := super().read(LEFTOVER_BYTES_MAX):
                size += len(piece)
                if size > BODY_BYTES_MAX:
                    self._chunked_input_error = True  # as after any other refusal, the link ends
                    raise OSError("body too large")
                pieces.append(piece)
            return b"".join(pieces)

    def skip_chunks(self) -> None:
        """Waits, but not long, for what is left of a body in chunks, if that is short."""
        if self.chunked_input and self.has_leftover():
            self.send_100_continue_enabled = False
            with gevent.Timeout(DISCARD_S_MAX, False), suppress(OSError):
                self.read(LEFTOVER_BYTES_MAX)

    def has_leftover(self) -> bool:
        """Tell whether more is to come than is worth skipping."""
        if self.chunked_input:
            # The last chunk is empty.
            return bool(self._chunked_input_error) or self.chunk_length != 0
        left: int = (self.content_length or 0) - self.position
        return left > LEFTOVER_BYTES_MAX


class Handler(WSGIHandler):  # type: ignore[misc]  # gevent ships no types
    """One HTTP connection."""

    wsgi_input: Any

    def read_requestline(self) -> str:
        """Waits for a request, but not for ever."""
        self.server.pool.begin_wait()
        with gevent.Timeout(KEEP_ALIVE_S, TimeoutError):
            line: str = super().read_requestline()
            return line

    def read_request(self, raw_requestline: str) -> bool:
        """Waits for the rest of the head, and refuses what two readers could read differently."""
        if not _REQUEST_LINE.fullmatch(raw_requestline):
            raise _Refused(400, "a request line that is none")
        with gevent.Timeout(HEAD_S_MAX, _Refused(408, "head took too long")):
            super().read_request(raw_requestline)
        if self.content_length is not None and self.content_length > BODY_BYTES_MAX:
            raise _Refused(413, "body too large")
        return True

    def MessageClass(self, lines: Any, *args: Any) -> Any:  # noqa: N802  # the name that gevent calls
        """Parse the headers, before gevent drops one of two contradicting lengths."""
        headers = super().MessageClass(_HeaderLines(lines), *args)
        if len(headers.get_all("host", [])) > 1:
            raise _Refused(400, "more than one Host")
        lengths = headers.get_all("content-length", [])
        codings = headers.get_all("transfer-encoding", [])
        if lengths and codings:
            raise _Refused(400, "Content-Length together with Transfer-Encoding")
        if len(lengths) > 1 or not all(text.strip().isdecimal() for text in lengths):
            raise _Refused(400, "Content-Length is no single number")
        if codings and self.request_version == "HTTP/1.0":
            raise _Refused(400, "Transfer-Encoding in HTTP/1.0")
        if codings and [text.strip().lower() for text in codings] != ["chunked"]:
            raise _Refused(400, "Transfer-Encoding is not chunked")
        return headers

    def get_environ(self) -> dict[str, Any]:
        """Build the environment, with our body in it."""
        environ: dict[str, Any] = super().get_environ()
        plain = self.wsgi_input
        body = Body(plain.rfile, plain.content_length, plain.socket, plain.chunked_input)
        self.wsgi_input = body
        if environ["wsgi.input"] is plain:
            environ["wsgi.input"] = body
        return environ

    def run_application(self) -> None:
        """Answer; a body that was not read, and is long, ends the connection."""
        self.server.pool.end_wait()
        super().run_application()
        self.server.pool.begin_wait()  # for the rest of a short one
        self.wsgi_input.skip_chunks()
        if self.wsgi_input.has_leftover():
            self.close_connection = True
            self._discard_rest()
            self.wsgi_input.content_length = self.wsgi_input.position
            self.wsgi_input.chunked_input = False

    def _discard_rest(self) -> None:
        """Waits, but not long, for the rest of a body, so that the close resets no answer."""
        body = self.wsgi_input
        left = None if body.chunked_input else body.content_length - body.position
        with gevent.Timeout(DISCARD_S_MAX, False), suppress(OSError):
            while left is None or left > 0:
                piece = self.rfile.read1(LEFTOVER_BYTES_MAX)
                if not piece:
                    return
                left = None if left is None else left - len(piece)

    def _sendall(self, data: bytes) -> None:
        """Waits until the peer has taken a piece of the answer, but not for ever."""
        with gevent.Timeout(SEND_S_MAX, TimeoutError):
            super()._sendall(data)

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes]:
        """Refuse a bad request in one line, whatever it was."""
        status = error.status if isinstance(error, _Refused) else 400
        # gevent's texts quote the request behind a colon; a token may be in it, whatever it was.
        reason = str(error).partition(":")[0]
        log.debug("bad request peer=%s reason=%s", name_of(self.client_address), reason)
        head = (
            f"HTTP/1.1 {status} {_TEXT[status]}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        return str(status), head.encode()

    def _log_error(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and issubclass(kind, (OSError, gevent.GreenletExit)):
            log.debug("request broken off peer=%s reason=%s", name_of(self.client_address), error)
            return
        log.error("request failed path=%s", self.path, exc_info=(kind, error, trace))


class HttpServer(Acceptor, WSGIServer):  # type: ignore[misc]  # gevent ships no types
    """Serves the application on the port, or on a Unix socket."""

    def __init__(self, app: Any, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        """Prepare; ``start`` binds.

        Args:
            app: The WSGI application.
            settings: The address.
            tls: Speak TLS with this context; never on a Unix socket.
        """
        path = settings.http_socket_path
        self._tls = tls if path is None else None
        self.socket_path = path
        where = (settings.host, settings.http_port) if path is None else listen_at(path)
        WSGIServer.__init__(
            self,
            where,
            app,
            backlog=BACKLOG if path is None else None,
            spawn=Connections(CONNECTIONS_MAX),
            log=None,
            error_log=log,
            handler_class=Handler,
            environ={
                "SERVER_NAME": settings.host,  # else gevent asks the name service for it
                "wsgi.url_scheme": "https" if self._tls else "http",
            },
        )

    def connections(self) -> int:
        """Count the open connections."""
        return len(self.pool)

    def handle(self, sock: Any, address: Any) -> None:
        """Serve one connection. Waits until it has ended."""
        if isinstance(address, tuple) and not prepare(sock):
            return
        self.pool.begin_wait()
        try:
            if self._tls is not None:
                sock = shake_hands(self._tls, sock, name_of(address))
            if sock is not None:
                self.handler_class(sock, address, self).handle()
        finally:
            self.pool.end_wait()

    def close(self) -> None:
        """Stop accepting; take the Unix socket away."""
        super().close()
        if self.socket_path is not None:
            with suppress(OSError):
                os.unlink(self.socket_path)


def listen_at(path: str) -> Any:
    """Listen on a Unix socket, in place of one that a dead process left.

    Raises:
        ConfigError: Something else is at ``path``, or it cannot be made.
    """
    try:
        if Path(path).exists():
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise ConfigError(f"HTTP_SOCKET_PATH is no socket: {path!r}")
            if _answers(path):
                raise ConfigError(f"HTTP_SOCKET_PATH is in use: {path!r}")
            os.unlink(path)
        listener = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(f"HTTP_SOCKET_PATH {path!r} cannot be used: {error.strerror}") from None
    return listener


def _answers(path: str) -> bool:
    with gevent.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
