"""The subcommand webhook: who is told of what happens to jobs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bunqueue.cli.readers import text, words
from bunqueue.cli.show import moment, table
from bunqueue.cli.table import Action, declare
from bunqueue.cli.usage import Args

Reply = Mapping[str, Any]

EVERY_EVENT = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


def events(args: Args) -> list[str]:
    """Return the names behind ``-e``, all of them if it was not given."""
    return EVERY_EVENT if args["--events"] is None else list(words("--events")(args))


def added(reply: Reply) -> Iterable[str]:
    """Tell the id."""
    return (f"Webhook added: {reply['data']['webhookId']}",)


def without_password(url: str) -> str:
    """Return a URL with the password in it hidden, for people; ``--json`` shows what was given."""
    scheme, slashes, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    return f"{scheme}{slashes}{name}{':***' if colon else ''}{at}{host}{slash}{path}"


def webhook_lines(reply: Reply) -> Iterator[str]:
    """Tell the webhooks and how their deliveries went."""
    webhooks = reply["data"]["webhooks"]
    if not webhooks:
        yield "No webhooks registered"
        return
    yield from table(
        ("ID", "URL", "Events", "Queue", "On", "Delivered", "Given up", "Last"),
        (
            (
                webhook["id"],
                without_password(webhook["url"]),
                ",".join(webhook["events"]),
                webhook["queue"] or "all",
                "yes" if webhook["enabled"] else "no",
                webhook["successCount"],
                webhook["failureCount"],
                moment(webhook["lastTriggered"]),
            )
            for webhook in webhooks
        ),
    )


declare(
    "webhook",
    """
Have events of jobs posted to a URL.

Usage:
  bunqueue webhook list [options]
  bunqueue webhook add [options] [--] <url>
  bunqueue webhook remove [options] [--] <id>

The broker refuses URLs that lead to private addresses; WEBHOOK_ALLOWED_TARGETS of the server
names those that may be used.

Webhook options:
  -e NAMES, --events NAMES
                          Events, separated by commas: job.pushed, job.started, job.completed,
                          job.failed, job.progress; all if not given.
  -q NAME, --queue NAME   Only events of this queue.
  -s KEY, --secret KEY    Sign each body with this key: X-Webhook-Signature.
""",
    {
        "list": Action("ListWebhooks", {}, webhook_lines),
        "add": Action(
            "AddWebhook",
            {
                "url": text("<url>"),
                "events": events,
                "queue": text("--queue"),
                "secret": text("--secret"),
            },
            added,
        ),
        "remove": Action("RemoveWebhook", {"webhookId": text("<id>")}),
    },
    examples="""bunqueue webhook add https://example.org/hook -e job.failed -q emails
  bunqueue webhook list""",
)
