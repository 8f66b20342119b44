"""Outcomes: run a delivery's handler and tell the broker how it went.

The broker decides. An event follows only what it has applied: a late answer frees the slot and says
nothing, a refused one emits ``error``. A slot is free before any listener hears of it.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from bunqueue.client import requests, worlds
from bunqueue.client.ack_batch import AckItem
from bunqueue.client.ack_flow import Success
from bunqueue.client.cancel import CancelSignal
from bunqueue.client.current_job import RUNNING
from bunqueue.client.delivery import Delivery
from bunqueue.client.job import Job
from bunqueue.client.options import milliseconds
from bunqueue.errors import (
    BunqueueError,
    CommandTimeoutError,
    ConnectionClosedError,
    DelayedError,
    JobCancelledError,
    JobTimeoutError,
    RateLimitError,
    SerializationError,
    WaitingChildrenError,
)
from bunqueue.protocol.options import BACKOFF_MS_CAP, BACKOFF_MS_DEFAULT

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker


class JobFailed(Exception):
    """A member of a batch that the handler set as failed, with a text."""


class Context:
    """What a processor of two parameters gets beside the job."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[Any]) -> None:
        self._job = job

    @property
    def signal(self) -> CancelSignal:
        """Tells that the work is no longer wanted."""
        return self._job.signal


