"""One pipelined link: many commands in flight on one TCP connection, and no reader thread.

Whoever waits for a reply reads. The caller writes its frame under the write lock and tries to take
the *role* of reader. If it gets it, it hands every reply it reads to its owner, until its own is
in; then it gives the role back and summons one of the callers that are parked. If somebody else
reads already, it parks on a gate that is opened for its reply or for the role. So a lone caller
pays one send and one recv, and nobody ever hops through another thread without need.

That nobody is forgotten rests on one order: a caller is on the parked list before it tries for the
role the last time, and a reader gives the role back before it looks at the list. A caller that
leaves early (deadline, kill) summons another in passing, since the summons may have been its own.

A signal handler may raise between any two steps of a caller. So a lock is taken and noted in one
call in C, by ``extend`` and ``map``: whatever comes behind it, the lock is given back.

What was never answered when the link ends fails with ``ConnectionClosedError`` and is never sent
again: only the application knows whether that would be right.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from bunqueue.client import values
from bunqueue.client.stream import Stream
from bunqueue.client.worlds import Gate, World, now
from bunqueue.errors import CommandTimeoutError, ConnectionClosedError
from bunqueue.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES, unpack_length

_DO_NOT_WAIT = (False,)
_WAIT = (True,)


class Waiter:
    """A caller whose reply is not in yet."""

    __slots__ = ("error", "gate", "is_done", "reply")

    def __init__(self) -> None:
        self.reply: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self.gate: Gate | None = None

    def settle(self, reply: dict[str, Any] | None, error: BaseException | None = None) -> None:
        """Hand the outcome over and wake the caller if it is parked."""
        self.reply = reply
        self.error = error
        self.is_done = True
        if self.gate is not None:
            self.gate.open()


class Link:
    """A connected stream with commands in flight.

    Attributes:
        generation: Which successful connect of its pool this is.
        pending: Callers by ``reqId``.
        has_int64: Both sides listed ``int64`` in their Hello.
        timeouts: Consecutive commands without a reply in time.
        heard: Counts replies, so that somebody can see whether the link is quiet.
        last_error: Text of the last trouble, or None.
    """

    def __init__(
        self,
        stream: Stream,
        world: World,
        *,
        in_flight_max: int = 0,
        timeouts_max: int = 3,
        on_end: Callable[["Link"], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        on_wait: Callable[[int], object] | None = None,
    ) -> None:
        self.stream = stream
        self.world = world
        self.generation = 0
        self.pending: dict[str, Waiter] = {}
        self.has_int64 = False
        self.timeouts = 0
        self.heard = 0
        self.heard_before = -1
        self.timeouts_max = timeouts_max
        self.last_error: str | None = None
        self._ended: ConnectionClosedError | None = None
        self._ending = world.lock()
        self._inbox = bytearray()
        self._write_lock = world.lock()
        self._role = world.lock()
        # Who waits for the reader: nobody else, however long that one reads. All changes are single
        # calls in C, so threads need no lock.
        self._parked: OrderedDict[Waiter, None] = OrderedDict()
        self._slots = Slots(world, in_flight_max, on_wait) if in_flight_max > 0 else None
        self._on_end = on_end
        self._on_event = on_event

    @property
    def is_up(self) -> bool:
        """Whether commands can be sent."""
        return self._ended is None

    def call(self, name: str, frame: bytes, req_id: str, deadline: float | None) -> dict[str, Any]:
        """Send one frame and wait for the reply with its ``req_id``. Waits.

        Raises:
            CommandTimeoutError: No reply before the deadline.
            ConnectionClosedError: The link ended first.
        """
        waiter = Waiter()
        pending = self.pending
        lock = self._write_lock
        taken: list[bool] = []
        held: list[bool] = []
        try:
            if self._slots is not None and not self._slots.take(deadline, taken):
                raise CommandTimeoutError(f"no free slot for {name} within timeout")
            pending[req_id] = waiter
            if self._ended is not None:
                raise ConnectionClosedError(str(self._ended))
            try:
                held.extend(map(lock.acquire, _DO_NOT_WAIT))
                if not held[-1]:
                    held.extend(map(lock.acquire, _WAIT, (_patience(deadline),)))
                    if not held[-1]:
                        raise TimeoutError
                self.stream.write(frame, deadline)
            finally:
                if held and held[-1]:
                    lock.release()
            if not waiter.is_done:
                self._read_until_done(waiter, deadline)
        except TimeoutError:
            self._note_timeout(name)
            raise CommandTimeoutError(f"no response for {name} within timeout") from None
        except OSError as error:
            self.end(f"send failed: {error}")
            raise ConnectionClosedError(f"send failed: {error}") from error
        finally:
            if req_id in pending:
                del pending[req_id]
            try:
                self._leave(waiter)
            finally:
                if taken and self._slots is not None:
                    self._slots.give_back()
        if waiter.error is not None:
            raise waiter.error
        assert waiter.reply is not None
        return waiter.reply

    def listen(self, deadline: float | None) -> None:
        """Read, so that events are told as they come, until the deadline. Waits.

        Raises:
            ConnectionClosedError: The link ended first.
        """
        waiter = Waiter()
        key = f"listener-{id(waiter)}"
        self.pending[key] = waiter
        try:
            if self._ended is not None:
                raise ConnectionClosedError(str(self._ended))
            self._read_until_done(waiter, deadline)
        except TimeoutError:
            return
        finally:
            del self.pending[key]
            self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error

    # -- reading ------------------------------------------------------------------------------

    def _read_until_done(self, waiter: Waiter, deadline: float | None) -> None:
        """Read, or let another caller read, until ``waiter`` is settled.

        Raises:
            TimeoutError: The deadline came first.
        """
        role = self._role
        while not waiter.is_done:
            held: list[bool] = []
            try:
                held.extend(map(role.acquire, _DO_NOT_WAIT))
                if held[-1] or self._wait_for_role(waiter, deadline, held):
                    self._read(waiter, deadline)
            finally:
                if held and held[-1]:
                    role.release()
                    if self._parked:
                        self._summon()
                    if self._ended is not None:
                        self._close_stream()

    def _wait_for_role(self, waiter: Waiter, deadline: float | None, held: list[bool]) -> bool:
        """Park while another caller reads; True, and noted, when the role is ours."""
        if waiter.gate is None:
            waiter.gate = self.world.local_gate()
        self._parked[waiter] = None
        if waiter.is_done:
            return False
        held.extend(map(self._role.acquire, _DO_NOT_WAIT))
        if held[-1]:
            return True
        if not waiter.gate.wait(_left(deadline)) and not waiter.is_done:
            raise TimeoutError
        return False

    def _read(self, waiter: Waiter, deadline: float | None) -> None:
        """Be the reader until ``waiter`` is settled or the link has ended."""
        stream = self.stream
        chunks = stream.chunks
        while not waiter.is_done:
            try:
                try:
                    is_open = stream.receive(deadline)
                finally:
                    if chunks:
                        self._take_chunks()
            except TimeoutError:
                if waiter.is_done:
                    return
                raise
            except OSError as error:
                self.end("connection lost", cause=error)
            else:
                if not is_open:
                    self.end("connection lost")

    def _take_chunks(self) -> None:
        """Hand out every complete frame of what has been received."""
        is_taken = False
        try:
            self._parse()
            is_taken = True
        except (ValueError, TypeError, RecursionError) as error:
            self.end(f"connection lost: undecodable frame: {error}")
        finally:
            if not is_taken:
                # Also when a signal handler raised in the middle: the stream has lost its place.
                self.end("connection lost")

    def _parse(self) -> None:
        chunks, inbox = self.stream.chunks, self._inbox
        if inbox or len(chunks) > 1:
            for chunk in chunks:
                inbox += chunk
            data = bytes(inbox)
            inbox.clear()
        else:
            data = chunks[0]
        chunks.clear()
        start, end = 0, len(data)
        while end - start >= HEADER_BYTES:
            (size,) = unpack_length(data, start)
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"length {size}")
            stop = start + HEADER_BYTES + size
            if stop > end:
                break
            self._hand_out(values.decode(data[start + HEADER_BYTES : stop]))
            start = stop
        if start < end:
            inbox += data[start:]

    def _hand_out(self, message: Any) -> None:
        if message.__class__ is not dict:
            raise ValueError("a reply that is no map")
        req_id = message.get("reqId")
        if req_id is not None:
            self.timeouts = 0
            self.heard += 1
            waiter = self.pending.get(req_id)
            if waiter is not None:
                waiter.settle(message)
        elif message.get("type") == "event":
            if self._on_event is not None:
                self._on_event(message)
        else:
            raise ValueError(str(message.get("error", "reply without reqId")))

    def _leave(self, waiter: Waiter) -> None:
        """Note that a caller waits no longer."""
        if waiter.gate is not None:
            self._parked.pop(waiter, None)
        # Where nobody reads, an interrupt may have come between giving the role back and a summons.
        if not waiter.is_done or (self._parked and not self._role.locked()):
            self._summon()

    def _summon(self) -> None:
        """Wake one parked caller to take the role, unless somebody has it."""
        while self._parked:
            try:
                waiter, _ = self._parked.popitem(last=False)
            except KeyError:
                return
            if not waiter.is_done and waiter.gate is not None:
                waiter.gate.open()
                return

    # -- the end ------------------------------------------------------------------------------

    def _note_timeout(self, name: str) -> None:
        self.timeouts += 1
        self.last_error = f"no response for {name}"
        if 0 < self.timeouts_max <= self.timeouts:
            self.end("connection lost")

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Close the link and fail everything in flight; the first reason stays."""
        with self._ending:
            if self._ended is not None:
                return
            self._ended = ConnectionClosedError(reason)
            self._ended.__cause__ = cause
        self.last_error = reason
        self.stream.sever()
        for waiter in list(self.pending.values()):
            if not waiter.is_done:
                waiter.settle(None, ConnectionClosedError(reason))
        if self._slots is not None:
            self._slots.open_all()
        # First: gevent's lock lets others run where it is refused, and a kill may come there.
        if self._on_end is not None:
            self._on_end(self)
        self._close_stream()

    def _close_stream(self) -> None:
        """Give the descriptor back, unless a reader is in it: then that reader will."""
        if self._role.acquire(False):
            try:
                self.stream.close()
            finally:
                self._role.release()

    def find_out(self) -> bool:
        """Tell whether the link can be used, noticing a connection that died while idle."""
        if self._ended is not None:
            return False
        if self.pending:
            return True  # whoever reads will notice
        held: list[bool] = []
        try:
            held.extend(map(self._role.acquire, _DO_NOT_WAIT))
            is_open = not held[-1] or not self.stream.has_bytes() or self._take_ready()
        finally:
            if held and held[-1]:
                self._role.release()
                if self._parked:
                    self._summon()
        if not is_open:
            self.end("connection lost")
            self._close_stream()  # unless that was done
        return is_open

    def _take_ready(self) -> bool:
        """Take what came while nobody read: late answers, the peer's goodbye; False at the end."""
        try:
            is_open = self.stream.take_ready()
        except OSError:
            is_open = False
        finally:
            if self.stream.chunks:
                self._take_chunks()
        return is_open and self._ended is None


