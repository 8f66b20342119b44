"""Auto-batching: adds that meet leave together, adds that do not pay nothing.

The first caller sends its job at once. Callers that come while it is under way wait, and when it is
back one of them takes everybody along in one PUSHB. A full batch does not wait for that, nor does
one whose first job has waited ``max_delay_ms``. So sequential code costs one lock, and sixteen
threads cost one round trip instead of sixteen.

The callers of a batch are woken in a row: each wakes the next just before it returns. Threads woken
all at once would queue up for the interpreter lock, each with a wait of its own. The last of them
hands the turn on; among threads the one before it does, so that a caller that is interrupted before
it is counted costs the others nothing.

A refused batch has admitted none of its entries, so they are sent again one by one, and each caller
gets its own id or its own error. A lost batch fails all its callers with the same error, and
nothing is sent again: what became of it is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count, repeat
from typing import Any

from bunqueue.client.worlds import Gate, Lock, World, current, now
from bunqueue.errors import (
    BunqueueError,
    CommandError,
    ConnectionClosedError,
    SerializationError,
)

MAX_SIZE_DEFAULT = 50
MAX_DELAY_MS_DEFAULT = 5
WAITING_MAX = 10_000  # client.md 1.1, back-pressure: a batch of so many waits for nothing

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


class Batch:
    """Jobs that leave together, and the one lock at which their callers wait.

    Attributes:
        lock: Opened when there is an outcome, and whoever comes through opens it for the next;
            before that, when one of them is to send the batch or to look at the clock.
        jobs: The fields of each job by their ``id()``, in order of arrival.
        since: When the first one came.
        is_taken: It is being sent, or was; nobody joins any more.
        sender: Whose call took it and is about to send it, until it begins to.
        outcomes: An id or an error for each job; None as long as there is none.
        own_gates: A gate for each, once its jobs are sent one by one.
        partings: Counts those who are through with it, the sender once more than as a caller.
        ends_at: The count at which the flush ends.
    """

    __slots__ = (
        "ends_at",
        "is_taken",
        "jobs",
        "lock",
        "outcomes",
        "own_gates",
        "partings",
        "sender",
        "since",
    )

    def __init__(self, lock: Lock) -> None:
        lock.acquire()
        self.lock = lock  # as it is, since a gate's two methods would be a tenth of an add
        self.jobs: dict[int, dict[str, Any]] = {}
        self.since = 0.0
        self.is_taken = False
        self.sender: int | None = None
        self.outcomes: dict[int, str | BaseException] | None = None
        self.own_gates: dict[int, Gate] = {}
        # next() is one C call: no two threads get the same.
        self.partings: Iterator[int] = count(1)
        self.ends_at = 1

    def open(self) -> None:
        """Let one caller through, now or when it comes."""
        with suppress(RuntimeError):  # it is open already
            self.lock.release()

    def fail(self, error: BaseException) -> None:
        """Give ``error`` to all that have no outcome yet."""
        self.outcomes = {**dict.fromkeys(self.jobs, error), **(self.outcomes or {})}
        for gate in self.own_gates.values():
            gate.open()


class AddBatcher:
    """Collects the adds of one queue in one world.

    Args:
        call: ``Connection.call``, looked up anew for each command.
        queue_key: What the server is told.
        world: Whose locks and gates the callers wait on.
        max_size: Jobs per batch.
        max_delay_ms: The longest a job waits for others.
        observe: Told of each batch with ``size``, ``duration_ms`` and ``ok``.
        made: What a caller gets, of its job's fields and id; by default the id.
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
        made: Callable[[dict[str, Any], str], Any] = lambda _fields, job_id: job_id,
    ) -> None:
        self._observe = observe
        self._made = made
        self._call = call
        self._queue_key = queue_key
        self._world = world
        self._max_size = min(max_size, WAITING_MAX)
        self._max_delay_s = max_delay_ms / 1000
        self._patience_s = THREAD_PATIENCE_S if world.is_native else -1  # no bound
        self._lock = world.lock()
        self._open = Batch(world.lock())  # the one that newcomers join
        # Flushes under way: batches, the open one too once it has its turn, and keys of jobs that
        # go alone. While there is one, newcomers join the open batch instead of overtaking it. In
        # a set each is counted once, and its end, one call in C, is not lost in an interrupt.
        self._flushes: set[object] = set()
        self._lonely = 0  # adds in a row that met nobody
        self._leaving: list[Gate] = []  # those who wait for the end of all flushes

    @property
    def waiting(self) -> int:
        """How many jobs wait for their batch to leave."""
        return len(self._open.jobs)

    def add(self, fields: dict[str, Any]) -> Any:
        """Send one job, with others if they meet; return what is ``made`` of it. Waits.

        Args:
            fields: Name, data and wire options of a PUSH, its own id as ``jobId``; a dict of its
                own for each call.
        """
        key = id(fields)
        batch: Batch | None = None
        is_alone = False
        try:
            with self._lock:
                if self._flushes:
                    batch = self._open
                    jobs = batch.jobs
                    jobs[key] = fields
                    size = len(jobs)
                    if size == 1:
                        batch.since = now()
                    if size >= self._max_size:
                        self._take_locked(key)
                else:
                    is_alone = True
                    self._flushes.add(key)
            if batch is None:
                if not self._look_around():
                    return self._made(fields, self._push(fields))
                with self._lock:
                    batch = self._open
                    batch.jobs = {key: fields, **batch.jobs}  # it came first
                    self._take_locked(key)
                    self._flushes.discard(key)  # the batch is in its place
                size = 1
            if batch.sender == key:
                self._flush_for(batch)
            # The first one looks at the clock for all.
            patience_s = self._patience_s
            if size == 1:
                patience_s = min(self._max_delay_s, THREAD_PATIENCE_S)
            lock = batch.lock
            while batch.outcomes is None:
                lock.acquire(True, patience_s)
                if batch.outcomes is None:
                    patience_s = self._send_if_due(batch, key)
            outcome = batch.outcomes.get(key)
            if outcome.__class__ is str:
                return self._made(fields, outcome)
        finally:
            if is_alone:
                self._flushes.discard(key)
            if batch is None:
                if is_alone and (self._open.jobs or self._leaving):
                    self._hand_turn_on()
            elif batch.outcomes is not None or not self._is_taken_back(batch, key):
                if next(batch.partings) >= batch.ends_at and batch in self._flushes:
                    self._flushes.discard(batch)
                    self._hand_turn_on()
                try:  # noqa: SIM105  # that would take five times as long
                    batch.lock.release()
                except RuntimeError:
                    pass
        while outcome is None:  # the batch was refused, and is sent job by job
            batch.own_gates[key].wait()
            outcome = batch.outcomes.get(key)
        if isinstance(outcome, BaseException):
            raise outcome
        return self._made(fields, outcome)

    def _look_around(self) -> bool:
        """Let others run if there may be any; True when some of them wait to add.

        After a batch all its callers come back at once, and the first must not leave without the
        rest. And a reply that is there by the time it is read lets no other greenlet run at all, so
        greenlets look now and then even when they met nobody.
        """
        self._lonely += 1
        if self._lonely > 1 and (self._world.is_native or self._lonely % LOOK_EVERY):
            return False
        self._world.sleep(0)
        return bool(self._open.jobs)

    def _take_locked(self, sender: int) -> None:
        """Close the batch that is open; the caller whose job has the key ``sender`` sends it."""
        batch, following = self._open, Batch(self._world.lock())
        size = len(batch.jobs)
        if size > 1:
            self._lonely = 0
        batch.ends_at = size if self._world.is_native else size + 1  # the sender counts twice
        # No call but the last: an interrupt must not leave a batch that is neither open nor taken.
        self._open = following
        batch.sender = sender
        batch.is_taken = True
        self._flushes.add(batch)

    def _send_if_due(self, batch: Batch, key: int) -> float:
        """Send a batch whose turn it is, or that has waited long enough.

        Returns:
            How long to wait for it, if there is still no outcome then.
        """
        with self._lock:
            if batch.is_taken:
                return self._patience_s
            left_s = batch.since + self._max_delay_s - now()
            if left_s > 0 and self._flushes and batch not in self._flushes:
                return min(left_s, THREAD_PATIENCE_S)
            self._take_locked(key)
        self._flush_for(batch)
        return self._patience_s

    def _is_taken_back(self, batch: Batch, key: int) -> bool:
        """Take back the job of a caller that was interrupted, unless it is being sent."""
        had_turn = False
        with self._lock:
            is_open = not batch.is_taken
            if is_open:
                batch.jobs.pop(key, None)
                if batch.jobs:
                    batch.open()  # another takes the turn, or looks at the clock
                else:
                    had_turn = batch in self._flushes
                    self._flushes.discard(batch)
        if had_turn:
            self._hand_turn_on()
        if is_open:
            return True
        if batch.sender == key:  # interrupted when it was about to send the batch
            batch.fail(_interrupted(None))
            next(batch.partings)  # as the sender; as a caller it parts next
        return False

    def _hand_turn_on(self) -> None:
        """Give the open batch its turn if somebody waits; else those who wait for the end go on."""
        with self._lock:
            batch = self._open
            if batch.jobs:
                self._flushes.add(batch)
                batch.open()
            elif not self._flushes:
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
            while self._flushes or self._open.jobs:
                left_s = deadline - now()
                if left_s <= 0 or not gate.wait(left_s):
                    return not (self._flushes or self._open.jobs)
        finally:
            self._leaving.remove(gate)
        return True

    # -- sending ------------------------------------------------------------------------------

    def _push(self, fields: dict[str, Any]) -> str:
        return str(self._call({"cmd": "PUSH", "queue": self._queue_key, **fields})["id"])

    def _flush_for(self, batch: Batch) -> None:
        """Send a batch that it fell to the caller to send.

        Among greenlets one of its own sends what belongs to several: a caller may be killed or run
        into its ``gevent.Timeout`` while the others' jobs are on their way. A thread cannot be.
        """
        if self._world.is_native or len(batch.jobs) == 1:
            self._flush(batch)
        else:
            self._world.spawn(partial(self._flush_apart, batch), "bunqueue-add")
            batch.sender = None

    def _flush_apart(self, batch: Batch) -> None:
        try:
            self._flush(batch)
        finally:
            batch.open()

    def _flush(self, batch: Batch) -> None:
        """Send a batch and see that each job has an outcome, whatever happens."""
        try:
            batch.sender = None
            if len(batch.jobs) == 1:
                self._send_one(batch)
            else:
                self._send_many(batch)
        except BaseException as error:
            shared = error if isinstance(error, BunqueueError) else None
            batch.fail(shared or _interrupted(error))
            if shared is None:
                raise
        finally:
            if batch.own_gates or next(batch.partings) >= batch.ends_at:
                self._flushes.discard(batch)
                self._hand_turn_on()

    def _send_one(self, batch: Batch) -> None:
        [(key, fields)] = batch.jobs.items()
        batch.outcomes = {key: self._push(fields)}

    def _send_many(self, batch: Batch) -> None:
        started, is_sent = now(), False
        try:
            ids = push_all(self._call, self._queue_key, list(batch.jobs.values()))
        except (CommandError, SerializationError):
            self._send_one_by_one(batch)
        else:
            is_sent = True
            batch.outcomes = dict(zip(batch.jobs, ids, strict=True))
        finally:
            if self._observe is not None:
                took_ms = (now() - started) * 1000
                size = len(batch.jobs)
                self._observe("batch_flush", size=size, duration_ms=took_ms, ok=is_sent)

    def _send_one_by_one(self, batch: Batch) -> None:
        """Send a batch of which nothing was admitted, so that each hears its outcome at once."""
        gates = batch.own_gates = {key: self._world.local_gate() for key in batch.jobs}
        outcomes = batch.outcomes = {}
        batch.partings = repeat(0)  # the flush ends with the last of them
        batch.open()  # to have them all wait at their own
        for key, fields in batch.jobs.items():
            try:
                outcomes[key] = self._push(fields)
            except BunqueueError as error:
                outcomes[key] = error
            gates[key].open()


def _interrupted(error: BaseException | None) -> ConnectionClosedError:
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
