"""How many Python calls a hot command costs, from the decoded request to the encoded reply.

Counting calls is exact where timing is noise. The limits are today's numbers: raise one only with
a measurement in the commit. What is counted are calls of Python functions below ``answer``; calls
into C cost little and are counted apart, with more room. Timings are in ``loadtests/micro.py``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import chain, repeat
from threading import Lock
from typing import Any

import pytest

from bunqueue import compiled
from bunqueue.commands import dispatch
from bunqueue.protocol.codec import pack
from bunqueue.protocol.replies import encode_reply
from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import Clock, FakePeer, World

BATCH = 50
Request = dict[str, Any]


class QuietPeer(FakePeer):
    """A peer whose clock costs a call into C, as the server's does."""

    def __init__(self, engine: Any, clock: Clock, name: str = "peer") -> None:
        super().__init__(engine, clock, name)
        self.now = repeat(clock.ms).__next__


def answer(world: World, request: Request) -> bytes:
    """Answer one request as a connection does."""
    return encode_reply(dispatch(world.peer, request), b"\xa11", False)


def counted(run: Callable[[], object]) -> tuple[int, int]:
    """Return the calls of Python functions and those into C that ``run`` makes, itself apart."""
    python = c = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal python, c
        if event == "call":
            python += 1
        elif event == "c_call":
            c += 1

    gc.collect()
    gc.disable()  # what other tests left behind must not be finalized while we count
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return python - 1, c - 1  # run itself; setprofile


@pytest.fixture
def world() -> World:
    world = World(MemoryStorage(), peer_type=QuietPeer)
    world.engine.identity_lock = Lock()  # of C, as the server's are
    world.engine.completed_lock = Lock()
    for shard in world.engine.shards:
        shard.lock = Lock()
    warm_up(world)
    return world


def warm_up(world: World) -> None:
    """Run everything once, so that nothing is compiled, learnt or interned while it is counted."""
    for _ in range(2):
        for request in chain(singles(world), batches(world)):
            answer(world, request)


DATA = {"to": "someone@example.org", "n": 5}


def push() -> Request:
    return {"cmd": "PUSH", "queue": "q", "name": "welcome", "data": DATA}


def push_batch() -> Request:
    return {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "data": DATA}] * BATCH}


def pull() -> Request:
    return {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 0}


def pull_batch() -> Request:
    return {"cmd": "PULLB", "queue": "q", "owner": "w", "count": BATCH}


def active(world: World) -> list[Any]:
    return list(world.engine.queues["q"].active.values())


def ack(world: World) -> Request:
    job = active(world)[0]
    return {"cmd": "ACK", "id": job.id, "token": job.token, "result": {"ok": 1}}


def ack_batch(world: World) -> Request:
    jobs = active(world)[:BATCH]
    return {"cmd": "ACKB", "ids": [job.id for job in jobs], "tokens": [job.token for job in jobs]}


def singles(world: World) -> Any:
    yield push()
    yield pull()
    yield ack(world)


def batches(world: World) -> Any:
    yield push_batch()
    yield pull_batch()
    yield ack_batch(world)


def prepared(world: World, command: str) -> Request:
    """Bring the world to where the command has all it needs; return the request."""
    if command in ("PULL", "ACK"):
        answer(world, push())
    if command in ("PULLB", "ACKB"):
        answer(world, push_batch())
    if command == "ACK":
        answer(world, pull())
        return ack(world)
    if command == "ACKB":
        answer(world, pull_batch())
        return ack_batch(world)
    return {"PUSH": push, "PULL": pull, "PUSHB": push_batch, "PULLB": pull_batch}[command]()


# command -> most calls of Python functions, most calls into C; the batches are of BATCH jobs.
LIMITS: dict[str, tuple[int, int]] = {
    "PUSH": (15, 15),
    "PULL": (20, 23),
    "ACK": (15, 10),
    "PUSHB": (267, 416),
    "PULLB": (564, 566),
    "ACKB": (364, 314),
}


@pytest.mark.parametrize("command", LIMITS)
def test_a_hot_command_stays_within_its_calls(world: World, command: str) -> None:
    request = prepared(world, command)
    python, c = counted(lambda: answer(world, request))

    python_most, c_most = LIMITS[command]
    assert python <= python_most, f"{command}: {python} calls of Python functions"
    assert c <= c_most, f"{command}: {c} calls into C"


@pytest.mark.skipif(compiled.IS_COMPILED, reason="the limits are those of the Python")
@pytest.mark.parametrize("command", LIMITS)
def test_a_limit_is_not_left_far_above_what_is_needed(world: World, command: str) -> None:
    request = prepared(world, command)
    python, _ = counted(lambda: answer(world, request))

    assert LIMITS[command][0] * 0.8 <= python, "lower the limit and keep the gain"


def test_a_batch_costs_less_per_job_than_single_commands() -> None:
    for single, batch in (("PUSH", "PUSHB"), ("PULL", "PULLB"), ("ACK", "ACKB")):
        assert LIMITS[batch][0] < LIMITS[single][0] * BATCH


def test_a_reply_of_a_hot_command_is_packed_already() -> None:
    world = World()
    world.push()

    assert isinstance(dispatch(world.peer, push()), bytes)
    assert isinstance(dispatch(world.peer, pull()), bytes)
    assert isinstance(dispatch(world.peer, ack(world)), bytes)
    assert b"\x81\xa2ok\xc3" == pack({"ok": True})
