"""Mutation without a look at what is covered, where there is no atheris; also the short form."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgpack

from tests.fuzz.choices import MARKED

SIZE_MAX = 4_096
SEEDS: tuple[bytes, ...] = tuple(
    b"\x00\x00" + len(body).to_bytes(4, "big") + body
    for body in map(
        msgpack.packb,
        (
            {"cmd": "PUSH", "queue": "q", "name": "n", "data": {"a": [1]}, "reqId": "1"},
            {"cmd": "PUSHB", "queue": "q", "jobs": [{"name": "n", "data": None}] * 2},
            {"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 0},
            {"cmd": "PULLB", "queue": "q", "count": 3},
            {"cmd": "ACK", "id": "a", "token": "t", "result": {}},
            {"cmd": "ACKB", "ids": ["a"], "tokens": [None], "results": [1.5]},
            {"cmd": "Ping"},
            {"cmd": "Auth", "token": "secret"},
            ["no", "map"],
            None,
        ),
    )
)


def inputs(seed: int, kept: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yield inputs without end: random ones, and kept ones and seeds that are mutated."""
    chance = random.Random(seed)
    pool = [*SEEDS, *kept]
    while True:
        if chance.random() < 0.4:
            yield chance.randbytes(chance.randrange(1, 2 ** chance.randrange(1, 12)))
        else:
            yield mutated(chance, pool)


def mutated(chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """Return something like one of the pool, or like several in a row."""
    data = bytearray(b"".join(chance.choices(pool, k=chance.randrange(1, 5))))
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at:at] = chance.randbytes(chance.randrange(1, 8))
        elif kind == 2:
            del data[at : at + chance.randrange(1, 8)]
        elif kind == 3:
            data[at:at] = chance.choice(MARKED)
        else:
            data[at:at] = chance.choice(pool)[: chance.randrange(1, 60)]
    return bytes(data[:SIZE_MAX]) or b"\x00"
