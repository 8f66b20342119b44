"""What may happen in a history: commands of peers, time, faults of the disk, ends of the broker.

A step is a plain tuple, drawn with a seeded source, and means something whatever came before it, so
that a history can be shortened by leaving steps out. What only the run can know is a placeholder
that ``history.py`` fills in: ``TOKEN`` the job's newest lock token, ``OLD_TOKEN`` the one before,
and ``GENERATED`` the newest id that the broker has made.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from bunqueue.engine.clock_steps import STEP_WRITTEN_MS_MIN
from tests.simulation.crons import PREFIX
from tests.support.flows import flow_child, flow_parent

Step = tuple[Any, ...]
Fields = dict[str, Any]

TOKEN, OLD_TOKEN, GENERATED = "<token>", "<old token>", "<generated>"
IDS = ("a", "b", "c", "d", "e")
QUEUES = ("q", "r")
GROUPS = ("g", "h")
KEYS = ("k", "l")
STATES = ("completed", "failed", "delayed", "waiting", "prioritized", "paused", None)
POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)

# Options of a push, each with values to choose from; how often one is given is ``OPTION_PART``.
OPTION_PART = 0.11
OPTIONS: dict[str, tuple[Any, ...]] = {
    "jobId": IDS,
    "priority": (-1, 0, 2, 5),
    "delay": (0, 30, 400, 4_000),
    "ttl": (60, 1_000, 20_000),
    "timeout": (20, 300, 7_000),
    "maxAttempts": (1, 2, 4),
    "backoff": (0, 40, {"type": "fixed", "delay": 100}, {"type": "exponential", "delay": 20}),
    "uniqueKey": KEYS,
    "dedup": ({}, {"replace": True}, {"ttl": 200}, {"ttl": 200, "extend": True}),
    "lifo": (True, False),
    "durable": (True, True, False),
    "removeOnComplete": (True, False),
    "removeOnFail": (True, False),
    "dependsOn": (["a"], ["b"], ["a", "c"]),
    "failParentOnFailure": (True,),
    "continueParentOnFailure": (True,),
    "ignoreDependencyOnFailure": (True,),
    "removeDependencyOnFailure": (True,),
    "groupId": GROUPS,
    "stallTimeout": (1_000, 6_000),
    "repeat": ({"every": 50, "limit": 2}, {"every": 1_000, "limit": 4}),
    "tags": (["x"],),
    "data": (1, {"n": 2}, "x" * 50),
    "childrenIds": (["a"], ["b", "c"]),
}


def _options(rng: Random) -> Fields:
    return {
        name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < OPTION_PART
    }


def _push(rng: Random) -> Fields:
    fields = {"queue": rng.choice(QUEUES), **_options(rng)}
    if rng.random() < 0.45:
        fields["jobId"] = rng.choice(IDS)
    if rng.random() < 0.08:  # a true link
        parent = rng.choice(IDS)
        fields["parentId"] = parent
        fields["data"] = {"__parentId": parent, "__parentQueue": rng.choice(QUEUES)}
    return fields


def _push_many(rng: Random) -> Fields:
    jobs = []
    for _ in range(rng.randint(1, 4)):
        entry = _options(rng)
        entry.pop("jobId", None)
        if rng.random() < 0.5:
            entry["customId"] = rng.choice(IDS)
        jobs.append(entry)
    return {"queue": rng.choice(QUEUES), "jobs": jobs}


def _push_flow(rng: Random) -> Fields:
    parent, *children = rng.sample(IDS, rng.randint(2, 4))
    given = {
        name: rng.choice(OPTIONS[name])
        for name in ("maxAttempts", "removeOnComplete", "removeOnFail", "delay", "timeout")
        if rng.random() < 0.25
    }
    if rng.random() < 0.6:
        given[rng.choice(POLICIES)] = True
    queue, parent_queue = rng.choice(QUEUES), rng.choice(QUEUES)
    jobs = [flow_child(child, parent, queue, parent_queue, **given) for child in children]
    own = {name: given[name] for name in ("removeOnFail",) if name in given}
    return {"jobs": [flow_parent(children, parent, parent_queue, **own), *jobs]}


def _pull(rng: Random) -> Fields:
    fields: Fields = {"queue": rng.choice(QUEUES)}
    if rng.random() < 0.75:
        fields["owner"] = "w"
        if rng.random() < 0.5:
            fields["lockTtl"] = rng.choice((20, 2_000, 8_000))
    elif rng.random() < 0.3:
        fields["detach"] = True
    if rng.random() < 0.25:
        fields["timeout"] = rng.choice((30, 500, 5_000))
    if rng.random() < 0.15:
        group: Fields = {}
        if rng.random() < 0.5:
            group["concurrency"] = 1
        if rng.random() < 0.5:
            group["limit"] = {"max": 1, "duration": 200}
        if rng.random() < 0.2:
            group["affinity"] = rng.choice((*GROUPS, None))
        fields["group"] = group
    return fields


def _pull_many(rng: Random) -> Fields:
    return {**_pull(rng), "count": rng.randint(1, 4)}


def _id(rng: Random) -> str:
    return GENERATED if rng.random() < 0.3 else rng.choice(IDS)


def _token(rng: Random) -> Fields:
    part = rng.random()
    if part < 0.8:
        return {"token": TOKEN}
    return {"token": OLD_TOKEN} if part < 0.9 else {"token": "made up"} if part < 0.95 else {}


def _about(*, token: bool = False, **choices: Any) -> Callable[[Random], Fields]:
    """Return what draws a command about one job."""

    def draw(rng: Random) -> Fields:
        fields = {"id": _id(rng), **_chosen(rng, choices)}
        return {**fields, **_token(rng)} if token else fields

    return draw


def _of_queue(**choices: Any) -> Callable[[Random], Fields]:
    return lambda rng: {"queue": rng.choice(QUEUES), **_chosen(rng, choices)}


def _of_group(**choices: Any) -> Callable[[Random], Fields]:
    return lambda rng: {
        "queue": rng.choice(QUEUES),
        "groupId": rng.choice(GROUPS),
        **_chosen(rng, choices),
    }


def _chosen(rng: Random, choices: Fields) -> Fields:
    """Choose a value of each; "absent" leaves the field out."""
    found = {name: rng.choice(values) for name, values in choices.items()}
    return {name: value for name, value in found.items() if value != "absent"}


def _ack_many(rng: Random) -> Fields:
    ids = [_id(rng) for _ in range(rng.randint(1, 3))]
    return {"ids": ids, "tokens": [TOKEN if rng.random() < 0.9 else OLD_TOKEN for _ in ids]}


def _cron(rng: Random) -> Fields:
    name = rng.choice(("nightly", "hourly"))
    fields: Fields = {
        "queue": rng.choice(QUEUES),
        "name": name,
        "jobName": PREFIX + name,
        "repeatEvery": rng.choice((70, 900, 5_000)),
    }
    fields |= _chosen(
        rng,
        {
            "maxLimit": (1, 2, 4),
            "preventOverlap": (True, False, "absent"),
            "skipIfNoWorker": (True, "absent", "absent"),
            "skipMissedOnRestart": (False, "absent"),
            "immediately": (True, "absent"),
            "jobOptions": ({"removeOnComplete": True}, {"maxAttempts": 1}, "absent"),
        },
    )
    return fields


def _link(rng: Random) -> Fields:
    return {"childId": _id(rng), "parentId": _id(rng)}


def _worker(rng: Random) -> Fields:
    return {"name": "w", "queues": [rng.choice(QUEUES)], "workerId": rng.choice(("w1", "w2"))}


# Command -> weight, what draws its fields.
COMMANDS: dict[str, tuple[int, Callable[[Random], Fields]]] = {
    "PUSH": (60, _push),
    "PUSHB": (12, _push_many),
    "PUSHF": (14, _push_flow),
    "PULL": (60, _pull),
    "PULLB": (16, _pull_many),
    "ACK": (40, _about(token=True, result=(None, 1, "absent"), removeOnComplete=(True, "absent"))),
    "ACKB": (8, _ack_many),
    "FAIL": (
        22,
        _about(token=True, error=("no", "absent"), unrecoverable=(True, "absent", "absent"),
               stack=(["l1", "l2"], "absent"), removeOnFail=(True, "absent", "absent")),
    ),
    "JobHeartbeat": (8, _about(token=True)),
    "ExtendLock": (3, _about(token=True, duration=(50, 4_000))),
    "Progress": (4, _about(progress=(10, 55.5), message=("on its way", "absent"))),
    "AddLog": (2, _about(message=("line",))),
    "Cancel": (4, _about()),
    "Discard": (3, _about(token=True)),
    "Promote": (4, _about()),
    "PromoteJobs": (2, _of_queue(count=(1, "absent"))),
    "ChangePriority": (4, _about(priority=(-1, 0, 3), lifo=(True, False, "absent"))),
    "ChangeDelay": (4, _about(token=True, delay=(0, 60))),
    "MoveToDelayed": (4, _about(token=True, delay=(0, 60))),
    "MoveToWait": (4, _about(token=True)),
    "MoveToWaitingChildren": (4, _about(token=True)),
    "Update": (4, _about(data=(1, {"m": 3}))),
    "RemoveJobDeduplicationKey": (1, _about()),
    "RemoveDeduplicationKey": (1, _of_queue(key=KEYS)),
    "UpdateParent": (4, _link),
    "RemoveChildDependency": (3, _about()),
    "RemoveUnprocessedChildren": (3, _about()),
    "WaitJob": (3, _about(timeout=(40, 2_000))),
    "Pause": (2, _of_queue()),
    "Resume": (5, _of_queue()),
    "SetConcurrency": (2, _of_queue(limit=(0, 1, 2))),
    "ClearConcurrency": (3, _of_queue()),
    "RateLimit": (2, _of_queue(limit=(0, 1, 3), duration=(100, "absent"), ttl=(300, "absent"))),
    "RateLimitClear": (3, _of_queue()),
    "SetGroupConcurrency": (2, _of_group(concurrency=(1, 2))),
    "RemoveGroupConcurrency": (1, _of_group()),
    "SetGroupRateLimit": (2, _of_group(max=(1, 2), duration=(100,))),
    "RemoveGroupRateLimit": (1, _of_group()),
    "RateLimitGroup": (1, _of_group(duration=(50, 500))),
    "PauseGroup": (2, _of_group()),
    "ResumeGroup": (3, _of_group()),
    "SetStallConfig": (
        1,
        _of_queue(config=({"maxStalls": 1}, {"stallInterval": 1_000}, {"enabled": False})),
    ),
    "SetDlqConfig": (
        2,
        _of_queue(config=({"maxEntries": 1}, {"maxAge": 1_000},
                          {"autoRetry": True, "autoRetryInterval": 500, "maxAutoRetries": 2})),
    ),
    "RetryDlq": (6, _of_queue(jobId=(*IDS, "absent", "absent"), count=(1, "absent"))),
    "RetryCompleted": (4, _of_queue(id=(*IDS, "absent", "absent"))),
    "PurgeDlq": (1, _of_queue()),
    "RemoveDlqJob": (1, _of_queue(jobId=IDS)),
    "Drain": (2, _of_queue()),
    "Clean": (3, _of_queue(state=STATES, grace=(0, 100))),
    "Obliterate": (1, _of_queue()),
    "Cron": (4, _cron),
    "CronDelete": (2, lambda rng: {"name": rng.choice(("nightly", "hourly"))}),
    "RegisterWorker": (2, _worker),
    "GetJobCounts": (1, _of_queue()),
    "GetChildrenValues": (2, _about()),
}  # fmt: skip


def _grouped(rng: Random) -> Fields:
    fields = {"queue": QUEUES[0], "groupId": rng.choice(GROUPS)}
    return fields if rng.random() < 0.8 else {**fields, "durable": True, "priority": 2}


def _on_terms(rng: Random) -> Fields:
    """Pull with defaults for the limits of groups."""
    group: Fields = {"limit": {"max": 1, "duration": 200}} if rng.random() < 0.4 else {}
    if rng.random() < 0.6:
        group["concurrency"] = 2
    fields: Fields = {"queue": QUEUES[0], "owner": "w", "group": group, "count": rng.randint(1, 3)}
    return fields if rng.random() < 0.7 else {**fields, "timeout": 500}


def _one_at_a_time(rng: Random) -> Fields:
    return {"queue": QUEUES[0], "groupId": rng.choice(GROUPS), "concurrency": 1}


def _several(rng: Random) -> Fields:
    return {"queue": QUEUES[0], "jobs": [{} for _ in range(rng.randint(1, 5))]}


def _take_several(rng: Random) -> Fields:
    fields: Fields = {"queue": QUEUES[0], "owner": "w", "count": rng.randint(1, 4)}
    return fields if rng.random() < 0.7 else {**fields, "timeout": 500}


def _keyed(rng: Random) -> Fields:
    fields: Fields = {"queue": QUEUES[0], "uniqueKey": KEYS[0], "dedup": {"replace": True}}
    return fields if rng.random() < 0.6 else {**fields, "durable": True, "delay": 60}


# What some histories are about: commands and what draws their fields, of which half of theirs are.
THEMES: tuple[tuple[tuple[str, Callable[[Random], Fields]], ...], ...] = (
    (
        ("PUSH", _grouped), ("PUSH", _grouped), ("PULLB", _on_terms), ("PULLB", _on_terms),
        ("ACK", COMMANDS["ACK"][1]), ("SetGroupConcurrency", _one_at_a_time),
        ("SetGroupRateLimit", COMMANDS["SetGroupRateLimit"][1]),
    ),
    (
        ("PUSHB", _several), ("PULLB", _take_several), ("PULLB", _take_several),
        ("RateLimit", _of_queue(limit=(1, 2, 3), duration=(100, 1_000))),
        ("ACKB", COMMANDS["ACKB"][1]),
    ),
    (("PUSH", _keyed), ("PUSH", _keyed), ("PULL", COMMANDS["PULL"][1]),
     ("PUSH", COMMANDS["PUSH"][1])),
    (
        ("PUSHF", _push_flow), ("PULLB", _take_several), ("FAIL", COMMANDS["FAIL"][1]),
        ("ACK", COMMANDS["ACK"][1]), ("RetryDlq", COMMANDS["RetryDlq"][1]),
    ),
    (("Cron", _cron), ("PULL", COMMANDS["PULL"][1]), ("ACK", COMMANDS["ACK"][1])),
)  # fmt: skip
THEMED = 0.5  # of the histories have a theme, and of the commands of those are of it

_NAMES = list(COMMANDS)
_WEIGHTS = [weight for weight, _ in COMMANDS.values()]

MODES = ("quick", "slow", "failing", "dying")
SPANS_MS = (1, 9, 40, 250, 1_500, 6_000, 70_000)
_SPAN_WEIGHTS = (30, 30, 25, 15, 6, 3, 0.3)
# Back by what is written; after less, a restart may hold ready jobs up for as long.
JUMPS_MS = (5_000, -STEP_WRITTEN_MS_MIN, 3_600_000)

# Kind of step -> weight; the rest are commands.
_KINDS = ("command", "pass", "disk", "close", "crash", "try", "stop", "jump")
_KIND_WEIGHTS = (74, 12, 5, 2, 2, 4, 0.6, 0.5)


def draw(rng: Random, theme: tuple[tuple[str, Callable[[Random], Fields]], ...] = ()) -> Step:
    """Draw one step."""
    kind = rng.choices(_KINDS, _KIND_WEIGHTS)[0]
    if kind in ("command", "try"):
        if theme and rng.random() < THEMED:
            name, fields = rng.choice(theme)
        else:
            name = rng.choices(_NAMES, _WEIGHTS)[0]
            fields = COMMANDS[name][1]
        request = {"cmd": name, **fields(rng)}
        if kind == "try":
            return "try", request
        return "command", rng.randrange(3), request, rng.random() < 0.6
    if kind == "pass":
        return "pass", rng.choices(SPANS_MS, _SPAN_WEIGHTS)[0]
    if kind == "disk":
        return "disk", rng.choices(MODES, (4, 3, 2, 1))[0], rng.choice((0, 3, 30, 700, 3_000))
    if kind == "close":
        return "close", rng.randrange(3)
    if kind == "crash":
        return "crash", rng.random() < 0.5, rng.choice((0, 5, 2_000))
    if kind == "stop":
        return "stop", rng.choice((0, 50))
    return "jump", rng.choice(JUMPS_MS)


def history(seed: int, length: int) -> list[Step]:
    """Draw a whole history."""
    rng = Random(seed)
    theme = rng.choice(THEMES) if rng.random() < THEMED else ()
    return [draw(rng, theme) for _ in range(length)]
