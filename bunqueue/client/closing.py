"""The way of a worker from closing to closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.client.delivery import Delivery
from bunqueue.client.outcomes import call_off
from bunqueue.errors import BunqueueError

if TYPE_CHECKING:
    from bunqueue.client.worker import Worker

UNREGISTER_TIMEOUT_S = 2.0  # closing does not wait longer for a goodbye
LOOP_END_TIMEOUT_S = 5.0  # nor for the pull loop, once its socket is cut
LISTENER_TIMEOUT_S = 5.0  # nor for listeners of the loop's events
LOOK_S = 0.02  # how often to look again where nobody may open the gate


class Closing:
    """Drains a worker, says goodbye and cuts the long poll; one task of the worker's world."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_forced = False
        self._forcing = 0
        # Of its own: a gate lets one waiter through, and the pull loop waits on the worker's.
        self._gate = worker.world.gate()

    def look(self) -> None:
        """Look again whether the worker has drained."""
        self._gate.open()

    def run(self) -> None:
        """Go from closing to closed. Waits."""
        worker = self._worker
        try:
            while not self._is_drained():
                self._flush_acks()
                if not self._is_drained():
                    self._gate.wait(LOOK_S if self._is_forced or self._acks_waiting() else None)
            self._leave()
        finally:
            worker.leases.stop()  # also where the goodbye broke off
            worker.stalls.close()
            worker.executor_object.close()
            worker.post_event("closed")
            worker.mailbox.close(LISTENER_TIMEOUT_S)
            worker.closed.set()

    def force(self) -> None:
        """Abort every active job and send it back. Waits for the broker's answers."""
        self._is_forced = True
        self._forcing += 1  # before anything is marked: nobody may leave until it is sent back
        try:
            for delivery in self._unsettled():
                delivery.is_abandoned = True
                call_off(delivery, "shutdown", True, self._worker)
                self._worker.send_back(delivery)
                self._worker.drop_lease(delivery)
        finally:
            self._forcing -= 1
            self._gate.open()

    def _is_drained(self) -> bool:
        worker = self._worker
        if self._forcing or self._worker.loop.is_handing_back:
            return False
        if self._is_forced and not self._unsettled():
            return True
        return not (worker.active or worker.ahead or worker.late.count or self._acks_waiting())

    def _unsettled(self) -> list[Delivery]:
        return [one for one in list(self._worker.active.values()) if not one.is_abandoned]

    def _acks_waiting(self) -> int:
        return self._worker.waiting_acks()

    def _flush_acks(self) -> None:
        if self._worker.ack_batcher is not None:
            self._worker.ack_batcher.flush()

    def _leave(self) -> None:
        worker = self._worker
        if worker.ack_batcher is not None:
            worker.ack_batcher.close()
        worker.leases.stop()
        if worker.loop.registered_generation is not None and worker.pull_connection.connected:
            try:
                worker.pull_connection.call(
                    {"cmd": "UnregisterWorker", "workerId": worker.worker_id},
                    timeout=UNREGISTER_TIMEOUT_S,
                )
            except BunqueueError as error:
                worker.logger.warning("UnregisterWorker failed error=%s", error)
        worker.pull_connection.close()
        if worker.is_started:
            worker.loop_has_ended.wait(LOOP_END_TIMEOUT_S)
