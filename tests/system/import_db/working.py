"""Working off what ``population`` has left, in a fixed order; returns what the server did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[..., dict[str, Any]]

# In this order; what ends frees what comes later. Of "parents" both trees have come loose by then.
FIRST = ("pending", "retrying", "keys", "children-b", "children-d", "grouped")
STEPS = ("steps", "steps-2", "steps-3", "steps-4")
THEN = ("parents", "limited", "paused", "repeating-pattern", "crons-run", "active-bare")


def work_off(call: Call) -> dict[str, Any]:
    """Pull and acknowledge, queue by queue."""
    found: dict[str, Any] = {"states before": _states(call)}
    call("Promote", id="active-bare")  # charged at the start, and waits for its second run
    found["retried dead letters"] = call("RetryDlq", queue="dead", jobId="dead-at-max")["count"]
    for queue in (*FIRST, *STEPS, *THEN, "dead"):
        found[f"pulled from {queue}"] = _drain(call, queue)
    found["states after"] = _states(call)
    for parent in ("tree", "proven", "p-ignore"):
        found[f"children of {parent}"] = call("GetChildrenValues", id=parent)["data"]["values"]
    # Ids and keys of those that live are taken, those of the others are free.
    twin = {"queue": "keys", "name": "twin", "data": {}}
    found["twin of a delayed id"] = call("PUSH", **twin, jobId="delayed")["id"]
    found["twin of a delayed key"] = call("PUSH", **twin | {"queue": "keys-2"}, uniqueKey="k1")[
        "id"
    ]
    call("PUSH", **twin, jobId="twin", uniqueKey="k1")
    found["owner of a key that is free"] = call(
        "GetDeduplicationJobId", queue="keys", deduplicationId="k1"
    )["data"]["jobId"]
    successors = call("GetJobs", queue="repeating-pattern", state="delayed")["jobs"]
    found["next generation"] = [job["repeat"]["count"] for job in successors]
    return found


def _drain(call: Call, queue: str) -> list[str]:
    reply = call("PULLB", queue=queue, count=100, owner="worker-2")
    ids, tokens = [job["id"] for job in reply["jobs"]], reply["tokens"]
    for job_id, token in zip(ids, tokens, strict=True):
        call("ACK", id=job_id, token=token, result={"done": job_id})
    return ids


def _states(call: Call) -> dict[str, str]:
    ids = (
        "tree",
        "proven",
        "p-contin",
        "p-ignore",
        "p-remove",
        "step-2",
        "step-3",
        "after-proof",
        "active-leased",
        "active-last-run",
        "delayed",
        "in-paused",
        "blue-0",
        "red-0",
    )
    return {job_id: call("GetState", id=job_id)["state"] for job_id in ids}
