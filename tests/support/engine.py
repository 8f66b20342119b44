"""An engine to play with: fake clock, scripted storage, peers, and commands as clients send them.

``World`` is what most tests want. Time stands still until ``forward`` moves it, and ``forward``
calls ``tick`` at every moment the engine asks for, as the broker's ticker does. ``go`` sends one
command through encoding, dispatch and decoding and returns the reply; ``send`` returns an answer
that may still be to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

import msgpack

from bunqueue.commands import dispatch
from bunqueue.commands.event_wire import event_map
from bunqueue.commands.targets import AllowedTargets
from bunqueue.engine.engine import Engine
from bunqueue.engine.events import Event, ListenToAll
from bunqueue.engine.job import Extra, Job
from bunqueue.engine.latency import Latencies
from bunqueue.engine.later import Later
from bunqueue.engine.locks import CheckedLock, Lock, Rank
from bunqueue.engine.ports import MUST_COMMIT, NO_WAIT, SHOULD_COMMIT, WITHHELD
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.slices import Work
from bunqueue.protocol.codec import decode, pack
from bunqueue.protocol.findings import Finding, finding
from bunqueue.protocol.replies import INTERNAL_ERROR, encode_reply, error_reply
from bunqueue.storage.memory import MemoryStorage

T = TypeVar("T")

START = 1_700_000_000_000  # epoch ms at which every world begins
SEED = 20_240_501


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.ms = START

    def __call__(self) -> int:
        return self.ms


class FakeHost:
    """The process around an engine, with figures that stand still."""

    def __init__(self) -> None:
        self.targets = AllowedTargets(("127.0.0.1", "hooks.intranet"))
        self.latencies = Latencies()
        self.status: dict[str, Any] = {"diskFull": False, "error": None, "since": None}
        self.compactions = 0

    def prometheus(self) -> str:
        """Return a text."""
        return "bunqueue_jobs_waiting 0\n"

    def compact(self) -> None:
        """Count the call."""
        self.compactions += 1

    def memory_bytes(self) -> dict[str, int]:
        """Return 10, 20 and 30 MB."""
        return {"heapUsed": 10 << 20, "heapTotal": 20 << 20, "rss": 30 << 20}

    def connections(self) -> dict[str, int]:
        """Return one of a kind."""
        return {"tcp": 1, "ws": 1, "sse": 1}

    def storage_status(self) -> dict[str, Any]:
        """Return what the test says."""
        return self.status

    def file_bytes(self) -> int | None:
        """Return 5 MB."""
        return 5 << 20

    def facts(self) -> dict[str, Any]:
        """Return some."""
        return {
            "version": "0",
            "core": "pure",
            "python": "3",
            "sqlite": None,
            "writer": None,
            "pid": 1,
            "dataPath": None,
        }

    def findings(self) -> list[Finding]:
        """Return that all is well."""
        return [finding("storage", "ok", "it writes")]


class FakePeer:
    """A connection as commands and engine see it."""

    def __init__(self, engine: Any, clock: Clock, name: str = "peer") -> None:
        self.id = name
        self.held: dict[Any, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True
        self.engine = engine
        self.is_authenticated = True
        self.int64 = False
        self.tokens: set[object] = set()
        self.now = clock
        self.host = FakeHost()
        self.heard: list[Event] = []

    def hear(self, event: Event) -> None:
        """Keep an event of the subscribed queue."""
        self.heard.append(event)

    def authenticate(self, token: object) -> bool:
        """Let the peer in if the token is one of ``tokens``."""
        if isinstance(token, str) and token in self.tokens:
            self.is_authenticated = True
            return True
        return False


class ScriptedStorage:
    """A storage whose commits happen, or fail, when the test says so.

    Attributes:
        notes: Every note since the last commit or failure, as ``(kind, id or key)``.
        rows: id -> job, of what a file would hold after the commits so far.
        tables: The small tables, likewise.
        fails: The next commit fails.
    """

    is_persistent = True

    def __init__(self) -> None:
        self.answer_waits = NO_WAIT
        self.is_refusing = False
        self.is_congested = False
        self.before_cut: Callable[[], None] | None = None
        self.is_hanging = False
        self.fails = False
        self.notes: list[tuple[str, str]] = []
        self.durable_syncs = 0
        self.rows: dict[str, Job] = {}
        self.tables: dict[str, dict[str, tuple[Any, ...]]] = {}
        self._touched: dict[int, tuple[Job, bool]] = {}
        self._puts: list[tuple[str, str, tuple[Any, ...] | None]] = []
        self._operations: list[tuple[Any, tuple[Any, ...], Any]] = []
        self._held: list[Callable[[bool], None]] = []

    def added(self, job: Job) -> None:
        """Note a new job."""
        row = self.rows.get(job.id)
        # A log would not remove rows that it takes to be unwritten.
        assert row is None or row.seq != job.seq, f"{job.id} is in the file and noted as new"
        self._note("added", job, is_kept=True)

    def changed(self, job: Job) -> None:
        """Note a change of state."""
        self._note("changed", job, is_kept=True)

    def rewritten(self, job: Job) -> None:
        """Note a change of the wide row."""
        self._note("rewritten", job, is_kept=True)

    def removed(self, job: Job) -> None:
        """Note that a job is gone."""
        self._note("removed", job, is_kept=False)

    def _note(self, kind: str, job: Job, is_kept: bool) -> None:
        if job.dirty & WITHHELD:
            return
        self.notes.append((kind, job.id))
        self._touched.pop(id(job), None)
        self._touched[id(job)] = (job, is_kept)

    def put(self, table: str, key: str, values: tuple[Any, ...]) -> None:
        """Note a row of a small table."""
        self.notes.append(("put", key))
        self._puts.append((table, key, values))

    def delete(self, table: str, key: str) -> None:
        """Note that a row of a small table is gone."""
        self.notes.append(("delete", key))
        self._puts.append((table, key, None))

    def sync(
        self,
        undo: Callable[..., None] | None = None,
        args: tuple[Any, ...] = (),
        then: Callable[..., None] | None = None,
        durable: bool = False,
    ) -> None:
        """Let the answer wait for the commit."""
        self.answer_waits = MUST_COMMIT
        self._operations.append((undo, args, then))
        self.durable_syncs += durable

    def claimed(self) -> None:
        """Let the answer wait, whatever comes of it."""
        self.answer_waits = self.answer_waits or SHOULD_COMMIT

    def hold(self, deliver: Callable[[bool], None]) -> None:
        """Deliver after the next commit."""
        self._held.append(deliver)

    follow = hold

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Call back at once."""
        callback()

    def settle(self) -> None:
        """Commit everything noted, or fail it if ``fails`` says so."""
        if self.before_cut is not None:
            self.before_cut()
        operations, self._operations = self._operations, []
        held, self._held = self._held, []
        if self.fails:
            for undo, args, _ in reversed(operations):
                if undo is not None:
                    undo(*args)
        else:
            gone = [job for job, is_kept in self._touched.values() if not is_kept]
            kept = [job for job, is_kept in self._touched.values() if is_kept]
            for job in gone:
                if self.rows.get(job.id) is not None and self.rows[job.id].seq == job.seq:
                    del self.rows[job.id]
            for job in kept:
                self.rows[job.id] = snapshot(job)
            for table, key, values in self._puts:
                rows = self.tables.setdefault(table, {})
                rows.pop(key, None)
                if values is not None:
                    rows[key] = values
            self._touched.clear()
            self._puts.clear()
            for _, args, then in operations:
                if then is not None:
                    then(*args)
        self.notes.clear()
        for deliver in held:
            deliver(not self.fails)

    def load(self) -> SavedRows:
        """Return what was committed."""
        return SavedRows(self)