class Slots:
    """Bounds the commands in flight; callers are let in in order of arrival."""

    def __init__(
        self, world: World, count: int, on_wait: Callable[[int], object] | None = None
    ) -> None:
        self._on_wait = on_wait
        self._world = world
        self._lock = world.lock()
        self._count = self._free = count
        self._queue: deque[Gate] = deque()
        self._is_open = False

    @property
    def waiting(self) -> int:
        """How many callers are parked."""
        return len(self._queue)

    @property
    def is_crowded(self) -> bool:
        """Whether more than half of the slots are taken."""
        return 2 * self._free < self._count

    def take(self, deadline: float | None, taken: list[bool]) -> bool:
        """Take a slot, waiting for one; False when the deadline comes first.

        Args:
            deadline: Monotonic seconds, None for no bound.
            taken: Gets an item as soon as there is one to give back.
        """
        with self._lock:
            if self._free > 0 or self._is_open:
                self._free -= 1
                taken.append(True)
                return True
            gate = self._world.local_gate()
            self._queue.append(gate)
            waiting = len(self._queue)
        got = False
        try:
            if self._on_wait is not None:
                self._on_wait(waiting)
            got = gate.wait(_left(deadline))
        finally:
            if not got:
                with self._lock:
                    if gate in self._queue:
                        self._queue.remove(gate)
                    else:
                        got = True  # it was ours in the same instant
                if got:
                    self.give_back()
                    got = False
            else:
                taken.append(True)
        return got

    def give_back(self) -> None:
        """Pass the slot to the caller that waits longest."""
        with self._lock:
            if self._queue:
                self._queue.popleft().open()
            else:
                self._free += 1

    def open_all(self) -> None:
        """Let everybody in: the link has ended and they are to find out."""
        with self._lock:
            self._is_open = True
            while self._queue:
                self._queue.popleft().open()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - now())


def _patience(deadline: float | None) -> float:
    """Return the time left as a lock wants it, -1 for no bound."""
    return -1 if deadline is None else max(0.0, deadline - now())
