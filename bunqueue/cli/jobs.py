"""Subcommands about single jobs: push, pull, ack, fail, job."""

from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue.cli.readers import (
    constant,
    flag,
    json_value,
    number,
    span_ms,
    text,
    whole,
    words,
)
from bunqueue.cli.show import compact, explanation_lines, job_block, log_lines
from bunqueue.cli.table import Action, declare

Reply = Mapping[str, Any]

NO_RESULT = "No result available (job not completed or result was removed)"
WAIT_MS_DEFAULT = 30_000  # what the broker takes when WaitJob names none


def pulled(reply: Reply) -> Iterable[str]:
    return job_block(reply["job"]) if reply["job"] else ("No job available",)


def result(reply: Reply) -> Iterable[str]:
    return (f"Result: {compact(reply['result'])}",) if "result" in reply else (NO_RESULT,)


def awaited(reply: Reply) -> Iterable[str]:
    return result(reply) if reply["completed"] else ("Job has not completed",)


declare(
    "push",
    """
Add a job to a queue.

Usage:
  bunqueue push [options] [--] <queue> <data>

The data is JSON; a lone - reads it from standard input.

Options:
  -n NAME, --name NAME         Name of the job, for its handler.
  -P N, --priority N           Higher runs sooner.
  -d MS, --delay MS            Run it no sooner than this from now.
  --max-attempts N             Runs in all, the first included.
  --backoff MS                 Base of the wait between attempts.
  --ttl MS                     Drop the job when it has not been started by then.
  --timeout MS                 How long one run may take.
  -u KEY, --unique-key KEY     Refuse a twin while a job with this key lives.
  --job-id ID                  Own id; the same id again adds nothing while it lives.
  --depends-on IDS             Ids to wait for, separated by commas.
  --tags TAGS                  Tags, separated by commas.
  -g ID, --group-id ID         Group of the job.
  --lifo                       Run it before its equals.
  --durable                    Answer only when the job is on disk.
  --remove-on-complete         Forget the job when it has completed.
  --remove-on-fail             Forget the job when it has failed for good.
""",
    {
        "": Action(
            "PUSH",
            {
                "queue": text("<queue>"),
                "name": text("--name"),
                "data": json_value("<data>"),
                "priority": whole("--priority"),
                "delay": span_ms("--delay"),
                "maxAttempts": whole("--max-attempts"),
                "backoff": span_ms("--backoff"),
                "ttl": span_ms("--ttl"),
                "timeout": span_ms("--timeout"),
                "uniqueKey": text("--unique-key"),
                "jobId": text("--job-id"),
                "dependsOn": words("--depends-on"),
                "tags": words("--tags"),
                "groupId": text("--group-id"),
                "lifo": flag("--lifo"),
                "durable": flag("--durable"),
                "removeOnComplete": flag("--remove-on-complete"),
                "removeOnFail": flag("--remove-on-fail"),
            },
            show=lambda reply: (f"Job created: {reply['id']}",),
        )
    },
    examples="""bunqueue push emails '{"to": "ann@example.org"}' --priority 10 --delay 5s""",
)

declare(
    "pull",
    """
Take the next job of a queue; it stays active until ack or fail.

Usage:
  bunqueue pull [options] [--] <queue>

Options:
  -t MS, --timeout MS     Wait that long for a job.
""",
    {
        "": Action(
            "PULL",
            {
                "queue": text("<queue>"),
                "timeout": span_ms("--timeout"),
                "detach": constant(True),
            },
            show=pulled,
            hold=span_ms("--timeout"),
        )
    },
    examples="bunqueue pull emails --timeout 10s",
)

declare(
    "ack",
    """
Report that a pulled job succeeded.

Usage:
  bunqueue ack [options] [--] <id>

Options:
  -r JSON, --result JSON  Result of the job; a lone - reads it from standard input.
""",
    {"": Action("ACK", {"id": text("<id>"), "result": json_value("--result")})},
    examples="""bunqueue ack 0192f0c1-5f0e-7d3a-8f00-000000000001 --result '{"sent": true}'""",
)

declare(
    "fail",
    """
Report that a pulled job failed.

Usage:
  bunqueue fail [options] [--] <id>

Options:
  -e TEXT, --error TEXT   What went wrong.
""",
    {"": Action("FAIL", {"id": text("<id>"), "error": text("--error")})},
    examples="bunqueue fail 0192f0c1-5f0e-7d3a-8f00-000000000001 --error 'mailbox is full'",
)

ID = {"id": text("<id>")}

declare(
    "explain",
    """
Tell why a job is not running.

Usage:
  bunqueue explain [options] [--] <id>
""",
    {
        "": Action(
            "ExplainJob",
            ID,
            lambda reply: explanation_lines(reply["explanation"]),
            status=lambda reply: int(reply["explanation"]["state"] == "unknown"),
        )
    },
    examples="bunqueue explain 0192f0c1-5f0e-7d3a-8f00-000000000001",
)

declare(
    "job",
    """
Look at one job, or change it.

Usage:
  bunqueue job get [options] [--] <id>
  bunqueue job state [options] [--] <id>
  bunqueue job result [options] [--] <id>
  bunqueue job wait [options] [--] <id>
  bunqueue job cancel [options] [--] <id>
  bunqueue job promote [options] [--] <id>
  bunqueue job discard [options] [--] <id>
  bunqueue job update [options] [--] <id> <data>
  bunqueue job priority [options] [--] <id> <number>
  bunqueue job delay [options] [--] <id> <ms>
  bunqueue job progress [options] [--] <id> <number>
  bunqueue job logs [options] [--] <id>
  bunqueue job log [options] [--] <id> <text>

Options:
  -t MS, --timeout MS     wait: how long at most (30s when not given).
  -m TEXT, --message TEXT
                          progress: a word on it.
  -l LEVEL, --level LEVEL
                          log: info, warn, error, ...
""",
    {
        "get": Action("GetJob", ID, lambda reply: job_block(reply["job"])),
        "state": Action(
            "GetState",
            ID,
            lambda reply: (f"State: {reply['state']}",),
            status=lambda reply: int(reply["state"] == "unknown"),
        ),
        "result": Action("GetResult", ID, result),
        "wait": Action(
            "WaitJob",
            ID | {"timeout": span_ms("--timeout")},
            awaited,
            status=lambda reply: int(not reply["completed"]),
            hold=lambda args: (
                span_ms("--timeout")(args) if args["--timeout"] is not None else WAIT_MS_DEFAULT
            ),
        ),
        "cancel": Action("Cancel", ID),
        "promote": Action("Promote", ID),
        "discard": Action("Discard", ID),
        "update": Action("Update", ID | {"data": json_value("<data>")}),
        "priority": Action("ChangePriority", ID | {"priority": whole("<number>")}),
        "delay": Action("ChangeDelay", ID | {"delay": span_ms("<ms>")}),
        "progress": Action(
            "Progress", ID | {"progress": number("<number>"), "message": text("--message")}
        ),
        "logs": Action("GetLogs", ID, log_lines),
        "log": Action("AddLog", ID | {"message": text("<text>"), "level": text("--level")}),
    },
    examples="""bunqueue job get 0192f0c1-5f0e-7d3a-8f00-000000000001
  bunqueue job wait 0192f0c1-5f0e-7d3a-8f00-000000000001 --timeout 1m
  bunqueue job progress 0192f0c1-5f0e-7d3a-8f00-000000000001 40 --message 'half way'""",
)
