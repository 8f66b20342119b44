"""From parameters to a name and a connection."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue import Connection, Queue, QueueName
from bunqueue.client.endpoint import parse_url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("bunqueue://example.org", {"host": "example.org"}),
        ("bunqueue://:s%2Fcret@h:7000", {"host": "h", "port": 7000, "token": "s/cret"}),
        (
            "bunqueues://h?prefix_key=a:&pool_size=3",
            {"host": "h", "tls": True, "prefix_key": "a:", "pool_size": 3},
        ),
    ],
)
def test_a_url_is_read(url: str, found: dict[str, Any]) -> None:
    assert found == parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "bunqueue://",
        "bunqueue://h?poolsize=1",
        "bunqueue://tok?pool_size=hush@h",
        "bunqueue://hush#tok@h",
        "bunqueue://hush/tok@h",
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url") as refused:
        parse_url(url)

    assert "hush" not in str(refused.value)


def test_explicit_parameters_win_over_the_url() -> None:
    queue = Queue("q", url="bunqueue://elsewhere:7000?prefix_key=u:", port=7001)

    assert ("elsewhere", 7001) == (queue.connection.host, queue.connection.port)
    assert "u:q" == queue.queue_key


def test_connection_parameters_may_be_spelled_as_bun_does() -> None:
    queue = Queue("q", connection={"host": "h", "poolSize": 2, "commandTimeout": 1500})

    assert ("h", 2, 1.5) == (
        queue.connection.host,
        queue.connection.pool_size,
        queue.connection.command_timeout,
    )
    with pytest.raises(TypeError, match="poolsize"):
        Queue("q", connection={"poolsize": 2})


def test_the_name_of_a_queue_brings_its_prefix() -> None:
    first = Queue("q", prefix_key="a:")

    assert "a:q" == Queue(first.name).queue_key
    with pytest.raises(ValueError, match="has the prefix 'a:', not 'b:'"):
        Queue(first.name, prefix_key="b:")
    assert isinstance(first.name, QueueName)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="queue name must be a non-empty string"):
        Queue("")


def test_embedded_excludes_what_belongs_to_tcp() -> None:
    for options in ({"token": "t"}, {"tls": True}, {"connection": Connection()}):
        with pytest.raises(ValueError, match="embedded"):
            Queue("q", embedded=True, **options)


def test_the_environment_may_ask_for_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    from bunqueue import shutdown_manager

    monkeypatch.setenv("BUNQUEUE_EMBEDDED", "1")
    try:
        assert Queue("q").embedded
        assert not Queue("q", host="h").embedded
        assert not Queue("q", embedded=False).embedded
    finally:
        shutdown_manager(5)


def test_a_repr_shows_no_token() -> None:
    assert "secret" not in repr(Queue("q", token="secret")) + repr(Connection(token="secret"))


def test_default_job_options_are_checked_at_once() -> None:
    with pytest.raises(TypeError, match="unknown job option"):
        Queue("q", default_job_options={"attempt": 1})
