import pytest

from bunqueue.cli.table import SUBCOMMANDS, Action
from bunqueue.cli.usage import parse
from bunqueue.cli.webhooks import EVERY_EVENT, webhook_lines, without_password


def command(*argv):
    row = SUBCOMMANDS["webhook"]
    action = row.run[argv[0]]
    assert isinstance(action, Action)
    return action.command(parse(row.usage, ["webhook", *argv]))


def test_without_events_all_are_asked_for():
    assert {"cmd": "AddWebhook", "url": "http://a", "events": EVERY_EVENT} == command(
        "add", "http://a"
    )


def test_events_queue_and_secret_are_sent():
    sent = command("add", "http://a", "-e", "job.failed, job.pushed", "-q", "emails", "-s", "s3")

    assert {"events": ["job.failed", "job.pushed"], "queue": "emails", "secret": "s3"} == {
        key: sent[key] for key in ("events", "queue", "secret")
    }


def test_an_empty_list_says_so():
    assert ["No webhooks registered"] == list(webhook_lines({"data": {"webhooks": []}}))


def test_a_webhook_is_one_line():
    webhook = {
        "id": "7",
        "url": "http://a",
        "events": ["job.failed"],
        "queue": None,
        "enabled": False,
        "successCount": 2,
        "failureCount": 1,
        "lastTriggered": None,
    }
    _, line = webhook_lines({"data": {"webhooks": [webhook]}})

    assert ["7", "http://a", "job.failed", "all", "no", "2", "1", "-"] == line.split()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.org/a@b:c", "https://example.org/a@b:c"),
        ("https://ann:hush@example.org:1/x?y=1", "https://ann:***@example.org:1/x?y=1"),
        ("https://ann:h@u:sh@example.org", "https://ann:***@example.org"),
        ("https://ann@example.org/", "https://ann@example.org/"),
    ],
)
def test_the_list_hides_the_password_of_a_url(url, shown):
    assert shown == without_password(url)
