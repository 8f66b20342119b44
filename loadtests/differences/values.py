"""What stands in the fields of a random request.

A value is chosen by the field's name where the name says what is meant, else by its kind. Spans are
0, or so long that no run sees their end, or so short that a wait in the sequence does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bunqueue.protocol.fields import (
    Anything,
    Field,
    Flag,
    IdList,
    List,
    Map,
    Number,
    SafeInteger,
    Text,
    TextList,
)

SPAN_MS = 100_000_000  # no run sees the end of it
TINY_MS = 25
TINY_WAIT_MS = 60
PAST_MS = 1_600_000_000_000

QUEUES = ("$q:a", "$q:b", "$q:c")
GROUPS = ("g1", "g2", "g3")
KEYS = ("k1", "k2")
ODD_ENDS = (" ", "é", "\N{GRINNING FACE}", "'", "%", "\n", "/", "-" * 200, "__proto__")
ODD_DATA: list[Any] = [
    {"name": "within"}, {"name": ""}, {"name": 5}, {"__parentId": "nobody"}, {"toString": 1},
    "", [], 0, False, 2**40, -1.5, {"": 1, "é": [None, {}, []]}, {"__childrenIds": []},
    {"deep": [[[[{"x": {"y": [0.1]}}]]]]}, "\N{GRINNING FACE}" * 50,
]  # fmt: skip
ODD_NAMES = (
    "__proto__", "constructor", "toString", "a b", " ", "\N{GRINNING FACE}", "k1 ",
    "x" * 256, "0", "null",
)  # fmt: skip
NAMES = ("$n:x", "$n:y")
NOTHING_CALLED = "nobody-at-all"


@dataclass
class Chooser:
    """Chance, and what the sequence has made so far.

    Attributes:
        rng: The source of all chance.
        families: What this sequence is about; everything else stays out of it.
        jobs: References to the jobs made so far.
        hooks: References to the webhooks made so far.
        generated: Jobs get the ids the server makes, not ids of ours.
    """

    rng: Random
    families: frozenset[str]
    generated: bool
    jobs: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    _labels: int = 0

    def has(self, family: str, chance: float = 1.0) -> bool:
        """Tell whether the sequence has this family, and by chance this time."""
        return family in self.families and self.rng.random() < chance

    def one(self, values: Any) -> Any:
        """Return one of them."""
        return self.rng.choice(list(values))

    def label(self) -> str:
        """Return a new name for something."""
        self._labels += 1
        odd = self.one(ODD_ENDS) if self.has("odd", 0.3) else ""
        return f"{self._labels:03d}{odd}"

    def queue(self) -> str:
        """Return a queue; the first one most of the time, so that jobs meet."""
        return str(self.rng.choices(QUEUES, (6, 2, 1))[0])

    def job(self) -> str:
        """Return a job: pulled, known, or none."""
        roll = self.rng.random()
        if roll < 0.45 or not self.jobs:
            return f"$held:{self.rng.randrange(4)}"
        if roll < 0.97:
            recent = self.jobs[-12:]
            return str(self.one(recent))
        return NOTHING_CALLED

    def known_job(self) -> str:
        """Return a job that was made."""
        return str(self.one(self.jobs[-8:])) if self.jobs else NOTHING_CALLED

    def token(self) -> str:
        """Return a token, the right one most of the time."""
        return str(self.rng.choices(("$token", "$stale", "made-up"), (12, 1, 1))[0])

    def name(self, names: Any) -> str:
        """Return one of the names, or an odd one."""
        return str(self.one(ODD_NAMES if self.has("odd", 0.3) else names))

    def data(self) -> Any:
        """Return a payload."""
        return self.one(
            [{}, {"n": 1}, {"deep": {"list": [1, "two", None, 2.5, True]}}, "text", 7, None, [1, 2]]
            + (ODD_DATA if self.has("odd") else [])
        )

    def span(self) -> int:
        """Return a length of time."""
        return self.rng.choices((SPAN_MS, 3_600_000, 0, TINY_MS), (5, 3, 1, 1))[0]


def has_tiny_span(value: Any) -> bool:
    """Tell whether a request sets a span that is over after ``TINY_WAIT_MS``."""
    if isinstance(value, dict):
        return any(has_tiny_span(item) for item in value.values())
    if isinstance(value, list):
        return any(has_tiny_span(item) for item in value)
    return type(value) is int and value == TINY_MS


def value_of(chooser: Chooser, cmd: str, name: str, row: Field) -> Any:
    """Return a good value for one field of a command."""
    meant = MEANT.get((cmd, name)) or BY_NAME.get(name)
    return meant(chooser) if meant else by_kind(chooser, row)


def by_kind(chooser: Chooser, row: Field) -> Any:
    """Return a value as the field's kind wants it."""
    match row:
        case Flag():
            return chooser.one([True, False])
        case Number():
            return _number(chooser, row)
        case SafeInteger():
            return chooser.one([1, 2, 5])
        case Text():
            return chooser.one(["text", "other text"])
        case TextList():
            return chooser.one([[], ["one"], ["one", "two"]])
        case IdList() | List():
            return [chooser.known_job()]
        case Map():
            return {
                inner: by_kind(chooser, field)
                for inner, field in (row.fields or {}).items()
                if chooser.rng.random() < 0.6
            }
        case Anything():
            return chooser.data()
    return chooser.data()


