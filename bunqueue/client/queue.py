"""Queue: adding jobs to a named queue, and looking after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from bunqueue.client import forks, worlds
from bunqueue.client.add_batch import UNBATCHED, AddBatcher, batch_settings, push_all
from bunqueue.client.connecting import QueueAddress, address_of
from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import (
    COMMAND_TIMEOUT_S_DEFAULT,
    CONNECT_TIMEOUT_S_DEFAULT,
    HOST_DEFAULT,
    PORT_DEFAULT,
    TlsOption,
)
from bunqueue.client.job import Job
from bunqueue.client.options import JobOptions, to_wire, with_parent_link
from bunqueue.client.queue_broker import QueueBroker
from bunqueue.client.queue_changes import QueueChanges
from bunqueue.client.queue_control import QueueControl
from bunqueue.client.queue_flows import QueueFlows
from bunqueue.client.queue_groups import QueueGroups
from bunqueue.client.queue_reads import QueueReads
from bunqueue.client.queue_schedulers import QueueSchedulers
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.client.types import LoggerLike
from bunqueue.client.values import IntegerPolicy, QueueName

if TYPE_CHECKING:
    from bunqueue.client.forwarder import Forwarder, Target

_PLAIN_ENTRY = {"name", "data"}
CLOSE_DRAIN_S = 5.0  # how long close() waits for adds of other threads


class Queue(
    QueueReads, QueueChanges, QueueControl, QueueGroups, QueueSchedulers, QueueFlows, QueueBroker
):
    """A named queue on a broker; safe to share between threads and greenlets.

    Args:
        name: Logical name.
        host: Where the broker listens.
        port: Its TCP port.
        token: Authentication token.
        tls: See ``Connection``.
        connection: A ``Connection`` to share, or a dict of its parameters.
        command_timeout: Seconds a command may take; None for no bound.
        prefix_key: Namespace in front of the name.
        on_telemetry: Called with a dict per event.
        embedded: Use the engine in this process; None reads ``BUNQUEUE_EMBEDDED``.
        data_path: The embedded engine's file.
        url: ``bunqueue://[:token@]host[:port]``; explicit parameters win.
        connect_timeout: Seconds a dial may take.
        pool_size: How many links at most.
        max_in_flight: Commands in flight per link; 0 for no bound.
        max_command_timeouts: Consecutive timeouts after which a link is dropped.
        auto_batch: Concurrent adds share round trips unless False; or a dict of settings.
        default_job_options: Options under those of each job.
        logger: Takes the place of the logger ``bunqueue``.
        extended_telemetry: Report the wider set of events.
        int64: What becomes of integers that the link cannot carry exactly.
        restore_ints: Turn wide integral floats in received payloads into integers.

    Attributes:
        name: The logical name, which also knows its ``key`` and ``prefix``.
        queue_key: What the server is told.
        connection: What every method goes through.
    """

    def __init__(
        self,
        name: str,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | Mapping[str, Any] | None = None,
        command_timeout: float | None = COMMAND_TIMEOUT_S_DEFAULT,
        prefix_key: str = "",
        on_telemetry: TelemetryHandler | None = None,
        *,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        url: str | None = None,
        connect_timeout: float | None = CONNECT_TIMEOUT_S_DEFAULT,
        pool_size: int = 1,
        max_in_flight: int = 0,
        max_command_timeouts: int = 3,
        auto_batch: bool | Mapping[str, Any] | None = None,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        logger: LoggerLike | None = None,
        extended_telemetry: bool = False,
        int64: IntegerPolicy = "auto",
        restore_ints: bool = False,
    ) -> None:
        self._batching = batch_settings(auto_batch)
        self.default_job_options = dict(default_job_options or {})
        to_wire(self.default_job_options)
        address: QueueAddress = address_of(
            name,
            prefix_key=prefix_key,
            connection=connection,
            url=url,
            given={
                "host": host,
                "port": port,
                "token": token,
                "tls": tls,
                "command_timeout": command_timeout,
                "connect_timeout": connect_timeout,
                "on_telemetry": on_telemetry,
                "embedded": embedded,
                "data_path": data_path,
                "pool_size": pool_size,
                "max_in_flight": max_in_flight,
                "max_command_timeouts": max_command_timeouts,
                "logger": logger,
                "extended_telemetry": extended_telemetry,
                "int64": int64,
                "restore_ints": restore_ints,
            },
        )
        self.name = address.name
        self.queue_key = address.name.key
        self.prefix_key = address.name.prefix
        self.connection = address.connection
        self.embedded = self.connection.embedded
        self.logger: Any = logger or logging.getLogger("bunqueue")
        self._owns_connection = address.owns_connection
        self._batchers: dict[str, AddBatcher] = {}
        self._only_batcher: AddBatcher | None = None  # that of a plain process
        forks.watch(self)

    # -- producing ------------------------------------------------------------------------------

    def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job[Any]:
        """Add a job and return it. Waits.

        Args:
            name: Name of the job.
            data: Payload, anything msgpack can carry.
            **options: See ``JobOptions``.

        Raises:
            TypeError: An unknown option.
            SerializationError: The payload has no form on the wire; nothing was sent.
            CommandError: The broker refused the job.
            CommandTimeoutError: Outcome unknown; try again only with a ``job_id``.
            ConnectionClosedError: Unreachable, lost, or closed.
        """
        fields = self._fields(name, data, options)
        if self._batching is None or fields.get("durable") or not UNBATCHED.isdisjoint(fields):
            reply = self.connection.call({"cmd": "PUSH", "queue": self.queue_key, **fields})
            return self._added(fields, str(reply["id"]))
        job: Job[Any] = (self._only_batcher or self._batcher()).add(fields)
        return job

    def _added(self, fields: dict[str, Any], job_id: str) -> Job[Any]:
        return Job({**fields, "id": job_id, "queue": self.queue_key}, self.connection)

    def add_bulk(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add jobs in one command and return their ids in order. Waits.

        Args:
            jobs: Entries ``{"name", "data", **options}``; options may also sit under ``"opts"``.
        """
        entries = [self._entry(job) for job in jobs]
        return push_all(self.connection.call, self.queue_key, entries) if entries else []

    def add_bulk_jobs(self, jobs: Sequence[Mapping[str, Any]]) -> list[Job[Any]]:
        """Add jobs in one command and return them in order. Waits."""
        entries = [self._entry(job) for job in jobs]
        ids = push_all(self.connection.call, self.queue_key, entries) if entries else []
        return [self._added(fields, job_id) for fields, job_id in zip(entries, ids, strict=True)]

    def _fields(self, name: str, data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        if not options and not self.default_job_options:
            return {"name": name, "data": data}
        merged = {**self.default_job_options, **options}
        return {
            "name": name,
            "data": with_parent_link(data, merged.get("parent")),
            **to_wire(merged),
        }

    def _entry(self, job: Mapping[str, Any]) -> dict[str, Any]:
        if job.__class__ is dict and job.keys() == _PLAIN_ENTRY and not self.default_job_options:
            return job.copy()  # what most entries are
        if not isinstance(job, Mapping):
            raise TypeError("a bulk entry must be a dict with name, data and options")
        options = {key: value for key, value in job.items() if key not in ("name", "data", "opts")}
        options.update(job.get("opts") or {})
        return self._fields(job["name"], job.get("data"), options)

    def _batcher(self) -> AddBatcher:
        world = worlds.current()
        batcher = self._batchers.get(world.name)
        if batcher is None:
            assert self._batching is not None
            made = AddBatcher(
                lambda command: self.connection.call(command),
                self.queue_key,
                world,
                *self._batching,
                observe=observer_of(self.connection),
                made=self._added,
            )
            batcher = self._batchers.setdefault(world.name, made)
            if worlds.standard().is_native:
                self._only_batcher = batcher
        return batcher

    def forward(
        self,
        to: Target,
        *,
        queue: str | None = None,
        concurrency: int = 4,
        durable: bool = False,
        preserve: Sequence[str] = ("priority",),
    ) -> Forwarder:
        """Hand the jobs of this queue to a queue of another broker, until that is closed.

        Each job has the same id there however often it is handed over, so it is not doubled while
        it is unfinished there. Failures cost the job an attempt here: give jobs that must survive
        long outages many ``attempts``, or have dead letters retried (``set_dlq_config``).

        Args:
            to: A ``Connection``, a dict of its parameters (certificates are verified unless it says
                otherwise), or a url.
            queue: Name there; by default the same.
            concurrency: How many jobs are under way at once.
            durable: Have each one written to disk there before it counts as handed over; without
                it, a crash there may lose what it took in the last moments.
            preserve: Which options go along: any of ``priority``, ``tags``, ``group_id``,
                ``timeout``, ``attempts``, ``backoff``, ``ttl``, ``lifo``.

        Raises:
            ValueError: ``to`` is this very queue, or ``preserve`` names something else.
        """
        from bunqueue.client.forwarder import Forwarder  # producers need no worker

        return Forwarder(
            self, to, queue=queue, concurrency=concurrency, durable=durable, preserve=preserve
        )

    # -- lifecycle ------------------------------------------------------------------------------

    def ping(self) -> bool:
        """Tell whether the broker answers. Waits."""
        return bool(self.connection.ping())

    def wait_until_ready(self) -> None:
        """Open and authenticate now. Waits."""
        self.connection.connect()

    def move(self, name: QueueName, connection: Connection | None) -> None:
        """Go by another name from now on, and by a connection that becomes its own if one is given.

        The old one stays open: other code may have been handed it.
        """
        self.name, self.queue_key, self.prefix_key = name, name.key, name.prefix
        self._batchers, self._only_batcher = {}, None
        if connection is not None:
            self.connection, self.embedded = connection, connection.embedded
            self._owns_connection = True

    def close(self) -> None:
        """Let adds that are under way end, then close the connection if it is this queue's own.

        Waits for them, but not for long. A second call does nothing.
        """
        for batcher in self._batchers.values():
            batcher.drain(CLOSE_DRAIN_S)
        if self._owns_connection:
            self.connection.close()

    disconnect = close

    def forget_parent(self) -> None:
        """Start afresh in a forked child."""
        self._batchers, self._only_batcher = {}, None

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.queue_key!r} on {self.connection!r}>"


def observer_of(connection: Any) -> Callable[..., None] | None:
    """Return who hears of batches, if anybody; what takes a connection's place need not know."""
    if not getattr(connection, "is_observed_widely", False):
        return None
    observe: Callable[..., None] = connection.observe
    return observe
