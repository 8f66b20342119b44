"""Histories in which much happens between an operation and its commit, and that fails.

What fails is undone, with all that came after it, but for what is promised or past: plain pushes,
claims, and what time ends. So the disk fails often here, few commands end their turn, families are
many, and leases, timeouts and times to live are short.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.steps import COMMANDS, IDS, POLICIES, QUEUES, Fields, Step, draw

LENGTHS = (15, 40, 80)  # steps
WITH_TURN = 0.35  # of the commands
DELAYS_MS = (0, 3, 30, 60, 700, 3_000)
SPANS_MS = (1, 9, 25, 40, 100, 250, 1_500, 6_000)


def _flow(rng: Random) -> Fields:
    fields = COMMANDS["PUSHF"][1](rng)
    for job in fields["jobs"]:
        entry = job["input"]
        if "parentId" not in entry:
            entry |= _some(rng, ttl=(0.3, (60, 1_000)))
        else:
            entry |= _some(rng, timeout=(0.5, (20, 300)), maxAttempts=(0.4, (1,)),
                           removeOnFail=(0.3, (True,)), ttl=(0.2, (60,)))  # fmt: skip
    return fields


def _linked(rng: Random) -> Fields:
    parent = rng.choice(IDS)
    return {
        "queue": rng.choice(QUEUES),
        "jobId": rng.choice(IDS),
        "parentId": parent,
        "data": {"__parentId": parent, "__parentQueue": rng.choice(QUEUES)},
        rng.choice(POLICIES): True,
        **_some(rng, timeout=(0.4, (20,)), maxAttempts=(0.5, (1,))),
    }


def _plain(rng: Random) -> Fields:
    chosen = _some(
        rng,
        ttl=(0.3, (60,)),
        dependsOn=(0.3, [[job_id] for job_id in IDS]),
        removeOnComplete=(0.3, (True,)),
        removeOnFail=(0.2, (True,)),
        uniqueKey=(0.2, ("k",)),
        timeout=(0.2, (20,)),
    )
    return {"queue": rng.choice(QUEUES), "jobId": rng.choice(IDS), **chosen}


def _pull(rng: Random) -> Fields:
    fields: Fields = {"queue": rng.choice(QUEUES), "count": rng.randint(1, 3)}
    if rng.random() < 0.7:
        fields |= {"owner": "w", "lockTtl": rng.choice((20, 20, 2_000))}
    return fields | _some(rng, timeout=(0.2, (500,)))


def _some(rng: Random, **choices: tuple[float, object]) -> Fields:
    """Choose a value of each name, with the chance that stands before the values."""
    return {
        name: rng.choice(values)  # type: ignore[arg-type]
        for name, (part, values) in choices.items()
        if rng.random() < part
    }


# Command -> weight; those with a function of their own draw their fields with it.
_OWN: dict[str, Callable[[Random], Fields]] = {
    "PUSHF": _flow, "PUSH": _plain, "PUSH to a parent": _linked, "PULLB": _pull,
}  # fmt: skip
_WEIGHTS = {
    "PUSHF": 6, "PUSH": 8, "PUSH to a parent": 5, "PULLB": 14, "ACK": 8, "FAIL": 5, "Cancel": 4,
    "Discard": 2, "Progress": 3, "Update": 2, "UpdateParent": 3, "RemoveChildDependency": 3,
    "RemoveUnprocessedChildren": 2, "MoveToWaitingChildren": 4, "MoveToWait": 2, "MoveToDelayed": 1,
    "ChangePriority": 1, "RetryDlq": 4, "RetryCompleted": 3, "Obliterate": 1, "Drain": 1,
    "Clean": 2, "PurgeDlq": 1, "RemoveDlqJob": 1, "SetDlqConfig": 1, "JobHeartbeat": 2,
    "SetStallConfig": 1,
}  # fmt: skip
_NAMES, _NAME_WEIGHTS = list(_WEIGHTS), list(_WEIGHTS.values())
_KINDS = ("command", "pass", "disk", "close", "crash", "try", "other")
_KIND_WEIGHTS = (70, 12, 11, 2.5, 2, 1.5, 1)


def _command(rng: Random) -> Fields:
    name = rng.choices(_NAMES, _NAME_WEIGHTS)[0]
    fields = _OWN.get(name) or COMMANDS[name][1]
    return {"cmd": name.split()[0], **fields(rng)}


def _draw(rng: Random) -> Step:
    kind = rng.choices(_KINDS, _KIND_WEIGHTS)[0]
    if kind == "command":
        return kind, rng.randrange(3), _command(rng), rng.random() < WITH_TURN
    if kind == "try":
        return kind, _command(rng)
    if kind == "pass":
        return kind, rng.choice(SPANS_MS)
    if kind == "disk":
        mode = rng.choices(("quick", "slow", "failing", "dying"), (5, 3, 5, 1))[0]
        return kind, mode, rng.choice(DELAYS_MS)
    if kind == "close":
        return kind, rng.randrange(3)
    if kind == "crash":
        return kind, rng.random() < 0.5, rng.choice((0, 5, 2_000))
    return draw(rng)


def rough_history(seed: int) -> list[Step]:
    """Draw a whole history."""
    rng = Random(seed)
    return [_draw(rng) for _ in range(rng.choice(LENGTHS))]
