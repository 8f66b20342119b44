"""A TCP connection as a peer: bytes in, commands run in order, answers out.

No sockets here: ``received`` takes what came, and everything that leaves goes through ``write``.
All complete frames of one ``received`` are handled in a row and answered with one ``write``; an
answer that comes later (a long poll, a commit) is collected until the end of the loop's turn, so
that many of them leave together too. Nothing on the way of an ordinary command spawns, logs or
waits.

A connection stops taking frames while 50 of its commands wait or while the storage is congested,
and for a turn of the loop after so long a run of commands, or after answers of a megabyte: a read
may hold thousands of commands, some that list a queue, and neither others nor memory may wait for
the last of them.
What arrives then is kept: up to one read more, so that the end of the connection is still noticed.
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import repeat
from math import inf
from typing import Any, Final, Protocol

from bunqueue import compiled
from bunqueue.broker import (
    NO_WAIT,
    SHOULD_COMMIT,
    Broker,
    Committed,
    EngineFace,
    Event,
    Later,
    Work,
)
from bunqueue.broker.held import about, settled, settled_frames
from bunqueue.commands import dispatch
from bunqueue.commands.event_wire import pack_event
from bunqueue.protocol.codec import BeyondBounds, InvalidFrame, decode, pack, pack_plain
from bunqueue.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    frame,
    pack_length,
    too_large_text,
    unpack_length,
)
from bunqueue.protocol.large import (
    Container,
    decode_large,
    freed_per_step,
    let_go,
    pack_payloads,
)
from bunqueue.protocol.replies import (
    HEADER_WITH_ONE_MORE,
    INTERNAL_ERROR,
    INVALID_FORMAT,
    NOT_AUTHENTICATED,
    REQ_ID_KEY,
    Reply,
    encode_large,
    encode_reply,
    error_reply,
)
from bunqueue.server.memory import has_freed
from bunqueue.server.rate import RequestRate

log = logging.getLogger(__name__)

COMMANDS_WAITING_MAX: Final = 50  # wire.md 1.5
# Commands of one read are told the same time, until one in Python ends later than this after it.
ONE_TIME_S_MAX: Final = 0.001
KEPT_BYTES_MAX: Final = 262_144  # read ahead while no frames are taken: one read of the socket
# A frame that is waited for before any token was shown; an Auth takes some 100 bytes.
STRANGER_FRAME_BYTES_MAX: Final = 65_536
# Of a frame that comes byte by byte: so many pieces become one while they are this short in all,
# else a byte costs 45 of memory.
PIECES_JOINED: Final = 64
PIECES_JOINED_BYTES_MAX: Final = 65_536

SHORT_BYTES_MAX: Final = 4_096  # a packed reply below this needs no look at its length
LARGE_FRAME_BYTES: Final = 131_072  # a frame beyond this takes some ms to decode: in slices
TURN_BYTES_MAX: Final = 1_048_576  # longer answers made in a turn, after which others have theirs
CONTAINER_BYTES: Final = 72  # of an empty list
DROPPED_BYTES_PER_US: Final = 1_000  # of long pieces of memory that go back to the system
REQ_ID_KEY_BYTES: Final = len(REQ_ID_KEY)

RATE_EXCEEDED: Final = "Rate limit exceeded"
_INVALID_FRAME: Final = frame(encode_reply(error_reply(INVALID_FORMAT), None, False))

_hot: Any = compiled.part("hot")


class Line(Protocol):
    """The socket's side of a connection."""

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent. Never waits."""

    def finish(self) -> None:
        """Close once everything written so far has been sent."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back before the loop waits again, in no one's middle."""

    def wake(self) -> None:
        """Have ``resume`` called by the connection's own greenlet, soon."""

    def wake_next_turn(self) -> None:
        """The same, in a later turn of the loop: all sockets have been looked at in between."""


class NoLine:
    """The line of a connection that has ended: nothing leaves any more."""

    def write(self, data: bytes) -> None:
        """Do nothing, as all of these."""

    def finish(self) -> None:
        """See ``write``."""

    def soon(self, callback: Callable[[], None]) -> None:
        """See ``write``."""

    def wake(self) -> None:
        """See ``write``."""

    def wake_next_turn(self) -> None:
        """See ``write``."""


_NO_LINE: Final = NoLine()


