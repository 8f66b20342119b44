import json

import pytest

from bunqueue import __version__
from bunqueue.cli import call
from bunqueue.cli.dispatch import dispatch
from bunqueue.cli.leading import split_leading
from bunqueue.cli.table import SUBCOMMANDS, Action
from bunqueue.errors import CommandError, ConnectionClosedError

ACTIONS = [
    (row.name, word, action)
    for row in SUBCOMMANDS.values()
    if not callable(row.run)
    for word, action in row.run.items()
    if isinstance(action, Action)
]


class FakeConnection:
    """Stands for the client's connection: notes the commands, answers with one reply."""

    def __init__(self, reply):
        self.reply, self.sent, self.timeouts = reply, [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def call(self, command, timeout=None):
        self.sent.append(command)
        self.timeouts.append(timeout)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.fixture
def answer(monkeypatch):
    """Let every broker answer with the given reply; return the fake to look at."""

    def install(reply):
        fake = FakeConnection(reply)
        monkeypatch.setattr(call, "connect", lambda _args: fake)
        return fake

    return install


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help_with_an_example(name, capsys):
    assert 0 == dispatch([name, "--help"])

    text = capsys.readouterr().out
    assert f"  bunqueue {name}" in text.partition("Examples:")[2]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_is_in_the_overview(name, capsys):
    assert 0 == dispatch(["--help"])
    assert f"\n  {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_refuses_an_unknown_option(name, capsys):
    assert 2 == dispatch([name, "--no-such-option"])
    assert "unknown option --no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "word", "action"), ACTIONS)
def test_every_action_has_a_usage_line(name, word, action):
    assert f"  bunqueue {name} {word}".rstrip() in SUBCOMMANDS[name].usage
    assert action.cmd


def test_push_sends_data_and_options(answer, capsys):
    broker = answer({"ok": True, "id": "7", "reqId": "1"})

    status = dispatch(["push", "emails", '{"a": 1}', "-P", "-5", "--delay", "5s", "--lifo"])

    assert 0 == status
    assert [
        {
            "cmd": "PUSH",
            "queue": "emails",
            "data": {"a": 1},
            "priority": -5,
            "delay": 5_000,
            "lifo": True,
        }
    ] == broker.sent
    assert "Job created: 7\n" == capsys.readouterr().out


def test_json_prints_the_reply_without_our_request_number(answer, capsys):
    answer({"ok": True, "id": "7", "reqId": "1"})

    assert 0 == dispatch(["push", "emails", "null", "--json"])
    assert {"ok": True, "id": "7"} == json.loads(capsys.readouterr().out)


def test_a_pull_is_detached_and_outlasts_its_own_wait(answer, capsys):
    broker = answer({"ok": True, "job": None})

    assert 0 == dispatch(["pull", "emails", "-t", "20s"])
    assert [{"cmd": "PULL", "queue": "emails", "timeout": 20_000, "detach": True}] == broker.sent
    assert broker.timeouts[0] > 20
    assert "No job available\n" == capsys.readouterr().out


def test_a_token_before_pull_is_the_token():
    assert (["--token", "s"], ["pull", "q", "-t", "5"]) == split_leading(
        ["-t", "s", "pull", "q", "-t", "5"]
    )


def test_an_unknown_state_is_exit_1(answer, capsys):
    answer({"ok": True, "id": "7", "state": "unknown"})

    assert 1 == dispatch(["job", "state", "7"])
    assert "State: unknown\n" == capsys.readouterr().out


def test_a_wait_that_ran_out_is_exit_1(answer, capsys):
    answer({"ok": True, "completed": False})

    assert 1 == dispatch(["job", "wait", "7", "-t", "10"])
    assert "Job has not completed\n" == capsys.readouterr().out


def test_a_refusal_is_exit_1_and_told_on_stderr(answer, capsys):
    answer(CommandError("Job not found"))

    assert 1 == dispatch(["job", "get", "7"])
    assert ("", "Error: Job not found\n") == capsys.readouterr()


def test_a_refusal_is_json_on_stderr_when_asked(answer, capsys):
    answer(ConnectionClosedError("server unreachable"))

    assert 1 == dispatch(["stats", "--json"])
    output, errors = capsys.readouterr()
    assert "" == output
    assert {"ok": False, "error": "server unreachable"} == json.loads(errors)


def test_an_unknown_command_is_exit_1_with_a_suggestion(capsys):
    assert 1 == dispatch(["pusch", "emails", "{}"])
    assert "Error: Unknown command: pusch (did you mean push?)\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["push emails", "push emails {bad", "push emails 1 -P x", "-p 0 ping", "queue clean q"]
)
def test_bad_usage_is_exit_2_with_a_short_hint(line, capsys):
    assert 2 == dispatch(line.split())

    output, errors = capsys.readouterr()
    assert "" == output
    assert 2 == len(errors.splitlines())


def test_scripts_are_not_asked_before_a_removal(answer, capsys):
    broker = answer({"ok": True})

    assert 0 == dispatch(["queue", "obliterate", "emails"])
    assert [{"cmd": "Obliterate", "queue": "emails"}] == broker.sent
    assert "OK\n" == capsys.readouterr().out


@pytest.mark.parametrize(("typed", "sent"), [("y\n", 1), ("\n", 0), ("", 0)])
def test_people_are_asked_before_a_removal(answer, monkeypatch, typed, sent):
    broker = answer({"ok": True})
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", Terminal(""))

    dispatch(["queue", "obliterate", "emails"])

    assert sent == len(broker.sent)


class Terminal:
    """A terminal on which something was typed."""

    def __init__(self, typed):
        self.typed = typed

    def isatty(self):
        return True

    def readline(self):
        return self.typed

    def write(self, text):
        return len(text)

    def flush(self):
        return None


def test_version_option_prints_the_version(capsys):
    assert 0 == dispatch(["--version"])
    assert f"bunqueue {__version__}\n" == capsys.readouterr().out
