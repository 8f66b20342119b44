"""One job in every state, and everything else that the reference keeps in its file.

``populate`` says it to a server through ``call``; ids are fixed, so that whoever reads the file
back knows what to ask for. Moments in the far future keep a recorded file fresh: what is delayed
stays delayed, and no dead letter expires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

Call = Callable[..., dict[str, Any]]

FAR_MS = (
    100 * 365 * 86_400_000.0
)  # a float, as wide numbers are on the wire; longer than any recorded file is kept
CRON_EVERY_MS = FAR_MS
UNDEFINED = msgpack.ExtType(0, b"\0")
DATE_MS = 1_700_000_000_123

# Queues with dead letters, which else would expire a week after the recording.
DEADLY = ("dead", "parents", "bad-contin", "bad-ignore", "bad-remove", "bad-failPa")
LEASED = {"owner": "worker-1", "lockTtl": 600_000}


def populate(call: Call) -> None:
    """Fill an empty server. Leaves jobs active: the link must stay open until it stops."""
    for queue in DEADLY:
        call("SetDlqConfig", queue=queue, config={"maxAge": None})
    _pending(call)
    _ended(call)
    _active(call)
    _flows(call)
    _keys(call)
    _groups(call)
    _repeating(call)
    _schedulers(call)
    _settings(call)


def _push(call: Call, queue: str, job_id: str, data: object = None, **options: Any) -> str:
    return str(
        call(
            "PUSH",
            queue=queue,
            name=options.pop("name", "work"),
            jobId=job_id,
            data={"n": job_id} if data is None else data,
            **options,
        )["id"]
    )


def _pull(call: Call, queue: str, **options: Any) -> tuple[str, str | None]:
    reply = call("PULL", queue=queue, **options)
    return reply["job"]["id"], reply.get("token")


def _pending(call: Call) -> None:
    """Jobs that wait for their turn, with every option that rides along."""
    odd = {
        "nothing": None,
        "left out": UNDEFINED,
        "list": [1, UNDEFINED, 2.5, -7, True, None],
        "date": msgpack.Timestamp.from_unix_nano(DATE_MS * 1_000_000),
        "bytes": b"\x00\xff",
        "text": "żółw 🐢",
        "wide": 2.0**52,
        "deep": {"a": {"b": [{"c": {}}]}},
        "64": 64,
        "r": 114,
    }
    _push(call, "pending", "plain")
    call("PUSH", queue="pending", name="unnamed id", data={"generated": True})
    _push(call, "pending", "odd-data", odd)
    _push(call, "pending", "bare-data", [1, 2, 3])
    _push(call, "pending", "null-data", data=UNDEFINED)
    _push(call, "pending", "prioritised", priority=7, name="priority work")
    _push(call, "pending", "negative", priority=-3)
    _push(call, "pending", "lifo", lifo=True)
    _push(
        call,
        "pending",
        "optioned",
        maxAttempts=9,
        backoff={"type": "fixed", "delay": 1234},
        timeout=45_000,
        removeOnComplete=True,
        removeOnFail=True,
        stallTimeout=12_345,
        stackTraceLimit=3,
        keepLogs=5,
        sizeLimit=4096,
        tags=["a", "b"],
        durable=True,
        timestamp=1.6e12,
        debounceId="deb",
        debounceTtl=99,
    )
    _push(call, "pending", "exponential", backoff=2500, maxAttempts=4)
    _push(call, "pending", "typed-exponential", backoff={"type": "exponential", "delay": 700})
    _push(call, "later", "delayed", delay=60_000)
    call("ChangeDelay", id="delayed", delay=FAR_MS)
    _push(call, "later", "delayed-prioritised", delay=60_000, priority=2)
    call("ChangeDelay", id="delayed-prioritised", delay=FAR_MS)
    # Failed once, and waits for its second run.
    _push(call, "retrying", "retrying", maxAttempts=5, backoff={"type": "fixed", "delay": 1})
    job_id, token = _pull(call, "retrying", **LEASED)
    call("AddLog", id=job_id, message="a line of log")
    call("Progress", id=job_id, progress=33.5, message="a third")
    call("FAIL", id=job_id, token=token, error="first failure", stack=["Error: x", "  at y"])
    call("ChangeDelay", id="retrying", delay=0)


def _ended(call: Call) -> None:
    """Completed jobs with all kinds of results, and dead letters of every reason."""
    results: dict[str, Any] = {
        "done-map": {"result": {"sum": 42, "parts": [1, 2]}},
        "done-null": {"result": None},
        "done-none": {},
        "done-text": {"result": "fine"},
        "done-zero": {"result": 0},
        "done-undefined": {"result": UNDEFINED},
    }
    for job_id, result in results.items():
        _push(call, "done", job_id, removeOnComplete=False)
        pulled, token = _pull(call, "done", **LEASED)
        assert pulled == job_id
        call("Progress", id=job_id, progress=80, message="nearly")
        call("ACK", id=job_id, token=token, **result)
    _push(call, "done", "gone", removeOnComplete=True)
    _, token = _pull(call, "done", **LEASED)
    call("ACK", id="gone", token=token, result="kept nowhere")

    _push(
        call, "dead", "dead-at-max", {"n": 1}, maxAttempts=2, backoff={"type": "fixed", "delay": 1}
    )
    for run in (1, 2):
        _, token = _pull(call, "dead", **LEASED, timeout=5000)
        call("FAIL", id="dead-at-max", token=token, error=f"failure {run}", stack=[f"at {run}"])
    _push(
        call,
        "dead",
        "dead-at-once",
        maxAttempts=8,
        uniqueKey="dead-key",
        priority=3,
        tags=["t"],
        ttl=3600_000,
    )
    _, token = _pull(call, "dead", **LEASED)
    call("FAIL", id="dead-at-once", token=token, error="hopeless", unrecoverable=True)
    _push(call, "dead", "discarded")
    call("Discard", id="discarded")
    # Retried by hand, and dead again: the file may hold two entries of it.
    _push(call, "dead", "dead-twice", maxAttempts=1)
    for run in (1, 2):
        _, token = _pull(call, "dead", **LEASED)
        call("FAIL", id="dead-twice", token=token, error=f"death {run}")
        if run == 1:
            call("RetryDlq", queue="dead", jobId="dead-twice")
    call(
        "SetDlqConfig",
        queue="auto-retried",
        config={
            "autoRetry": True,
            "autoRetryInterval": FAR_MS,
            "maxAge": FAR_MS,
            "maxEntries": 77,
        },
    )
    _push(call, "auto-retried", "dead-to-retry", maxAttempts=1)
    _, token = _pull(call, "auto-retried", **LEASED)
    call("FAIL", id="dead-to-retry", token=token, error="try later")


def _active(call: Call) -> None:
    # Charged when the server starts again, they wait for longer than anybody looks.
    wait = {"type": "fixed", "delay": 3_000_000}
    for job_id in ("active-leased", "active-bare", "active-last-run"):
        options: dict[str, Any] = {"maxAttempts": 1} if job_id == "active-last-run" else {}
        _push(call, job_id, job_id, backoff=wait, **options)
        _, token = _pull(call, job_id, **(LEASED if job_id == "active-leased" else {}))
        call("Progress", id=job_id, progress=12, message="under way", token=token)


def _flows(call: Call) -> None:
    """A tree of which one child is done; dependencies of all kinds; each failure policy."""

    def node(
        id: str,
        queue: str,
        parent: str | None = None,
        children: tuple[str, ...] = (),
        **options: Any,
    ) -> dict[str, Any]:
        data: dict[str, Any] = {"n": id}
        if parent is not None:
            data |= {"__parentId": parent, "__parentQueue": "parents"}
            options["parentId"] = parent
        if children:
            data["__childrenIds"] = list(children)
            options |= {"childrenIds": list(children), "dependsOn": list(children)}
        return {"id": id, "queue": queue, "input": {"name": "node", "data": data, **options}}

    def finish(queue: str, job_id: str, *, error: str | None = None, result: Any = None) -> None:
        pulled, token = _pull(call, queue, **LEASED)
        assert pulled == job_id, (pulled, job_id)
        if error is None:
            call("ACK", id=job_id, token=token, result=result)
        else:
            call("FAIL", id=job_id, token=token, error=error, unrecoverable=True)

    call(
        "PUSHF",
        jobs=[
            node("tree", "parents", children=("tree-a", "tree-b")),
            node("tree-a", "children-a", "tree"),
            node("tree-b", "children-b", "tree"),
        ],
    )
    finish("children-a", "tree-a", result={"a": 1})
    # A parent whose child's completion is kept as a proof only.
    call(
        "PUSHF",
        jobs=[
            node("proven", "parents", children=("proof-a", "proof-b")),
            node("proof-a", "children-c", "proven", removeOnComplete=True),
            node("proof-b", "children-d", "proven"),
        ],
    )
    finish("children-c", "proof-a", result="only a proof")
    for policy in (
        "continueParentOnFailure",
        "ignoreDependencyOnFailure",
        "removeDependencyOnFailure",
        "failParentOnFailure",
    ):
        short = policy[:6]
        call(
            "PUSHF",
            jobs=[
                node(f"p-{short}", "parents", children=(f"{short}-bad", f"{short}-open")),
                node(f"{short}-bad", f"bad-{short}", f"p-{short}", **{policy: True}),
                node(f"{short}-open", f"open-{short}", f"p-{short}"),
            ],
        )
        finish(f"bad-{short}", f"{short}-bad", error=f"bad child of {short}")
    # Edges by option.
    _push(call, "steps", "step-1")
    _push(call, "steps-2", "step-2", dependsOn=["step-1", "done-map"])
    _push(call, "steps-3", "step-3", dependsOn=["step-2"], priority=5)
    _push(call, "steps-4", "after-proof", dependsOn=["gone"])


def _keys(call: Call) -> None:
    _push(call, "keys", "keyed", uniqueKey="k1")
    _push(call, "keys", "keyed-for-long", uniqueKey="k2", dedup={"ttl": 3.1e10})
    _push(call, "keys", "keyed-replaceable", uniqueKey="k3", dedup={"replace": True})
    _push(call, "keys", "keyed-extending", uniqueKey="k4", dedup={"ttl": 3.1e10, "extend": True})
    _push(call, "keys-2", "keyed-delayed", uniqueKey="k1", delay=1000)
    call("ChangeDelay", id="keyed-delayed", delay=FAR_MS)


def _groups(call: Call) -> None:
    for number in range(3):
        for group in ("red", "blue"):
            _push(call, "grouped", f"{group}-{number}", groupId=group, priority=number)
    _push(call, "grouped", "ungrouped")
    call("SetGroupRateLimit", queue="grouped", groupId="red", max=10, duration=2000)
    call("SetGroupConcurrency", queue="grouped", groupId="red", concurrency=2)
    call("PauseGroup", queue="grouped", groupId="blue")
    call("SetGroupConcurrency", queue="grouped", groupId="green", concurrency=9)


def _repeating(call: Call) -> None:
    call(
        "PUSH",
        queue="repeating",
        name="every",
        data={"n": "every"},
        repeat={"every": 60_000, "limit": 9},
    )
    call(
        "PUSH",
        queue="repeating-pattern",
        name="pattern",
        data={"n": "pattern"},
        repeat={"pattern": "0 9 * * *", "tz": "Europe/Rome"},
    )
    # Second generation, with its place on the grid.
    call(
        "PUSH",
        queue="repeating-on",
        name="on",
        data={"n": "on"},
        repeat={"every": FAR_MS, "limit": 5},
    )
    job_id, token = _pull(call, "repeating-on", **LEASED)
    call("ACK", id=job_id, token=token, result=1)


def _schedulers(call: Call) -> None:
    call(
        "Cron",
        name="by-schedule",
        queue="crons",
        jobName="nightly",
        data={"c": 1},
        schedule="30 9 * * *",
        timezone="Europe/Rome",
        priority=4,
    )
    call(
        "Cron", name="by-interval", queue="crons", data=[1], repeatEvery=CRON_EVERY_MS, maxLimit=11
    )
    call(
        "Cron",
        name="has-run",
        queue="crons-run",
        jobName="ran",
        data={"c": 2},
        repeatEvery=CRON_EVERY_MS,
        immediately=True,
        skipMissedOnRestart=False,
    )
    call(
        "Cron",
        name="optioned",
        queue="crons",
        data={"c": 3},
        schedule="0 0 1 1 *",
        uniqueKey="cron-key",
        dedup={"ttl": 5000},
        preventOverlap=False,
        skipIfNoWorker=True,
        jobOptions={"maxAttempts": 7, "tags": ["from-cron"], "backoff": 50},
    )
    call("Cron", name="no-data", queue="crons", schedule="@yearly")


def _settings(call: Call) -> None:
    call("Pause", queue="paused")
    _push(call, "paused", "in-paused")
    call("Pause", queue="paused-and-empty")
    call("RateLimit", queue="limited", limit=5, duration=60_000)
    call("SetConcurrency", queue="limited", limit=3)
    call("RateLimit", queue="limited-for-long", limit=7, duration=1000, ttl=FAR_MS)
    call(
        "SetStallConfig",
        queue="limited",
        config={"enabled": False, "stallInterval": 12_000, "maxStalls": 8, "gracePeriod": 1},
    )
    # Known to a running server only: webhooks and logs are not in its file.
    call("AddWebhook", url="https://example.com/hook", events=["job.completed"], secret="s")
