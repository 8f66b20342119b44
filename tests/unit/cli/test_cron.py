import pytest

from bunqueue.cli import call
from bunqueue.cli.dispatch import dispatch

CRON = {
    "name": "nightly",
    "jobName": "default",
    "queue": "reports",
    "schedule": "30 2 * * *",
    "repeatEvery": None,
    "nextRun": 1_774_747_800_000.0,
    "executions": 3,
    "maxLimit": None,
    "timezone": "Europe/Rome",
    "priority": 0,
}
PING = CRON | {"name": "ping", "schedule": None, "repeatEvery": 30_000, "timezone": None}


class FakeConnection:
    """Notes the commands and answers all with one reply."""

    def __init__(self, reply):
        self.reply, self.sent = reply, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def call(self, command, timeout=None):  # noqa: ARG002  # as the client's
        self.sent.append(command)
        return self.reply


@pytest.fixture
def answer(monkeypatch):
    def install(reply):
        fake = FakeConnection({"ok": True, **reply})
        monkeypatch.setattr(call, "connect", lambda _args: fake)
        return fake

    return install


def test_adding_a_schedule_sends_it_and_tells_the_next_run(answer, capsys):
    fake = answer({"cron": CRON})

    status = dispatch(
        ["cron", "add", "nightly", "-q", "reports", "-s", "30 2 * * *", "-z", "Europe/Rome"]
        + ["-d", '{"a": 1}', "-P", "4", "--max-limit", "9"]
    )

    assert 0 == status
    assert "Cron scheduled: nightly (next run: 2026-03-29T01:30:00.000Z)\n" == (
        capsys.readouterr().out
    )
    expected = {
        "cmd": "Cron",
        "name": "nightly",
        "queue": "reports",
        "data": {"a": 1},
        "schedule": "30 2 * * *",
        "timezone": "Europe/Rome",
        "priority": 4,
        "maxLimit": 9,
    }
    assert [expected] == fake.sent


def test_an_interval_may_have_a_unit(answer):
    fake = answer({"cron": PING})

    dispatch(["cron", "add", "ping", "--queue", "checks", "--every", "30s"])

    assert [{"cmd": "Cron", "name": "ping", "queue": "checks", "repeatEvery": 30_000}] == fake.sent


def test_a_scheduler_needs_a_queue(answer, capsys):
    answer({})

    assert 2 == dispatch(["cron", "add", "ping", "-e", "30s"])
    assert "missing option --queue" in capsys.readouterr().err


def test_schedulers_are_listed_a_line_each(answer, capsys):
    answer({"crons": [CRON, PING]})

    dispatch(["cron", "list"])

    assert [
        "Name     Queue    Schedule        Zone         Next run                  Runs  Limit",
        "nightly  reports  30 2 * * *      Europe/Rome  2026-03-29T01:30:00.000Z  3     -",
        "ping     reports  every 30000 ms  -            2026-03-29T01:30:00.000Z  3     -",
    ] == capsys.readouterr().out.splitlines()


def test_no_scheduler_is_said_so(answer, capsys):
    answer({"crons": []})

    dispatch(["cron", "list"])

    assert "No cron jobs found\n" == capsys.readouterr().out


def test_deleting_says_ok(answer, capsys):
    fake = answer({})

    dispatch(["cron", "delete", "nightly"])

    assert "OK\n" == capsys.readouterr().out
    assert [{"cmd": "CronDelete", "name": "nightly"}] == fake.sent