def _number(chooser: Chooser, row: Number) -> float:
    low = 0 if row.min is None else row.min
    values = [low, low + 1, 3, 10]
    if chooser.has("edges"):
        values += [] if row.max is None else [row.max]
        values += [] if row.integer else [2.5]
    within = [value for value in values if row.max is None or value <= row.max]
    return float(value) if isinstance(value := chooser.one(within), float) else int(value)


Choose = Callable[[Chooser], Any]


def _filter(chooser: Chooser) -> dict[str, Any]:
    every: dict[str, Any] = {
        "reason": chooser.one(["max_attempts_exceeded", "unknown", "timeout", "odd"]),
        "olderThan": chooser.one([PAST_MS, PAST_MS * 2]),
        "newerThan": chooser.one([PAST_MS, PAST_MS * 2]),
        "retriable": chooser.one([True, False]),
        "expired": chooser.one([True, False]),
        "limit": chooser.one([1, 2, 100]),
        "offset": chooser.one([0, 1]),
    }
    return {key: value for key, value in every.items() if chooser.rng.random() < 0.25}


def _stall_config(chooser: Chooser) -> dict[str, Any]:
    every = {
        "enabled": chooser.one([True, False]),
        "stallInterval": chooser.one([30_000, SPAN_MS]),
        "maxStalls": chooser.one([0, 1, 3]),
        "gracePeriod": chooser.one([5_000, SPAN_MS]),
    }
    return {key: value for key, value in every.items() if chooser.rng.random() < 0.5}


def _dlq_config(chooser: Chooser) -> dict[str, Any]:
    every = {
        "autoRetry": chooser.one([True, False, "yes"]),
        "autoRetryInterval": chooser.one([3_600_000, SPAN_MS, 2.5, -1, "7"]),
        "maxAutoRetries": chooser.one([0, 1, 3]),
        "maxAge": chooser.one([None, SPAN_MS, 604_800_000]),
        "maxEntries": chooser.one([0, 1, 2, 10_000]),
    }
    return {key: value for key, value in every.items() if chooser.rng.random() < 0.4}


def _puller(chooser: Chooser) -> dict[str, Any]:
    every: dict[str, Any] = {
        "concurrency": chooser.one([1, 2]),
        "limit": {"max": chooser.one([1, 2]), "duration": SPAN_MS},
        "affinity": chooser.one([*GROUPS, None]),
    }
    return {key: value for key, value in every.items() if chooser.rng.random() < 0.4}


def _repeat(chooser: Chooser) -> dict[str, Any]:
    repeat: dict[str, Any] = chooser.one(
        [{"every": SPAN_MS}, {"every": SPAN_MS}, {"pattern": "0 0 1 1 *"}, {}, {"every": 0}]
    )
    extra = {
        "limit": chooser.one([0, 1, 5]),
        "tz": chooser.one(["UTC", "Europe/Rome"]),
        "immediately": True,
        "count": 0,
        "offset": 1000,
        "endDate": PAST_MS * 2,
        "startDate": PAST_MS,
    }
    return repeat | {key: extra[key] for key in extra if chooser.rng.random() < 0.15}