class SavedRows:
    """What a scripted storage holds, as a file would give it back."""

    was_clean = False

    def __init__(self, storage: ScriptedStorage) -> None:
        self.seq = max((job.seq for job in storage.rows.values()), default=0)
        self.tables = {name: dict(rows) for name, rows in storage.tables.items()}
        self._rows = sorted(storage.rows.values(), key=lambda job: job.seq)

    def jobs(self, queue_of: Callable[[str], Any]) -> Iterator[Job]:
        """Yield copies of the rows, in order of admission."""
        for row in self._rows:
            job = snapshot(row)
            job.queue = queue_of(row.queue.name)
            yield job


def snapshot(job: Job) -> Job:
    """Copy what a file keeps of a job: no delivery, no timers, no logs."""
    copy = Job(
        job.id,
        job.seq,
        job.queue,
        job.name,
        job.data,
        job.options,
        job.priority,
        job.created_at,
        job.run_at,
        _stored_place(job),
    )
    for name in ("started_at", "finished_at", "attempts", "stall_count", "token", "result"):
        setattr(copy, name, getattr(job, name))
    extra = Extra()
    for name in Extra.__slots__:
        value = getattr(job.extra, name)
        setattr(extra, name, value.copy() if isinstance(value, (list, dict)) else value)
    extra.ttl_timer = extra.logs = extra.flow = None
    copy.extra = extra
    return copy


