"""Bunqueue, Simple Mode: a queue and its worker in one object.

A job goes through rate gate, circuit breaker, time to live, retries and middleware to its handler.
Each of these is a file beside this one and is there only if its option is given.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Self

from bunqueue.client import worker_options
from bunqueue.client.cancel import CancellationManager, CancelSignal
from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import HOST_DEFAULT, PORT_DEFAULT, TlsOption
from bunqueue.client.job import Job
from bunqueue.client.options import to_wire
from bunqueue.client.queue import Queue
from bunqueue.client.simple.aging import PriorityAging
from bunqueue.client.simple.app_queue import AppQueue
from bunqueue.client.simple.breaker import WorkerCircuitBreaker
from bunqueue.client.simple.handlers import Handler, Handlers, to_come
from bunqueue.client.simple.keys import Keys
from bunqueue.client.simple.retry import Retry
from bunqueue.client.simple.start_gate import StartGate
from bunqueue.client.simple.triggers import Triggers
from bunqueue.client.simple.ttl import TimeToLive
from bunqueue.client.worker import Worker
from bunqueue.errors import (
    DelayedError,
    JobCancelledError,
    RateLimitError,
    WaitingChildrenError,
)

Middleware = Callable[[Job[Any], Callable[[], Any]], Any]

log = logging.getLogger("bunqueue")


class Bunqueue(AppQueue):
    """A queue with a worker: exactly one of ``processor``, ``routes`` and ``batch`` says what runs.

    Args:
        name: Logical name of the queue.
        processor: Runs every job.
        routes: Name of a job -> what runs it.
        batch: ``{"size", "timeout", "processor"}``: jobs that are handed to one call together.
        host: Where the broker listens.
        port: Its TCP port.
        token: Authentication token.
        tls: See ``Connection``.
        concurrency: How many jobs run at once.
        batch_size: How many jobs a pull may bring.
        poll_timeout_ms: How long a pull waits at the broker.
        heartbeat_interval_s: Seconds between beats.
        autorun: Start in the constructor.
        default_job_options: Options under those of each job added here.
        retry: ``{"max_attempts", "delay", "strategy", "custom_backoff", "retry_if"}``.
        circuit_breaker: ``{"threshold", "reset_timeout", "on_open", "on_close", "on_half_open"}``.
        ttl: ``{"default_ttl", "per_name"}`` in ms.
        priority_aging: ``{"interval", "min_age", "boost", "max_priority", "max_scan"}``.
        deduplication: ``{"ttl", "extend", "replace"}``; twins are jobs of one name and payload.
        debounce: ``{"ttl"}``, by name.
        rate_limit: ``{"max", "duration", "group_key"}``: job starts per window.
        limiter: Another name of ``rate_limit``.
        dlq: Settings of the dead letters, applied before the first pull.
        embedded: Use the engine in this process.
        data_path: The embedded engine's file.
        prefix_key: Namespace in front of the name.
        connection: A ``Connection`` to share, or a dict of its parameters.
        url: ``bunqueue://[:token@]host[:port]``.
        executor: Where handlers run, see ``Worker``.
        **options: Any other keyword of ``Queue`` or ``Worker``; what neither knows is named in one
            warning and not used.

    Raises:
        ValueError, TypeError: An option that cannot work; nothing has been opened.

    Attributes:
        name: The name as given.
        queue: The ``Queue``.
        worker: The ``Worker``.
    """

    def __init__(
        self,
        name: str,
        *,
        processor: Handler | None = None,
        routes: Mapping[str, Handler] | None = None,
        batch: Mapping[str, Any] | None = None,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        concurrency: int = 4,
        batch_size: int = worker_options.BATCH_SIZE_DEFAULT,
        poll_timeout_ms: float = worker_options.POLL_TIMEOUT_MS_DEFAULT,
        heartbeat_interval_s: float = worker_options.HEARTBEAT_S_DEFAULT,
        autorun: bool = True,
        default_job_options: Mapping[str, Any] | None = None,
        retry: Mapping[str, Any] | None = None,
        circuit_breaker: Mapping[str, Any] | None = None,
        ttl: Mapping[str, Any] | None = None,
        priority_aging: Mapping[str, Any] | None = None,
        deduplication: Mapping[str, Any] | None = None,
        debounce: Mapping[str, Any] | None = None,
        rate_limit: Mapping[str, Any] | None = None,
        limiter: Mapping[str, Any] | None = None,
        dlq: Mapping[str, Any] | None = None,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        prefix_key: str = "",
        connection: Connection | Mapping[str, Any] | None = None,
        url: str | None = None,
        executor: str = "auto",
        **options: Any,
    ) -> None:
        is_deferred = processor is to_come
        _check_modes(processor, routes, batch)
        self.name = name
        self._handlers = Handlers(name, processor, routes, batch)
        self._middlewares: tuple[Middleware, ...] = ()
        self._default_job_options = dict(default_job_options or {})
        to_wire(self._default_job_options)
        self._keys = Keys(deduplication, debounce)
        self._retry = Retry(retry) if retry else None
        self._ttl = TimeToLive(ttl)
        limits = rate_limit or limiter
        self._gate = StartGate(limits) if limits else None
        self._aging = PriorityAging(priority_aging) if priority_aging else None
        self._dlq = dict(dlq or {})
        self._cancellation = CancellationManager()
        self._breaker: WorkerCircuitBreaker | None = None
        breaker = WorkerCircuitBreaker(circuit_breaker, None) if circuit_breaker else None
        for_queue, for_worker = _sorted_options(options)
        self.queue = Queue(
            name,
            host,
            port,
            token,
            tls,
            connection,
            prefix_key=prefix_key,
            embedded=embedded,
            data_path=data_path,
            url=url,
            **for_queue,
        )
        try:
            self.worker = Worker(
                self.queue.name,
                self._process,
                connection=self.queue.connection,
                concurrency=concurrency,
                batch_size=batch_size,
                poll_timeout_ms=poll_timeout_ms,
                heartbeat_interval_s=heartbeat_interval_s,
                autorun=False,
                executor=executor,
                **for_worker,
            )
            if breaker is not None:
                breaker.guard(self.worker)
            self._breaker = breaker
            self._triggers = Triggers(self.queue, self.worker)
            if self._aging is not None:
                self._aging.queue = self.queue
            if not is_deferred:
                self._prepare()
                if autorun:
                    self.worker.start()
        except BaseException:
            self.queue.close()
            raise

    @classmethod
    def deferred(cls, name: str, **options: Any) -> Self:
        """Return one whose handlers come from decorators; it begins with ``start`` or ``run``."""
        return cls(name, processor=to_come, **options)

    # -- handlers -------------------------------------------------------------------------------

    def route(self, name: str) -> Callable[[Handler], Handler]:
        """Have the decorated function run the jobs of one name."""

        def add(handler: Handler) -> Handler:
            self._handlers.add_route(name, handler)
            return handler

        return add

    def processor(self, handler: Handler) -> Handler:
        """Have the decorated function run every job."""
        self._handlers.set_processor(handler)
        return handler

    def batch(self, *, size: int, timeout: Any = None) -> Callable[[Handler], Handler]:
        """Have the decorated function run jobs together: it gets a list and returns one."""

        def add(handler: Handler) -> Handler:
            self._handlers.set_batch({"size": size, "timeout": timeout, "processor": handler})
            return handler

        return add

    def use(self, middleware: Middleware) -> Self:
        """Put ``middleware(job, next)`` around the handler, inside those before it."""
        self._middlewares = (*self._middlewares, middleware)
        return self

    # -- one job --------------------------------------------------------------------------------

    def _process(self, job: Job[Any], context: Any) -> Any:
        """Run one job through everything that was asked for. Waits."""
        if self._gate is not None:
            self._gate.wait(job.data, job.signal)
        if self._breaker is not None and self._breaker.is_open():
            raise RuntimeError("Circuit breaker is open")
        self._ttl.check(job.name or "", job.created_at or 0)
        signal = self._cancellation.register(job.id, job.signal)
        try:
            result = self._run(job, context, signal)
        except (DelayedError, RateLimitError, WaitingChildrenError):
            raise  # the job runs again: that is no failure
        except Exception:
            if self._breaker is not None:
                self._breaker.on_failure()
            raise
        else:
            if self._breaker is not None:
                self._breaker.on_success()
            return result
        finally:
            self._cancellation.unregister(job.id, signal)

    def _run(self, job: Job[Any], context: Any, signal: CancelSignal) -> Any:
        middlewares = self._middlewares

        def at(place: int) -> Any:
            if middlewares and signal.aborted:
                raise JobCancelledError("Job cancelled")
            if place < len(middlewares):
                return middlewares[place](job, lambda: at(place + 1))
            return self._handlers.run(job, context)

        if self._retry is None:
            return at(0)
        return self._retry.run(lambda: at(0), signal)

    # -- lifecycle ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Do what must be done before the first job."""
        dlq, self._dlq = self._dlq, {}
        if dlq:
            self.queue.set_dlq_config(dlq)
        if self._aging is not None:
            self._aging.start()

    def change(self, **options: Any) -> None:
        """Give one that has not started other options of its worker; see ``Worker.change``.

        The queue goes along, to another broker as into another namespace.
        """
        worker, before = self.worker, self.worker.connection
        worker.change(**options)
        is_moved = worker.connection is not before
        # Of its own: closing the worker cuts the worker's.
        self.queue.move(worker.queue, worker.connection.clone() if is_moved else None)

    def prepared(self) -> Worker:
        """Return the worker, ready to be started by somebody else; see ``start``."""
        self._handlers.check()
        self._prepare()
        return self.worker

    def start(self) -> None:
        """Run in the background; a second call does nothing.

        Raises:
            ValueError: There is no handler yet.
        """
        self.prepared().start()

    def run(self, signals: str | bool = "auto") -> None:
        """Run until closed, by a signal for example; see ``Worker.run``. Waits."""
        self._handlers.check()
        self._prepare()
        try:
            self.worker.run(signals)
        finally:
            self.close()

    def pause(self) -> None:
        """Pause the queue, for all its workers, and the worker here. Waits."""
        self.queue.pause()
        self.worker.pause()

    def resume(self) -> None:
        """Undo ``pause``. Waits."""
        self.queue.resume()
        self.worker.resume()

    def close(self, force: bool = False) -> None:
        """Let active jobs finish, or send them back with ``force``; then let go of all. Waits.

        A handler or listener of its own cannot wait for that: the rest goes on beside it.
        """
        self._handlers.hurry()
        self.worker.run_beside(lambda: self._close(force))

    def _close(self, force: bool) -> None:
        self.worker.close(force=force)
        if self._aging is not None:
            self._aging.stop()
        if self._breaker is not None:
            self._breaker.destroy()
        self._cancellation.destroy_all()
        self.queue.close()

    def is_running(self) -> bool:
        """Tell whether the worker has been started and has not closed."""
        return self.worker.is_running()

    def is_paused(self) -> bool:
        """Tell whether the worker is paused."""
        return self.worker.is_paused()

    def is_closed(self) -> bool:
        """Tell whether the worker has closed."""
        return self.worker.is_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bunqueue {self.queue.queue_key!r} on {self.queue.connection!r}>"


def _check_modes(*modes: Any) -> None:
    count = sum(1 for mode in modes if mode)
    if count == 0:
        raise ValueError('Bunqueue requires "processor", "routes", or "batch"')
    if count > 1:
        raise ValueError('Bunqueue: use only one of "processor", "routes", or "batch"')


def _sorted_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is for the queue, whose connection the worker shares, and what for the worker."""
    queue_knows = inspect.signature(Queue).parameters
    worker_knows = inspect.signature(Worker).parameters
    for_queue = {name: value for name, value in options.items() if name in queue_knows}
    for_worker = {
        name: value
        for name, value in options.items()
        if name in worker_knows and name not in queue_knows
    }
    if "logger" in options:
        for_worker["logger"] = options["logger"]  # each writes lines of its own
    unknown = sorted(options.keys() - for_queue.keys() - for_worker.keys())
    if unknown:
        log.warning("Bunqueue does not know these keywords: %s", " ".join(unknown))
    return for_queue, for_worker
