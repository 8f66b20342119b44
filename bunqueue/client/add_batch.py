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
from typing import Any

from bunqueue.client.worlds import Gate, World, now
from bunqueue.errors import BunqueueError, CommandError, ConnectionClosedError

MAX_SIZE_DEFAULT = 50
MAX_DELAY_MS_DEFAULT = 5
WAITING_MAX = 10_000  # client.md 1.1, back-pressure: callers beyond it park

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


class Entry:
    """One job on its way, and its caller."""

    __slots__ = ("error", "fields", "gate", "is_done", "is_head", "job_id", "since")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.job_id: str | None = None
        self.error: BaseException | None = None
        self.gate: Gate | None = None
        self.is_done = False
        self.is_head = False
        self.since = 0.0

    def settle(self, job_id: str | None, error: BaseException | None = None) -> None:
        """Hand the outcome over and wake the caller if it waits."""
        self.job_id, self.error = job_id, error
        self.is_done = True
        if self.gate is not None:
            self.gate.open()


class AddBatcher:
    """Collects the adds of one queue in one world.

    Args:
        call: ``Connection.call``, looked up anew for each command.
        queue_key: What the server is told.
        world: Whose locks and gates the callers wait on.
        max_size: Jobs per batch.
        max_delay_ms: The longest an entry waits for others.
    """

    def __init__(
        self,
        call: Callable[[dict[str, Any]], dict[str, Any]],
        queue_key: str,
        world: World,
        max_size: int = MAX_SIZE_DEFAULT,
        max_delay_ms: float = MAX_DELAY_MS_DEFAULT,
    ) -> None:
        self._call = call
        self._queue_key = queue_key
        self._world = world
        self._max_size = max_size
        self._max_delay_s = max_delay_ms / 1000
        self._lock = world.lock()
        self._waiting: deque[Entry] = deque()
        self._flushing = 0
        self._crowd = deque[Gate]()  # callers parked because too many entries wait

    def add(self, fields: dict[str, Any]) -> str:
        """Send one job, with others if they meet; return its id. Waits.

        Args:
            fields: Name, data and wire options of a PUSH, its own id as ``jobId``.
        """
        entry = Entry(fields)
        self._wait_for_room()
        batch: list[Entry] | None = None
        with self._lock:
            if self._flushing == 0:
                self._flushing = 1
                batch = [entry]
            else:
                entry.gate = self._world.local_gate()
                entry.since = now()
                self._waiting.append(entry)
                if len(self._waiting) >= self._max_size:
                    batch = self._take_locked()
                else:
                    self._waiting[0].is_head = True
        if batch is not None:
            self._flush(batch)
        if not entry.is_done:
            self._wait(entry)
        if entry.error is not None:
            raise entry.error
        assert entry.job_id is not None
        return entry.job_id

    def _wait_for_room(self) -> None:
        while len(self._waiting) >= WAITING_MAX:
            gate = self._world.local_gate()
            self._crowd.append(gate)
            if len(self._waiting) >= WAITING_MAX:
                gate.wait(self._max_delay_s or None)

    def _wait(self, entry: Entry) -> None:
        """Wait for the outcome; the head of the queue flushes when its time has come."""
        gate = entry.gate
        assert gate is not None
        try:
            while not entry.is_done:
                patience_s = None
                if entry.is_head:
                    patience_s = max(0.0, entry.since + self._max_delay_s - now())
                if gate.wait(patience_s) or entry.is_done:
                    if not entry.is_done and self._flushing == 0:
                        self._flush_waiting(entry)
                else:
                    self._flush_waiting(entry)
        except BaseException:
            self._leave(entry)
            raise

    def _flush_waiting(self, entry: Entry) -> None:
        with self._lock:
            if entry.is_done or entry not in self._waiting:
                entry.is_head = False  # somebody takes it along already
                return
            batch = self._take_locked()
        self._flush(batch)

    def _take_locked(self) -> list[Entry]:
        """Take the next batch off the queue."""
        waiting = self._waiting
        batch = [waiting.popleft() for _ in range(min(self._max_size, len(waiting)))]
        self._flushing += 1
        if waiting and not waiting[0].is_head:
            self._crown_locked()
        while self._crowd:
            self._crowd.popleft().open()
        return batch

    def _crown_locked(self) -> None:
        """Make the entry that waits longest the head and wake it to look at the clock."""
        head = self._waiting[0]
        head.is_head = True
        assert head.gate is not None
        head.gate.open()

    def _leave(self, entry: Entry) -> None:
        """Take out the entry of a caller that was interrupted before it was sent."""
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
            if self._waiting:
                self._crown_locked()

    # -- sending ------------------------------------------------------------------------------

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
                    entry.settle(
                        None, shared or ConnectionClosedError("the sender was interrupted")
                    )
            if shared is None:
                raise
        finally:
            with self._lock:
                self._flushing -= 1
                if self._waiting and self._flushing == 0:
                    self._crown_locked()

    def _send_one(self, entry: Entry) -> None:
        try:
            reply = self._call({"cmd": "PUSH", "queue": self._queue_key, **entry.fields})
        except BunqueueError as error:
            entry.settle(None, error)
        else:
            entry.settle(str(reply["id"]))

    def _send_many(self, batch: list[Entry]) -> None:
        try:
            ids = push_all(self._call, self._queue_key, [entry.fields for entry in batch])
        except CommandError:
            for entry in batch:
                self._send_one(entry)
        else:
            for entry, job_id in zip(batch, ids, strict=True):
                entry.settle(job_id)


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