class Outcomes:
    """The part of a worker that runs handlers and reports.

    Attributes:
        telling: Identities of threads or greenlets in listeners that the end may wait for.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.telling: set[int] = set()

    def run(self, delivery: Delivery) -> None:
        """Run one delivery from ``active`` to the free slot. Never raises. Waits."""
        worker = self._worker
        job = delivery.job
        if delivery.members is not None:
            self._run_batch(delivery, delivery.members)
            return
        if delivery.is_abandoned:
            worker.release(delivery)
            return
        delivery.runner = get_ident()
        started = worlds.now()
        running = RUNNING.set(job)
        try:
            if delivery.interrupted_with is not None:  # before its turn had come
                raise delivery.interrupted_with
            if worker.has_listeners("active"):
                worker.emit("active", job)
            result = worker.handler(job, Context(job))
        except BaseException as error:  # the job fails, the worker never does
            delivery.task = None  # what is left to do is not the handler's to be interrupted in
            if worker.connection.is_observed_widely:
                self._observe(job, "failed", started)
            self._ended_badly(delivery, error)
        else:
            delivery.task = None
            if worker.connection.is_observed_widely:
                self._observe(job, "completed", started)
            self._ended_well(delivery, result)
        finally:
            RUNNING.reset(running)
            delivery.runner = None
            worker.release(delivery)

    def _run_batch(self, leader: Delivery, members: list[Delivery]) -> None:
        """Run the handler once for several deliveries; each has its own outcome. Waits."""
        worker, started = self._worker, worlds.now()
        for member in members:
            member.runner = get_ident()
            member.task = leader.task
        running = RUNNING.set(leader.job)
        failure: BaseException | None = None
        result: Any = None
        try:
            if worker.has_listeners("active"):
                for member in members:
                    worker.emit("active", member.job)
            if not all(member.is_abandoned for member in members):
                result = worker.handler(leader.job, Context(leader.job))
        except BaseException as error:  # the jobs fail, the worker never does
            failure = error
        try:
            for member in members:
                member.task = None
                failure = member.interrupted_with or failure
            failed = [(one, failure or _own_failure(one)) for one in members]
            self._tell_batch(failed, result, started)
        finally:
            RUNNING.reset(running)
            for member in members:
                member.runner = None
                worker.release(member)

    def _tell_batch(
        self,
        members: list[tuple[Delivery, BaseException | None]],
        result: Any,
        started: float,
    ) -> None:
        plain: list[Delivery] = []
        for member, error in members:
            if self._worker.connection.is_observed_widely:
                self._observe(member.job, "failed" if error else "completed", started)
            if error is not None:
                self._ended_badly(member, error)
            elif self._goes_by_flow(member):
                plain.append(member)
            else:
                self._ended_well(member, result)
        flow, first = self._worker.ack_flow, None
        is_heard = self._worker.has_listeners("completed")
        successes = [Success(member, result) for member in plain]
        for success in successes:
            if is_heard:
                success.gate = self._worker.world.local_gate()
            if not flow.join(success):
                first = success  # the others line up behind it
        try:
            if first is not None:
                flow.send(first)
        finally:
            if is_heard:
                self._conclude_all(successes)

    def _goes_by_flow(self, delivery: Delivery) -> bool:
        """Tell whether a success is one that ``_ended_well`` would leave to the ACK flow."""
        is_plain = not delivery.is_abandoned and delivery.job._consumed_by is None
        return is_plain and self._worker.ack_batcher is None and self._worker.acks_meet

    def _observe(self, job: Job[Any], outcome: str, started: float) -> None:
        worker = self._worker
        worker.connection.observe(
            "job",
            queue=worker.queue_key,
            name=job.name,
            outcome=outcome,
            duration_ms=(worlds.now() - started) * 1000,
        )

    # -- endings ------------------------------------------------------------------------------

    def _ended_well(self, delivery: Delivery, result: Any) -> None:
        worker, job = self._worker, delivery.job
        if delivery.is_abandoned:
            return
        if job._consumed_by is not None:
            self._consumed(delivery, result, None)
            return
        if worker.ack_batcher is not None:
            worker.release(delivery, keep_lease=True)
            worker.ack_batcher.add(self._ack_item(delivery, result))
            return
        self._succeeded(delivery, result)

    def _ended_badly(self, delivery: Delivery, error: BaseException) -> None:
        job = delivery.job
        if delivery.is_abandoned:
            return
        if delivery.interrupted_with is not None:
            error = delivery.interrupted_with
        if job._consumed_by is not None:
            self._consumed(delivery, None, error)
        elif isinstance(error, RateLimitError):
            return  # the job has gone back to its queue already
        elif isinstance(error, DelayedError):
            delay = error.delay_ms if error.delay_ms is not None else _base_backoff_ms(job.raw)
            self._move(delivery, "MoveToDelayed", delay=max(1, milliseconds(delay)))
        elif isinstance(error, WaitingChildrenError):
            self._move(delivery, "MoveToWaitingChildren")
        else:
            self._fail(delivery, error)

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        limit = delivery.job.raw.get("stackTraceLimit")
        command = requests.failed(delivery.id, error, delivery.token, limit)
        if self._worker.remove_on_fail is not None:
            command["removeOnFail"] = self._worker.remove_on_fail
        self._report(delivery, command, None, error)

    def _move(self, delivery: Delivery, cmd: str, **fields: Any) -> None:
        """Make a move instead of reporting; no terminal event follows."""
        command = requests.of_job(cmd, delivery.id, token=delivery.token, **fields)
        try:
            self._worker.connection.call(command)
        except BunqueueError as refused:
            self._worker.release(delivery)
            self._trouble(cmd, refused)

    def _consumed(self, delivery: Delivery, result: Any, error: BaseException | None) -> None:
        """The handler made the move itself: only what that move means is told."""
        moved = delivery.job._consumed_by
        self._worker.release(delivery)
        if moved == "ACK":
            self._completed(delivery, result)
        elif moved == "FAIL":
            self._failed(delivery, error)

    # -- telling the broker -------------------------------------------------------------------

    def _succeeded(self, delivery: Delivery, result: Any) -> None:
        """Have a success sent, alone or along with others. Waits only where it must."""
        worker = self._worker
        success = Success(delivery, result)
        is_heard = worker.has_listeners("completed")
        if is_heard:
            success.gate = worker.world.local_gate()  # listeners run in the job's own task
        if not worker.ack_flow.join(success):
            try:
                worker.ack_flow.send(success)
            finally:
                if is_heard:
                    self._conclude_all([success])
            return
        # A thread that waits for its listeners stays in its slot, or the pool would outgrow it.
        if not is_heard or not worker.world.is_native:
            worker.release(delivery, keep_lease=True)
        if is_heard:
            self._conclude_all([success])

    def settle(self, success: Success) -> None:
        """Take the outcome of a success that was sent. Never raises."""
        gate = success.gate
        success.is_told = True
        if gate is None:
            self._conclude(success)
        else:
            gate.open()

    def _conclude_all(self, successes: list[Success]) -> None:
        """Wait at their gates until successes are settled, and conclude them one by one."""
        left = deque(successes)
        try:
            while left:
                if (gate := left[0].gate) is not None:
                    gate.wait()
                self._conclude(left.popleft())
        except BaseException:  # killed by somebody else's hand: whoever sends them concludes
            for success in left:
                success.gate = None
                if success.is_told:
                    self._conclude(success)
            raise

    def _conclude(self, success: Success) -> None:
        worker, delivery, error = self._worker, success.delivery, success.error
        if isinstance(error, (ConnectionClosedError, CommandTimeoutError)):
            command = requests.completed(delivery.id, success.result, delivery.token)
            if worker.remove_on_complete is not None:
                command["removeOnComplete"] = worker.remove_on_complete
            self._lost(delivery, command, success.result, None, error)
            return
        if isinstance(error, SerializationError):
            self._fail(delivery, error)  # no broker will ever take this result
            return
        self._let_go(delivery)
        if error is not None:
            self._trouble("ACK", error)
        elif success.reply is not None and not delivery.is_abandoned:
            self._applied(delivery, success.reply, success.result, None)

    def _report(
        self,
        delivery: Delivery,
        command: dict[str, Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        worker = self._worker
        try:
            reply = worker.connection.call(command)
        except (ConnectionClosedError, CommandTimeoutError) as lost:
            self._lost(delivery, command, result, error, lost)
        except BunqueueError as refused:
            self._let_go(delivery)
            self._trouble(command["cmd"], refused)
        else:
            self._let_go(delivery)
            self._applied(delivery, reply, result, error)

    def _let_go(self, delivery: Delivery) -> None:
        """Free the slot and the lease, whichever of them is still held."""
        if delivery.is_released:
            self._worker.drop_lease(delivery)
        else:
            self._worker.release(delivery)

    def _lost(
        self,
        delivery: Delivery,
        command: dict[str, Any],
        result: Any,
        error: BaseException | None,
        lost: BaseException,
    ) -> None:
        """Free the slot, and send the outcome again for as long as the lease lasts."""
        worker = self._worker
        worker.release(delivery, keep_lease=True)

        def done(reply: dict[str, Any] | None) -> None:
            worker.drop_lease(delivery)
            if reply is not None and not delivery.is_abandoned:
                self._applied(delivery, reply, result, error)

        worker.late.add(delivery, command, worker.leases.lease_s, done)
        self._trouble(command["cmd"], lost)

    def _applied(
        self,
        delivery: Delivery,
        reply: dict[str, Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        if requests.is_late(reply):
            return  # somebody else ended it
        if error is None:
            self._completed(delivery, result)
        else:
            self._failed(delivery, error)

    def _completed(self, delivery: Delivery, result: Any) -> None:
        worker = self._worker
        worker.processed += 1
        worker.note_finished()
        if worker.has_listeners("completed"):
            self.tell("completed", delivery.job, result)

    def _failed(self, delivery: Delivery, error: BaseException | None) -> None:
        worker = self._worker
        worker.failed += 1
        worker.note_finished()
        if worker.has_listeners("failed"):
            self.tell("failed", delivery.job, error)

    def tell(self, event: str, *args: Any) -> None:
        """Call listeners, who may close the worker but cannot wait for its end: it waits for us."""
        ident = get_ident()
        is_outermost = ident not in self.telling
        self.telling.add(ident)
        try:
            self._worker.emit(event, *args)
        finally:
            if is_outermost:
                self.telling.discard(ident)

    def _trouble(self, cmd: str, error: BaseException) -> None:
        self._worker.logger.warning("%s failed error=%s", cmd, error)
        self._worker.post_event("error", error)

    def _ack_item(self, delivery: Delivery, result: Any) -> AckItem:
        """Return the buffered form of a success."""
        worker, job = self._worker, delivery.job

        def on_settled(error: BaseException | None) -> None:
            if isinstance(error, (ConnectionClosedError, CommandTimeoutError)):
                command = requests.completed(job.id, result, delivery.token)
                self._lost(delivery, command, result, None, error)
                return
            if isinstance(error, SerializationError):
                self._fail(delivery, error)
                return
            worker.drop_lease(delivery)
            if error is not None:
                self._trouble("ACKB", error)
            elif item.is_applied:
                self._completed(delivery, result)

        item = AckItem(job.id, delivery.token, result, on_settled)
        return item


def call_off(delivery: Delivery, reason: str | None, hard: bool, worker: Worker) -> None:
    """Abort a delivery's signal, and interrupt its handler if asked and possible."""
    if hard:
        kind = JobTimeoutError if reason == "timeout" else JobCancelledError
        delivery.interrupted_with = kind(reason or "job cancelled")
    delivery.signal.abort(reason)
    if hard:
        worker.executor_object.interrupt(delivery)


def _own_failure(delivery: Delivery) -> BaseException | None:
    """Return what a member of a batch was set to fail with, or None."""
    error = delivery.job.failed_with
    return JobFailed(error) if isinstance(error, str) else error


def _base_backoff_ms(raw: dict[str, Any]) -> float:
    """Return a job's base backoff under its own cap."""
    config = raw.get("backoffConfig") or {}
    base = config.get("delay") or raw.get("backoff") or BACKOFF_MS_DEFAULT
    if isinstance(base, dict):
        base = base.get("delay") or BACKOFF_MS_DEFAULT
    return float(min(base, config.get("maxDelay") or BACKOFF_MS_CAP))
