"""Damaged frames of the hot commands: each gets a well-formed answer, whichever core reads it."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from bunqueue.server.connection import Connection
from tests.support.wire import frame_of, make_broker
from tests.unit.server.test_connection import Line

READS = 300
ODD: tuple[Any, ...] = (None, True, 0, -1, 2**63, -(2**63), 1.5, float("nan"), "", "x" * 300)
ODD += (b"\x00\xff", [], {}, {"a": [1]}, "\u00e9\U0001f600", msgpack.ExtType(0, b"\0"), [None] * 40)
REQUESTS: tuple[dict[str, Any], ...] = (
    {"cmd": "PUSH", "queue": "a", "name": "n", "data": {"x": 1}},
    {"cmd": "PULL", "queue": "a", "owner": "o"},
    {"cmd": "ACK", "id": "x", "token": "t"},
    {"cmd": "FAIL", "id": "x"},
    {"cmd": "PUSHB", "queue": "a", "jobs": [{"name": "n", "data": 1}] * 3},
    {"cmd": "PULLB", "queue": "a", "count": 3, "owner": "o"},
    {"cmd": "ACKB", "ids": ["x"], "tokens": ["t"], "results": [1]},
    {"cmd": "Ping"},
)
FIELDS = ("priority", "delay", "jobId", "result", "token", "timeout", "reqId", "queue", "id")


def damaged(chance: random.Random) -> bytes:
    """Return a body that was a request once."""
    request = dict(chance.choice(REQUESTS))
    for _ in range(chance.randrange(3)):
        request[chance.choice(FIELDS)] = chance.choice(ODD)
    body = bytearray(msgpack.packb(request))
    kind = chance.random()
    if kind < 0.3:
        body[chance.randrange(len(body))] = chance.randrange(256)
    elif kind < 0.4:
        del body[chance.randrange(len(body)) :]
    elif kind < 0.5:
        body += chance.randbytes(5)
    return bytes(body)


@pytest.mark.parametrize("seed", range(5))
def test_every_damaged_frame_is_answered_as_the_protocol_says(seed: int) -> None:
    chance = random.Random(seed)
    broker = make_broker()
    for _ in range(READS):
        line = Line()
        connection = Connection(broker, line, "peer", None)
        sent = b"".join(frame_of(damaged(chance)) for _ in range(4))
        cut = chance.randrange(len(sent))

        connection.received(sent[:cut])
        connection.received(sent[cut:])

        for reply in line.take():
            assert isinstance(reply["ok"], bool)
            assert reply["ok"] or isinstance(reply["error"], str)
            assert "Internal server error" != reply.get("error")
        connection.close()
