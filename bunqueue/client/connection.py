"""Connection: the pool of links that Queue and Worker speak through.

A facade over one ``LinkPool`` per world (a plain process has one world, so one pool), or over the
link to the engine in this process. Links belong to the process that dialled them; a forked child
starts with none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Self, overload
from weakref import WeakSet

from bunqueue.client import forks, values, worlds
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.endpoint import (
    COMMAND_TIMEOUT_S_DEFAULT,
    CONNECT_TIMEOUT_S_DEFAULT,
    HOST_DEFAULT,
    PORT_DEFAULT,
    Endpoint,
    TlsOption,
)
from bunqueue.client.link import Slots
from bunqueue.client.pool import LinkPool, hello_command
from bunqueue.client.telemetry import Telemetry, TelemetryHandler
from bunqueue.client.types import LoggerLike
from bunqueue.client.values import IntegerPolicy
from bunqueue.errors import (
    BunqueueError,
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    LockLostError,
    RateLimitedError,
    SerializationError,
)

LEASE_TEXTS = ("Invalid or expired lock token", "Lock token required", "not in processing state")
SEND_FAILED_TEXT = "send failed"  # how link.py begins what a write could not do
RATE_LIMIT_TEXT = "Rate limit exceeded"
WAITS_PER_LINK_MAX = 40  # of the 50 commands that a broker runs for a connection, wire.md 1.5

_all: WeakSet[Connection] = WeakSet()


class Connection:
    """Speaks to one broker, over TCP or in this process; safe to share between threads.

    Args:
        host: Where the broker listens.
        port: Its TCP port.
        token: Sent as ``Auth`` before anything else.
        tls: True for the system's authorities, a context, or ``{"ca_file", "verify", "cert_file",
            "key_file", "server_hostname"}``.
        connect_timeout: Seconds a dial may take.
        command_timeout: Seconds a command may take; None or infinity for no bound.
        on_telemetry: Called with a dict per event.
        pool_size: How many links at most; native threads beside greenlets have their own.
        max_in_flight: Commands in flight per link; 0 for no bound.
        max_command_timeouts: Consecutive timeouts after which a link is dropped; 0 for never.
        embedded: Use the engine in this process instead of TCP.
        data_path: The embedded engine's file.
        int64: What becomes of integers that the link cannot carry exactly.
        restore_ints: Turn wide integral floats in received payloads into integers.
        negotiate: Send ``Hello`` on every new link.
        logger: Takes the place of the logger ``bunqueue.connection``.
        extended_telemetry: Report the wider set of events.
    """

    def __init__(
        self,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        connect_timeout: float | None = CONNECT_TIMEOUT_S_DEFAULT,
        command_timeout: float | None = COMMAND_TIMEOUT_S_DEFAULT,
        on_telemetry: TelemetryHandler | None = None,
        *,
        pool_size: int = 1,
        max_in_flight: int = 0,
        max_command_timeouts: int = 3,
        embedded: bool = False,
        data_path: str | os.PathLike[str] | None = None,
        int64: IntegerPolicy = "auto",
        restore_ints: bool = False,
        negotiate: bool = True,
        logger: LoggerLike | None = None,
        extended_telemetry: bool = False,
    ) -> None:
        if embedded and (token is not None or tls):
            raise ValueError("token and tls belong to TCP; an embedded connection takes neither")
        self.endpoint = Endpoint(
            host=host,
            port=port,
            token=token,
            tls=tls,
            connect_timeout=connect_timeout,
            command_timeout=command_timeout,
            in_flight_max=max_in_flight,
            timeouts_max=max_command_timeouts,
            int64=int64,
            negotiate=negotiate,
        ).checked()
        self.pool_size = max(1, pool_size)
        self.embedded = embedded
        self.data_path = data_path
        self.restore_ints = restore_ints
        self.logger: Any = logger or logging.getLogger("bunqueue.connection")
        self._telemetry = Telemetry(on_telemetry, extended_telemetry)
        self._is_observed = self._telemetry.is_on
        self._on_telemetry = on_telemetry
        self._emitter: EventEmitter | None = None
        self._closed = False
        self._generation = 0
        self._pools: dict[str, Any] = {}
        self._pool: Any = None  # the only pool of a plain process
        self._subscriptions: list[Any] = []
        self._wait_slots: dict[str, Slots] = {}
        self._commands = 0
        self._errors = 0
        self._latency_s = 0.0
        self._engine = _embedded().engine_on(data_path) if embedded else None
        if embedded:
            self._generation = 1
        _all.add(self)
        forks.watch(self)

    # -- commands -----------------------------------------------------------------------------

    def call(self, command: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send a command and return the broker's reply. Waits.

        Args:
            command: The wire command, ``cmd`` and its fields.
            timeout: Seconds, in place of ``command_timeout``.

        Raises:
            CommandError: The broker refused it.
            CommandTimeoutError: No reply in time; it may still take effect.
            ConnectionClosedError: Unreachable, lost, or closed.
            SerializationError: It has no form on the wire; nothing was written.
            AuthError: The token was refused.
        """
        if self._closed:
            raise ConnectionClosedError("connection closed by client")
        pool = self._pool or self._pool_here()
        if self._is_observed:
            return self._call_observed(pool, command, timeout)
        reply: dict[str, Any] = pool.call(command, timeout)
        if not reply.get("ok"):
            raise refusal(reply, command)
        return restored_reply(reply) if self.restore_ints else reply

    def _call_observed(
        self, pool: Any, command: dict[str, Any], timeout: float | None
    ) -> dict[str, Any]:
        name, started = command.get("cmd"), worlds.now()
        self._commands += 1
        try:
            reply: dict[str, Any] = pool.call(command, timeout)
        except BunqueueError as error:
            self._errors += 1
            self._tell_failure(name, error)
            raise
        took_s = worlds.now() - started
        self._latency_s += took_s
        self._telemetry.emit(
            "command",
            cmd=name,
            req_id=reply.get("reqId"),
            duration_ms=took_s * 1000,
            ok=bool(reply.get("ok")),
        )
        if not reply.get("ok"):
            raise refusal(reply, command)
        return restored_reply(reply) if self.restore_ints else reply

    def _tell_failure(self, name: Any, error: BunqueueError) -> None:
        """Tell the observers why there was no reply; what the pool tells by itself is not here."""
        if isinstance(error, CommandTimeoutError):
            self._telemetry.emit("command_timeout", cmd=name, req_id=error.req_id)
        elif isinstance(error, SerializationError):
            # Its text may quote the payload.
            text = f"{name} has no form on the wire"
            self._telemetry.emit("error", operation="serialize", error=text)
        elif str(error).startswith(SEND_FAILED_TEXT):
            self._telemetry.emit("error", operation="write", error=str(error))

    def observe(self, event_type: str, **fields: Any) -> None:
        """Tell of an event of the wider set, if that is wanted (client.md 5.2)."""
        self._telemetry.emit_wide(event_type, **fields)

    @property
    def is_observed_widely(self) -> bool:
        """Whether the wider set is wanted; ask before measuring anything for it."""
        return self._telemetry.is_wide

    def _send(self, command: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        return self.call(command, timeout)

    def ping(self) -> bool:
        """Tell whether the broker answers. Waits."""
        try:
            reply = self.call({"cmd": "Ping"})
        except BunqueueError:
            return False
        data = reply.get("data")
        return isinstance(data, dict) and bool(data.get("pong"))

    def wait_slots(self) -> Slots | None:
        """Return what bounds the ``WaitJob`` of the caller's world; None where nothing need.

        A broker runs 50 commands of a connection at once and reads no further one meanwhile. So
        waits are bounded here, or fifty of them would hold up every other command.
        """
        if self.embedded:
            return None
        world = worlds.current()
        slots = self._wait_slots.get(world.name)
        if slots is None:
            made = Slots(world, WAITS_PER_LINK_MAX * self.pool_size)
            slots = self._wait_slots.setdefault(world.name, made)
        return slots

    @property
    def tells_failures(self) -> bool:
        """Whether the broker ends a ``WaitJob`` as soon as the job has failed for good."""
        return self.embedded or any(link.has_int64 for link in self._links())

    def hello(self) -> dict[str, Any]:
        """Return the broker's name, version, protocol version and capabilities. Waits."""
        return self.call(hello_command(self.endpoint.int64))

    def subscribe(
        self, queue_key: str, listener: Callable[[dict[str, Any]], object]
    ) -> Callable[[], None]:
        """Call ``listener`` with each event of a queue, and return what ends that.

        Args:
            queue_key: The queue as the broker knows it.
            listener: Called in a task of its own with ``{"eventType", "queue", "jobId",
                "timestamp", ...}``, in order; it must not wait. One that raises is logged.
        """
        if self._closed:
            raise ConnectionClosedError("connection closed by client")
        from bunqueue.client.subscription import Subscription

        def hear(event: dict[str, Any]) -> None:
            try:
                listener(event)
            except Exception:
                self.logger.warning("event listener raised", exc_info=True)

        subscription = Subscription(self, values.queue_key(queue_key), hear)
        self._subscriptions.append(subscription)

        def unsubscribe() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            subscription.close()

        return unsubscribe

    # -- links --------------------------------------------------------------------------------

    def _pool_here(self) -> Any:
        """Return the pool of the calling thread's world."""
        world = worlds.current()
        pool = self._pools.get(world.name)
        if pool is None:
            # Two threads may both make one; setdefault keeps the first, nothing was dialled yet.
            pool = self._pools.setdefault(world.name, self.new_pool(world))
            if worlds.standard().is_native:
                self._pool = pool
        return pool

    def new_pool(
        self,
        world: worlds.World,
        size: int | None = None,
        is_private: bool = False,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> Any:
        """Return links of their own to the same broker, for code in ``world``.

        Args:
            world: Where they are used.
            size: How many links; None for ``pool_size``.
            is_private: They count neither as generations nor in telemetry.
            on_event: Called with each event of a subscription.
        """
        if self.embedded:
            on_loss = self._telemetry.note_loss if self._telemetry.is_wide else None
            return _embedded().EmbeddedPool(self._engine, self.endpoint, world, on_event, on_loss)
        return LinkPool(
            self.endpoint,
            world,
            size=size or self.pool_size,
            telemetry=None if is_private else self._telemetry,
            next_generation=None if is_private else self._next_generation,
            on_event=on_event,
        )

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two connections to the same broker, with the same rights, have in common."""
        if self.embedded:
            return (self._engine,)
        return (self.host, self.port, self.token, repr(self.tls))

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def clone(self, **changes: Any) -> Connection:
        """Return a connection with links of its own, to the same broker but for the ``changes``.

        Args:
            changes: Parameters of the constructor, in place of this connection's.
        """
        endpoint = self.endpoint
        same: dict[str, Any] = {
            "host": endpoint.host,
            "port": endpoint.port,
            "token": endpoint.token,
            "tls": endpoint.tls,
            "connect_timeout": endpoint.connect_timeout,
            "command_timeout": endpoint.command_timeout,
            "on_telemetry": self._on_telemetry,
            "pool_size": self.pool_size,
            "max_in_flight": endpoint.in_flight_max,
            "max_command_timeouts": endpoint.timeouts_max,
            "embedded": self.embedded,
            "data_path": self.data_path,
            "int64": endpoint.int64,
            "restore_ints": self.restore_ints,
            "negotiate": endpoint.negotiate,
            "logger": self.logger,
            "extended_telemetry": self._telemetry.is_extended,
        }
        return Connection(**(same | changes))

    def connect(self) -> None:
        """Open and greet now instead of with the first call. Waits."""
        if self._closed:
            raise ConnectionClosedError("connection closed by client")
        self._pool_here().pick()

    def probe(self, timeout_s: float, only_quiet: bool = False) -> None:
        """Ping the links in use in the caller's world and end those that are silent. Waits."""
        self._pool_here().probe(timeout_s, only_quiet)

    def sever(self) -> None:
        """Cut every link at the socket; their users find out. Callable from any native thread."""
        for pool in list(self._pools.values()):
            pool.sever()

    def close(self) -> None:
        """End every link; whoever waits gets ``ConnectionClosedError``. Idempotent."""
        if not self._closed:
            self._telemetry.emit_wide("close")
        self._closed = True
        for subscription in self._subscriptions.copy():
            subscription.close()
        self._subscriptions.clear()
        for pool in list(self._pools.values()):
            pool.close()

    def forget_parent(self) -> None:
        """Start afresh in a forked child."""
        for pool in self._pools.values():
            pool.abandon()
        for subscription in self._subscriptions:
            subscription.forget_parent()
        self._pools = {}
        self._pool = None
        self._subscriptions = []
        self._wait_slots = {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "embedded" if self.embedded else f"{self.host}:{self.port}"
        return f"<Connection {where}{' closed' if self._closed else ''}>"

    # -- what it is and how it does -------------------------------------------------------------

    @property
    def host(self) -> str:
        """Where the broker listens."""
        return self.endpoint.host

    @property
    def port(self) -> int:
        """The broker's TCP port."""
        return self.endpoint.port

    @property
    def token(self) -> str | None:
        """The token sent on connecting."""
        return self.endpoint.token

    @property
    def tls(self) -> TlsOption:
        """The TLS option as given."""
        return self.endpoint.tls

    @property
    def connect_timeout(self) -> float | None:
        """Seconds a dial may take."""
        return self.endpoint.connect_timeout

    @property
    def command_timeout(self) -> float | None:
        """Seconds a command may take."""
        return self.endpoint.command_timeout

    @property
    def connected(self) -> bool:
        """Whether at least one link is up."""
        return any(link.is_up for link in self._links())

    @property
    def generation(self) -> int:
        """How many links have been dialled so far."""
        return self._generation

    def health(self) -> dict[str, Any]:
        """Return the state of the links, and what has been counted.

        Commands are counted while telemetry is on, and from the first call of this on.
        """
        self._is_observed = True
        answered = self._commands - self._errors
        return {
            "connected": self.connected,
            "links": [
                {
                    "generation": link.generation,
                    "in_flight": len(link.pending),
                    "consecutive_timeouts": link.timeouts,
                    "last_error": link.last_error,
                }
                for link in self._links()
            ],
            "avg_latency_ms": self._latency_s * 1000 / answered if answered else 0.0,
            "commands": self._commands,
            "errors": self._errors,
        }

    # -- as an emitter of its telemetry ---------------------------------------------------------

    def _emitter_of_events(self) -> EventEmitter:
        """Return who passes telemetry on by type; from the first listener on there is one."""
        if self._emitter is None:
            emitter = self._emitter = EventEmitter()
            self._telemetry.handlers.append(lambda told: emitter.emit(told["type"], told))
            self._is_observed = True
        return self._emitter

    @overload
    def on(self, event: str, listener: TelemetryHandler) -> Self: ...
    @overload
    def on(self, event: str) -> Callable[[TelemetryHandler], TelemetryHandler]: ...

    def on(self, event: str, listener: TelemetryHandler | None = None) -> Any:
        """Call ``listener`` with every telemetry event of one type; without one, decorate."""
        emitter = self._emitter_of_events()
        if listener is None:
            return emitter.on(event)
        emitter.on(event, listener)
        return self

    def once(self, event: str, listener: TelemetryHandler) -> Self:
        """Call ``listener`` with the next telemetry event of one type only."""
        self._emitter_of_events().once(event, listener)
        return self

    def off(self, event: str, listener: TelemetryHandler) -> Self:
        """Stop calling ``listener``."""
        self._emitter_of_events().off(event, listener)
        return self

    def _links(self) -> list[Any]:
        return [link for pool in list(self._pools.values()) for link in pool.links]

    # -- names that the official suite reads ------------------------------------------------------

    @property
    def _sock(self) -> Any:
        links = self._links()
        return links[0].stream._sock if links and not self.embedded else None

    @property
    def _connected(self) -> bool:
        return self.connected

    @property
    def _pending(self) -> dict[str, Any]:
        return {key: waiter for link in self._links() for key, waiter in link.pending.items()}

    @property
    def _failed_attempts(self) -> int:
        return max((pool.failed_attempts for pool in self._pools.values()), default=0)

    @property
    def _next_attempt_at(self) -> float:
        return max((pool.next_attempt_at for pool in self._pools.values()), default=0.0)

    @_next_attempt_at.setter
    def _next_attempt_at(self, value: float) -> None:
        for pool in self._pools.values():
            pool.next_attempt_at = value

    @property
    def _max_command_timeouts(self) -> int:
        return self.endpoint.timeouts_max


def refusal(reply: dict[str, Any], command: dict[str, Any]) -> CommandError:
    """Return the exception for a reply that says no."""
    text = str(reply.get("error", "unknown server error"))
    kind: type[CommandError] = CommandError
    if text == RATE_LIMIT_TEXT:
        kind = RateLimitedError
    elif any(part in text for part in LEASE_TEXTS):
        kind = LockLostError
    return kind(text, command.get("cmd"))


def restored_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """Return ``reply`` with wide integral floats of its payloads as integers."""
    if "result" in reply:
        reply["result"] = values.restored(reply["result"], floats=True)
    data = reply.get("data")
    if isinstance(data, dict) and "values" in data:  # results of children
        data["values"] = values.restored(data["values"], floats=True)
    jobs = [*(reply.get("jobs") or ()), *(entry["job"] for entry in reply.get("entries") or ())]
    if reply.get("job"):
        jobs.append(reply["job"])
    for job in jobs:
        for key in ("data", "returnvalue"):
            if key in job:
                job[key] = values.restored(job[key], floats=True)
    return reply


def close_all_connections() -> None:
    """Close every connection of this process."""
    for connection in list(_all):
        connection.close()


def _embedded() -> Any:
    """Import the embedded link on first use: it brings the whole broker along."""
    from bunqueue.client import embedded

    return embedded
