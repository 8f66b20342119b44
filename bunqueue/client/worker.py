"""Worker: pulls jobs of one queue, runs the handler, reports.

Its parts, each in a file: the pull loop asks for jobs the moment a slot is free; an executor runs
handlers in threads or greenlets; ``Outcomes`` reports; the lease keeper beats from a thread of its
own whatever the handlers do; a mailbox calls listeners of the loop's events. The worker itself is
what they share: slots, leases, and the way from running to closed.

All its tasks live in one world, native threads for the ``thread`` executor and greenlets of the
main hub for ``greenlet``. Whoever calls ``close()`` or ``run()`` may be in the other one; that is
what latches and gates are for.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Self

from bunqueue.client import forks, worker_options, worlds
from bunqueue.client.ack_batch import AckBatcher
from bunqueue.client.ack_flow import AckFlow
from bunqueue.client.ahead import Ahead
from bunqueue.client.cancel import CancelSignal
from bunqueue.client.closing import Closing
from bunqueue.client.connecting import address_of
from bunqueue.client.connection import Connection
from bunqueue.client.delivery import Delivery
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.endpoint import (
    COMMAND_TIMEOUT_S_DEFAULT,
    CONNECT_TIMEOUT_S_DEFAULT,
    HOST_DEFAULT,
    PORT_DEFAULT,
    TlsOption,
)
from bunqueue.client.executors import Executor, GreenletExecutor, ThreadExecutor
from bunqueue.client.held import HeldLeases
from bunqueue.client.job import Job
from bunqueue.client.key_gate import KeyGate
from bunqueue.client.late import LateOutcomes
from bunqueue.client.mailbox import Mailbox
from bunqueue.client.manual import ManualControl
from bunqueue.client.native_batch import BatchOptions, Gathering
from bunqueue.client.outcomes import Outcomes, call_off
from bunqueue.client.pull_loop import PullLoop
from bunqueue.client.rate_gate import RateGate
from bunqueue.client.sandbox.executor import SandboxExecutor
from bunqueue.client.sandbox.options import processor_name, sandbox_options
from bunqueue.client.sandbox.slots import Slots
from bunqueue.client.signals import SignalScope
from bunqueue.client.stall_watch import StallWatch
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.client.time_limits import TimeLimits
from bunqueue.client.types import LoggerLike
from bunqueue.client.values import IntegerPolicy, QueueName
from bunqueue.errors import BunqueueError, RateLimitError

Processor = Callable[..., Any]


class Worker(EventEmitter, ManualControl):
    """Runs a handler for the jobs of one queue.

    Args:
        queue: Logical name, or a ``Queue``'s ``name``.
        processor: Called with the job, or with the job and a context that has ``.signal``.
        host: Where the broker listens.
        port: Its TCP port.
        token: Authentication token.
        tls: See ``Connection``.
        concurrency: How many jobs run at once.
        batch_size: How many jobs a pull may bring.
        poll_timeout_ms: How long a pull waits at the broker.
        lock_ttl_ms: Span of a lease; None for the broker's.
        heartbeat_interval_s: Seconds between beats, at most a third of a lease; 0 for none.
        autorun: Start in the constructor.
        name: What the broker lists it as.
        ack_batch: ``{"max_size", "max_delay_ms"}`` to hold successes back for batches; False to
            send each by itself. By default those that meet leave together.
        on_telemetry: Called with a dict per event.
        prefix_key: Namespace in front of the queue's name.
        connection: A ``Connection`` to share, or a dict of its parameters.
        embedded: Use the engine in this process.
        data_path: The embedded engine's file.
        url: ``bunqueue://[:token@]host[:port]``.
        executor: ``"auto"``, ``"greenlet"``, ``"thread"`` or ``"process"``. A processor given as
            ``"module:function"`` or as the path of a file runs in child processes.
        sandbox: Options of the child processes, see ``SandboxOptions``.
        shutdown_timeout_s: How long ``run()`` drains after a signal; None for no bound.
        limiter: ``{"max", "duration"}``: at most that many job starts per ms window. With
            ``"group_key"``: at most ``max`` jobs at once per value of that field of the data.
        group: ``{"concurrency", "limit": {"max", "duration"}}``, defaults for each group.
        batch: ``{"size", "min_size", "timeout", "group_affinity"}``: one call of the processor for
            several jobs, ``job.get_batch()``; ``concurrency`` counts the calls.
        use_locks: Pull with a lease.
        skip_lock_renewal: Do not renew leases.
        drain_delay_ms: Pause after an empty pull when ``poll_timeout_ms`` is 0.
        remove_on_complete: Forget jobs once they are done.
        remove_on_fail: Forget jobs once they have failed for good.
        max_jobs: Close after that many finished jobs; 0 for never.
        on_timeout: ``"cooperative"`` or ``"kill"``: what happens here when a job outlives its
            ``timeout``.
    """

    RateLimitError = RateLimitError

    def __init__(
        self,
        queue: str,
        processor: Processor,
        *,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        concurrency: int = 4,
        batch_size: int = worker_options.BATCH_SIZE_DEFAULT,
        poll_timeout_ms: float = worker_options.POLL_TIMEOUT_MS_DEFAULT,
        lock_ttl_ms: float | None = worker_options.LOCK_TTL_MS_DEFAULT,
        heartbeat_interval_s: float = worker_options.HEARTBEAT_S_DEFAULT,
        autorun: bool = True,
        name: str | None = None,
        ack_batch: Mapping[str, Any] | bool | None = None,
        on_telemetry: TelemetryHandler | None = None,
        prefix_key: str = "",
        connection: Connection | Mapping[str, Any] | None = None,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        url: str | None = None,
        command_timeout: float | None = COMMAND_TIMEOUT_S_DEFAULT,
        connect_timeout: float | None = CONNECT_TIMEOUT_S_DEFAULT,
        pool_size: int = 1,
        max_in_flight: int = 0,
        logger: LoggerLike | None = None,
        executor: str = "auto",
        sandbox: Mapping[str, Any] | None = None,
        shutdown_timeout_s: float | None = None,
        limiter: Mapping[str, Any] | None = None,
        group: Mapping[str, Any] | None = None,
        batch: Mapping[str, Any] | None = None,
        use_locks: bool = True,
        skip_lock_renewal: bool = False,
        skip_stalled_check: bool = False,
        drain_delay_ms: float = 50,
        remove_on_complete: bool | None = None,
        remove_on_fail: bool | None = None,
        max_jobs: int = 0,
        on_timeout: str = "cooperative",
        max_stalled_count: int | None = None,
        int64: IntegerPolicy = "auto",
        restore_ints: bool = False,
    ) -> None:
        EventEmitter.__init__(self)
        del skip_stalled_check, max_stalled_count  # the broker's affair; taken for BullMQ's sake
        self.executor = worker_options.executor_name(executor, processor)
        self.processor = processor
        self.sandbox = dict(sandbox or {})
        self._choose_handler()
        self._concurrency = worker_options.concurrency(concurrency)
        self.batch_size = worker_options.batch_size(batch_size)
        self.poll_timeout_ms = worker_options.poll_timeout_ms(poll_timeout_ms)
        self.lock_ttl_ms = worker_options.lock_ttl_ms(lock_ttl_ms)
        self.heartbeat_interval_s = heartbeat_interval_s
        self._beat_s = worker_options.beat_period_s(heartbeat_interval_s, self.lock_ttl_ms)
        if on_timeout not in ("cooperative", "kill"):
            raise ValueError("on_timeout must be 'cooperative' or 'kill'")
        self._acks = worker_options.ack_batch(ack_batch)
        self.acks_meet = worker_options.acks_meet(ack_batch)
        self.rate_gate = RateGate(limiter)
        self._key_cap = worker_options.key_cap(limiter)
        self.group = worker_options.group_terms(group)
        self.batch = None if batch is None else BatchOptions(batch)
        if self.batch is not None:
            self._check_batch(self.batch)
        address = address_of(
            queue,
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
                "logger": logger,
                "int64": int64,
                "restore_ints": restore_ints,
            },
        )
        self.queue = address.name
        self.queue_key = address.name.key
        self.connection = address.connection
        # Closing cuts the long poll at its socket, so a shared connection is not used for pulls.
        self.pull_connection = (
            self.connection if address.owns_connection else self.connection.clone()
        )
        self._owns_connection = address.owns_connection
        self.logger: Any = logger or logging.getLogger("bunqueue.worker")
        self.worker_id = f"py-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.name = name or self.worker_id
        self.shutdown_timeout_s = shutdown_timeout_s
        self.use_locks = use_locks
        self.drain_delay_ms = drain_delay_ms
        self.remove_on_complete = remove_on_complete
        self.remove_on_fail = remove_on_fail
        self.renews_leases = not skip_lock_renewal
        self._max_jobs = max_jobs
        self._on_timeout = on_timeout
        self._set_up()
        forks.watch(self)
        if autorun:
            self.start()

    def _set_up(self) -> None:
        """Make the state of a worker that has not been started."""
        # In a native thread of a patched process no greenlet of ours would get its turn.
        native = self.executor == "thread" or worlds.current().is_native
        self.world = worlds.native() if native else worlds.standard()
        self.wake = self.world.gate()
        self.processed = 0
        self.failed = 0
        self.failure: BaseException | None = None
        self.is_closing = False
        self.leases = HeldLeases(self, self._beat_s)
        self._closing = Closing(self)
        self.late = LateOutcomes(
            self.world, lambda command: self.connection.call(command), self._closing.look
        )
        self._finished = 0
        self._reconnects = 0
        self.is_started = False
        self._is_paused = False
        self.active: dict[str, Delivery] = {}
        self._state_lock = self.world.lock()
        self._ready = worlds.Latch()
        self.loop_has_ended = worlds.Latch()
        self.closed = worlds.Latch()
        self._outcomes = Outcomes(self)
        self.ack_flow = AckFlow(
            lambda command: self.connection.call(command),
            self.world,
            self._outcomes.settle,
            remove_on_complete=self.remove_on_complete,
            batches=self.acks_meet,
        )
        self._time_limits = TimeLimits(self)
        self.loop = PullLoop(self)
        self.stalls = StallWatch(self)
        self.mailbox = Mailbox(self.world, "bunqueue-events")
        self.executor_object: Executor = (
            ThreadExecutor(self.world, self._outcomes.run, f"bunqueue-{self.queue}")
            if self.world.is_native
            else GreenletExecutor(self._outcomes.run)
        )
        self._key_gate = None if self._key_cap is None else KeyGate(self.world, *self._key_cap)
        self.gathering = None if self.batch is None else Gathering(self.batch)
        self.ahead = Ahead(self._reads_ahead())
        self.slots: Slots | None = None
        if self.executor == "process":
            self._set_up_sandbox()
        self.ack_batcher = (
            AckBatcher(
                self.connection,
                *self._acks,
                world=self.world,
                remove_on_complete=self.remove_on_complete,
                observe=self.connection.observe,
            )
            if self._acks is not None
            else None
        )

    def _reads_ahead(self) -> bool:
        """Tell whether nothing but free slots says when a job may start."""
        is_free = self.rate_gate.limit is None and self._key_gate is None and self.group is None
        is_plain = self.batch is None and self.executor != "process" and not self._max_jobs
        return is_free and is_plain and self.use_locks

    def _check_batch(self, batch: BatchOptions) -> None:
        """Refuse batches where they cannot work, and pull as many jobs as one takes."""
        if self.executor == "process":
            raise ValueError("native batches need the executor 'greenlet' or 'thread'")
        if self._key_cap is not None:
            raise ValueError("native batches cannot be limited by group_key")
        if self.rate_gate.limit is not None and batch.min_size > self.rate_gate.limit:
            raise ValueError("batch min_size must not be above limiter max")
        self.batch_size = batch.size

    def _choose_handler(self) -> None:
        """Make what runs a job: the user's function here, or its name for the children."""
        self._sandbox_options = sandbox_options(self.sandbox)
        if self.executor != "process":
            self.handler = worker_options.handler(self.processor)
            return
        if callable(self.processor):
            worker_options.handler(self.processor)  # refuses coroutines
        self._processor_name = processor_name(self.processor)

    def _set_up_sandbox(self) -> None:
        """Put child processes behind the tasks that run deliveries."""
        options = self._sandbox_options
        self.slots = Slots(
            self._processor_name,
            options,
            self.world,
            self._slots_changed,
            lambda error: self.post_event("error", error),
            lambda: None if options.auto_start else self.close(0),
        )
        sandboxed = SandboxExecutor(self.slots, self.executor_object, options.timeout_ms)
        self.executor_object = sandboxed
        self.handler = sandboxed.handle

    def _slots_changed(self) -> None:
        """Pull for a child that has become ready; close when none will ever be again."""
        slots = self.slots
        if slots is not None and slots.are_retired() and not self.is_closing:
            self.failure = BunqueueError(f"no sandbox child is left: {slots.last_error}")
            self.post_event("error", self.failure)
            self.close(0)
        self.wake.open()

    def change(self, **options: Any) -> None:
        """Give a worker that has not started other options than its constructor got.

        Args:
            options: By the constructor's names: those of ``worker_options.CHANGES``, and those of
                a ``Connection``, which make the worker one of its own.

        Raises:
            RuntimeError: It has started or closed.
            TypeError, ValueError: An option that cannot be changed, or a value that cannot work.
        """
        if self.is_started or self.is_closing:
            raise RuntimeError("a worker that has started keeps its options; use autorun=False")
        known = worker_options.CHANGES
        own = {name: known[name](options.pop(name)) for name in known.keys() & options.keys()}
        if "executor" in own:
            self.executor = worker_options.executor_name(own.pop("executor"), self.processor)
        if "ack_batch" in own:
            given = own.pop("ack_batch")
            self._acks = worker_options.ack_batch(given)
            self.acks_meet = worker_options.acks_meet(given)
        if "sandbox" in own:
            self.sandbox |= own.pop("sandbox")
        self._choose_handler()
        if "prefix_key" in own:
            self.queue = QueueName(str(self.queue), own.pop("prefix_key"))
            self.queue_key = self.queue.key
        self._max_jobs = own.pop("max_jobs", self._max_jobs)
        for name, value in own.items():
            setattr(self, name, value)
        self._beat_s = worker_options.beat_period_s(self.heartbeat_interval_s, self.lock_ttl_ms)
        if options:
            # The old one was never ours alone to close: other code may have been handed it.
            self.connection = self.connection.clone(embedded=False, data_path=None, **options)
            self.pull_connection = self.connection
            self._owns_connection = True
        is_paused = self._is_paused
        self._set_up()
        self._is_paused = is_paused

    # -- lifecycle ------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in the background; a second call does nothing."""
        with self._state_lock:
            if self.is_started or self.is_closing:
                return
            self.is_started = True
        self.mailbox.open()
        self.leases.start()
        if self.has_listeners("stalled"):
            self.stalls.open()
        if self.slots is not None:
            self.slots.resize(self._concurrency)
        self._run_thread = self.world.spawn(self.loop.run, f"bunqueue-worker-{self.queue}")

    def run(self, signals: str | bool = "auto") -> None:
        """Run until the worker has closed. Waits.

        Args:
            signals: False leaves SIGTERM and SIGINT alone.

        Raises:
            BunqueueError: The loop ended through a permanent failure.
            KeyboardInterrupt: A SIGINT had asked it to close.
        """
        with SignalScope(self.drain_soon, self.force_soon, is_on=bool(signals)) as scope:
            self.start()
            self.closed.wait()
        if scope.was_interrupted:
            raise KeyboardInterrupt
        if self.failure is not None:
            raise self.failure

    def drain_soon(self) -> None:
        """Close gracefully, then by force once ``shutdown_timeout_s`` have passed; do not wait."""

        def drain() -> None:
            if not self.close(self.shutdown_timeout_s):
                self.close(force=True)

        self.world.spawn(drain, "bunqueue-close")

    def force_soon(self) -> None:
        """Close by force; do not wait."""
        self.world.spawn(lambda: self.close(force=True), "bunqueue-close")

    def close(self, timeout: float | None = None, *, force: bool = False) -> bool:
        """Stop pulling, let active jobs finish, and leave. Waits.

        Args:
            timeout: Seconds to wait; the drain goes on after that.
            force: Send unfinished jobs back at once instead.

        Returns:
            False when the time was over first.
        """
        with self._state_lock:
            is_first = not self.is_closing
            with self.ahead.lock:  # whatever is started was started before
                self.is_closing = True
        if is_first:
            self.world.spawn(self._closing.run, "bunqueue-close")
        self.wake.open()
        if force:
            self._closing.force()
        if self.is_own_code():
            return False  # it cannot wait for its own end
        return self.closed.wait(timeout)

    def run_beside(self, end: Callable[[], object]) -> None:
        """Make a call that closes this worker and waits: beside own code, which must not wait."""
        if self.is_own_code():
            self.close(0)  # no further job is taken
            self.world.spawn(end, "bunqueue-close")
        else:
            end()

    stop = close

    def loop_ended(self) -> None:
        """Note that the pull loop is over; after a failure the worker closes."""
        self.loop_has_ended.set()
        if not self.is_closing:
            self.close(0)  # at once, so that no further job is taken; the drain runs by itself

    def pause(self) -> None:
        """Stop pulling; leases and registration stay."""
        self._is_paused = True
        self.wake.open()  # what was read ahead goes back
        self.emit("paused")

    def resume(self) -> None:
        """Pull again."""
        self._is_paused = False
        self.wake.open()
        self.emit("resumed")

    def is_running(self) -> bool:
        """Tell whether it has been started and has not closed."""
        return self.is_started and not self.closed.is_set()

    def is_paused(self) -> bool:
        """Tell whether it is paused."""
        return self._is_paused

    def is_closed(self) -> bool:
        """Tell whether it has closed."""
        return self.closed.is_set()

    def wait_until_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker knows the worker.

        Raises:
            TimeoutError: Not within ``timeout`` seconds.
        """
        if not self._ready.wait(timeout):
            raise TimeoutError(f"worker not ready within {timeout} s")

    def forget_parent(self) -> None:
        """In a forked child the worker does not run."""
        self.stalls.forget()
        if self.slots is not None:
            self.slots.forget()
        self._set_up()
        self.is_closing = True
        self.closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Worker {self.name} queue={self.queue_key!r}>"

    # -- slots ----------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs run at once."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        self._concurrency = worker_options.concurrency(value)
        if self.slots is not None and self.is_started:
            self.slots.resize(value)
        self.wake.open()

    @property
    def active_count(self) -> int:
        """How many jobs are in a slot."""
        return len(self.active)

    def free_slots(self) -> int:
        """Return how many jobs may be pulled now.

        Jobs whose ACK is on its way are in no slot. There may be as many of them as there are
        slots, so that a broker that is slow to take ACKs slows the pulls down too.
        """
        active, leaving = len(self.active), self.ack_flow.waiting
        slots = self._concurrency * (1 if self.batch is None else self.batch.size)
        free = slots - active
        if self.slots is not None:
            free = min(free, self.slots.usable() - active)
        if leaving > slots:
            free -= leaving - slots
        if self._max_jobs:
            free = min(free, self._max_jobs - self._finished - active - leaving)
        return min(free, self.rate_gate.room())

    def may_pull(self) -> bool:
        """Tell whether a pull makes sense now."""
        if self._is_paused:
            return False
        free = self.free_slots()
        return free > 0 or (free == 0 and self.ahead.is_low)

    def rest_s(self) -> float | None:
        """Return how long to wait for a wake-up at most; None for no bound."""
        late_s = self.ahead.rest_s if self.gathering is None else self.gathering.rest_s()
        if self._is_paused or self.free_slots() <= 0 < self.rate_gate.room():
            return late_s
        rest_s = self.rate_gate.rest_s()
        return rest_s if late_s is None or rest_s is None else min(rest_s, late_s)

    def start_delivery(self, delivery: Delivery) -> bool:
        """Give a delivery a slot and have it run, as soon as there is one; False when closing."""
        job_id = delivery.id
        with self.ahead.lock:
            if self.is_closing:
                return False
            self.leases.held[job_id] = delivery.token
            if self.has_full_slots and self.gathering is None:
                self.ahead.put(delivery)
                return True
            self.active[job_id] = delivery
        self._start(delivery)
        return True

    @property
    def has_full_slots(self) -> bool:
        """Whether every slot has its job."""
        return len(self.active) >= self._concurrency

    def _may_start(self) -> bool:
        """Tell whether a job that was read ahead may take the slot that has come free."""
        is_held_up = self._is_paused or self.is_closing or self.has_full_slots
        return not is_held_up and self.rate_gate.room() > 0

    def _start(self, delivery: Delivery) -> None:
        """Have a delivery run that has its slot."""
        self.rate_gate.note_start()
        timeout_ms = delivery.job.raw.get("timeout")
        if timeout_ms and self.leases.are_kept:
            self._time_limits.note(delivery, timeout_ms / 1000)
        if self.gathering is not None:
            for batch in self.gathering.add(delivery):
                self.start_batch(batch)
        elif self._key_gate is None or self._key_gate.may_start(delivery):
            self.executor_object.submit(delivery)

    def start_batch(self, members: list[Delivery]) -> None:
        """Have the first of some deliveries run for all of them."""
        leader = members[0]
        leader.members = members
        leader.job.batch = [member.job for member in members]
        for member in members[1:]:
            member.job.share_signal(leader.job)
        self.executor_object.submit(leader)

    def release(self, delivery: Delivery, keep_lease: bool = False) -> None:
        """Free a delivery's slot, once, and let the pull loop know."""
        if delivery.is_released:
            return
        delivery.is_released = True
        job_id = delivery.id
        next_one = None
        with self.ahead.lock:
            if self.active.get(job_id) is delivery:
                del self.active[job_id]
                self.ahead.note_freed()
                if self.ahead and self._may_start():
                    next_one = self.ahead.take()
                    assert next_one is not None
                    self.active[next_one.id] = next_one
        if next_one is not None:
            self._start(next_one)
        if self._key_gate is not None and (following := self._key_gate.ended(delivery)):
            self.executor_object.submit(following)
        if not keep_lease:
            self._forget_lease(delivery)
        self.wake.open()
        if self.is_closing:
            self._closing.look()

    def drop_lease(self, delivery: Delivery) -> None:
        """Renew a delivery's lease no longer."""
        self._forget_lease(delivery)
        self.wake.open()
        if self.is_closing:
            self._closing.look()

    def _forget_lease(self, delivery: Delivery) -> None:
        """Drop a lease, but not the one under which the same job has come again."""
        job_id, held = delivery.id, self.leases.held
        with self.ahead.lock:
            is_ours = self.active.get(job_id, delivery) is delivery
            if is_ours and held.get(job_id) == delivery.token:
                held.pop(job_id, None)

    def waiting_acks(self) -> int:
        """Return how many ACKs have no outcome yet, buffered or under way."""
        buffered = 0 if self.ack_batcher is None else self.ack_batcher.waiting
        return self.ack_flow.waiting + buffered

    def look_again(self) -> None:
        """Have a close that is under way look whether it has drained."""
        self._closing.look()

    def send_back(self, delivery: Delivery) -> None:
        """Return a job to its queue, no attempt counted. Waits."""
        command = {"cmd": "MoveToWait", "id": delivery.id, "token": delivery.token}
        if delivery.token is None:
            del command["token"]
        try:
            self.connection.call(command)
        except BunqueueError as error:
            self.logger.warning("MoveToWait failed job=%s error=%s", delivery.id, error)

    def is_own_code(self) -> bool:
        """Tell whether a handler or a listener asks, for whose end a close would have to wait."""
        ident = threading.get_ident()
        if ident == self.mailbox.runner or ident in self._outcomes.telling:
            return True
        return any(delivery.runner == ident for delivery in list(self.active.values()))

    @property
    def has_run_its_jobs(self) -> bool:
        """Whether as many jobs have finished as ``max_jobs`` wants."""
        return 0 < self._max_jobs <= self._finished

    def note_finished(self) -> None:
        """Count a job that ended; the last one wanted closes the worker."""
        self._finished += 1
        if self._max_jobs and self._finished == self._max_jobs:
            self.close(0)  # at once, so that no further job is taken; the drain runs by itself

    def outlived(self, delivery: Delivery) -> None:
        """Called by the keeper when a job has outlived its timeout; does not wait."""
        hard = self._on_timeout == "kill"
        delivery.signal.flip("timeout")
        self.mailbox.post(lambda: call_off(delivery, "timeout", hard, self))

    # -- events ---------------------------------------------------------------------------------

    def on(self, event: str, listener: Any = None) -> Any:
        """Call ``listener`` at every ``event``; ``ready`` is replayed to one that comes late."""
        added = EventEmitter.on(self, event, listener) if listener else EventEmitter.on(self, event)
        if event == "stalled" and self.is_started:
            self.stalls.open()
        return added

    def once(self, event: str, listener: Any) -> Self:
        """Call ``listener`` at the next ``event`` only; ``ready`` is replayed to a late one."""
        EventEmitter.once(self, event, listener)
        if event == "stalled" and self.is_started:
            self.stalls.open()
        return self

    def _tell_late(self, listener: Any) -> None:
        self.mailbox.post(listener)

    def post_event(self, event: str, *args: Any) -> None:
        """Tell listeners about something the loop found, outside the loop if there is one."""
        if not self.has_listeners(event):
            return
        if self.is_started:
            self.mailbox.post(lambda: self.emit(event, *args))
        else:
            self._outcomes.tell(event, *args)

    def on_progress(self, job: Job[Any], value: Any) -> None:
        """Tell listeners about a job's progress."""
        self.emit("progress", job, value)

    def note_registered(self, is_first: bool) -> None:
        """Note that the broker knows the worker on its present link."""
        if self._ready.is_set():
            if not is_first:
                self._reconnects += 1
            return
        self._ready.set()
        self.mailbox.post(lambda: self._emit_lasting("ready"))

    def stats(self) -> dict[str, int]:
        """Return what has been done and what is under way."""
        return {
            "processed": self.processed,
            "failed": self.failed,
            "active": len(self.active),
            "waiting_acks": self.waiting_acks(),
            "reconnects": self._reconnects,
        }

    # -- cancellation ---------------------------------------------------------------------------

    def cancel_job(self, job_id: str, reason: str | None = None, *, hard: bool = False) -> bool:
        """Call a running job off; False when it does not run here.

        Args:
            job_id: Id of the job.
            reason: What the handler is told.
            hard: Interrupt the handler, where the executor can.
        """
        delivery = self.active.get(job_id)
        if delivery is None:
            return False
        call_off(delivery, reason, hard, self)
        self.emit("cancelled", {"jobId": job_id, "reason": reason})
        return True

    def cancel_all_jobs(self, reason: str | None = None, *, hard: bool = False) -> None:
        """Call every running job off."""
        for job_id in list(self.active):
            self.cancel_job(job_id, reason, hard=hard)

    def is_job_cancelled(self, job_id: str) -> bool:
        """Tell whether a running job was called off."""
        signal = self.signal_of(job_id)
        return signal is not None and signal.aborted

    def signal_of(self, job_id: str) -> CancelSignal | None:
        """Return the signal of a running job."""
        delivery = self.active.get(job_id)
        return None if delivery is None else delivery.signal

    # -- names that the official suite reads ------------------------------------------------------

    def _poll_once(self) -> int:
        return self.loop.poll_once()

    def _register(self) -> None:
        self.loop.register()

    @property
    def _registered_generation(self) -> int | None:
        return self.loop.registered_generation

    @_registered_generation.setter
    def _registered_generation(self, value: int | None) -> None:
        self.loop.registered_generation = value

    @property
    def _processed(self) -> int:
        return self.processed

    @property
    def _ack_batcher(self) -> AckBatcher | None:
        return self.ack_batcher
