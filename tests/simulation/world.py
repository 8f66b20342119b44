"""One broker without a process: the real engine, commands, log and recovery on a simulated disk.

Nothing happens but what a step of the history says, in a time of its own. Every batch that is cut
is remembered as a picture of the engine at that moment; when the broker crashes, what is recovered
is held against the picture of the last batch that the file has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any

import msgpack

from bunqueue.commands import dispatch
from bunqueue.engine.engine import Engine
from bunqueue.engine.events import Event, ListenToAll
from bunqueue.engine.keys import LIVE
from bunqueue.engine.later import Later
from bunqueue.engine.ports import MUST_COMMIT, NEW, NO_WAIT, STATE
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.states import ADMITTED, GONE, PARKED
from bunqueue.errors import StorageFailed
from bunqueue.protocol.codec import decode, pack
from bunqueue.protocol.replies import INTERNAL_ERROR, encode_reply, error_reply
from bunqueue.storage.log import MutationLog
from bunqueue.storage.loop import Loop
from bunqueue.storage.ports import Writer
from tests.simulation.disk import SimulatedFile, SimulatedLoop, SimulatedSaved, SimulatedWriter
from tests.simulation.picture import (
    Picture,
    control_of,
    difference,
    picture_of,
    pictures_of,
    ties_of,
)
from tests.support.engine import Clock, FakePeer, checked_lock
from tests.support.stores import NamedQueue

PEERS = 3
UNHEARD = 4  # of so many histories, one has no listener: then the short ways are taken
PLACED = NEW | STATE  # notes of a job by which its place is written
PULLS = ("PULL", "PULLB")
ROUNDS_MAX = 5_000  # ticks in one step of time
SETTINGS = EngineSettings(shards=2, max_completed_jobs=20)
Cut = tuple[dict[int, Picture], dict[str, Any], dict[int, frozenset[str]]]


class SimulatedStorage(MutationLog):
    """The real log on a file of a history; tells of every cut.

    Attributes:
        touched: The jobs that were noted since somebody last looked.
        on_cut: Called with the number of each batch, whether it is empty, and whose places it has.
    """

    def __init__(
        self, writer: Writer, loop: Loop, file: SimulatedFile, now: Callable[[], int]
    ) -> None:
        self._saved = SimulatedSaved(file, self.changed, now())
        super().__init__(writer, loop, self._saved.seq, now)
        self.on_cut: Callable[[int, bool, AbstractSet[int]], None] = lambda *_: None
        self.touched: dict[int, Any] = {}

    def load(self) -> SimulatedSaved:
        """Return what the file holds."""
        return self._saved

    def added(self, job: Any) -> None:
        """Remember the job."""
        self.touched[job.seq] = job
        super().added(job)

    def changed(self, job: Any) -> None:
        """Remember the job."""
        self.touched[job.seq] = job
        super().changed(job)

    def rewritten(self, job: Any) -> None:
        """Remember the job."""
        self.touched[job.seq] = job
        super().rewritten(job)

    def removed(self, job: Any) -> None:
        """Remember the job."""
        self.touched[job.seq] = job
        super().removed(job)

    def _cut(self) -> Any:
        batch = super()._cut()
        in_flight = self._in_flight
        assert in_flight is not None
        jobs = zip(in_flight.jobs, in_flight.bits, strict=True)
        self.on_cut(self._number, batch is None, {job.seq for job, bits in jobs if bits & PLACED})
        return batch

    @property
    def cuts(self) -> int:
        """Number of the newest batch."""
        return self._number

    def end_well(self) -> None:
        """Write everything and mark the file as clean, as ``SqliteStorage.close`` does."""
        self.flush()
        self.put("meta", "seq", (self._seq_highest,))
        self._is_marked_unclean = True
        self.put("meta", "clean", (1,))
        self.flush()


class Asked:
    """One command and its answer.

    Attributes:
        peer, request: Who asked what.
        reply: The answer, or None while it is to come.
        cut: Number of the first batch that holds what the command did.
        has_changed: It has changed a picture at once.
    """

    __slots__ = ("peer", "request", "reply", "cut", "has_changed", "waits")

    def __init__(self, peer: int, request: dict[str, Any]) -> None:
        self.peer = peer
        self.request = request
        self.reply: dict[str, Any] | None = None
        self.cut = 0
        self.has_changed = False
        self.waits = NO_WAIT


class Broken(AssertionError):
    """An invariant does not hold."""


class World:
    """The broker, its surroundings, and what its peers have been told.

    Attributes:
        broken: The first rule that was broken inside the engine, which may have caught that.
        answered: Called with an ``Asked`` when its reply leaves.
        handed_out: Called with an ``Asked``, jobs and tokens when a puller gets these.
        file_changed: Called once a batch is in the file.
        heard: Called with every event.
        committed: Number of the newest batch in the file; ``cuts``: number -> picture.
    """

    def __init__(self, seed: int) -> None:
        self.clock = Clock()
        self.rng = Random(seed)
        self.loop = SimulatedLoop()
        self.file = SimulatedFile()
        self.answered: Callable[[Asked], None] = lambda _asked: None
        self.handed_out: Callable[[Asked, list[Any], list[Any]], None] = lambda *_: None
        self.file_changed: Callable[[], None] = lambda: None
        self.heard: Callable[[Event], None] = lambda _event: None
        self.broken: Broken | None = None
        self.is_listened_to = seed % UNHEARD != 0
        self.restarts = 0
        self.last_cut: Cut = {}, {}, {}
        self.start("quick", 0)

    @property
    def now(self) -> int:
        """Epoch ms."""
        return self.clock.ms

    def start(self, mode: str, delay_ms: int) -> None:
        """Start a broker on the file."""
        self.loop = SimulatedLoop()
        self.writer = SimulatedWriter(self.file, self.loop)
        self.writer.mode, self.writer.delay_ms = mode, delay_ms
        self.storage = SimulatedStorage(self.writer, self.loop, self.file, self.clock)
        self.writer.start(self.storage)
        self.committed = 0
        self.cuts: dict[int, Cut] = {}
        self._coming: AbstractSet[int] = set()  # what batches under way bring
        self._newest: dict[int, Picture] = {}  # what the file is to have with the newest batch
        self.storage.on_cut = self._on_cut
        self.writer.on_committed = self._on_committed
        self.storage.on_dropped = self._dropped
        self.engine = Engine(
            self.storage,
            SETTINGS,
            locks=checked_lock,
            rng=self.rng,
            random_bytes=self.rng.randbytes,
        )
        if self.is_listened_to:
            self.engine.listeners.append(ListenToAll(self._hear))
        self.engine.recover(self.now)
        self._jobs = {job.seq: job for job in self.engine.index}
        self._pictures = pictures_of(self.engine)
        self.storage.touched.clear()
        self.peers = [self._connect(number) for number in range(PEERS)]
        self.tick_at = self.now

    def _connect(self, number: int) -> FakePeer:
        return FakePeer(self.engine, self.clock, f"peer {number}")

    def _hear(self, event: Event) -> None:
        self._watch(self.heard, event)

    def _watch(self, look: Callable[..., None], *told: Any) -> None:
        """Let a rule look at what the engine is doing, and keep what it says."""
        try:
            look(*told)
        except Broken as broken:
            self.broken = self.broken or broken
            raise

    def is_sound(self) -> None:
        """No rule has been broken in the midst of what the engine did."""
        if self.broken is not None:
            raise self.broken

    def _dropped(self, job: Any, why: str) -> None:
        raise Broken(f"a row of {job} was refused: {why}")

    def _on_cut(self, number: int, is_empty: bool, written: AbstractSet[int]) -> None:
        engine = self.engine
        stored = self._newest = self.stored(written)
        self.cuts[number] = stored, control_of(engine, self.now), ties_of(engine)
        if is_empty:
            self._on_committed(number)

    def _on_committed(self, number: int) -> None:
        self.committed = max(self.committed, number)
        for older in [cut for cut in self.cuts if cut < self.committed]:
            del self.cuts[older]
        self.last_cut = self.cuts.get(number, self.last_cut)
        self.file_changed()

    # -- looking -----------------------------------------------------------------------------------

    def pictures(self) -> dict[int, Picture]:
        """Return the pictures of all jobs; only those that were noted are taken anew.

        And those that have appeared: their row has said so since they were admitted.
        """
        touched = self.storage.touched
        for seq, job in self._jobs.items():
            if job.place != self._pictures[seq].place:
                touched[seq] = job
        if touched:
            self._pictures = dict(self._pictures)
            for seq, job in touched.items():
                if job.place == GONE:
                    self._pictures.pop(seq, None)
                    self._jobs.pop(seq, None)
                else:
                    self._pictures[seq] = picture_of(job)
                    self._jobs[seq] = job
            touched.clear()
        return self._pictures

    def stored(self, written: AbstractSet[int] = frozenset()) -> dict[int, Picture]:
        """Return the pictures that a file has, with the places that it has for them.

        Args:
            written: Whose places are as of now; of those who wait to be shown, all others have the
                place that the newest batch has for them. What they wait for may have come since.
        """
        pictures = dict(self.pictures())
        for seq, job in self._jobs.items():
            if job.place in (ADMITTED, PARKED):
                pictures[seq] = picture_of(job, is_stored=True)
            if job.place == ADMITTED and seq not in written and seq in self._newest:
                pictures[seq] = pictures[seq]._replace(place=self._newest[seq].place)
        for batch in self.engine.arriving:
            for job in batch.jobs():  # of them, the file has nothing yet
                pictures.pop(job.seq, None)
        return pictures

    def file_pictures(self) -> dict[int, Picture]:
        """Return the pictures of the jobs that the file gives back."""
        repaired: list[Any] = []
        saved = SimulatedSaved(self.file, repaired.append, self.now)
        found = {job.seq: picture_of(job) for job in saved.jobs(NamedQueue)}
        if repaired:
            raise Broken(f"rows cannot be read back: {repaired}")
        return found

    def is_noted(self) -> None:
        """Every change of a job has been noted with the storage."""
        kept, found = self.pictures(), pictures_of(self.engine)
        if kept != found:
            raise Broken(f"changed without a note\n{difference(kept, found)}")

    def _batches_take_nothing(self, before: dict[int, Picture]) -> None:
        """No job that a batch under way brings has the id or key of one that was there before.

        It has them once it is written, in the step in which the other one loses them.
        """
        coming = {job.seq: job for batch in self.engine.arriving for job in batch.jobs()}
        for seq in coming.keys() - self._coming:
            job = coming[seq]
            of_key = job.queue.name, job.extra.unique_key
            others = [old for old in before.values() if old.seq not in self._coming]
            for old in others:
                _, key, until = old.key
                is_held = old.place in LIVE and key and (until is None or until > self.now)
                if old.id == job.id or (is_held and of_key == (old.queue, key)):
                    raise Broken(f"a batch under way has taken the place of {old}: {job}")
        self._coming = coming.keys()

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, number: int, request: dict[str, Any]) -> Asked:
        """Send one command; the answer may come later."""
        peer = self.peers[number]
        asked = Asked(number, request)
        asked.cut = self.storage.cuts + 1
        before = self.pictures()
        reply = dispatch(peer, decode(pack(request)))
        self._batches_take_nothing(before)
        self.is_sound()
        waits, self.storage.answer_waits = self.storage.answer_waits, NO_WAIT
        asked.waits = waits

        def deliver(reply: Any, waits: int) -> None:
            def leave(is_committed: bool) -> None:
                failed = not is_committed and waits == MUST_COMMIT
                body = encode_reply(
                    error_reply(INTERNAL_ERROR) if failed else reply, None, peer.int64
                )
                asked.reply = msgpack.unpackb(body)
                self.answered(asked)

            asked.waits = waits
            if request["cmd"] in PULLS:
                self._tell_what_is_handed_out(asked, reply)
            if waits == NO_WAIT:
                leave(True)
            else:
                asked.cut = self.storage.cuts + 1
                self.storage.hold(leave)

        if isinstance(reply, Later):
            asked.waits = NO_WAIT
            peer.parked.add(reply)
            reply.then(deliver)
        else:
            deliver(reply, waits)
        return asked

    def _tell_what_is_handed_out(self, asked: Asked, reply: Any) -> None:
        told = msgpack.unpackb(encode_reply(reply, None, self.peers[asked.peer].int64))
        if told["ok"] is True:
            jobs = told["jobs"] if "jobs" in told else [told["job"]] if told["job"] else []
            tokens = told.get("tokens") or [told.get("token")] * len(jobs)
            self._watch(self.handed_out, asked, jobs, tokens)

    def close(self, number: int) -> None:
        """Close a connection; its number is another one's from now on."""
        self.engine.peer_closed(self.peers[number], self.now)
        self.storage.answer_waits = NO_WAIT
        self.peers[number] = self._connect(number)

    # -- time --------------------------------------------------------------------------------------

    def turn(self) -> None:
        """End turns of the loop until nothing is left to do at once."""
        for _ in range(100):
            if self.loop.is_idle and self.loop.next_at > self.loop.ms:
                return
            self.loop.turn()
        raise Broken("the loop does not come to rest")

    def tick(self) -> None:
        """Do the timed work that is due."""
        before = self.pictures()
        self.tick_at = self.engine.tick(self.now)
        self._batches_take_nothing(before)
        self.is_sound()
        self.storage.answer_waits = NO_WAIT

    def tick_again(self) -> None:
        """Do what an undo has left to the ticker, which is woken by it."""
        if self.engine.timers.next_at <= self.now:
            self.tick()
            self.turn()

    def forward(self, ms: int, after: Callable[[], None]) -> None:
        """Let time pass; ``after`` is called after each tick and each turn."""
        end = self.now + ms
        for _ in range(ROUNDS_MAX):
            self.tick()
            after()
            self.turn()
            after()
            if self.now >= end:
                self.tick_again()
                after()
                return
            until = min(self.tick_at - self.now, self.loop.next_at - self.loop.ms)
            step = min(max(1, math.ceil(min(until, ms))), end - self.now)
            self.clock.ms += step
            self.loop.ms += step
        raise Broken("the engine wants to be called again and again")

    def jump(self, delta_ms: int) -> None:
        """Have somebody set the wall clock."""
        self.clock.ms += delta_ms
        self.tick_at += delta_ms
        self.engine.clock_jumped(delta_ms)
        self.storage.answer_waits = NO_WAIT

    # -- the end -----------------------------------------------------------------------------------

    def crash(self, commits_last: bool) -> None:
        """Kill the broker; what its writer had been given may still be committed."""
        self.writer.crash(commits_last)

    def stop(self) -> bool:
        """End in good order; returns False if not everything could be written."""
        self.engine.drain_begin()
        self.engine.release_all(self.now)
        try:
            self.storage.end_well()
        except StorageFailed:
            self.writer.crash(commits_last=True)
            return False
        return True

    def let_go(self) -> None:
        """Free the jobs of an engine that is done with, of which millions come and go in a run."""
        self.engine.let_go()

    def again(self, down_ms: int, mode: str, delay_ms: int) -> None:
        """Start a broker on what was committed."""
        self.restarts += 1
        self.clock.ms += down_ms
        self.let_go()
        self.start(mode, delay_ms)


def silence() -> None:
    """Keep the broker's own words about failing commits out of a run of many histories."""
    logging.getLogger("bunqueue").setLevel(logging.CRITICAL + 1)