def _backoff(chooser: Chooser) -> Any:
    return chooser.one(
        [
            0,
            0,
            0,
            SPAN_MS // 2,
            {"type": "fixed", "delay": 1_000_000},
            {"type": "exponential", "delay": 1_000_000},
            {"type": "fixed", "delay": 0},
        ]
    )


def _dedup(chooser: Chooser) -> dict[str, Any]:
    dedup: dict[str, Any] = chooser.one(
        [
            {},
            {"ttl": SPAN_MS},
            {"ttl": SPAN_MS, "extend": True},
            {"replace": True},
            {"extend": True},
        ]
    )
    return dedup


def _jobs(chooser: Chooser) -> list[str]:
    return [chooser.job() for _ in range(chooser.rng.randrange(4))]


SCHEDULES = (
    "0 0 1 1 *",
    "0 0 0 1 1 *",
    "@yearly",
    "30 4 1 JAN,JUL mon",
    "*/20 * 29 2 *",
    "0 0 30 2 *",
    "61 * * * *",
    "0 0 L * *",
    "5-2 * * * *",
    "",
    "@reboot",
    "0 12 1 1-3 7",
)

BY_NAME: Mapping[str, Choose] = {
    "queue": Chooser.queue,
    "id": Chooser.job,
    "ids": _jobs,
    "jobId": Chooser.job,
    "customId": Chooser.known_job,
    "childId": Chooser.known_job,
    "parentId": Chooser.known_job,
    "token": Chooser.token,
    "tokens": lambda c: [c.token() for _ in range(c.rng.randrange(4))],
    "durations": lambda c: [SPAN_MS for _ in range(c.rng.randrange(4))],
    "results": lambda c: [c.data() for _ in range(c.rng.randrange(4))],
    "removeOnCompletes": lambda c: [c.one([True, False, None]) for _ in range(c.rng.randrange(4))],
    "deduplicationId": lambda c: c.name(KEYS),
    "uniqueKey": lambda c: c.name(KEYS),
    "dedup": _dedup,
    "groupId": lambda c: c.name(GROUPS),
    "groupMaxSize": lambda c: c.one([1, 2, 50]),
    "data": Chooser.data,
    "result": Chooser.data,
    "delay": Chooser.span,
    "duration": lambda _: SPAN_MS,
    "priority": lambda c: c.one([0, 1, 5, 10, -3]),
    "timeout": lambda c: c.rng.choices((0, 20), (9, 1))[0],
    "lockTtl": lambda _: SPAN_MS,
    "owner": lambda c: c.one(["w1", "w2", ""]),
    "group": _puller,
    "filter": _filter,
    "repeat": _repeat,
    "backoff": _backoff,
    "error": lambda c: c.one(["broke", "broke again", ""]),
    "stack": lambda c: c.one([[], ["Error: x", "  at y ", "", "at z"], ["one"]]),
    "message": lambda c: c.one(["half way", "done soon", ""]),
    "level": lambda c: c.one(["info", "warn", "error", "odd"]),
    "progress": lambda c: c.one([0, 33, 50.5, 100, 150, -5]),
    "timestamp": lambda c: c.one([PAST_MS, PAST_MS * 2]),
    "state": lambda c: c.one(
        ["waiting", "prioritized", "delayed", "active", "completed", "failed", "paused", "odd",
         "waiting-children"]
    ),
    "limit": lambda c: c.one([0, 1, 2, 5, 1000, *([15, 25] if c.has("crowds") else [])]),
    "offset": lambda c: c.one([0, 1, 3, *([9, 17] if c.has("crowds") else [])]),
    "count": lambda c: c.one([1, 2, 5, *([15, 25] if c.has("crowds") else [])]),
    "ttl": lambda _: SPAN_MS,
    "grace": lambda c: c.rng.choices((0, SPAN_MS, -1), (5, 1, 1))[0],
    "start": lambda c: c.one([0, 1, -1]),
    "end": lambda c: c.one([0, 1, -1, 100]),
    "maxJobs": lambda c: c.one([0, 1, 3]),
    "schedule": lambda c: c.one(SCHEDULES),
    "repeatEvery": lambda c: c.one([SPAN_MS, 0, -1, 1.5]),
    "timezone": lambda c: c.one(["UTC", "Europe/Rome", "America/New_York", "No/Where"]),
    "maxLimit": lambda c: c.one([0, 1, 5]),
    "workerId": lambda c: c.one(NAMES),
    "webhookId": lambda c: c.one(c.hooks or [NOTHING_CALLED]),
    "keepLogs": lambda c: c.one([0, 1, 100]),
    "stackTraceLimit": lambda c: c.one([0, 1, 10]),
    "sizeLimit": lambda c: c.rng.choices((10, 1000), (1, 9))[0],
    "maxAttempts": lambda c: c.rng.choices((1, 2, 3, 10), (4, 3, 2, 1))[0],
    "stallTimeout": lambda _: SPAN_MS // 10,
    "debounceTtl": lambda _: SPAN_MS,
    "dependsOn": lambda c: list({c.known_job() for _ in range(c.rng.randrange(1, 3))}),
    "childrenIds": lambda c: [c.known_job()],
    "maxLength": lambda c: c.one([0, 5]),
    "maxCount": lambda c: c.one([1, 100]),
    "jobsLimit": lambda c: c.one([1, 10, 50, 100, 0]),
}  # fmt: skip