class Connection:
    """One peer over TCP.

    Attributes:
        id, held, parked, is_open, engine, host, is_authenticated, int64: As every peer's.
        partial_at: Moment (of the steady clock, seconds) of the last byte of a frame that is not
            complete yet, or None between frames.
        wants_more: Reading on makes sense; False while enough is kept.
        is_put_off: What is kept waits for nothing of the peer's: its turn, or room in the storage.
    """

    __slots__ = (
        "id",
        "held",
        "parked",
        "is_open",
        "engine",
        "host",
        "is_authenticated",
        "int64",
        "now",
        "partial_at",
        "wants_more",
        "is_put_off",
        "_is_closed",
        "_broker",
        "_storage",
        "_totals",
        "_note_latency",
        "_line",
        "_rate",
        "_run_s_max",
        "_steady",
        "_pieces",
        "_large",
        "_missing",
        "_is_stopped",
        "_kept_bytes",
        "_out",
        "_is_handling",
        "_is_decoding",
        "_flushes_soon",
        "_holding",
        "_runner",
    )

    def __init__(
        self,
        broker: Broker,
        line: Line,
        name: str,
        rate: RequestRate | None,
        run_s_max: float = inf,
    ) -> None:
        """Prepare.

        Args:
            broker: What the commands act on.
            line: Where answers go.
            name: Names the peer in logs.
            rate: Counts its requests against the limit, or None.
            run_s_max: For so long commands are run in a row; what is left of a read then waits for
                the next turn of the loop.
        """
        self.id = name
        self.held: dict[Any, Any] = {}
        self.parked: set[Later] = set()
        self.is_open = True
        self._is_closed = False
        self.engine: EngineFace = broker.engine
        self.host = broker.host
        self.is_authenticated = not broker.tokens
        self.int64 = False
        self.now: Callable[[], int] = broker.clock.now
        self.partial_at: float | None = None
        self.wants_more = True
        self.is_put_off = False
        self._broker = broker
        self._storage = broker.storage
        self._totals = broker.engine.totals
        self._note_latency = broker.engine.latencies.note
        self._line = line
        self._rate = rate
        self._run_s_max = run_s_max
        self._steady = broker.clock.steady
        self._pieces: list[bytes] = []  # of a frame that is not complete, or kept while stopped
        # A large frame of which a part is here, without its header: to join its pieces takes 40 ms.
        self._large: bytearray | None = None
        self._missing = 0  # bytes that must still come before looking at the pieces is worth it
        self._is_stopped = False
        self._kept_bytes = 0
        self._out: list[bytes] = []
        self._is_handling = False
        self._is_decoding = False  # a large frame, whose turn is before all others
        self._flushes_soon = False
        self._holding = 0
        # Runs ordinary frames; with a request limit, each is looked at.
        self._runner: Any = (
            _hot.Runner(self, self._broker.engine, self._out, self._wait_for, self._steady)
            if _hot is not None and rate is None
            else None
        )

    def authenticate(self, token: object) -> bool:
        """Let the peer in if the token is one of ours."""
        if not self._broker.tokens.match(token):
            return False
        self.is_authenticated = True
        return True

    @property
    def owes_answers(self) -> bool:
        """Some answers have still to be sent, or wait for nothing but their commit."""
        return self._holding > 0 or bool(self._out)

    @property
    def unread_bytes(self) -> int:
        """How much has come and could not be run yet: a part of a frame, or what is kept."""
        return sum(map(len, self._pieces)) + len(self._large or b"")

    # -- in --

    def received(self, data: bytes) -> None:
        """Handle all complete frames in what came, together with what was kept."""
        if self._large is not None:
            self._gather(data)
            return
        if self._pieces:
            self._pieces.append(data)
            if not len(self._pieces) % PIECES_JOINED:
                self._join_short_pieces()
            if self._is_stopped:
                self._keep(len(data))
                return
            self._missing -= len(data)
            if self._missing > 0:
                self.partial_at = self._steady()
                return
            data = b"".join(self._pieces)
            self._pieces = []
        if self._storage.is_congested:
            self._pieces = [data]
            self._await_relief()
            return
        self._handle(data)

    def _gather(self, data: bytes) -> None:
        """Add to the large frame; decode it when it is complete."""
        body = self._large
        assert body is not None
        missing, self._missing = self._missing, self._missing - len(data)
        if self._missing > 0:
            body += data
            self.partial_at = self._steady()
            return
        body += data[:missing] if self._missing else data
        self._large = None
        self.partial_at = None
        rest = data[missing:]
        if self._storage.is_congested:
            self._pieces = [pack_length(len(body)), bytes(body), rest]
            self._await_relief()
            return
        self._pieces = [rest]
        self._stop()
        self._decode_large(memoryview(body))

    def resume(self) -> None:
        """Go on with what was kept, now that commands may run again."""
        if not self._is_stopped or self._is_closed or self._is_decoding:
            return
        if len(self.parked) >= COMMANDS_WAITING_MAX:
            return
        self._is_stopped = self.is_put_off = False
        self.wants_more = True
        self._kept_bytes = 0
        kept, self._pieces = b"".join(self._pieces), []
        if kept:
            self.received(kept)

    def _handle(self, data: bytes) -> None:
        """Run every complete command in ``data``, in order; keep the rest."""
        # One time for what came together: 0.03 us a command, where the clock takes 0.16.
        clock, self.now = self.now, repeat(self.now()).__next__
        try:
            self._run(data, clock)
        finally:
            self.now = clock

    def _run(self, data: bytes, clock: Callable[[], int]) -> None:
        """Run them; ``clock`` is asked again after a command that ended late."""
        storage = self._storage
        out = self._out
        one_more = HEADER_WITH_ONE_MORE
        held: _Held | None = None
        begin, size = 0, len(data)
        totals = self._totals
        pushed, pulled, completed = totals.pushed, totals.pulled, totals.completed
        steady = self._steady
        rate = self._rate
        began_s = now_s = steady()
        late_s = began_s + ONE_TIME_S_MAX
        until_s = began_s + self._run_s_max
        long_bytes = 0
        runner = self._runner if self.is_authenticated else None
        self._is_handling = True
        last = size - HEADER_BYTES  # where a frame may begin at the latest
        while begin <= last:
            if runner is not None:
                begin, ready, some_bytes, waiting = runner.run(data, begin, self.now(), until_s)
                now_s = steady()
                if ready:
                    out.append(ready)
                if waiting:
                    if held is None:
                        held = _Held(self)
                    held.add_frames(*waiting)
                if some_bytes:
                    long_bytes += some_bytes
                    if long_bytes >= TURN_BYTES_MAX and begin < size:
                        self._put_off(data[begin:])
                        begin = size
                if begin > last:
                    break
            if begin and now_s >= until_s:
                self._put_off(data[begin:])
                begin = size
                break
            start = begin + HEADER_BYTES
            length = unpack_length(data, begin)[0]
            end = start + length
            if length > LARGE_FRAME_BYTES:
                if length > FRAME_BYTES_MAX:
                    self._refuse_length(length)
                elif end > size:
                    break
                else:
                    self._pieces = [data[end:]]
                    self._stop()
                    self._decode_large(memoryview(data)[start:end])
                begin = size
                break
            if end > size:
                break
            begin = end
            try:
                request = decode(data[start:end])
            except InvalidFrame as error:
                self._refuse_frame(error)
                now_s = steady()
                continue
            try:
                req_id = request["reqId"]
            except (KeyError, TypeError):  # it has none, or is no map
                req_id = None
            else:
                if req_id.__class__ is str:
                    req_id = pack_plain(req_id)
                else:
                    req_id = self._packed(request, req_id)
            if rate is not None and not rate.admits(steady()):
                self._refuse_rate(request)
                now_s = steady()
                continue
            reply = dispatch(self, request)
            now_s = steady()
            if now_s >= late_s:
                late_s = now_s + ONE_TIME_S_MAX
                self.now = repeat(clock()).__next__
            if (
                reply.__class__ is bytes
                and len(reply) < SHORT_BYTES_MAX
                and not storage.answer_waits
            ):
                # `encode_reply` spelled out: 0.4 us here, 1.4 us through its calls.
                if req_id is None:
                    out += (pack_length(len(reply)), reply)
                else:
                    out += (
                        pack_length(len(reply) + REQ_ID_KEY_BYTES + len(req_id)),
                        one_more[reply[0]],
                        reply[1:],
                        REQ_ID_KEY,
                        req_id,
                    )
            elif isinstance(reply, Later):
                storage.answer_waits = NO_WAIT
                self._wait_for(reply, req_id, about(request))
                if len(self.parked) >= COMMANDS_WAITING_MAX:
                    self._pieces = [data[begin:]]
                    self._stop()
                    begin = size
                    break
            elif storage.answer_waits:
                if held is None:
                    held = _Held(self)
                commits = storage.answer_waits
                storage.answer_waits = NO_WAIT
                # What a claim is about stands in its answer. As ``about``: 0.1 us less for an ack.
                ids = None if commits == SHOULD_COMMIT else request.get("id") or about(request)
                held.add(reply, req_id, commits, ids)
            else:
                long_bytes += self._put(reply, req_id)
                if long_bytes >= TURN_BYTES_MAX and begin < size:
                    self._put_off(data[begin:])
                    begin = size
        self._is_handling = False
        # How long jobs took to get in, out and done: what one read brought, together. Twice the
        # clock and a tuple per read, 0.5 us; nothing per command.
        span_s = steady() - began_s
        if held is None:
            self._note_latency(
                (
                    span_s,
                    totals.pushed - pushed,
                    totals.pulled - pulled,
                    totals.completed - completed,
                )
            )
        else:  # claims and outcomes are answered after their commit
            self._note_latency((span_s, totals.pushed - pushed, 0, 0))
            held.began_s = began_s
            held.counts = (totals.pulled - pulled, totals.completed - completed)
            self._holding += 1
            storage.hold(held.deliver)
        if begin < size:
            self._await_rest(data, begin)
        elif not self._is_stopped:
            self.partial_at = None
        if out:
            self.flush()

    def _decode_large(self, body: memoryview) -> None:
        """Decode a frame in slices; the commands behind it wait."""
        self._is_decoding = True
        opened: list[Container] = []
        size = len(body)
        request = self._broker.engine.run(_decoding(body, opened), self.now(), False)
        if isinstance(request, Later):
            self.parked.add(request)
            later = request

            def decoded(request: Any, _commits: int) -> None:
                self.parked.discard(later)
                self._decoded(request)
                self._free(opened, size)

            later.then(decoded)
        else:
            self._decoded(request)
            self._free(opened, size)

    def _free(self, opened: list[Container], size: int) -> None:
        self._broker.engine.run(_freeing(opened, size), self.now(), True)

    def _decoded(self, request: Any) -> None:
        """Run the command of a large frame; then others may come."""
        self._is_decoding = False
        self._line.wake_next_turn()
        if isinstance(request, InvalidFrame):
            self._refuse_frame(request)
            self.flush_soon()
            return
        req_id = None
        if isinstance(request, dict):
            whole, request = request, dict(request)
            whole.clear()  # so that nobody else holds what stands in it
            if "reqId" in request:
                req_id = self._packed(request, request["reqId"])
        if self._rate is not None and not self._rate.admits(self._steady()):
            self._refuse_rate(request)
            self.flush_soon()
            return
        storage = self._storage
        storage.answer_waits = NO_WAIT
        reply = dispatch(self, request, is_large=True)
        waits, storage.answer_waits = storage.answer_waits, NO_WAIT
        if isinstance(reply, Later):
            self._wait_for(reply, req_id, about(request))
        elif waits != NO_WAIT:
            self._hold(reply, req_id, waits, about(request))
        else:
            self._put(reply, req_id)
            self.flush_soon()

    def _hold(self, reply: Reply, req_id: bytes | None, commits: int, ids: Any) -> None:
        """Have an answer sent after the next commit."""
        held = _Held(self)
        held.add(reply, req_id, commits, ids)
        self._holding += 1
        self._storage.hold(held.deliver)

    def _await_rest(self, data: bytes, begin: int) -> None:
        """Keep the beginning of a frame, and note how much of it is missing."""
        rest = data[begin:] if begin else data
        self._pieces = [rest]
        if len(rest) >= HEADER_BYTES:
            length = unpack_length(rest)[0]
            self._missing = HEADER_BYTES + length - len(rest)
            if length > STRANGER_FRAME_BYTES_MAX and not self.is_authenticated:
                self._pieces = []
                self._put(error_reply(NOT_AUTHENTICATED), None)
                self._line.finish()
                return
            if length > LARGE_FRAME_BYTES:
                self._pieces = []
                self._large = bytearray(memoryview(rest)[HEADER_BYTES:])
        else:
            self._missing = HEADER_BYTES - len(rest)
        self.partial_at = self._steady()

    def _join_short_pieces(self) -> None:
        """Make one of the last pieces if they are short, so that memory stays near their bytes."""
        last = self._pieces[-PIECES_JOINED:]
        if sum(map(len, last)) <= PIECES_JOINED_BYTES_MAX:
            self._pieces[-PIECES_JOINED:] = [b"".join(last)]

    def _stop(self) -> None:
        """Take no frames until ``resume``; what is kept begins with the next one."""
        self._is_stopped = True
        self.partial_at = None
        self._keep(sum(map(len, self._pieces)))

    def _keep(self, more_bytes: int) -> None:
        self._kept_bytes += more_bytes
        self.wants_more = self._kept_bytes < KEPT_BYTES_MAX

    def _put_off(self, rest: bytes) -> None:
        """Leave what is left of a read for the next turn of the loop."""
        self._pieces = [rest]
        self._stop()
        self.is_put_off = True
        self._line.wake_next_turn()

    def _await_relief(self) -> None:
        """Take no frames until the storage has room."""
        self._stop()
        self.is_put_off = True
        self._storage.on_relief(self._may_resume)

    def _may_resume(self) -> None:
        if self._is_stopped and not self._is_closed:
            self._line.wake_next_turn()

    def _refuse_length(self, length: int) -> None:
        self._put(error_reply(too_large_text(length)), None)
        self._line.finish()

    def _refuse_frame(self, error: InvalidFrame) -> None:
        request = error.request if isinstance(error, BeyondBounds) else None
        if self._rate is not None and not self._rate.admits(self._steady()):
            self._refuse_rate(request)
        elif request is not None:
            req_id = self._packed(request, request["reqId"]) if "reqId" in request else None
            self._put(error_reply(f"Command {error}"), req_id)
        else:
            self._out.append(_INVALID_FRAME)

    def _refuse_rate(self, request: Any) -> None:
        req_id = request.get("reqId") if request.__class__ is dict else None
        self._put(
            error_reply(RATE_EXCEEDED), pack_plain(req_id) if isinstance(req_id, str) else None
        )

    def _packed(self, request: dict[str, Any], req_id: object) -> bytes | None:
        """Pack a ``reqId`` that is no string; what is no command gets only strings back."""
        name = request.get("cmd")
        return pack(req_id) if name and isinstance(name, str) else None

    # -- out --

    def _put(self, reply: Reply, req_id: bytes | None) -> int:
        """Add an answer to what leaves with the next flush; return its length."""
        body = encoded(reply, req_id, self.int64)
        out = self._out
        size = len(body)
        if size > TURN_BYTES_MAX:  # not copied once more
            has_freed(size)  # soon
            self.flush()
            self._line.write(pack_length(size))
            self._line.write(body)
            return size
        out.append(pack_length(size))
        out.append(body)
        return size

    def _wait_for(self, later: Later, req_id: bytes | None, ids: Any = None) -> None:
        """Have an answer that is still to come sent when it is there."""

        def answered(reply: Reply, commits: int) -> None:
            self.parked.discard(later)
            if self._is_stopped:
                self._may_resume()
            if later.dropped:
                reply = settled(reply, commits, later.dropped, ids)
            if commits != NO_WAIT:
                self._hold(reply, req_id, commits, ids)
            else:
                self._put(reply, req_id)
                self.flush_soon()

        self.parked.add(later)
        later.then(answered)

    def hear(self, event: Event) -> None:
        """Send an event of the subscribed queue; who does not read them is cut off in time."""
        body = pack_event(event, self.int64)
        self._out += (pack_length(len(body)), body)
        self.flush_soon()

    def flush(self) -> None:
        """Write everything that is ready."""
        self._flushes_soon = False
        out = self._out
        if out:
            data = b"".join(out)
            out.clear()
            self._line.write(data)

    def flush_soon(self) -> None:
        """Write everything that will be ready at the end of this turn of the loop."""
        if not self._is_handling and not self._flushes_soon:
            self._flushes_soon = True
            self._line.soon(self.flush)

    # -- the end --

    def drop(self, pieces: deque[bytes | memoryview]) -> None:
        """Free what the peer has not read, some at a time: 64 MiB take up to 0.1 s."""
        self._broker.engine.run(_dropping(pieces), self.now(), True)

    def cancel_waits(self) -> None:
        """Give up the answers that are still to come: the peer has gone, or must go.

        What it sent before may still be run, but no job is handed out to it any more.
        """
        self.is_open = False
        for later in list(self.parked):
            later.cancel()
        self.parked.clear()

    def close(self) -> None:
        """Give up everything the peer had: it has gone, or must go."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runner = None  # which knows its connection
        self._pieces = []
        self._large = None
        self.partial_at = None
        self.cancel_waits()
        self._broker.engine.peer_closed(self, self.now())

    def leave(self) -> None:
        """Let go of the line, which knows its connection: no collector is to be waited for."""
        self._line = _NO_LINE


class _Held:
    """Answers of one read that wait for the same commit."""

    __slots__ = ("_connection", "_answers", "began_s", "counts")

    def __init__(self, connection: Connection) -> None:
        self.began_s = 0.0
        self.counts = (0, 0)  # pulls and completions among them
        self._connection = connection
        # A reply, its ``reqId``, what it waits for and the ids that it is about; or frames, None
        # and those of each.
        self._answers: list[tuple[Reply, bytes | None, int | bytes, Any]] = []

    def add(self, reply: Reply, req_id: bytes | None, commits: int, ids: Any) -> None:
        """Add one; ``commits`` tells whether it may leave although the commit failed."""
        self._answers.append((reply, req_id, commits, ids))

    def add_frames(self, frames: bytes, kinds: bytes, ids: bytes) -> None:
        """Add answers that are frames already; for each, ``kinds`` has a byte, ``ids`` a value."""
        self._answers.append((frames, None, kinds, ids))

    def deliver(self, committed: Committed) -> None:
        """Send them, or what takes their place."""
        connection = self._connection
        connection._holding -= 1
        for reply, req_id, commits, ids in self._answers:
            if isinstance(commits, bytes):
                assert isinstance(reply, bytes)
                if committed is not True:
                    reply = settled_frames(reply, commits, ids, committed)
                connection._out.append(reply)
            elif committed is True:
                connection._put(reply, req_id)
            else:
                connection._put(settled(reply, commits, committed, ids), req_id)
        if committed:
            connection._note_latency((connection._steady() - self.began_s, 0, *self.counts))
        if connection._holding:  # others of this commit leave with them
            connection.flush_soon()
        else:
            connection.flush()


def _decoding(body: memoryview, opened: list[Container]) -> Work[Any]:
    """Return the request, or what is wrong with the frame."""
    try:
        request = yield from decode_large(body, opened)
        yield from pack_payloads(request, opened)
        return request
    except InvalidFrame as error:
        return error.with_traceback(None)  # its frames hold what there is to be freed


def _freeing(opened: list[Container], size: int) -> Work[None]:
    """Free what was opened of a frame, and have its memory handed back."""
    each_bytes = size // (sum(map(len, opened)) + 1)
    step_bytes = freed_per_step(each_bytes) * (each_bytes + CONTAINER_BYTES)
    for spent_us in let_go(opened, each_bytes):
        has_freed(step_bytes)
        yield spent_us
    has_freed(size)


def _dropping(pieces: deque[bytes | memoryview]) -> Work[None]:
    """Free the newest first, so that the heap can shrink as it goes."""
    while pieces:
        size = len(pieces.pop())
        has_freed(size)
        yield 1 + size // DROPPED_BYTES_PER_US


def encoded(reply: Reply, req_id: bytes | None, int64: bool) -> bytes:
    """Return the body of a reply; one that cannot be sent is logged and becomes an error."""
    try:
        if reply.__class__ is bytes and len(reply) > TURN_BYTES_MAX and 0x80 < reply[0] < 0x8F:
            body = reply if req_id is None else encode_large(reply, req_id)
        else:
            body = encode_reply(reply, req_id, int64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        log.exception("reply could not be encoded")
        return encode_reply(error_reply(INTERNAL_ERROR), req_id, int64)
    if len(body) > FRAME_BYTES_MAX:
        return encode_reply(error_reply(too_large_text(len(body))), req_id, int64)
    return body
