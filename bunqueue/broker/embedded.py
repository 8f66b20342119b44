"""A broker inside the calling program.

It is called from any thread or greenlet. All of it, the calls, the timed work and the storage's
callbacks, runs under one native lock, the gate: nothing inside waits, so the gate is held for
microseconds. Its threads and locks are the original ones even in a process that gevent has patched,
so that user code which never yields cannot stop the timed work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from bunqueue import compiled
from bunqueue.broker.core import Broker, open_storage
from bunqueue.broker.held import about, settled, settled_frames
from bunqueue.broker.native import NativeAlarm, NativeThread, StorageLoop
from bunqueue.broker.peer import LocalPeer
from bunqueue.commands import dispatch
from bunqueue.engine.later import Later
from bunqueue.engine.ports import NO_WAIT, Committed
from bunqueue.engine.settings import COMPLETED_JOBS_MAX_DEFAULT, EngineSettings
from bunqueue.errors import EmbeddedError
from bunqueue.protocol.codec import InvalidFrame, decode, pack
from bunqueue.protocol.frames import HEADER_BYTES, pack_length
from bunqueue.protocol.replies import (
    INVALID_FORMAT,
    Reply,
    encode_reply,
    error_reply,
)
from bunqueue.storage.native import original

_hot: Any = compiled.part("hot")


class EmbeddedBroker:
    """A broker inside the calling program, for any of its threads and greenlets."""

    def __init__(self, data_path: str | None, settings: EngineSettings) -> None:
        """Open the file, recover, and start the threads for timed work and for writing.

        Raises:
            StorageFailed: The file is used by another process, or cannot be opened.
        """
        self._gate = original("_thread", "allocate_lock")()
        self._get_ident = original("_thread", "get_ident")
        self._inside: int | None = None
        self._loop = StorageLoop(self._gate)
        storage = open_storage(data_path, self._loop, is_embedded=True)
        alarm = NativeAlarm()
        self._broker = Broker(storage, settings, alarm=alarm, gate=self._gate)
        self._storage = storage
        runs = [self._broker.ticker.run]
        if storage.is_persistent:
            runs.append(self._loop.run)
        self._threads = [NativeThread(run) for run in runs]

    def new_peer(self, name: str = "embedded") -> LocalPeer:
        """Return a new peer, as a new connection would be one."""
        peer = LocalPeer(self._broker, name)
        if _hot is not None:
            peer.runner = _hot.Runner(peer, self._broker.engine)
        return peer

    def call(self, peer: LocalPeer, request: bytes, deliver: Callable[[bytes], None]) -> None:
        """Run one command.

        Args:
            peer: Who asks.
            request: The command, packed as in a frame.
            deliver: Called once with the packed reply, now or later and maybe from another thread;
                it must not wait, nor call the broker.

        Raises:
            EmbeddedError: A signal handler called that had interrupted another call.
        """
        if self._inside == self._get_ident():
            raise EmbeddedError("called by a signal handler in the middle of another call")
        with self._gate:
            self._inside = self._get_ident()
            try:
                self._run(peer, request, deliver)
            finally:
                self._inside = None

    def flush(self, deliver: Callable[[Committed], None]) -> None:
        """Have ``deliver(is_written)`` called once all that was done until now is in the file."""
        with self._gate:
            self._storage.hold(deliver)

    def close_peer(self, peer: LocalPeer) -> None:
        """Let go of all that the peer had."""
        with self._gate:
            if peer.is_open:
                self._broker.engine.peer_closed(peer, self._broker.clock.now())

    def close(self, timeout_s: float = 30.0) -> None:
        """End everything: polls answer empty, what is active goes back, the file is closed. Waits.

        Raises:
            StorageFailed: Not everything could be written.
        """
        with self._gate:
            self._broker.engine.drain_begin()
            self._broker.ticker.stop()
            self._loop.stop()
        for thread in self._threads:
            thread.join(timeout_s)
        with self._gate:
            try:
                self._broker.close()
            finally:
                self._broker.engine.let_go()  # the program may open many brokers, one by one
            self._loop.close()

    def _run(self, peer: LocalPeer, request: bytes, deliver: Callable[[bytes], None]) -> None:
        """Run one command; the gate is held."""
        if peer.runner is not None and self._run_compiled(peer, request, deliver):
            return
        try:
            command = decode(request)
        except InvalidFrame:
            deliver(encode_reply(error_reply(INVALID_FORMAT), None, True))
            return
        req_id = None
        if isinstance(command, dict) and "reqId" in command:
            req_id = pack(command["reqId"])
        reply = dispatch(peer, command)
        waits, self._storage.answer_waits = self._storage.answer_waits, NO_WAIT
        if isinstance(reply, Later):
            self._deliver_later(peer, reply, req_id, about(command), deliver)
        elif waits == NO_WAIT and not self._storage.is_congested:
            deliver(encode_reply(reply, req_id, True))
        else:
            ids = None if waits == NO_WAIT else about(command)
            self._deliver(reply, waits, req_id, ids, deliver)

    def _run_compiled(
        self, peer: LocalPeer, request: bytes, deliver: Callable[[bytes], None]
    ) -> bool:
        """Run an ordinary command; False when it is none and nothing has happened."""
        storage = self._storage
        if storage.is_congested:
            return False
        end, answer, _, held = peer.runner.run(pack_length(len(request)) + request, 0, peer.now())
        if held is not None:
            frames, waits, ids = held
            storage.hold(partial(_deliver_ready, frames, waits, ids, deliver))
        if answer:
            deliver(answer[HEADER_BYTES:])
        return bool(end)

    def _deliver_later(
        self,
        peer: LocalPeer,
        later: Later,
        req_id: bytes | None,
        ids: Any,
        deliver: Callable[[bytes], None],
    ) -> None:
        def answered(reply: Reply, commits: int) -> None:
            peer.parked.discard(later)
            if later.dropped:
                reply = settled(reply, commits, later.dropped, ids)
            self._deliver(reply, commits, req_id, ids, deliver)

        peer.parked.add(later)
        later.then(answered)

    def _deliver(
        self,
        reply: Reply,
        waits: int,
        req_id: bytes | None,
        ids: Any,
        deliver: Callable[[bytes], None],
    ) -> None:
        """Hand the reply over once what it waits for is written, or the backlog has room."""
        storage = self._storage

        def leave(committed: Committed) -> None:
            deliver(encode_reply(settled(reply, waits, committed, ids), req_id, True))

        if waits != NO_WAIT:
            storage.hold(leave)
        elif storage.is_congested:
            storage.on_relief(lambda: leave(True))
        else:
            leave(True)


def _deliver_ready(
    frames: bytes,
    waits: bytes,
    ids: bytes,
    deliver: Callable[[bytes], None],
    committed: Committed,
) -> None:
    deliver(settled_frames(frames, waits, ids, committed)[HEADER_BYTES:])


def open_embedded(
    data_path: str | None = None,
    *,
    max_completed_jobs: int = COMPLETED_JOBS_MAX_DEFAULT,
    completed_retention_ms: int | None = None,
) -> EmbeddedBroker:
    """Start a broker inside this process.

    Args:
        data_path: Its file; None keeps the jobs in memory only.
        max_completed_jobs: Completed jobs that are kept.
        completed_retention_ms: How long they are kept at most.

    Raises:
        StorageFailed: The file is used by another process, or cannot be opened.
    """
    settings = EngineSettings(
        max_completed_jobs=max_completed_jobs, completed_retention_ms=completed_retention_ms
    )
    return EmbeddedBroker(data_path, settings)