def _stored_place(job: Job) -> str:
    """Say what a file has for the place of a job that waits for a commit."""
    flow = job.extra.flow
    if job.place == "admitted":
        return "parked" if flow is not None and flow.missing else "queued"
    return "queued" if flow is not None and flow.is_released else job.place


class Answer:
    """The reply to one command, now or later."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] | None = None

    @property
    def is_there(self) -> bool:
        """Whether the reply has come."""
        return self.reply is not None


class World:
    """An engine with its surroundings.

    Attributes:
        engine, storage, clock: The parts.
        peer: The connection that ``go`` speaks over unless told otherwise.
        events: Every event the engine emitted.
    """

    def __init__(
        self,
        storage: Any = None,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        peer_type: type[FakePeer] = FakePeer,
        seed: int = SEED,
    ) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.clock = clock or Clock()
        self.seed = seed
        self.rng = Random(seed)
        self.engine = Engine(
            self.storage,
            settings,
            locks=checked_lock,
            rng=self.rng,
            random_bytes=self.rng.randbytes,
        )
        self.settings = settings
        self.recovered = self.engine.recover(self.now)
        self.events: list[dict[str, Any]] = []
        self._peer_type = peer_type
        self.peer = self.connect()
        self.engine.tick(self.now)

    @property
    def now(self) -> int:
        """The time, epoch ms."""
        return self.clock.ms

    # -- asking ----------------------------------------------------------------------------------

    def connect(self, name: str = "peer") -> FakePeer:
        """Return another connection."""
        return self._peer_type(self.engine, self.clock, name)

    def listen(self) -> None:
        """Collect events from now on."""
        self.engine.listeners.append(
            ListenToAll(lambda event: self.events.append(event_map(event)))
        )

    def send(self, cmd: object, peer: FakePeer | None = None, **fields: Any) -> Answer:
        """Send one command; the answer may come later."""
        return self.send_raw({"cmd": cmd, **fields}, peer)

    def send_raw(self, request: object, peer: FakePeer | None = None) -> Answer:
        """Send anything at all, as the body of one frame."""
        peer = peer or self.peer
        answer = Answer()
        reply = dispatch(peer, decode(pack(request)))
        waits, self.storage.answer_waits = self.storage.answer_waits, NO_WAIT

        def deliver(reply: Any, waits: int) -> None:
            def leave(is_committed: bool) -> None:
                failed = not is_committed and waits == MUST_COMMIT
                body = encode_reply(
                    error_reply(INTERNAL_ERROR) if failed else reply, None, peer.int64
                )
                answer.reply = msgpack.unpackb(body)

            if waits == NO_WAIT:
                leave(True)
            else:
                self.storage.hold(leave)

        if isinstance(reply, Later):
            reply.then(deliver)
        else:
            deliver(reply, waits)
        return answer

    def go(self, cmd: object, peer: FakePeer | None = None, **fields: Any) -> dict[str, Any]:
        """Send one command, let its commit happen, and return the reply.

        One that is done in slices takes a millisecond for each.
        """
        answer = self.send(cmd, peer, **fields)
        self.settle()
        while answer.reply is None and self.engine.works.ring:
            self.forward(1)
        assert answer.reply is not None, f"{cmd} has not been answered"
        return answer.reply

    def ok(self, cmd: object, peer: FakePeer | None = None, **fields: Any) -> dict[str, Any]:
        """Send one command that must succeed; return the reply without ``ok``."""
        reply = self.go(cmd, peer, **fields)
        assert reply["ok"] is True, f"{cmd}: {reply['error']}"
        del reply["ok"]
        return reply

    def error(self, cmd: object, peer: FakePeer | None = None, **fields: Any) -> str:
        """Send one command that must be refused; return the text."""
        reply = self.go(cmd, peer, **fields)
        assert reply["ok"] is False, f"{cmd} was not refused: {reply}"
        assert {"ok", "error"} == set(reply)
        text: str = reply["error"]
        return text

    def settle(self) -> None:
        """Let everything that waits for a commit have it."""
        if isinstance(self.storage, ScriptedStorage):
            self.storage.settle()

    # -- short forms -----------------------------------------------------------------------------

    def push(self, queue: str = "q", **fields: Any) -> str:
        """Push a job; return its id."""
        job_id: str = self.ok("PUSH", queue=queue, **fields)["id"]
        return job_id

    def pull(self, queue: str = "q", peer: FakePeer | None = None, **fields: Any) -> str | None:
        """Pull a job without a lease; return its id, or None."""
        job = self.ok("PULL", peer, queue=queue, **fields)["job"]
        return None if job is None else job["id"]

    def lease(
        self, queue: str = "q", peer: FakePeer | None = None, **fields: Any
    ) -> tuple[str, str]:
        """Pull a job as a worker does; return its id and token."""
        reply = self.ok("PULL", peer, queue=queue, owner="worker", **fields)
        assert reply["job"] is not None, "nothing to pull"
        return reply["job"]["id"], reply["token"]

    def poll(
        self, queue: str = "q", peer: FakePeer | None = None, timeout: int = 60_000, **fields: Any
    ) -> Answer:
        """Begin a long poll."""
        return self.send("PULL", peer, queue=queue, timeout=timeout, **fields)

    def pull_all(self, queue: str = "q") -> list[str]:
        """Pull until nothing is left; return the ids in order."""
        ids = []
        while (job_id := self.pull(queue)) is not None:
            ids.append(job_id)
        return ids

    def state(self, job_id: str) -> str:
        """Return the job's state."""
        state: str = self.ok("GetState", id=job_id)["state"]
        return state

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job view."""
        view: dict[str, Any] = self.ok("GetJob", id=job_id)["job"]
        return view

    def counts(self, queue: str = "q") -> dict[str, int]:
        """Return the counts that are not 0."""
        counts = self.ok("GetJobCounts", queue=queue)["counts"]
        return {state: count for state, count in counts.items() if count}

    def entry(self, queue: str = "q") -> dict[str, Any]:
        """Return the only dead letter of the queue."""
        entries = self.ok("Dlq", queue=queue)["entries"]
        assert 1 == len(entries), f"{len(entries)} dead letters"
        found: dict[str, Any] = entries[0]
        return found

    def close(self, peer: FakePeer) -> None:
        """Close a connection."""
        self.engine.peer_closed(peer, self.now)
        self.storage.answer_waits = NO_WAIT
        self.settle()

    # -- time ------------------------------------------------------------------------------------

    def forward(self, ms: int) -> None:
        """Let time pass; the engine is called at every moment it asks for."""
        end = self.now + ms
        while (at := self.engine.tick(self.now)) <= end:
            self.storage.answer_waits = NO_WAIT
            self.settle()
            self.clock.ms = max(self.clock.ms, at)
        self.storage.answer_waits = NO_WAIT
        self.settle()
        self.clock.ms = end

    def leap(self, ms: int) -> None:
        """Let time pass without a tick, then tick once."""
        self.clock.ms += ms
        self.engine.tick(self.now)
        self.storage.answer_waits = NO_WAIT
        self.settle()

    def restart(self) -> World:
        """Return the world after a crash: what was committed, on the same clock."""
        assert isinstance(self.storage, ScriptedStorage)
        storage = ScriptedStorage()
        storage.rows = dict(self.storage.rows)
        storage.tables = {name: dict(rows) for name, rows in self.storage.tables.items()}
        world = World(storage, self.clock, self.settings, seed=self.seed + 1)
        world.settle()
        return world


def persistent_world(settings: EngineSettings | None = None) -> World:
    """Return a world whose commits can fail."""
    return World(ScriptedStorage(), settings=settings)


class _Raw:
    """A lock nobody contends for; taking it twice is a bug."""

    def __init__(self) -> None:
        self.is_held = False

    def acquire(self) -> None:
        assert not self.is_held, "a lock was taken twice"
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def locked(self) -> bool:
        return self.is_held


def checked_lock(rank: Rank, number: int) -> Lock:
    """Build a lock that refuses to be taken out of order."""
    return CheckedLock(rank, number, _Raw(), lambda: checked_lock)


def done(work: Work[T], now: int = START) -> T:
    """Do a work without an engine; return its answer."""
    try:
        next(work)
        while True:
            work.send(now)
    except StopIteration as end:
        answer: T = end.value
        return answer
