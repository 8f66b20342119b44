"""Making random sequences of commands from the tables of commands and options.

Each sequence is about some families of features and leaves the others out, so that the features of
one family meet each other often, and what is allowed to differ in one does not end every sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from bunqueue.commands import COMMANDS
from bunqueue.protocol.options import OPTIONS
from loadtests.differences.playing import PARKED_MS, Request, Step
from loadtests.differences.values import (
    GROUPS,
    SPAN_MS,
    TINY_WAIT_MS,
    WRONG,
    WRONG_QUEUES,
    Chooser,
    value_of,
)

STEPS_MIN, STEPS_MAX = 20, 60
FAMILY_CHANCE = 0.4
PEERS = ("a", "b")

# What a sequence can be about -> the job options that belong to it.
OPTION_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "order": ("priority", "lifo"),
    "delays": ("delay",),
    "retries": ("maxAttempts", "backoff", "stackTraceLimit"),
    "keys": ("uniqueKey", "dedup"),
    "groups": ("groupId", "groupMaxSize"),
    "flows": (
        "dependsOn", "parentId", "childrenIds", "failParentOnFailure", "removeDependencyOnFailure",
        "continueParentOnFailure", "ignoreDependencyOnFailure",
    ),
    "removal": ("removeOnComplete", "removeOnFail"),
    "spans": ("ttl", "timeout", "stallTimeout"),
    "repeats": ("repeat",),
    "labels": (
        "durable", "keepLogs", "sizeLimit", "timestamp", "tags", "debounceId", "debounceTtl",
    ),
}  # fmt: skip
FREE_OPTIONS = frozenset({"jobId", "customId"})  # given by other means

# Families that bring commands or habits instead of options.
HABITS = frozenset({"edges", "closing", "leases", "waits", "bursts", "parks", "crowds", "odd"})

# Commands -> how often, and the family without which they stay out (None: always there).
WEIGHTS: Mapping[str, tuple[float, str | None]] = {
    "PUSH": (16, None),
    "PUSHB": (5, None),
    "PUSHF": (8, "flows"),
    "PULL": (14, None),
    "PULLB": (4, None),
    "ACK": (11, None),
    "ACKB": (3, None),
    "FAIL": (7, None),
    **dict.fromkeys(("GetJob", "GetState", "GetResult", "GetJobs", "GetJobCounts"), (0.4, None)),
    **dict.fromkeys(("GetCountsPerPriority", "Count", "GetJobByCustomId"), (0.3, None)),
    **dict.fromkeys(("GetProgress", "WaitJob", "ListQueues", "Ping", "Hello", "Auth"), (0.2, None)),
    **dict.fromkeys(("AddLog", "GetLogs", "ClearLogs"), (2, "logs")),
    "Progress": (2, "changes"),
    "Update": (2, "changes"),
    "Cancel": (1.5, "changes"),
    "ChangePriority": (1.5, "changes"),
    "ChangeDelay": (1.5, "changes"),
    "Promote": (1.5, "delays"),
    "PromoteJobs": (0.7, "delays"),
    "MoveToDelayed": (2, "moves"),
    "MoveToWait": (2, "moves"),
    "Discard": (1.5, "moves"),
    "RetryCompleted": (1.5, "moves"),
    "MoveToWaitingChildren": (1.5, "flows"),
    "UpdateParent": (2, "flows"),
    "GetChildrenValues": (1, "flows"),
    "GetFailedChildrenValues": (1, "flows"),
    "GetIgnoredChildrenFailures": (1, "flows"),
    "RemoveChildDependency": (1.5, "flows"),
    "RemoveUnprocessedChildren": (1, "flows"),
    **dict.fromkeys(("JobHeartbeat", "JobHeartbeatB", "ExtendLock", "ExtendLocks"), (2, "leases")),
    "GetDeduplicationJobId": (2, "keys"),
    "RemoveDeduplicationKey": (1, "keys"),
    "RemoveJobDeduplicationKey": (1, "keys"),
    "Pause": (1.5, "control"),
    "Resume": (2.5, "control"),
    "IsPaused": (0.5, "control"),
    "Drain": (0.7, "control"),
    "Obliterate": (0.5, "control"),
    "Clean": (1.5, "control"),
    "TrimEvents": (0.3, "control"),
    "RateLimit": (1.5, "limits"),
    "RateLimitClear": (1.5, "limits"),
    "SetConcurrency": (1.5, "limits"),
    "ClearConcurrency": (1.5, "limits"),
    "GetQueueLimits": (2, "limits"),
    **{
        name: (0.8, "groups")
        for name, row in COMMANDS.items()
        if "groupId" in row.fields and not row.takes_options
    },
    "GetGroupsJobsCount": (0.8, "groups"),
    **dict.fromkeys(("Dlq", "RetryDlq"), (2.5, "letters")),
    **dict.fromkeys(("GetDlqStats", "RemoveDlqJob"), (1, "letters")),
    **dict.fromkeys(("SetDlqConfig", "GetDlqConfig"), (1, "letters")),
    "PurgeDlq": (0.4, "letters"),
    "SetStallConfig": (0.7, "letters"),
    "GetStallConfig": (0.5, "letters"),
    "Cron": (5, "crons"),
    **dict.fromkeys(("CronGet", "CronDelete", "CronList"), (1.5, "crons")),
    **dict.fromkeys(("RegisterWorker", "UnregisterWorker"), (1.5, "staff")),
    **dict.fromkeys(("ListWorkers", "Heartbeat"), (1.5, "staff")),
    "AddWebhook": (3, "staff"),
    **dict.fromkeys(("RemoveWebhook", "ListWebhooks", "SetWebhookEnabled"), (1, "staff")),
    **dict.fromkeys(("Metrics", "DashboardQueue", "DashboardQueues"), (0.7, "figures")),
}  # fmt: skip

# Commands that are not in a sequence -> why.
LEFT_OUT: Mapping[str, str] = {
    "Stats": "figures of the whole server since its start",
    "DashboardOverview": "figures of the whole server since its start",
    "Prometheus": "figures of the whole server since its start",
    "ExplainJob": "no command of the original server",
    "Diagnose": "no command of the original server",
    "StorageStatus": "tells of the disk",
    "CompactMemory": "tells of the process",
    "SubscribeEvents": "each queue has a listener anyway",
    "UnsubscribeEvents": "each queue has a listener anyway",
}

FAMILIES = (
    frozenset(OPTION_FAMILIES) | HABITS | {family for _, family in WEIGHTS.values() if family}
)


def sequence(seed: str) -> list[Step]:
    """Make the sequence that belongs to the seed."""
    rng = Random(seed)
    families = frozenset(name for name in sorted(FAMILIES) if rng.random() < FAMILY_CHANCE)
    chooser = Chooser(rng, families, generated=rng.random() < 0.3)
    steps: list[Step] = []
    names = [name for name, (_, family) in WEIGHTS.items() if not family or family in families]
    weights = [WEIGHTS[name][0] for name in names]
    size = rng.randint(STEPS_MIN, STEPS_MAX)
    while len(steps) < size:
        if chooser.has("closing", 0.03):
            steps.append({"peer": chooser.one(PEERS), "close": True})
        elif chooser.has("waits", 0.05):
            steps.append({"wait": TINY_WAIT_MS})
        elif chooser.has("parks", 0.05):
            steps += _parked(chooser, [rng.choices(names, weights)[0] for _ in range(3)])
        else:
            pipelined = rng.randint(1, 5) if chooser.has("bursts", 0.1) else 0
            steps += [_step(chooser, rng.choices(names, weights)[0]) for _ in range(pipelined + 1)]
            for step in steps[len(steps) - pipelined - 1 : -1]:
                step |= {"peer": steps[-1]["peer"], "later": not step.keys() & {"spoiled", "keep"}}
    return steps[:size]


def _parked(chooser: Chooser, commands: list[str]) -> list[Step]:
    """Let one peer wait for a job, or for the end of one, while the other acts."""
    waiter, other = chooser.rng.sample(PEERS, 2)
    wait = _step(chooser, chooser.one(("PULL", "PULL", "PULLB", "WaitJob")))
    wait["send"]["timeout"] = PARKED_MS
    wait["send"].pop("group", None)  # 2.9.5 may hand it any job, which no rule could see yet
    acts = [_step(chooser, cmd) for cmd in ("PUSH", *commands)[chooser.rng.randrange(2) :]]
    acts = [{**act, "peer": other} for act in acts]
    if "spoiled" in wait:
        return acts
    return [{**wait, "peer": waiter, "later": True}, *acts, {"wait": 0}]


def _step(chooser: Chooser, cmd: str) -> Step:
    step: Step = {"peer": chooser.one(PEERS), "send": MAKERS.get(cmd, _request)(chooser, cmd)}
    if chooser.has("edges", 0.08):
        spoiled = _spoil(chooser, step["send"])
        if spoiled:
            step["spoiled"] = spoiled
    keep = step["send"].pop("$keep", None)
    if keep:
        step["keep"] = keep
    return step


def _request(chooser: Chooser, cmd: str) -> Request:
    """Fill the fields of a command as its row declares them."""
    request: Request = {"cmd": cmd}
    for name, row in COMMANDS[cmd].fields.items():
        if row.required or chooser.rng.random() < CHANCES.get((cmd, name), CHANCES.get(name, 0.4)):
            request[name] = value_of(chooser, cmd, name, row)
    return request


# How often an optional field is there.
CHANCES: Mapping[Any, float] = {
    "token": 0.85,
    "timeout": 0.15,
    "detach": 0.1,
    "owner": 0.6,
    "lockTtl": 0.3,
    "group": 0.1,
    "limit": 0.9,
    "removeOnComplete": 0.15,
    "removeOnFail": 0.15,
    "unrecoverable": 0.2,
    "maxLength": 1,
    ("Metrics", "queue"): 1,
    ("Metrics", "type"): 0.9,
    ("SetConcurrency", "limit"): 1,
    ("GetJobs", "limit"): 0.3,
    ("Clean", "limit"): 0.3,
    ("Auth", "token"): 1,
    ("PULLB", "count"): 1,
    ("Clean", "grace"): 1,
    ("AddWebhook", "url"): 1,
    ("AddWebhook", "events"): 1,
    ("AddWebhook", "queue"): 1,
    ("RemoveWebhook", "webhookId"): 1,
    ("SetWebhookEnabled", "id"): 1,
    ("SetWebhookEnabled", "enabled"): 1,
    ("RegisterWorker", "workerId"): 0.9,
    ("RegisterWorker", "queues"): 1,
    ("Cron", "schedule"): 0.5,
    ("Cron", "repeatEvery"): 0.5,
    ("WaitJob", "timeout"): 1,
    ("ACKB", "tokens"): 0.8,
}


def _options(chooser: Chooser) -> dict[str, Any]:
    """Choose options out of the families at hand."""
    every = {option.wire: option.field for option in OPTIONS}
    chosen: dict[str, Any] = {}
    for family, names in OPTION_FAMILIES.items():
        for name in names:
            if chooser.has(family, 0.3):
                chosen[name] = value_of(chooser, "PUSH", name, every[name])
    if "parentId" in chosen and chooser.has("flows", 0.7):
        chosen.pop("parentId")  # mostly by a whole flow, or by a true link
    if "repeat" in chosen and chooser.rng.random() < 0.9:
        for name in ("dependsOn", "parentId", "childrenIds"):
            chosen.pop(name, None)
    return chosen


def _own_id(chooser: Chooser, fresh: float = 0.9) -> str:
    """Return a custom id; a later one sorts behind an earlier one."""
    if chooser.jobs and chooser.rng.random() > fresh:
        return chooser.known_job()
    name = f"$c:{chooser.label()}"
    chooser.jobs.append(name)
    return name


def _push(chooser: Chooser, cmd: str) -> Request:
    request: Request = {"cmd": cmd, "queue": chooser.queue(), **_options(chooser)}
    if chooser.rng.random() < 0.8:
        request["data"] = chooser.data()
    if chooser.rng.random() < 0.3:
        request["name"] = chooser.one(["welcome", "bye"])
    if chooser.generated or "repeat" in request:
        label = chooser.label()
        chooser.jobs.append(f"$j:{label}")
        request["$keep"] = [label]
    else:
        request["jobId"] = _own_id(chooser)
    if chooser.has("flows", 0.15):
        parent = chooser.known_job()
        request["parentId"] = parent
        request["data"] = {"__parentId": parent, "__parentQueue": request["queue"]}
    return request


def _push_batch(chooser: Chooser, cmd: str) -> Request:
    entries, keep = [], []
    size = chooser.rng.randrange(10, 40) if chooser.has("crowds", 0.5) else chooser.rng.randrange(4)
    for _ in range(size):
        entry = {**_options(chooser), "data": chooser.data()}
        if chooser.generated or "repeat" in entry:
            keep.append(chooser.label())
            chooser.jobs.append(f"$j:{keep[-1]}")
        else:
            keep.append("-")
            entry["customId"] = _own_id(chooser)
        entries.append(entry)
    return {"cmd": cmd, "queue": chooser.queue(), "jobs": entries, "$keep": keep}


def _push_flow(chooser: Chooser, cmd: str) -> Request:
    """Make a tree of two or three levels, as clients send it."""
    jobs: list[dict[str, Any]] = []
    _node(chooser, jobs, None, chooser.rng.choice((1, 2)))
    return {"cmd": cmd, "jobs": jobs}


FLOW_FORBIDDEN = ("repeat", "uniqueKey", "dedup", "debounceId", "debounceTtl", "childrenIds",
                  "dependsOn", "parentId")  # fmt: skip
POLICIES = tuple(name for name in OPTION_FAMILIES["flows"] if name.endswith("Failure"))


def _node(
    chooser: Chooser, jobs: list[dict[str, Any]], parent: tuple[str, str] | None, depth: int
) -> str:
    job_id, queue = _own_id(chooser, 0.98), chooser.queue()
    data: dict[str, Any] = {"of": "a flow"}
    children = [
        _node(chooser, jobs, (job_id, queue), depth - 1)
        for _ in range(chooser.rng.randrange(1, 4) if depth else 0)
    ]
    options = _options(chooser)
    for name in (*FLOW_FORBIDDEN, *POLICIES):
        options.pop(name, None)
    own = {"name": "node", **options, "data": data}
    if parent:
        data |= {"__parentId": parent[0], "__parentQueue": parent[1]}
        own["parentId"] = parent[0]
        if chooser.rng.random() < 0.6:
            own[chooser.one(POLICIES)] = True
    if children:
        data["__childrenIds"] = children
        own |= {"childrenIds": children, "dependsOn": children}
    jobs.append({"id": job_id, "queue": queue, "input": own})
    return job_id


def _hook(chooser: Chooser, cmd: str) -> Request:
    label = chooser.label()
    chooser.hooks.append(f"$j:{label}")
    return {**_request(chooser, cmd), "$keep": [label]}


def _limited(chooser: Chooser, cmd: str) -> Request:
    """Make a rate limit whose tokens do not come back while the sequence runs."""
    return {"duration": SPAN_MS, **_request(chooser, cmd)}


def _parallel(chooser: Chooser, cmd: str) -> Request:
    """Make lists of equal length, as the command wants them most of the time."""
    request = _request(chooser, cmd)
    if cmd == "ExtendLocks" or chooser.rng.random() < 0.9:
        size = len(request["ids"])
        for name, value in request.items():
            if name != "ids" and isinstance(value, list):
                row = COMMANDS[cmd].fields[name]
                while len(value) < size:
                    value += value_of(chooser, cmd, name, row)
                del value[size:]
    return request


Make = Callable[[Chooser, str], Request]
MAKERS: Mapping[str, Make] = {
    "PUSH": _push,
    "PUSHB": _push_batch,
    "PUSHF": _push_flow,
    "AddWebhook": _hook,
    "RateLimit": _limited,
    **dict.fromkeys(("ACKB", "JobHeartbeatB", "ExtendLocks"), _parallel),
}


def _spoil(chooser: Chooser, request: Request) -> str | None:
    """Put one wrong value somewhere into the request, or leave a field out; tells the field."""
    target: dict[str, Any] = request
    if request.get("jobs") and chooser.rng.random() < 0.8:
        target = chooser.one(request["jobs"])
        if "input" in target and chooser.rng.random() < 0.8:
            target = target["input"]
    names = [name for name in target if name not in ("cmd", "$keep")]
    if request["cmd"] == "Heartbeat":  # what 2.9.5 adds to its totals stays there for good
        names = [name for name in names if name not in ("processed", "failed")]
    if request["cmd"] == "Cron":  # 2.9.5 keeps one whose name is no text, and nobody can delete it
        names = [name for name in names if name != "name"]
    if request["cmd"] not in NAME_CHECKED and "queue" in names:
        names.remove("queue")
    if request["cmd"] in ("PUSH", "PUSHB") and chooser.rng.random() < 0.5:
        names = [option.wire for option in OPTIONS if option.wire not in FREE_OPTIONS]
    if not names:
        return None
    name = str(chooser.one(names))
    if chooser.rng.random() < 0.15:
        target.pop(name, None)
    elif name == "queue":
        target[name] = chooser.one(WRONG_QUEUES)
    else:
        target[name] = chooser.one([*WRONG, chooser.one(GROUPS)])
    return name


# Where 2.9.5 checks the name of a queue. Elsewhere a wrong one stays in its list of queues and
# shows up in every later sequence (wire.md 2.0 [X]).
NAME_CHECKED = frozenset({"PUSH", "PUSHB", "PUSHF", "PULL", "PULLB", "TrimEvents", "Metrics"}) | {
    name for name, row in COMMANDS.items() if "groupId" in row.fields
}
