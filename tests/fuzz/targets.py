"""What is fuzzed: each target takes bytes and raises if something is not as it must be.

* ``frames``: the bytes are a stream. It is heard frame by frame, each answer is judged, and then
  once more in other pieces by a broker that must say the same.
* ``codec``: the bytes are a frame's body, decoded in one go, piece by piece, and packed again.
* ``dispatch``: the bytes choose commands, moments and commits; every answer is judged, and at the
  end the engine must be whole.
* ``runner``: the same for PUSH, PULL, ACK and their batches, by the compiled core and by Python,
  which must say and hold the same, byte for byte.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any

import msgpack
import pytest

from bunqueue import compiled
from bunqueue.engine.ids import Ids
from bunqueue.protocol import large
from bunqueue.protocol.codec import InvalidFrame, NestedTooDeeply, decode, narrow, pack, unpack
from bunqueue.protocol.frames import FRAME_BYTES_MAX
from bunqueue.protocol.options import JobOptions
from bunqueue.server import connection
from bunqueue.server.connection import Connection
from tests.fuzz.answers import judge
from tests.fuzz.choices import Choices, packed
from tests.fuzz.requests import request
from tests.support.engine import done
from tests.support.whole import check_whole
from tests.support.wire import HoldingStorage, frame_of, make_broker
from tests.unit.server.test_connection import Line

NOW = 1_700_000_000_000
STEPS_MAX = 60
TICKS_MAX = 200
Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}


def target(fuzz: Target) -> Target:
    """Declare a target."""
    TARGETS[fuzz.__name__] = fuzz
    return fuzz


class Talk:
    """A broker, one connection, and a clock that stands still."""

    def __init__(self, is_compiled: bool = False, tokens: tuple[str, ...] = ()) -> None:
        self.now = NOW
        self.storage = HoldingStorage()
        self.broker = make_broker(self.storage, tokens)
        self.engine = self.broker.engine
        self.engine.ids = Ids(Random(1).randbytes)
        self.engine.rng = Random(1)
        self.line = Line()
        self.connection = Connection(self.broker, self.line, "peer", None)
        self.connection.now = lambda: self.now
        if not is_compiled:
            self.connection._runner = None

    def say(self, data: bytes, is_committed: bool = True) -> bytes:
        """Return what is written for these bytes, with a commit and a tick behind them."""
        self.connection.received(data)
        self.settle(is_committed)
        said, self.line.writes = b"".join(self.line.writes), []
        return said

    def settle(self, is_committed: bool = True) -> None:
        """Let the loop turn until nothing is left to do at this moment."""
        for _ in range(TICKS_MAX):
            self.storage.commit(is_committed)
            self.line.turn()
            if self.line.wakes:
                self.line.wakes = 0
                self.connection.resume()
            elif not self.storage.held and not self.engine.works.ring:
                return
            self.engine.tick(self.now)
        raise AssertionError("it does not come to rest")


def bodies(stream: bytes) -> list[bytes]:
    """Cut what was written into the bodies of its frames."""
    found = []
    while stream:
        size = int.from_bytes(stream[:4], "big")
        assert len(stream) >= 4 + size, "an answer is cut off"
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return found


def read(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn a logged failure into a raised one, and drop all other lines."""
    log = logging.getLogger("bunqueue")
    handler = Raising(logging.ERROR)
    kept, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = kept


class Raising(logging.Handler):
    """Raises what is logged as an error."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]


# -- frames ----------------------------------------------------------------------------------------


@target
def frames(data: bytes) -> None:
    """Hear a stream of raw bytes."""
    choices = Choices(data)
    tokens = ("secret",) if choices.chance(4) else ()
    cuts = [1 + choices.below(40) for _ in range(choices.below(6))]
    is_large = choices.chance(2)
    stream = choices.rest()
    with quiet():
        one = Talk(tokens=tokens)
        answers: list[tuple[Any, ...]] = []
        at = 0
        while len(stream) - at >= 4 and not one.line.is_finished:
            size = int.from_bytes(stream[at : at + 4], "big")
            end = at + 4 + size
            if size <= FRAME_BYTES_MAX and end > len(stream):
                break
            body = stream[at + 4 : end]
            parked = len(one.connection.parked)
            said = bodies(one.say(stream[at:end]))
            if size > FRAME_BYTES_MAX:
                assert [f"Frame too large: {size} bytes exceeds maximum {FRAME_BYTES_MAX}"] == [
                    read(raw).get("error") for raw in said
                ]
                assert one.line.is_finished
            elif len(one.connection.parked) == parked and not one.engine.listeners:
                assert len(said) == 1, said
                if one.connection.is_authenticated or b"Not authenticated" not in said[0]:
                    judge(body, read(said[0]), said[0], one.connection.int64)
            answers += [outline(raw) for raw in said]
            at = end
        other = Talk(tokens=tokens)
        said_then = []
        at = 0
        with frames_are_large() if is_large else nullcontext():
            for size in (*cuts, len(stream)):
                said_then += bodies(other.say(stream[at : at + size]))
                at += size
        # What is not complete may be refused already: a stranger's large frame.
        assert answers == [outline(raw) for raw in said_then[: len(answers)]]


@contextmanager
def frames_are_large() -> Iterator[None]:
    """Have every frame decoded in pieces, and payloads packed so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "LARGE_FRAME_BYTES", 0)
        patch.setattr(large, "WINDOW_BYTES", 40)
        patch.setattr(large, "RUN_LENGTH_MAX", 3)
        patch.setattr(large, "ITEMS_PER_STEP", 2)
        yield


def outline(raw: bytes) -> tuple[Any, ...]:
    """Return what of an answer does not depend on the moment."""
    reply = read(raw)
    return reply.get("ok"), reply.get("error"), repr(reply.get("reqId")), sorted(reply)


