"""Batches of ACKs: many successes, one round trip.

Off unless asked for. A job whose ACK is buffered has left its slot but keeps its lease, so the
lease keeper goes on renewing it until the broker has answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.options import compact
from bunqueue.client.worlds import World
from bunqueue.errors import BunqueueError, SerializationError

# Called with the error, or None; and with whether the broker applied the ACK.

log = logging.getLogger("bunqueue.batch")


class AckItem:
    """One buffered ACK."""

    __slots__ = ("id", "is_applied", "on_settled", "result", "token")

    def __init__(
        self,
        id: str,
        token: str | None,
        result: Any,
        on_settled: Callable[[BaseException | None], Any],
    ) -> None:
        self.id = id
        self.token = token
        self.result = result
        self.on_settled = on_settled
        self.is_applied = True

    def settle(self, error: BaseException | None) -> None:
        """Tell the outcome; a callback that raises harms nobody else."""
        try:
            self.on_settled(error)
        except Exception:
            log.warning("settle callback raised job=%s", self.id, exc_info=True)


class AckBatcher:
    """Collects ACKs until there are ``max_size``, or the first has waited ``max_delay_ms``.

    Args:
        connection: Whose ``call`` takes the ACKB.
        max_size: ACKs per batch.
        max_delay_ms: The longest an ACK waits for others.
        world: Where the timer runs; None for the caller's.
        remove_on_complete: Forget the jobs once they are done.
        observe: Told of each batch with ``size`` and ``ok``.
    """

    def __init__(
        self,
        connection: Any,
        max_size: int = 50,
        max_delay_ms: float = 5,
        *,
        world: World | None = None,
        remove_on_complete: bool | None = None,
        observe: Callable[..., None] | None = None,
    ) -> None:
        self._observe = observe
        self._connection = connection
        self._max_size = max(1, max_size)
        self._max_delay_s = max_delay_ms / 1000
        self._world = world or worlds.current()
        self._remove_on_complete = remove_on_complete
        self._lock = self._world.lock()
        self._items: list[AckItem] = []
        self._timer_gate = self._world.gate()
        self._is_timed = False
        self._is_closed = False
        self._unsettled = 0

    @property
    def waiting(self) -> int:
        """How many ACKs have no outcome yet, buffered or under way."""
        return self._unsettled

    def add(self, item: AckItem) -> None:
        """Buffer an ACK; the one that fills the batch sends it. May wait."""
        with self._lock:
            self._items.append(item)
            self._unsettled += 1
            is_full = len(self._items) >= self._max_size
            is_first = len(self._items) == 1
            needs_timer = is_first and not self._is_timed
            if needs_timer:
                self._is_timed = True
        if is_full:
            self.flush()
        elif needs_timer:
            self._world.spawn(self._keep_time, "bunqueue-ack")
        elif is_first:
            self._timer_gate.open()

    def _keep_time(self) -> None:
        """Flush what has waited long enough; one task, which ends with the batcher."""
        try:
            while not self._is_closed:
                self._world.sleep(self._max_delay_s)
                self.flush()
                if not self._items:
                    self._timer_gate.wait()
        finally:
            with self._lock:
                self._is_timed = bool(self._items) and not self._is_closed
            if self._is_timed:  # interrupted: those that have come meanwhile need another one
                self._world.spawn(self._keep_time, "bunqueue-ack")

    def flush(self) -> None:
        """Send what is buffered as one ACKB. Waits."""
        with self._lock:
            items, self._items = self._items, []
        if items:
            self._send(items)

    def _send(self, items: list[AckItem]) -> None:
        """Send one ACKB and settle its items, whatever happens. Waits."""
        error: BaseException | None = None
        settled = items
        try:
            reply = self._connection.call(self._command(items))
        except SerializationError as unpackable:
            if len(items) == 1:
                error = unpackable
            else:
                settled = []  # nothing has left yet: one bad result spoils nobody else's
        except BunqueueError as refused:
            error = refused
        except BaseException:
            error = BunqueueError("the sender of the ACK batch was interrupted")
            raise
        else:
            error = _mark_ignored(items, reply)
        finally:
            for item in settled:
                item.settle(error)
            if settled and self._observe is not None:
                self._observe("ack_flush", size=len(items), ok=error is None)
            with self._lock:
                self._unsettled -= len(settled)
        if not settled:
            middle = len(items) // 2
            try:
                self._send(items[:middle])
            finally:
                self._send(items[middle:])

    def _command(self, items: list[AckItem]) -> dict[str, Any]:
        results = [item.result for item in items]
        tokens = [item.token for item in items]
        count = len(items)
        remove = self._remove_on_complete
        return compact(
            {
                "cmd": "ACKB",
                "ids": [item.id for item in items],
                "tokens": tokens if any(token is not None for token in tokens) else None,
                "results": results if any(result is not None for result in results) else None,
                "removeOnCompletes": None if remove is None else [remove] * count,
            }
        )

    def close(self) -> None:
        """Send what is buffered and end the timer. Waits."""
        self._is_closed = True
        self._timer_gate.open()
        self.flush()


def _mark_ignored(items: list[AckItem], reply: dict[str, Any]) -> BaseException | None:
    """Mark the ACKs that came too late; only positions count, ids may occur twice."""
    data = reply.get("data") or {}
    indices = data.get("ignoredIndices")
    if indices is None and data.get("ignoredIds"):
        return BunqueueError("ACKB was answered with ignored ids but not which positions")
    for index in indices or ():
        if 0 <= int(index) < len(items):
            items[int(index)].is_applied = False
    return None