MEANT: Mapping[tuple[str, str], Choose] = {
    ("GetLogs", "end"): lambda c: c.one([0, 1, 100]),
    ("GetLogs", "start"): lambda c: c.one([0, 1]),
    ("WaitJob", "timeout"): lambda c: c.one([0, 20]),
    ("PUSH", "timeout"): lambda c: c.rng.choices((0, 86_400_000), (1, 3))[0],
    ("PUSH", "ttl"): lambda _: SPAN_MS,
    ("RateLimit", "ttl"): lambda _: SPAN_MS,
    ("RateLimit", "limit"): lambda c: c.one([1, 2, 5, 1000]),
    ("SetConcurrency", "limit"): lambda c: c.one([1, 2, 5]),
    ("SetStallConfig", "config"): _stall_config,
    ("SetDlqConfig", "config"): _dlq_config,
    ("RegisterWorker", "queues"): lambda c: [c.queue()],
    ("RegisterWorker", "startedAt"): lambda _: PAST_MS,
    ("Heartbeat", "id"): lambda c: c.one(NAMES),
    ("Cron", "name"): lambda c: c.one(NAMES),
    ("CronGet", "name"): lambda c: c.one(NAMES),
    ("CronDelete", "name"): lambda c: c.one(NAMES),
    ("Cron", "dedup"): _dedup,
    ("Cron", "uniqueKey"): lambda c: c.one(KEYS),
    ("Cron", "jobOptions"): lambda c: c.one([{}, {"maxAttempts": 1}, {"removeOnComplete": True}]),
    ("AddWebhook", "url"): lambda c: c.one(
        ["https://example.org/x", "http://example.org:8080/y", "ftp://x", "http://127.0.0.1/",
         "not a url", "", "http://10.0.0.1/", "http://localhost/x"]
    ),
    ("AddWebhook", "events"): lambda c: c.one([["job.completed"], [], ["job.pushed", "odd"]]),
    ("AddWebhook", "queue"): lambda _: "$q:unused",  # nothing happens there, so nothing is posted
    ("SetWebhookEnabled", "id"): lambda c: c.one(c.hooks or [NOTHING_CALLED]),
    ("Metrics", "type"): lambda c: c.one(["completed", "failed"]),
}  # fmt: skip

# Wrong values of any kind; what is wrong with one depends on the field.
WRONG: tuple[Any, ...] = (
    None, "", "text", "5", -1, 0, 1.5, 10**12, True, False, [], [1], {}, {"x": 1}
)  # fmt: skip

# Here and there 2.9.5 takes for the name of a queue what is no text at all, and keeps it for good.
WRONG_QUEUES: tuple[Any, ...] = (None, "", "no such name!", "x" * 257)
