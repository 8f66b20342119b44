"""The links to one endpoint in one world: dialling, choosing, and failing fast when it is down.

Order on a new link: TCP, TLS, Auth, Hello; only then do callers see it. Nothing may precede Auth,
since a server with tokens refuses even Hello. Callers that find no link share one attempt, and
after a failed one nobody dials for a while, so that a broker that is down costs callers nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from bunqueue.client import values
from bunqueue.client.endpoint import Endpoint
from bunqueue.client.link import Link
from bunqueue.client.stream import Stream, TlsStream
from bunqueue.client.telemetry import Telemetry
from bunqueue.client.worlds import World, now
from bunqueue.errors import AuthError, CommandTimeoutError, ConnectionClosedError

PROTOCOL_VERSION = 3
CAPABILITIES = ("pipelining", "separate-job-name", "int64")
FAST_FAIL_S = (0.5, 1.0, 2.0, 4.0, 5.0)  # client.md 6; the last one repeats
REQ_ID_MASK = 0x7FFF_FFFF


class LinkPool:
    """Up to ``size`` links, dialled when needed.

    Attributes:
        links: The links that are up.
        failed_attempts: Failed dials in a row.
        next_attempt_at: Monotonic second before which nobody dials.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        world: World,
        *,
        size: int = 1,
        telemetry: Telemetry | None = None,
        next_generation: Callable[[], int] | None = None,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.world = world
        self.size = max(1, size)
        self.links: list[Link] = []
        self.failed_attempts = 0
        self.next_attempt_at = 0.0
        self.is_closed = False
        self._telemetry = telemetry or Telemetry()
        # Only who asked for the wider set hears of it, so only then it is looked for.
        self._on_loss = self._telemetry.note_loss if self._telemetry.is_wide else None
        self._next_generation = next_generation or itertools.count(1).__next__
        self._on_event = on_event
        self._dialling = world.lock()
        self._turn = 0
        self._req_ids = itertools.count(1)  # next() is one C call: no two threads get the same

    def call(self, command: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send ``command`` on the least busy link and return the reply, refusals included. Waits.

        Args:
            command: The request without its ``reqId``.
            timeout: Seconds, or None for the endpoint's.
        """
        if timeout is None:
            timeout = self.endpoint.command_timeout
        links = self.links
        link = links[0] if self.size == 1 and links and links[0].find_out() else self.pick()
        return self.call_on(link, command, None if timeout is None else now() + timeout)

    def call_on(
        self, link: Link, command: dict[str, Any], deadline: float | None
    ) -> dict[str, Any]:
        """Send ``command`` on ``link`` and return the reply. Waits."""
        req_id = str(next(self._req_ids) & REQ_ID_MASK)
        endpoint = self.endpoint
        frame = values.encode(
            {**command, "reqId": req_id},
            int64=link.has_int64,
            policy=endpoint.int64,
            on_loss=self._on_loss,
        )
        try:
            return link.call(command.get("cmd", ""), frame, req_id, deadline)
        except CommandTimeoutError as error:
            error.req_id = req_id
            raise

    # -- choosing -----------------------------------------------------------------------------

    def pick(self) -> Link:
        """Return the link with the fewest commands in flight, dialling one if all are busy."""
        links = self.links
        if self.size == 1:
            if links:
                link = links[0]
                if link.find_out():
                    return link
            return self._dial(())
        best: Link | None = None
        self._turn += 1
        for offset in range(len(links)):
            link = links[(self._turn + offset) % len(links)]
            if link.find_out() and (best is None or len(link.pending) < len(best.pending)):
                best = link
        if best is None:
            return self._dial(())
        if best.pending and len(self.links) < self.size:
            return self._dial(self.links.copy())
        return best

    # -- dialling -----------------------------------------------------------------------------

    def _dial(self, known: tuple[Link, ...] | list[Link]) -> Link:
        """Return a link that is not in ``known``, made by this caller or by another meanwhile."""
        with self._dialling:
            for link in self.links:
                if link not in known and link.is_up:
                    return link
            if len(self.links) >= self.size and self.links:
                return self.links[0]
            if self.is_closed:
                raise ConnectionClosedError("connection closed by client")
            left_s = self.next_attempt_at - now()
            if left_s > 0:
                raise ConnectionClosedError(f"server unreachable, retry in {int(left_s * 1000)}ms")
            started = now()
            link = self._open()
            if self.is_closed:
                link.end("connection closed by client")
                raise ConnectionClosedError("connection closed by client")
            self.failed_attempts = 0
            self.next_attempt_at = 0.0
            link.generation = self._next_generation()
            self.links = [*self.links, link]
        if self._telemetry.is_on:
            self._telemetry.emit(
                "connect",
                host=self.endpoint.host,
                port=self.endpoint.port,
                generation=link.generation,
                duration_ms=(now() - started) * 1000,
            )
        return link

    def _open(self) -> Link:
        """Connect and greet; on failure note it, for the window, and raise. Waits."""
        endpoint = self.endpoint
        timeout = endpoint.connect_timeout
        deadline = None if timeout is None else now() + timeout
        stage = "connect"
        try:
            sock = self.world.connect(endpoint.host, endpoint.port, timeout)
            try:
                context = endpoint.tls_context()
                if context is None:
                    stream = Stream(sock, self.world)
                else:
                    stage = "tls"
                    stream = TlsStream(
                        sock, self.world, context, endpoint.server_hostname, deadline
                    )
            except BaseException:
                sock.close()
                raise
        except (OSError, TimeoutError) as error:
            self._note_failure(stage, error)
            text = "TLS handshake failed" if stage == "tls" else "connect failed"
            raise ConnectionClosedError(f"{text}: {error or 'timed out'}") from error
        link = Link(
            stream,
            self.world,
            in_flight_max=endpoint.in_flight_max,
            timeouts_max=endpoint.timeouts_max,
            on_end=self._forget,
            on_event=self._take_event if self._on_event is not None else None,
            on_wait=self._note_wait if self._telemetry.is_wide else None,
        )
        try:
            self._greet(link)
        except BaseException:
            link.end("connection lost")
            raise
        return link

    def _greet(self, link: Link) -> None:
        """Authenticate and exchange capabilities."""
        endpoint = self.endpoint
        timeout = endpoint.command_timeout
        deadline = None if timeout is None else now() + timeout
        try:
            if endpoint.token:
                self._authenticate(link, deadline)
            if endpoint.negotiate:
                reply = self.call_on(link, hello_command(endpoint.int64), deadline)
                link.has_int64 = endpoint.int64 != "float" and _lists_int64(reply)
                self._telemetry.emit_wide(
                    "negotiated",
                    server=reply.get("server"),
                    version=reply.get("version"),
                    capabilities=reply.get("capabilities"),
                )
        except (CommandTimeoutError, ConnectionClosedError) as error:
            self._note_failure("connect", error)
            raise ConnectionClosedError(f"handshake failed: {error}") from error

    def _authenticate(self, link: Link, deadline: float | None) -> None:
        """Send the token; its outcome is told as that of any command, but never the token."""
        is_taken, started = False, now()
        try:
            reply = self.call_on(link, {"cmd": "Auth", "token": self.endpoint.token}, deadline)
            is_taken = bool(reply.get("ok"))
            self._telemetry.emit(
                "command",
                cmd="Auth",
                req_id=reply.get("reqId"),
                duration_ms=(now() - started) * 1000,
                ok=is_taken,
            )
        finally:
            self._telemetry.emit("auth", ok=is_taken)
        if not is_taken:
            raise AuthError(str(reply.get("error", "authentication refused")))

    def _note_wait(self, waiting: int) -> None:
        self._telemetry.emit_wide("backpressure", waiting=waiting)

    def _note_failure(self, operation: str, error: BaseException) -> None:
        self.failed_attempts += 1
        delay_s = FAST_FAIL_S[min(self.failed_attempts, len(FAST_FAIL_S)) - 1]
        self.next_attempt_at = now() + delay_s
        if self._telemetry.is_on:
            self._telemetry.emit(
                "reconnect_scheduled",
                host=self.endpoint.host,
                port=self.endpoint.port,
                attempt=self.failed_attempts,
                delay_ms=delay_s * 1000,
            )
            self._telemetry.emit("error", operation=operation, error=str(error))

    def _take_event(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if self._on_event is not None and isinstance(event, dict):
            self._on_event(event)

    # -- the end ------------------------------------------------------------------------------

    def _forget(self, link: Link) -> None:
        self.links = [other for other in self.links if other is not link]
        if self._telemetry.is_on and link.generation:
            self._telemetry.emit(
                "disconnect",
                host=self.endpoint.host,
                port=self.endpoint.port,
                generation=link.generation,
            )

    def probe(self, timeout_s: float, only_quiet: bool = False) -> None:
        """Ping the links in use and end those that do not answer in time. Waits.

        Args:
            timeout_s: How long an answer may take.
            only_quiet: Only links that have said nothing since the last such call.
        """
        for link in self.links:
            is_quiet = link.heard == link.heard_before
            link.heard_before = link.heard
            if not link.pending or (only_quiet and not is_quiet):
                continue
            try:
                self.call_on(link, {"cmd": "Ping"}, now() + timeout_s)
            except CommandTimeoutError:
                link.end("connection lost")
            except ConnectionClosedError:
                continue  # ended meanwhile

    def sever(self) -> None:
        """Cut every link at the socket; their users find out. Callable from any native thread."""
        for link in self.links:
            link.stream.sever()

    def close(self) -> None:
        """End every link and refuse later calls."""
        self.is_closed = True
        for link in self.links:
            link.end("connection closed by client")

    def abandon(self) -> None:
        """Drop the links of the parent process in a forked child."""
        for link in self.links:
            link.stream.abandon()


def hello_command(policy: str) -> dict[str, Any]:
    """Return the greeting of a new link; with the policy "float" it does not offer int64."""
    return {
        "cmd": "Hello",
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": [name for name in CAPABILITIES if name != "int64" or policy != "float"],
    }


def _lists_int64(reply: dict[str, Any]) -> bool:
    capabilities = reply.get("capabilities")
    return isinstance(capabilities, list) and "int64" in capabilities
