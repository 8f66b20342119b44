"""Subcommands about queues: queue, rate-limit, concurrency, dlq."""

from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue.cli.readers import number, span_ms, text, whole
from bunqueue.cli.show import dlq_table, job_table, plain
from bunqueue.cli.table import Action, declare

Reply = Mapping[str, Any]

QUEUE = {"queue": text("<queue>")}


def names(reply: Reply) -> Iterable[str]:
    return [f"  - {name}" for name in reply["queues"]] or ["No queues found"]


def count(reply: Reply) -> Iterable[str]:
    return (f"Count: {plain(reply['count'])}",)


def paused(reply: Reply) -> Iterable[str]:
    return ("Queue is paused" if reply["paused"] else "Queue is active",)


def cleaned(reply: Reply) -> Iterable[str]:
    ids = ", ".join(reply["ids"])
    return (f"Cleaned {plain(reply['count'])} jobs" + (f": {ids}" if ids else ""),)


def listed(reply: Reply) -> Iterable[str]:
    return job_table(reply["jobs"]) if reply["jobs"] else ("No jobs found",)


declare(
    "queue",
    """
Look at queues, pause them, empty them.

Usage:
  bunqueue queue list [options]
  bunqueue queue count [options] [--] <queue>
  bunqueue queue jobs [options] [--] <queue>
  bunqueue queue paused [options] [--] <queue>
  bunqueue queue pause [options] [--] <queue>
  bunqueue queue resume [options] [--] <queue>
  bunqueue queue drain [options] [--] <queue>
  bunqueue queue clean --grace MS [options] [--] <queue>
  bunqueue queue obliterate [options] [--] <queue>

Options:
  -g MS, --grace MS       clean: only jobs older than this.
  -s STATE, --state STATE
                          clean, jobs: only jobs in this state.
  -l N, --limit N         clean, jobs: at most so many.
  -o N, --offset N        jobs: leave out the first so many.
  -y, --yes               drain, obliterate: do not ask on a terminal.
""",
    {
        "list": Action("ListQueues", {}, names),
        "count": Action("Count", QUEUE, count),
        "jobs": Action(
            "GetJobs",
            QUEUE
            | {"state": text("--state"), "limit": whole("--limit"), "offset": whole("--offset")},
            listed,
        ),
        "paused": Action("IsPaused", QUEUE, paused),
        "pause": Action("Pause", QUEUE),
        "resume": Action("Resume", QUEUE),
        "drain": Action("Drain", QUEUE, confirm="Remove every job that waits in the queue?"),
        "clean": Action(
            "Clean",
            QUEUE
            | {"grace": span_ms("--grace"), "state": text("--state"), "limit": whole("--limit")},
            cleaned,
        ),
        "obliterate": Action(
            "Obliterate", QUEUE, confirm="Remove the queue with all its jobs and settings?"
        ),
    },
    examples="""bunqueue queue jobs emails --state delayed --limit 20
  bunqueue queue clean emails --grace 1h --state completed
  bunqueue queue pause emails""",
)

declare(
    "rate-limit",
    """
Limit how many jobs of a queue start per span.

Usage:
  bunqueue rate-limit set [options] [--] <queue> <number>
  bunqueue rate-limit clear [options] [--] <queue>

Options:
  -d MS, --duration MS    The span (1s when not given).
""",
    {
        "set": Action(
            "RateLimit",
            QUEUE | {"limit": number("<number>"), "duration": span_ms("--duration")},
        ),
        "clear": Action("RateLimitClear", QUEUE),
    },
    examples="""bunqueue rate-limit set emails 100 --duration 1m
  bunqueue rate-limit clear emails""",
)

declare(
    "concurrency",
    """
Limit how many jobs of a queue run at once.

Usage:
  bunqueue concurrency set [options] [--] <queue> <number>
  bunqueue concurrency clear [options] [--] <queue>
""",
    {
        "set": Action("SetConcurrency", QUEUE | {"limit": number("<number>")}),
        "clear": Action("ClearConcurrency", QUEUE),
    },
    examples="""bunqueue concurrency set emails 5
  bunqueue concurrency clear emails""",
)

declare(
    "dlq",
    """
Look at the jobs of a queue that have given up; try them again or drop them.

Usage:
  bunqueue dlq list [options] [--] <queue>
  bunqueue dlq retry [options] [--] <queue>
  bunqueue dlq purge [options] [--] <queue>

Options:
  -c N, --count N         list: at most so many.
  --id ID                 retry: only this job.
  -y, --yes               purge: do not ask on a terminal.
""",
    {
        "list": Action("Dlq", QUEUE | {"count": whole("--count")}, dlq_table),
        "retry": Action("RetryDlq", QUEUE | {"jobId": text("--id")}, count),
        "purge": Action("PurgeDlq", QUEUE, count, confirm="Remove every dead letter of the queue?"),
    },
    examples="""bunqueue dlq list emails --count 20
  bunqueue dlq retry emails --id 0192f0c1-5f0e-7d3a-8f00-000000000001""",
)
