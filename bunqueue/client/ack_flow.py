"""ACKs that meet leave together; one that meets nobody leaves at once.

The first task that has a success to report sends it as a plain ACK. Those that come while it is
under way are lined up, and when its reply is in, the same task takes all of them along in one ACKB.
There is no timer and nothing is held back: under light load every ACK travels alone, under heavy
load the batches grow by themselves to what the broker needs.

A job whose ACK is lined up has left its slot, and its lease is kept. So the next pull is under way
while the ACKs are, which is worth a round trip per job; see ``free_slots`` of the worker for the
bound. The task that sends keeps its own slot until its own reply is in: with one slot, a pull never
overtakes the ACK before it.

A batch that the broker refuses is sent again one by one, so that each job gets its own outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from bunqueue.client import requests, worlds
from bunqueue.client.delivery import Delivery
from bunqueue.client.options import compact
from bunqueue.client.worlds import Gate, World
from bunqueue.errors import BunqueueError, CommandError, ConnectionClosedError, SerializationError

BATCH_MAX = 100  # ACKs per command; twice what the buffered form takes by default

Call = Callable[[dict[str, Any]], dict[str, Any]]


class Success:
    """A success on its way to the broker.

    Attributes:
        gate: Opened when it is settled, for a task that waits; None when nobody does.
        reply: The broker's answer, in the form that an ACK has.
        error: Why there is none.
        is_told: Its outcome was handed over: nobody else will.
    """

    __slots__ = ("delivery", "error", "gate", "is_told", "reply", "result")

    def __init__(self, delivery: Delivery, result: Any) -> None:
        self.delivery = delivery
        self.result = result
        self.gate: Gate | None = None
        self.reply: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.is_told = False

    @property
    def is_settled(self) -> bool:
        """Whether there is an outcome."""
        return self.reply is not None or self.error is not None


class AckFlow:
    """Sends the successes of one worker.

    Args:
        call: Sends a command and returns the reply.
        world: The worker's.
        settle: Called once per success when its reply or error is in; must not raise.
        remove_on_complete: Forget the jobs once they are done.
        batches: False sends every ACK by itself.

    Attributes:
        waiting: Successes without an outcome, lined up or under way.
    """

    def __init__(
        self,
        call: Call,
        world: World,
        settle: Callable[[Success], object],
        *,
        remove_on_complete: bool | None = None,
        batches: bool = True,
    ) -> None:
        self._call = call
        self._world = world
        self._settle = settle
        self._remove = remove_on_complete
        self._batches = batches
        self._lock = worlds.native_lock()  # nothing waits inside
        self._line: deque[Success] = deque()
        self._is_sending = False
        self.waiting = 0

    def join(self, success: Success) -> bool:
        """Line a success up behind the one under way; False when the caller has to ``send`` it."""
        with self._lock:
            self.waiting += 1
            if self._is_sending and self._batches:
                self._line.append(success)
                return True
            self._is_sending = True
            return False

    def send(self, success: Success) -> None:
        """Send a success, and whatever is lined up by the time its reply is in. Waits.

        Somebody who waits for it at its gate has listeners to call, and they may take their time,
        or close the worker: then another task takes the others along.
        """
        if not self._batches:
            self._send_batch([success])
            return
        try:
            self._send_batch(self._look_around(success))
            if success.gate is None:
                self._go_on(self._next())
        except BaseException:
            self._hand_over()  # thrown into this task from outside
            raise
        if success.gate is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Leave what is lined up to a task of its own, or send it where none can be begun."""
        batch = self._next()
        if batch:
            try:
                self._world.spawn(partial(self._go_on, batch), "bunqueue-ack")
            except RuntimeError:  # too many threads, or the interpreter ends
                self._go_on(batch)

    def _look_around(self, success: Success) -> list[Success]:
        """Let the greenlets run that have ended in the same turn of the loop, and take them along.

        Threads need not be let: they run when they can.
        """
        if not self._world.is_native:
            try:
                self._world.sleep(0)
            except BaseException:
                self._settle_all([success])
                raise
        line = self._line
        with self._lock:
            return [success, *(line.popleft() for _ in range(min(len(line), BATCH_MAX - 1)))]

    def _go_on(self, batch: list[Success]) -> None:
        while batch:
            self._send_batch(batch)
            batch = self._next()

    def _next(self) -> list[Success]:
        line = self._line
        with self._lock:
            self._is_sending = bool(line)
            return [line.popleft() for _ in range(min(len(line), BATCH_MAX))]

    def _send_batch(self, batch: list[Success]) -> None:
        """Send successes and settle each, whatever happens."""
        try:
            for part in _of_one_form(batch):
                if len(part) == 1:
                    self._send_one(part[0])
                else:
                    self._send_many(part)
        finally:
            self._settle_all(batch)

    def _settle_all(self, batch: list[Success]) -> None:
        with self._lock:
            self.waiting -= len(batch)
        for success in batch:
            if not success.is_settled:
                success.error = ConnectionClosedError("the sender of the ACK was interrupted")
            self._settle(success)

    def _send_one(self, success: Success) -> None:
        delivery = success.delivery
        command = requests.completed(delivery.id, success.result, delivery.token)
        if self._remove is not None:
            command["removeOnComplete"] = self._remove
        try:
            success.reply = self._call(command)
        except BunqueueError as error:
            success.error = error

    def _send_many(self, batch: list[Success]) -> None:
        try:
            reply = self._call(self._command(batch))
        except (CommandError, SerializationError) as refused:
            self._send_apart(batch, refused)
        except BunqueueError as lost:
            for success in batch:
                success.error = lost
        else:
            ignored = (reply.get("data") or {}).get("ignoredIndices") or ()
            for position, success in enumerate(batch):
                is_late = position in ignored
                success.reply = {"ok": True, "data": {"applied": False}} if is_late else reply

    def _send_apart(self, batch: list[Success], refused: BaseException) -> None:
        """Send a refused batch one by one.

        A batch with a stale token has done nothing, but one with an id that is not running has been
        applied but for that id. What is then called late may have been done by the batch itself.
        """
        may_have_been_done = isinstance(refused, CommandError)
        for success in batch:
            self._send_one(success)
            if may_have_been_done and requests.is_late(success.reply):
                success.reply = self._as_it_is(success)

    def _as_it_is(self, success: Success) -> dict[str, Any] | None:
        try:
            state = self._call({"cmd": "GetState", "id": success.delivery.id}).get("state")
        except BunqueueError:
            return success.reply
        return {"ok": True} if state == "completed" else success.reply

    def _command(self, batch: list[Success]) -> dict[str, Any]:
        has_tokens = batch[0].delivery.token is not None
        # Removal is looked at beside results only, by the original server.
        has_results = batch[0].result is not None or self._remove is not None
        return compact(
            {
                "cmd": "ACKB",
                "ids": [success.delivery.id for success in batch],
                "tokens": [success.delivery.token for success in batch] if has_tokens else None,
                "results": [success.result for success in batch] if has_results else None,
                "removeOnCompletes": None if self._remove is None else [self._remove] * len(batch),
            }
        )


def _of_one_form(batch: list[Success]) -> list[list[Success]]:
    """Split a batch: an ACK without a result stores none, in an ACKB with results it is null."""
    if len(batch) == 1:
        return [batch]
    empty = [success for success in batch if success.result is None]
    full = [success for success in batch if success.result is not None]
    return [part for part in (full, empty) if part]
