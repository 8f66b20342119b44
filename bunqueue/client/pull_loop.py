"""The pull loop: ask for as many jobs as there are free slots, the moment there are some.

It sleeps in three places only: in the long poll at the broker, on the wake gate while there is no
slot (or the worker is paused), and after a failure.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from bunqueue.client.delivery import Delivery
from bunqueue.client.job import Job
from bunqueue.client.options import compact
from bunqueue.client.spread import spread
from bunqueue.errors import (
    BunqueueError,
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
)

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker

RETRY_S = (0.5, 1.0, 2.0, 5.0)  # at least, after pulls that failed in a row; the last one repeats
PULL_MARGIN_S = 10.0  # the client's patience beyond the poll, client.md 3.3
EMPTY_PAUSE_S = 0.010  # after an empty long poll, client.md 3.3
TRANSIENT_TEXTS = (
    "Rate limit exceeded",
    "Internal server error",
    "Lock acquisition timed out",
    "Read lock acquisition timed out",
    "Write lock acquisition timed out",
)


class PullLoop:
    """Pulls for one worker.

    Attributes:
        registered_generation: The link generation that knows this worker, None when none does.
        is_handing_back: Jobs that came too late are being returned.
        empty_pulls: Pulls in a row that brought nothing.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._failures = 0
        self._was_busy = False
        self.registered_generation: int | None = None
        self.is_handing_back = False
        self.empty_pulls = 0

    def run(self) -> None:
        """Pull until the worker closes; a permanent failure closes the worker. Waits."""
        worker = self._worker
        try:
            while not worker.is_closing:
                if worker.may_pull():
                    self._turn()
                else:
                    worker.wake.wait(worker.rest_s())
                self._start_due_batches()
                self._return_ahead()
        except BaseException as error:
            worker.failure = error
            if not isinstance(error, BunqueueError):
                worker.logger.exception("the pull loop ended")
        finally:
            if worker.gathering is not None:
                self._give_up(worker.gathering.all())
            self._hand_back(worker.ahead.take_all())
            worker.loop_ended()

    def _start_due_batches(self) -> None:
        gathering = self._worker.gathering
        if gathering is not None and not self._worker.is_closing:
            for batch in gathering.due():
                self._worker.start_batch(batch)

    def _return_ahead(self) -> None:
        """Return jobs that were read ahead and may not start, or wait too long. Waits."""
        worker = self._worker
        if worker.ahead and (worker.is_paused() or worker.ahead.rest_s == 0):
            self._hand_back(worker.ahead.take_all())

    def _give_up(self, deliveries: list[Delivery]) -> None:
        """Return jobs that were waiting for a batch. Waits."""
        try:
            self._hand_back([one for one in deliveries if not one.is_abandoned])
        finally:
            for delivery in deliveries:
                self._worker.release(delivery)

    def _turn(self) -> None:
        worker = self._worker
        try:
            found = self.poll_once()
        except BunqueueError as error:
            if worker.is_closing:
                return
            self._after_failure(error)
        else:
            self._failures = 0
            if not found and not worker.is_closing:
                short = worker.poll_timeout_ms == 0
                worker.wake.wait(worker.drain_delay_ms / 1000 if short else EMPTY_PAUSE_S)

    def _after_failure(self, error: BunqueueError) -> None:
        worker = self._worker
        if not is_transient(error):
            if not worker.has_listeners("error"):
                raise error
        else:
            worker.logger.debug("pull failed error=%s", error)
        if isinstance(error, CommandTimeoutError):
            # The broker promised an answer within the poll: the link is dead, whatever TCP says.
            worker.pull_connection.sever()
        worker.post_event("error", error)
        delay_s = spread(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
        self._failures += 1
        worker.connection.observe(
            "worker_retry", attempt=self._failures, delay_ms=delay_s * 1000, error=str(error)
        )
        until = time.monotonic() + delay_s
        while not worker.is_closing and (left_s := until - time.monotonic()) > 0:
            worker.wake.wait(left_s)

    # -- one pull -----------------------------------------------------------------------------

    def poll_once(self) -> int:
        """Pull once and hand the jobs to the executor; return how many there were. Waits."""
        worker = self._worker
        self.register_if_new()
        free, ahead = worker.free_slots(), worker.ahead
        count = min(free + ahead.room, worker.batch_size)
        if count <= 0:
            return 0
        # Only who has nothing to start waits at the broker.
        timeout_ms = worker.poll_timeout_ms if free > 0 else 0
        if worker.gathering is not None and (rest_s := worker.gathering.rest_s()) is not None:
            timeout_ms = min(timeout_ms, math.ceil(rest_s * 1000))
        ahead.pull_begins()
        deliveries = self.pull(count, timeout_ms)
        ahead.pull_ends(len(deliveries) == count, min(worker.concurrency, worker.batch_size))
        if not deliveries:
            self.empty_pulls += 1
            self._tell_drained()
            return 0
        self.empty_pulls = 0
        self._was_busy = True
        for index, delivery in enumerate(deliveries):
            if not worker.start_delivery(delivery):
                self._hand_back(deliveries[index:])
                break
        return len(deliveries)

    def pull(self, count: int, timeout_ms: float) -> list[Delivery]:
        """Ask the broker for up to ``count`` jobs. Waits."""
        worker = self._worker
        started = time.monotonic()
        reply = worker.pull_connection.call(
            compact(
                {
                    "cmd": "PULLB",
                    "queue": worker.queue_key,
                    "count": count,
                    "timeout": timeout_ms,
                    "owner": worker.worker_id if worker.use_locks else None,
                    "lockTtl": worker.lock_ttl_ms if worker.use_locks else None,
                    "group": self._group_terms(),
                }
            ),
            timeout=timeout_ms / 1000 + PULL_MARGIN_S,
        )
        tokens = reply.get("tokens") or []
        deliveries = []
        if worker.connection.is_observed_widely:
            worker.connection.observe(
                "pull",
                queue=worker.queue_key,
                count=len(reply.get("jobs") or []),
                duration_ms=(time.monotonic() - started) * 1000,
            )
        for index, raw in enumerate(reply.get("jobs") or []):
            token = tokens[index] if index < len(tokens) else None
            job: Job[Any] = Job(raw, worker.connection, token, worker.on_progress)
            job.worker = worker
            deliveries.append(Delivery(job, token))
        return deliveries

    def _group_terms(self) -> dict[str, Any] | None:
        """Return what this pull says about groups."""
        worker = self._worker
        if worker.gathering is None:
            return worker.group
        return {**(worker.group or {}), **worker.gathering.wanted()} or None

    def _hand_back(self, deliveries: list[Delivery]) -> None:
        """Return jobs that have not been started. Waits."""
        self.is_handing_back = True
        try:
            for delivery in deliveries:
                self._worker.send_back(delivery)
                self._worker.drop_lease(delivery)
        finally:
            self.is_handing_back = False
            self._worker.look_again()

    def _tell_drained(self) -> None:
        worker = self._worker
        if self._was_busy and not worker.active_count and not worker.waiting_acks():
            self._was_busy = False
            worker.post_event("drained")

    # -- registration -------------------------------------------------------------------------

    def register_if_new(self) -> None:
        """Register on a link that does not know the worker yet. Waits."""
        connection = self._worker.pull_connection
        if not connection.connected:
            connection.connect()
        if connection.generation != self.registered_generation:
            self.register()

    def register(self) -> None:
        """Tell the broker about the worker; after a refusal the next pull tries again."""
        worker = self._worker
        connection = worker.pull_connection
        # Read before the call: if the call itself reconnects, the worker registers once too often
        # instead of never.
        generation = connection.generation
        is_first = self.registered_generation is None
        try:
            connection.call(
                {
                    "cmd": "RegisterWorker",
                    "name": worker.name,
                    "queues": [worker.queue_key],
                    "concurrency": worker.concurrency,
                    "workerId": worker.worker_id,
                    "hostname": socket.gethostname(),
                    "pid": os.getpid(),
                    "startedAt": int(time.time() * 1000),
                }
            )
        except CommandError as error:
            worker.logger.warning("RegisterWorker refused error=%s", error)
            worker.post_event("error", error)
            return
        self.registered_generation = generation
        worker.note_registered(is_first)


def is_transient(error: BaseException) -> bool:
    """Tell whether a failed pull is worth trying again without anybody's say."""
    if isinstance(error, (ConnectionClosedError, CommandTimeoutError)):
        return True
    return isinstance(error, CommandError) and str(error) in TRANSIENT_TEXTS
