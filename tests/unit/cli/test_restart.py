"""The broker's interpreter starts again with another allocator and without tokens, if it can."""

import os
import sys

import pytest

from bunqueue.cli import restart


class Started(Exception):
    """The process would have been replaced."""


@pytest.fixture
def started(monkeypatch):
    """What the process would be replaced with: arguments and environment."""
    seen = []

    def execve(_path, args, environ):
        seen.append((args[1:], environ))
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(restart, "_is_glibc", lambda: True)
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv("AUTH_TOKENS", raising=False)
    return seen


def start(monkeypatch, *words):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bunqueue", *words])
    restart.start_again(list(words))


def test_the_broker_starts_again_with_the_allocator_of_the_c_library(started, monkeypatch):
    with pytest.raises(Started):
        start(monkeypatch, "start", "--tcp-port", "0")

    [(args, environ)] = started
    assert ["-m", "bunqueue", "start", "--tcp-port", "0"] == args
    assert "malloc" == environ["PYTHONMALLOC"]
    assert restart.CACHED_PIECES == environ["GLIBC_TUNABLES"]
    assert "AUTH_TOKENS" not in environ


def test_how_the_allocator_was_tuned_is_respected(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")

    with pytest.raises(Started):
        start(monkeypatch, "start")

    [(_, environ)] = started
    assert "glibc.malloc.tcache_count=0" == environ["GLIBC_TUNABLES"]


@pytest.mark.parametrize(
    "words",
    [
        ("start", "--auth-tokens", "a,b", "--tcp-port", "0"),
        ("start", "--auth-tokens=a,b", "--tcp-port", "0"),
        ("start", "--tcp-port", "0", "--auth", "a,b"),
    ],
)
def test_tokens_leave_the_command_line(started, monkeypatch, capsys, words):
    monkeypatch.setenv("PYTHONMALLOC", "malloc")

    with pytest.raises(Started):
        start(monkeypatch, *words)

    [(args, environ)] = started
    assert ["-m", "bunqueue", "start", "--tcp-port", "0"] == args
    assert "a,b" == environ["AUTH_TOKENS"]
    warning = capsys.readouterr().err
    assert "AUTH_TOKENS_FILE" in warning
    assert "a,b" not in warning


@pytest.mark.parametrize("words", [("start",), ("start", "--auth-tokens"), ()])
def test_without_a_reason_the_process_stays(started, monkeypatch, words):
    monkeypatch.setenv("PYTHONMALLOC", "default")

    start(monkeypatch, *words)

    assert [] == started


def test_an_interpreter_that_cannot_start_again_goes_on_as_it_is(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(restart, "_is_glibc", lambda: True)

    start(monkeypatch, "start")

    assert "PYTHONMALLOC" not in os.environ


@pytest.mark.parametrize(
    "words",
    [
        ("worker", "--token", "hush", "a:b"),
        ("worker", "--token=hush", "a:b"),
        ("worker", "--tok", "hush", "a:b"),
        ("worker", "-t", "hush", "a:b"),
        ("worker", "-thush", "a:b"),
        ("--token", "hush", "worker", "a:b"),
    ],
)
def test_a_workers_token_leaves_the_command_line(started, monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bunqueue", *words])

    with pytest.raises(Started):
        restart.hide_token(list(words))

    [(args, environ)] = started
    assert ["-m", "bunqueue", "--token", "@BUNQUEUE_HIDDEN_TOKEN", "worker", "a:b"] == args
    assert "hush" == environ["BUNQUEUE_HIDDEN_TOKEN"]
    warning = capsys.readouterr().err
    assert "BQ_TOKEN" in warning
    assert "hush" not in warning


@pytest.mark.parametrize(
    ("words", "token", "others"),
    [
        (["--url", "bunqueues://:hu%2Fsh@host:1?x=1"], "hu/sh", "bunqueues://host:1?x=1"),
        (["--url=bunqueue://hush@host"], "hush", "bunqueue://host"),
        (["--u", "bunqueue://:hush@host"], "hush", "bunqueue://host"),
        (["--url", "bunqueue://:other@host", "-t", "hush"], "hush", "bunqueue://host"),
    ],
)
def test_a_token_in_a_url_leaves_it(words, token, others):
    rest = ["--token", restart.HIDDEN_TOKEN, "worker", "--url", others, "a:b"]

    assert (token, rest) == restart.without_token(["worker", *words, "a:b"])


@pytest.mark.parametrize(
    "words",
    [
        ["worker", "a:b", "--tls"],
        ["worker", "a:b", "--url", "bunqueue://host"],
        ["worker", "a:b", "--url", "bunqueue://:x@[host"],
        ["worker", "--token", restart.HIDDEN_TOKEN, "a:b"],
        ["worker", "--", "--token", "a:b"],
        ["worker", "--token"],
    ],
)
def test_a_worker_that_shows_no_token_stays(started, words):
    restart.hide_token(words)

    assert [] == started
    assert (None, words) == restart.without_token(words)


def test_a_hidden_token_is_what_the_option_means(monkeypatch):
    assert [None, "x", restart.HIDDEN_TOKEN] == [
        restart.shown_token(given) for given in (None, "x", restart.HIDDEN_TOKEN)
    ]
    monkeypatch.setenv("BUNQUEUE_HIDDEN_TOKEN", "hush")
    assert [None, "x", "hush"] == [
        restart.shown_token(given) for given in (None, "x", restart.HIDDEN_TOKEN)
    ]
