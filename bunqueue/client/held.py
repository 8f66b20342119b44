"""The leases a worker holds, as the lease keeper sees them: one beat renews them all.

Everything here but ``start`` and ``stop`` runs in the keeper's thread, so it reads copies, sets
flags and posts calls, and never runs a callback of the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue.client import lease
from bunqueue.client.delivery import Delivery
from bunqueue.client.worker_options import LOCK_TTL_MS_DEFAULT
from bunqueue.errors import CommandError

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker


class HeldLeases:
    """Lock tokens by job id, and the beats that renew them.

    Attributes:
        held: Every lease to renew: of running jobs, and of those whose outcome is not through yet.
        beat_s: Seconds between beats.
        beat_timeout_s: How long an answer to a beat may take.
        connection: The worker's, to make the keeper's link from.
        are_kept: The keeper beats for this worker.
    """

    def __init__(self, worker: Worker, beat_s: float | None) -> None:
        self._worker = worker
        self._is_wanted = beat_s is not None
        self.held: dict[str, str | None] = {}
        self.beat_s = beat_s or 0.0
        self.beat_timeout_s = lease.beat_timeout_s(self.beat_s)
        self.connection = worker.connection
        self.are_kept = False
        self._is_over = False

    @property
    def lease_s(self) -> float:
        """How long a lease lasts without renewal."""
        return (self._worker.lock_ttl_ms or LOCK_TTL_MS_DEFAULT) / 1000

    def start(self) -> None:
        """Have the keeper beat, unless beats are disabled."""
        if self._is_wanted:
            lease.keeper().add(self)
            self.are_kept = True
            if self._is_over:  # a close in another thread has overtaken the start
                self.stop()

    def stop(self) -> None:
        """Have the keeper beat no longer, now or ever."""
        self._is_over = True
        if self.are_kept:
            self.are_kept = False
            lease.keeper().remove(self)

    def beat(self, call: lease.Call) -> None:
        """Send one beat: the counters, and the renewal of every lease."""
        worker = self._worker
        # The keeper has a link of its own; that it works says nothing about the worker's.
        worker.mailbox.post(lambda: self._probe(only_quiet=True))
        try:
            call(
                {
                    "cmd": "Heartbeat",
                    "id": worker.worker_id,
                    "activeJobs": len(worker.active),
                    "processed": worker.processed,
                    "failed": worker.failed,
                }
            )
        except CommandError:
            worker.loop.registered_generation = None  # forgotten there: the next pull registers
        held = self.held.copy()
        if not held or not worker.renews_leases:
            return
        command: dict[str, Any] = {"cmd": "JobHeartbeatB", "ids": list(held)}
        if worker.use_locks:
            command["tokens"] = list(held.values())
        data = call(command).get("data") or {}
        if worker.use_locks and int(data.get("count", len(held))) < len(held):
            self._find_lost(call, held)

    def _find_lost(self, call: lease.Call, held: dict[str, str | None]) -> None:
        """Ask for each lease by itself; those refused, and still held here, are lost."""
        for job_id, token in held.items():
            if job_id not in self.held:
                continue
            try:
                call({"cmd": "JobHeartbeat", "id": job_id, "token": token})
            except CommandError:
                delivery = self._worker.active.get(job_id)
                if delivery is not None and delivery.token == token:
                    self._lost(delivery)

    def _lost(self, delivery: Delivery) -> None:
        job = delivery.job
        if job.lease_lost:
            return
        job.lease_lost = True
        self.held.pop(job.id, None)
        delivery.signal.flip("lease-lost")
        self._worker.logger.warning("lease lost job=%s", job.id)
        self._worker.mailbox.post(delivery.signal.call_back)
        connection = self._worker.connection
        self._worker.mailbox.post(lambda: connection.observe("lease_lost", job_id=job.id))

    def on_silence(self) -> None:
        """Have the worker's own links looked at: the keeper's got no answer."""
        self._worker.mailbox.post(self._probe)

    def _probe(self, only_quiet: bool = False) -> None:
        """Ping the worker's links. In the mailbox. Waits."""
        for connection in {self._worker.pull_connection, self._worker.connection}:
            if connection.connected:
                connection.probe(self.beat_timeout_s, only_quiet)