# -- the codec -------------------------------------------------------------------------------------


@target
def codec(data: bytes) -> None:
    """Decode a body whole and in pieces, and pack what it was."""
    choices = Choices(data)
    window, length = 40 + choices.below(60), 1 + choices.below(5)
    body = choices.rest() if choices.chance(2) else packed(choices.value(), choices, True)
    if not body:
        return
    whole = outcome(lambda: decode(body))
    opened: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WINDOW_BYTES", window)
        patch.setattr(large, "RUN_LENGTH_MAX", length)
        pieces = outcome(lambda: done(large.decode_large(memoryview(body), opened)))
    assert same(whole, pieces), (whole, pieces)
    if isinstance(whole, tuple):
        return
    again = pack(whole)
    if opened:
        ids = {id(value) for value in opened}
        assert done(large.pack_large(pieces, ids)).packed == again
        assert done(large.count_json(pieces, ids)) == large.json_chars(whole)
    assert same(unpack(again), without_undefined(whole)), whole
    assert again == pack(unpack(again))
    assert same(narrow(unpack(again)), unpack(pack(narrow(unpack(again)))))


def outcome(decoder: Callable[[], Any]) -> Any:
    """Return the value, or a tuple that tells how it was refused."""
    try:
        return decoder()
    except NestedTooDeeply as error:
        return "too deep", error.request
    except InvalidFrame:
        return ("invalid",)


def same(one: Any, other: Any) -> bool:
    """Compare, at any depth; not-a-number is itself."""
    left = [(one, other)]
    while left:
        one, other = left.pop()
        if one.__class__ is not other.__class__:
            return False
        if isinstance(one, dict):
            if list(one) != list(other):
                return False
            left += [(item, other[key]) for key, item in one.items()]
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            left += zip(one, other, strict=True)
        elif one != other and not (one != one and other != other):
            return False
    return True


def without_undefined(value: Any) -> Any:
    """Return the value as it is kept: an undefined element is null. Plain loops, as in codec.py."""
    if isinstance(value, dict):
        pairs = {}
        for key, item in value.items():
            pairs[key] = without_undefined(item)
        return pairs
    if isinstance(value, list):
        items = []
        for item in value:
            items.append(without_undefined(item))
        return items
    return unpack(pack(value))


# -- commands --------------------------------------------------------------------------------------


@target
def dispatch(data: bytes) -> None:
    """Live through commands, moments, failing commits, and the end of the peer."""
    choices = Choices(data)
    talk = Talk()
    talk.storage.holds = choices.chance(2)
    talk.connection.int64 = choices.chance(4)
    with quiet():
        for _ in range(STEPS_MAX):
            if choices.is_over:
                break
            if choices.chance(8):
                talk.now += choices.of((1, 1_000, 30_000, 3_600_000, 86_400_000))
                talk.engine.tick(talk.now)
                talk.say(b"")
                continue
            asked = request(choices, talk.engine)
            body = packed(asked, choices, choices.chance(4))
            parked = len(talk.connection.parked)
            is_committed = not choices.chance(8)
            said = bodies(talk.say(frame_of(body), is_committed))
            if asked["cmd"] == "Prometheus" or not is_committed:
                continue
            if len(talk.connection.parked) != parked or talk.engine.listeners:
                continue
            own = [raw for raw in said if "ok" in read(raw)]
            assert own, asked
            if len(own) == 1:
                judge(body, read(own[0]), own[0], talk.connection.int64)
        check_whole(talk.engine, talk.now, [talk.connection])
        talk.connection.close()
        talk.settle()
        check_whole(talk.engine, talk.now, [])


# -- the compiled core -----------------------------------------------------------------------------

# Tell of time that no test can stop.
TELLS_SPANS = ("Stats", "Metrics", "Prometheus", "DashboardOverview", "CompactMemory")
HOT = ("PUSH", "PUSHB", "PULL", "PULLB", "ACK", "ACKB")


@target
def runner(data: bytes) -> None:
    """Say the same to the compiled core and to Python."""
    from tests.unit.server.test_frames_compiled import Side

    assert compiled.IS_COMPILED, "the compiled core is not built"
    choices = Choices(data)
    holds, int64, is_damaged = choices.chance(2), choices.chance(2), choices.chance(3)
    python, native = (Side(is_compiled, holds, int64) for is_compiled in (False, True))
    for side in (python, native):
        side.broker.engine.rng = Random(1)
    with quiet():
        for _ in range(STEPS_MAX):
            if choices.is_over:
                break
            asked = request(choices, python.broker.engine)
            if asked["cmd"] not in HOT and not choices.chance(4):
                asked["cmd"] = choices.of(HOT)
            body = bytearray(packed(asked, choices, choices.chance(3)))
            if is_damaged and choices.chance(3):
                for _ in range(1 + choices.below(3)):
                    body[choices.below(len(body))] = choices.below(256)
            is_committed = not choices.chance(8)
            stream = frame_of(bytes(body))
            told = python.say(stream, is_committed), native.say(stream, is_committed)
            if asked["cmd"] not in TELLS_SPANS:
                assert told[0] == told[1], (asked, told)
            if python.state() != native.state():  # two not-a-numbers are not equal
                assert spelled(python.state()) == spelled(native.state()), asked


def spelled(value: Any) -> str:
    """Return all of a state as text, options too."""
    if isinstance(value, JobOptions):
        kept = [name for name in JobOptions.__slots__ if name != "reply"]  # made when it is needed
        return spelled([getattr(value, name) for name in kept])
    if isinstance(value, dict):
        return spelled([[key, item] for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(spelled, value))}]"
    return repr(value)
