"""What a server tells of everything that ``population`` has put into it.

Asked of the original server, started again on its own file, and of ours on what was imported from
that file: both have recovered the same rows, so they must say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[..., dict[str, Any]]
Answers = dict[str, Any]

SET = ("paused", "paused-and-empty", "limited", "limited-for-long", "dead", "auto-retried", "done")
DEAD = ("dead", "auto-retried", "parents", "bad-contin", "done")
FIGURES = (("done", "completed"), ("dead", "failed"), ("parents", "failed"), ("keys", "completed"))
PRIORITIES = ("pending", "later", "grouped")
GROUPS = ("red", "blue", "green")
PARENTS = ("tree", "proven", "p-contin", "p-ignore", "p-remove", "p-failPa")
KEYS = (
    ("keys", "k1"),
    ("keys", "k2"),
    ("keys", "k3"),
    ("keys", "k4"),
    ("keys-2", "k1"),
    ("crons-run", "cron:has-run"),
    ("dead", "dead-key"),
)


def answers(call: Call) -> Answers:
    """Ask a server about all jobs, queues, groups, flows, keys, schedulers and figures."""
    found: Answers = {}

    def ask(cmd: str, **fields: Any) -> Any:
        words = [cmd, *(str(value) for value in fields.values())]
        reply = call(cmd, **fields)
        found[" ".join(words)] = {k: v for k, v in reply.items() if k != "reqId"}
        return reply

    queues = sorted(ask("ListQueues")["queues"])
    found["ListQueues"]["queues"] = queues
    for queue in queues:
        for job in call("GetJobs", queue=queue, limit=1000)["jobs"]:
            ask("GetJob", id=job["id"])
        ask("GetJobCounts", queue=queue)
    for queue in SET:
        for cmd in ("IsPaused", "GetQueueLimits", "GetStallConfig", "GetDlqConfig"):
            ask(cmd, queue=queue)
    for queue in DEAD:
        ask("GetDlqStats", queue=queue)
        ask("Dlq", queue=queue)["jobs"].clear()  # told by the entries again
    for queue, kind in FIGURES:
        ask("Metrics", queue=queue, type=kind)
    for queue in PRIORITIES:
        ask("GetCountsPerPriority", queue=queue)
    for group in GROUPS:
        for cmd in (
            "GetGroupRateLimit",
            "GetGroupConcurrency",
            "IsGroupPaused",
            "GetGroupJobsCount",
        ):
            ask(cmd, queue="grouped", groupId=group)
    for parent in PARENTS:
        for cmd in ("GetChildrenValues", "GetFailedChildrenValues", "GetIgnoredChildrenFailures"):
            ask(cmd, id=parent)
    for queue, key in KEYS:
        ask("GetDeduplicationJobId", queue=queue, deduplicationId=key)
    ask("CronList")["crons"].sort(key=lambda cron: cron["name"])
    return found
