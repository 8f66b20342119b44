"""A subscription to one queue's events: a link of its own, and a task that reads it.

A link tells of one queue at a time and is read by whoever waits for a reply, so events need a link
and a reader that nobody else uses. The reader hands each event on and must not be held up; after a
loss it dials again on the worker's schedule and subscribes anew. Events of the gap are lost, which
its owner is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import get_ident
from typing import Any

from bunqueue.client import worlds
from bunqueue.client.connection import refusal
from bunqueue.client.spread import spread
from bunqueue.errors import BunqueueError, CommandTimeoutError, EmbeddedError

RETRY_S = (0.5, 1.0, 2.0, 5.0)  # at least, after losses in a row; the last one repeats
# A broker may be gone without a word and events may be rare, so a silent link is asked.
PING_PERIOD_S = 15.0
PING_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0

log = logging.getLogger("bunqueue.connection")


class Subscription:
    """Listens to one queue until it is closed.

    Args:
        connection: Whose broker to listen to; none of its links is used.
        queue_key: The queue.
        on_event: Called with each event map, in order. Must not wait.
        on_ready: Called when the broker has confirmed the subscription: with False the first time,
            with True after a gap.
        on_error: Called with each failure; the next attempt follows by itself, unless the embedded
            engine is gone.
        is_private: Its link counts in nobody's telemetry.
    """

    def __init__(
        self,
        connection: Any,
        queue_key: str,
        on_event: Callable[[dict[str, Any]], object],
        *,
        on_ready: Callable[[bool], object] | None = None,
        on_error: Callable[[BunqueueError], object] | None = None,
        is_private: bool = True,
    ) -> None:
        self._world = worlds.current()
        self._queue_key = queue_key
        self._on_ready = on_ready
        self._on_error = on_error
        self._was_ready = False
        self._is_closed = False
        self._failures = 0
        self._reader: int | None = None
        self._wake = self._world.gate()
        self._pool = connection.new_pool(
            self._world, size=1, is_private=is_private, on_event=on_event
        )
        self._task = self._world.spawn(self._run, f"bunqueue-events-{queue_key}")

    def _run(self) -> None:
        self._reader = get_ident()
        while not self._is_closed:
            try:
                self._listen()
            except BunqueueError as error:
                if self._is_closed:
                    return
                log.debug("subscription lost queue=%s error=%s", self._queue_key, error)
                if self._on_error is not None:
                    self._on_error(error)
                if isinstance(error, EmbeddedError):
                    return
                self._rest()

    def _listen(self) -> None:
        """Subscribe and read until the link ends, which raises. Waits."""
        link = self._pool.pick()
        self._ask(link, {"cmd": "SubscribeEvents", "queue": self._queue_key})
        self._failures = 0
        if self._on_ready is not None:
            self._on_ready(self._was_ready)
        self._was_ready = True
        while True:
            link.listen(worlds.now() + PING_PERIOD_S)
            try:
                self._ask(link, {"cmd": "Ping"})
            except CommandTimeoutError:
                self._pool.sever()
                raise

    def _ask(self, link: Any, command: dict[str, Any]) -> None:
        reply = self._pool.call_on(link, command, worlds.now() + PING_TIMEOUT_S)
        if not reply.get("ok"):
            raise refusal(reply, command)

    def _rest(self) -> None:
        """Wait before the next attempt, at least as long as nobody may dial."""
        delay_s = spread(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
        self._failures += 1
        until = max(worlds.now() + delay_s, self._pool.next_attempt_at)
        while not self._is_closed and (left_s := until - worlds.now()) > 0:
            self._wake.wait(left_s)

    def close(self) -> None:
        """Listen no more; a second call does nothing. Waits for the reader, but not for long."""
        self._is_closed = True
        self._pool.close()
        self._wake.open()
        if worlds.current() is self._world and self._reader != get_ident():
            self._task.join(CLOSE_TIMEOUT_S)

    def forget_parent(self) -> None:
        """In a forked child the link and its reader are the parent's."""
        self._is_closed = True
        self._pool.abandon()
