"""Outcomes whose reply was lost: sent again for as long as the lease lasts.

A lock token makes that safe: the broker applies an outcome once, whoever sends it how often. While
one is pending its job stays among the leased ones, so it is not handed to anybody else merely
because a link broke in the wrong moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bunqueue.client.delivery import Delivery
from bunqueue.client.spread import spread
from bunqueue.client.worlds import World, now
from bunqueue.errors import (
    BunqueueError,
    CommandTimeoutError,
    ConnectionClosedError,
    LockLostError,
)

RETRY_S = (0.2, 0.5, 1.0, 2.0)  # at least, between two tries; the last one repeats

log = logging.getLogger("bunqueue.worker")


class LateOutcomes:
    """Sends lost outcomes again, each in a task of its own.

    Attributes:
        count: How many are under way.
    """

    def __init__(
        self,
        world: World,
        call: Callable[[dict[str, Any]], dict[str, Any]],
        on_settled: Callable[[], Any],
    ) -> None:
        self._world = world
        self._call = call
        self._on_settled = on_settled
        self.count = 0

    def add(
        self,
        delivery: Delivery,
        command: dict[str, Any],
        lease_s: float,
        done: Callable[[dict[str, Any] | None], Any],
    ) -> None:
        """Send ``command`` until it is answered, the lease is lost, or ``lease_s`` has passed.

        Args:
            delivery: Whose outcome it is.
            command: ACK or FAIL.
            lease_s: How long a lease lasts without renewal.
            done: Called with the reply, or with None when the outcome is given up.
        """
        self.count += 1
        self._world.spawn(
            lambda: self._send(delivery, command, now() + lease_s, done), "bunqueue-outcome"
        )

    def _send(
        self,
        delivery: Delivery,
        command: dict[str, Any],
        give_up_at: float,
        done: Callable[[dict[str, Any] | None], Any],
    ) -> None:
        reply: dict[str, Any] | None = None
        tries = 0
        try:
            while reply is None and now() < give_up_at and not delivery.is_abandoned:
                self._world.sleep(spread(RETRY_S[min(tries, len(RETRY_S) - 1)]))
                tries += 1
                try:
                    reply = self._call(command)
                except (ConnectionClosedError, CommandTimeoutError):
                    continue
                except LockLostError:
                    reply = self._was_it_applied(command)
                    break
                except BunqueueError as error:
                    log.warning("late outcome refused job=%s error=%s", delivery.job.id, error)
                    break
        finally:
            done(reply)
            self.count -= 1
            self._on_settled()

    def _was_it_applied(self, command: dict[str, Any]) -> dict[str, Any] | None:
        """Tell whether the lost try had got through: then the job has the state it leads to."""
        try:
            state = self._call({"cmd": "GetState", "id": command["id"]}).get("state")
        except BunqueueError:
            return None
        return {"ok": True} if command["cmd"] == "ACK" and state == "completed" else None
