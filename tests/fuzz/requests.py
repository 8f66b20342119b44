"""Requests read off the command table: each field with a value of its kind, at its bounds, or odd.

What one request makes is what the next ones name: ids and tokens of jobs that are there are asked
from the engine, so that most commands find something to do.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from bunqueue.commands import COMMANDS
from bunqueue.commands.registry import Command
from bunqueue.protocol import fields as f
from tests.fuzz.choices import NUMBERS, TEXTS, Choices

QUEUES = ("q", "other", "third")
BAD_QUEUES = ("", "a b", "q" * 257, 5, None, ["q"])
IDS = ("a", "b", "c", "none", "", "x" * 1025, "a:b")
JOBS_LOOKED_AT = 8
BY_NAME = sorted(COMMANDS)
# Half of all commands are these, or most would find nothing.
OFTEN = ("PUSH", "PUSH", "PUSHB", "PULL", "PULLB", "ACK", "ACKB", "FAIL", "PUSHF", "MoveToDelayed")
WORDS: dict[str, tuple[Any, ...]] = {
    "state": ("waiting", "active", "completed", "failed", "delayed", "prioritized", "x"),
    "type": ("completed", "failed", "x"),
    "level": ("info", "error", "x"),
    "schedule": ("* * * * *", "*/5 * * * * *", "0 0 30 2 *", "bad", "@daily"),
    "timezone": ("UTC", "Europe/Rome", "Nowhere/At_All"),
    "url": ("http://127.0.0.1:1/x", "https://example.com/x", "ftp://x", ""),
    "events": (["completed"], ["job.failed"], ["x"], [], [5]),
    "backoff": (0, 100, {"type": "fixed", "delay": 5}, {"type": "exponential"}, {"delay": -1}),
    "owner": ("w", "", "\u0440"),
    "id": IDS,
}


def request(choices: Choices, engine: Any, name: str | None = None) -> dict[str, Any]:
    """Return the next request: of any command, or of that one."""
    if name is None:
        name = choices.of(OFTEN) if choices.chance(2) else choices.of(BY_NAME)
    row = COMMANDS[name]
    made: dict[str, Any] = {"cmd": name}
    for wire, field in row.fields.items():
        if field.required or wire in ("id", "token", "data") or choices.chance(5):
            made[wire] = value(choices, wire, field, engine)
    if name == "PUSHF" and choices.chance(2):
        made["jobs"] = flow(choices)
    elif name == "PUSHB":
        made["jobs"] = [entry(choices, row, engine) for _ in range(choices.below(5))]
    if name in ("ACKB", "ExtendLocks", "JobHeartbeatB"):
        made |= batch(choices, engine)
    if choices.chance(20):
        made[choices.of(TEXTS)] = choices.value()
    if choices.chance(2):
        made["reqId"] = choices.value() if choices.chance(6) else choices.below(1000)
    return made


def value(choices: Choices, wire: str, field: f.Field, engine: Any) -> Any:
    """Return what may stand under a field's name."""
    if choices.chance(16):
        return choices.value()
    if isinstance(field, f.QueueName) or wire == "queue":
        return choices.of(BAD_QUEUES) if choices.chance(20) else choices.of(QUEUES)
    if wire in ("id", "jobId", "childId", "parentId") and not choices.chance(4):
        job = some_job(choices, engine)
        return choices.of(IDS) if job is None else job.id
    if wire == "token" and not choices.chance(5):
        tokens = [job.token for job in jobs(engine) if job.token]
        return choices.of(tokens) if tokens else None
    if wire in WORDS:
        return choices.of(WORDS[wire])
    if isinstance(field, (f.Number, f.SafeInteger)):
        low, high = getattr(field, "min", 1), getattr(field, "max", None)
        near = [bound for bound in (low, high) if bound is not None]
        near += [bound + 1 for bound in near] + [bound - 1 for bound in near]
        return choices.of([*near, 1, 2, 5, 1000, *NUMBERS])
    if isinstance(field, f.Flag):
        return choices.chance(2)
    if isinstance(field, f.Map) and field.fields:
        return {
            inner: value(choices, inner, of, engine)
            for inner, of in field.fields.items()
            if of.required or choices.chance(3)
        }
    if isinstance(field, f.OneOf) and field.fields:
        return value(choices, "", choices.of(field.fields)[1], engine)
    if isinstance(field, (f.TextList, f.IdList)):
        return [choices.of((*IDS, *TEXTS)) for _ in range(choices.below(4))]
    if isinstance(field, f.List):
        return [choices.value() for _ in range(choices.below(4))]
    if isinstance(field, f.Text):
        return choices.of((*TEXTS, *IDS))
    return choices.value()


def entry(choices: Choices, row: Command, engine: Any) -> Any:
    """Return one job of a batch."""
    if choices.chance(30):
        return choices.value()
    made: dict[str, Any] = {"name": "n", "data": choices.value()}
    options = COMMANDS["PUSH"].fields
    for wire in islice(options, 3, None):
        if choices.chance(12):
            made[wire] = value(choices, wire, options[wire], engine)
    if choices.chance(6):
        made["customId"] = choices.of(IDS)
    assert row.name == "PUSHB"
    return made


def flow(choices: Choices) -> list[Any]:
    """Return a parent with its children, as a client would send it, or nearly."""
    ids = [choices.of(("f1", "f2", "f3", "f4")) for _ in range(choices.below(3))]
    parent, queue = choices.of(("p1", "p2")), choices.of(QUEUES)
    data = {"__parentId": parent, "__parentQueue": queue}
    made: list[Any] = [
        {"id": child, "queue": "q", "input": {"name": "n", "parentId": parent, "data": dict(data)}}
        for child in ids
    ]
    own = {"name": "n", "childrenIds": ids, "dependsOn": ids, "data": {"__childrenIds": ids}}
    made.append({"id": parent, "queue": queue, "input": own})
    if choices.chance(3):
        where = choices.of(made)
        where = choices.of((where, where["input"], where["input"]["data"]))
        key = choices.of([*where, "failParentOnFailure", "delay", "customId"])
        where[key] = choices.value()
    return made


def batch(choices: Choices, engine: Any) -> dict[str, Any]:
    """Return ids of jobs with their tokens, some of them wrong."""
    some = [job for _ in range(choices.below(4)) if (job := some_job(choices, engine))]
    made: dict[str, Any] = {"ids": [job.id for job in some]}
    if choices.chance(2):
        made["tokens"] = [job.token for job in some]
    if choices.chance(3):
        made["results"] = [choices.value() for _ in some]
    if choices.chance(20):
        made["ids"] = choices.value()
    return made


def jobs(engine: Any) -> list[Any]:
    """Return a few jobs that are there, active ones first."""
    active = [job for queue in engine.queues.values() for job in queue.active.values()]
    return [*active[:JOBS_LOOKED_AT], *islice(engine.index, JOBS_LOOKED_AT)]


def some_job(choices: Choices, engine: Any) -> Any:
    there = jobs(engine)
    return choices.of(there) if there else None
