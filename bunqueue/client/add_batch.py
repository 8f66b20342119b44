"""Auto-batching: adds that meet leave together, adds that do not pay nothing.

The first caller sends its job at once. Callers that come while it is under way wait, and when it is
back the one that waits longest takes everybody along in one PUSHB. A full batch does not wait for
that, nor does one whose first entry has waited ``max_delay_ms``. So sequential code costs one lock,
and sixteen threads cost one round trip instead of sixteen.

A refused batch has admitted none of its entries, so they are sent again one by one, and each caller
gets its own id or its own error. A lost batch fails all its callers with the same error, and
nothing is sent again: what became of it is unknown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bunqueue.client.worlds import Gate, Lock, LockGate, World, current, now
from bunqueue.errors import (
    BunqueueError,
    CommandError,
    ConnectionClosedError,
    SerializationError,
)

MAX_SIZE_DEFAULT = 50
MAX_DELAY_MS_DEFAULT = 5
WAITING_MAX = 10_000  # client.md 1.1, back-pressure: callers beyond it park

THREAD_PATIENCE_S = 1.0  # then it looks for its outcome itself: an interrupt may break a chain
LOOK_EVERY = 16  # lonely greenlets look for company once in so many adds: 0.5 us each

UNBATCHED = frozenset(
    {"dependsOn", "parentId", "childrenIds", "repeat", "groupMaxSize"}
)  # what a refusal of the whole batch would not undo, or what names other jobs


def batch_settings(given: bool | Mapping[str, Any] | None) -> tuple[int, float] | None:
    """Return (max_size, max_delay_ms), or None when batching is off.

    Raises:
        TypeError: An unknown key, or a value of another kind.
        ValueError: A value that cannot work.
    """
    if given is False:
        return None
    options = {} if given is None or given is True else dict(given)
    enabled = options.pop("enabled", True)
    size = options.pop("max_size", MAX_SIZE_DEFAULT)
    delay_ms = options.pop("max_delay_ms", MAX_DELAY_MS_DEFAULT)
    if options:
        raise TypeError(f"unknown batch option: {next(iter(options))!r}")
    if not isinstance(size, int) or size < 1:
        raise ValueError("max_size must be an int of at least 1")
    if not isinstance(delay_ms, (int, float)) or not 0 <= delay_ms < math.inf:
        raise ValueError("max_delay_ms must be a finite number of at least 0")
    return (size, delay_ms) if enabled else None


class Entry(LockGate):
    """One job on its way, and the gate its caller waits at.

    Attributes:
        has_turn: The flush that has ended left it to this caller to send what waits.
        has_left: Its caller does not wait any more.
        chain: Those of its batch who are still to be woken, once there is an outcome.
    """

    __slots__ = (
        "chain",
        "error",
        "fields",
        "has_left",
        "has_turn",
        "is_done",
        "job_id",
        "since",
    )

    def __init__(self, fields: dict[str, Any], lock: Lock) -> None:
        super().__init__(lock)
        self.fields = fields
        self.since = now()
        self.job_id: str | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self.has_turn = False
        self.has_left = False
        self.chain: deque[Entry | None] | None = None

    def settle(self, job_id: str | None, error: BaseException | None = None) -> None:
        """Hand the outcome over."""
        self.job_id, self.error = job_id, error
        self.is_done = True


class AddBatcher:
    """Collects the adds of one queue in one world.

    Args:
        call: ``Connection.call``, looked up anew for each command.
        queue_key: What the server is told.
        world: Whose locks and gates the callers wait on.
        max_size: Jobs per batch.
        max_delay_ms: The longest an entry waits for others.
        observe: Told of each batch with ``size``, ``duration_ms`` and ``ok``.
    """

    def __init__(
        self,
        call: Callable[[dict[str, Any]], dict[str, Any]],
        queue_key: str,
        world: World,
        max_size: int = MAX_SIZE_DEFAULT,
        max_delay_ms: float = MAX_DELAY_MS_DEFAULT,
        *,
        observe: Callable[..., None] | None = None,
    ) -> None:
        self._observe = observe
        self._call = call
        self._queue_key = queue_key
        self._world = world
        self._max_size = max_size
        self._max_delay_s = max_delay_ms / 1000
        self._lock = world.lock()
        self._waiting: deque[Entry] = deque()
        # Flushes under way, a turn that was handed on but not taken yet included: while there is
        # one, newcomers join the queue instead of overtaking it.
        self._flushing = 0
        self._lonely = 0  # adds in a row that met nobody
        self._crowd = deque[Gate]()  # callers parked because too many entries wait
        self._leaving: list[Gate] = []  # those who wait for the end of all flushes

    def add(self, fields: dict[str, Any]) -> str:
        """Send one job, with others if they meet; return its id. Waits.

        Args:
            fields: Name, data and wire options of a PUSH, its own id as ``jobId``.
        """
        with self._lock:
            is_alone = self._flushing == 0
            if is_alone:
                self._flushing = 1
        if not is_alone:
            return self._add_with_others(fields)
        if self._look_around():
            return self._add_with_others(fields, has_turn=True)
        try:
            return self._push(fields)
        finally:
            self._end_flush()

    def _look_around(self) -> bool:
        """Let others run if there may be any; True when some of them wait to add.

        After a batch all its callers come back at once, and the first must not leave without the
        rest. And a reply that is there by the time it is read lets no other greenlet run at all, so
        greenlets look now and then even when they met nobody.
        """
        self._lonely += 1
        if self._lonely > 1 and (self._world.is_native or self._lonely % LOOK_EVERY):
            return False
        try:
            self._world.sleep(0)
        except BaseException:
            self._end_flush()
            raise
        return bool(self._waiting)

    def _add_with_others(self, fields: dict[str, Any], has_turn: bool = False) -> str:
        if not has_turn:
            self._wait_for_room()
        entry = Entry(fields, self._world.lock())
        batch = None
        with self._lock:
            entry.has_turn = has_turn
            if has_turn:
                self._waiting.appendleft(entry)
            else:
                self._waiting.append(entry)
            if self._flushing == 0:
                self._flushing = 1  # it ended in this very moment
                entry.has_turn = True
            if entry.has_turn or len(self._waiting) >= self._max_size:
                batch = self._take_locked()
        try:
            if batch is not None:
                self._flush_for(entry, batch)
            if not entry.is_done:
                self._wait(entry)
        finally:
            entry.has_left = True  # first, then look: see _wake_next
            if entry.chain is not None:
                self._wake_next(entry.chain)
        if entry.error is not None:
            raise entry.error
        assert entry.job_id is not None
        return entry.job_id

    def _wait_for_room(self) -> None:
        while len(self._waiting) >= WAITING_MAX:
            gate = self._world.local_gate()
            self._crowd.append(gate)
            if len(self._waiting) >= WAITING_MAX:
                gate.wait()

    def _wait(self, entry: Entry) -> None:
        """Wait for the outcome; flush what waits when it is our turn, or has waited long enough."""
        waiting = self._waiting
        try:
            while not entry.is_done:
                patience_s = THREAD_PATIENCE_S if self._world.is_native else None
                if waiting and waiting[0] is entry:
                    patience_s = max(0.0, entry.since + self._max_delay_s - now())
                is_late = not entry.wait(patience_s) and patience_s != THREAD_PATIENCE_S
                if (is_late or entry.has_turn) and not entry.is_done:
                    self._flush_waiting(entry)
        except BaseException:
            self._leave(entry)
            raise

    def _flush_waiting(self, entry: Entry) -> None:
        with self._lock:
            if entry not in self._waiting:
                return  # somebody takes it along already
            batch = self._take_locked()
        self._flush_for(entry, batch)

    def _take_locked(self) -> list[Entry]:
        """Take the next batch off the queue; turns among its entries are used up by it."""
        waiting = self._waiting
        batch = [waiting.popleft() for _ in range(min(self._max_size, len(waiting)))]
        self._flushing += 1
        for entry in batch:
            if entry.has_turn:
                entry.has_turn = False
                self._flushing -= 1
        if len(batch) > 1:
            self._lonely = 0
        if waiting:
            waiting[0].open()  # now first: to look at the clock
        while self._crowd:
            self._crowd.popleft().open()
        return batch

    def _leave(self, entry: Entry) -> None:
        """Take out the entry of a caller that was interrupted before it was sent."""
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
            if entry.has_turn:
                entry.has_turn = False
                self._pass_turn_locked()
            elif self._waiting:
                self._waiting[0].open()

    def _end_flush(self) -> None:
        """Note that a flush is over; whoever waits longest has the next turn."""
        with self._lock:
            self._pass_turn_locked()

    def _pass_turn_locked(self) -> None:
        if self._waiting and not self._waiting[0].has_turn:
            self._waiting[0].has_turn = True
            self._waiting[0].open()
        else:
            self._flushing -= 1
            if self._flushing == 0:
                for gate in self._leaving.copy():
                    gate.open()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is under way any more; False when the time is over first. Waits.

        What waits to be sent needs no push: its callers send it as soon as the flush before it is
        over. The caller of this may be in another world than they are.
        """
        gate = current().gate()
        deadline = now() + timeout_s
        self._leaving.append(gate)  # first, then look: a flush that ends now finds the gate
        try:
            while self._flushing:
                left_s = deadline - now()
                if left_s <= 0 or not gate.wait(left_s):
                    return not self._flushing
        finally:
            self._leaving.remove(gate)
        return True

    # -- sending ------------------------------------------------------------------------------

    def _push(self, fields: dict[str, Any]) -> str:
        return str(self._call({"cmd": "PUSH", "queue": self._queue_key, **fields})["id"])

    def _flush_for(self, entry: Entry, batch: list[Entry]) -> None:
        """Send a batch that it fell to the caller of ``entry`` to send.

        Among greenlets one of its own sends what belongs to several: a caller may be killed or run
        into its ``gevent.Timeout`` while the others' jobs are on their way. A thread cannot be.
        """
        if self._world.is_native or batch == [entry]:
            self._flush(batch)
        else:
            self._world.spawn(partial(self._flush, batch), "bunqueue-add")

    def _flush(self, batch: list[Entry]) -> None:
        """Send a batch and settle all its entries, whatever happens."""
        try:
            if len(batch) == 1:
                self._send_one(batch[0])
            else:
                self._send_many(batch)
        except BaseException as error:
            shared = error if isinstance(error, BunqueueError) else None
            for entry in batch:
                if not entry.is_done:
                    entry.settle(None, shared or _interrupted(error))
            if shared is None:
                raise
        finally:
            self._wake(batch)

    def _wake(self, batch: list[Entry]) -> None:
        """Wake the callers of a batch; then the flush is over.

        Threads woken all at once would queue up for the interpreter lock, each with a wait of its
        own. So each wakes the next before it returns, which wakes up while the one before is
        finishing. By the time that the last one ends the flush, the others are back with their next
        jobs, and leave together: a third less CPU time, and a fifth less time, for adds of 16
        threads (loadtests.client, "add from 16 threads").
        """
        if not self._world.is_native:
            for entry in batch:
                entry.open()
            self._end_flush()
            return
        chain: deque[Entry | None] = deque(batch)
        chain.append(None)
        for entry in batch:
            entry.chain = chain
        self._wake_next(chain)

    def _wake_next(self, chain: deque[Entry | None]) -> None:
        """Wake the next caller who is still there; who finds the mark at the end ends the flush.

        One that left before its batch had a chain is passed over; one that leaves later has seen
        the chain, and wakes the next itself.
        """
        while chain:
            try:
                entry = chain.popleft()
            except IndexError:
                return  # another link of the chain was faster
            if entry is None:
                self._end_flush()
            elif not entry.has_left:
                entry.open()
                return

    def _send_one(self, entry: Entry) -> None:
        try:
            job_id = self._push(entry.fields)
        except BunqueueError as error:
            entry.settle(None, error)
        else:
            entry.settle(job_id)

    def _send_many(self, batch: list[Entry]) -> None:
        started, is_sent = now(), False
        try:
            ids = push_all(self._call, self._queue_key, [entry.fields for entry in batch])
        except (CommandError, SerializationError):
            # Nothing of it was admitted: one by one, so that each hears its own outcome, at once.
            for entry in batch:
                self._send_one(entry)
                entry.open()
        else:
            is_sent = True
            for entry, job_id in zip(batch, ids, strict=True):
                entry.settle(job_id)
        finally:
            if self._observe is not None:
                took_ms = (now() - started) * 1000
                self._observe("batch_flush", size=len(batch), duration_ms=took_ms, ok=is_sent)


def _interrupted(error: BaseException) -> ConnectionClosedError:
    lost = ConnectionClosedError("the sender of the batch was interrupted")
    lost.__cause__ = error
    return lost


def push_all(
    call: Callable[[dict[str, Any]], dict[str, Any]], queue_key: str, jobs: list[dict[str, Any]]
) -> list[str]:
    """Send jobs as one PUSHB and return their ids in order. Waits.

    Raises:
        BunqueueError: The reply has another number of ids.
    """
    entries = []
    for fields in jobs:
        entry = fields
        if "jobId" in fields:
            entry = {key: value for key, value in fields.items() if key != "jobId"}
            entry["customId"] = fields["jobId"]
        entries.append(entry)
    ids = call({"cmd": "PUSHB", "queue": queue_key, "jobs": entries}).get("ids")
    if not isinstance(ids, list) or len(ids) != len(entries):
        raise BunqueueError(f"PUSHB of {len(entries)} jobs was answered with another number of ids")
    return [str(job_id) for job_id in ids]
