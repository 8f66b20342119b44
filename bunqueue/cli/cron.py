"""The subcommand cron: schedulers that make jobs by schedule or interval."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bunqueue.cli.readers import json_value, span_ms, text, whole
from bunqueue.cli.show import moment, table
from bunqueue.cli.table import Action, declare

Reply = Mapping[str, Any]

NAME = {"name": text("<name>")}


def listed(reply: Reply) -> Iterator[str]:
    """Tell the schedulers, a line each."""
    crons = reply["crons"]
    if not crons:
        yield "No cron jobs found"
        return
    yield from table(
        ("Name", "Queue", "Schedule", "Zone", "Next run", "Runs", "Limit"),
        (
            (
                cron["name"],
                cron["queue"],
                cron["schedule"] or f"every {cron['repeatEvery']:.0f} ms",
                cron["timezone"] or "-",
                moment(cron["nextRun"]),
                cron["executions"],
                "-" if cron["maxLimit"] is None else cron["maxLimit"],
            )
            for cron in crons
        ),
    )


def scheduled(reply: Reply) -> Iterable[str]:
    cron = reply["cron"]
    return (f"Cron scheduled: {cron['name']} (next run: {moment(cron['nextRun'])})",)


declare(
    "cron",
    """
Look at schedulers, define them, remove them.

Usage:
  bunqueue cron list [options]
  bunqueue cron add --queue NAME [options] [--] <name>
  bunqueue cron delete [options] [--] <name>

Options:
  -q NAME, --queue NAME   add: queue of the jobs it makes.
  -d JSON, --data JSON    add: their data; - reads it from standard input.
  -s CRON, --schedule CRON
                          add: five fields, or six with the seconds first.
  -e MS, --every MS       add: the interval instead of a schedule.
  -z ZONE, --timezone ZONE
                          add: zone of the schedule, such as Europe/Rome; UTC if not given.
  -P N, --priority N      add: priority of the jobs it makes.
  --max-limit N           add: jobs it makes in all.
""",
    {
        "list": Action("CronList", {}, listed),
        "add": Action(
            "Cron",
            NAME
            | {
                "queue": text("--queue"),
                "data": json_value("--data"),
                "schedule": text("--schedule"),
                "repeatEvery": span_ms("--every"),
                "timezone": text("--timezone"),
                "priority": whole("--priority"),
                "maxLimit": whole("--max-limit"),
            },
            scheduled,
        ),
        "delete": Action("CronDelete", NAME),
    },
    examples="""bunqueue cron add nightly -q reports -s '30 2 * * *' -z Europe/Rome
  bunqueue cron add ping -q checks -e 30s --data '{"url": "https://example.org"}'
  bunqueue cron list""",
)
