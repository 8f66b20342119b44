"""Underscore names and habits that programs for the official client rely on (client.md 0.1.3)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import Bunqueue, Connection, Job, Queue, Worker
from tests.support.fake_server import FakeServer

# Arguments for methods that cannot do without.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add": ("x",),
    "add_bulk": ([{"name": "x"}],),
    "add_bulk_jobs": ([{"name": "x"}],),
    "add_cron": ("x", "* * * * *"),
    "add_webhook": ("https://example.com", []),
    "every": ("x", 1000),
    "extend_job_locks": (["1"], ["t"], 5),
    "move_job_to_failed": ("1", "broken"),
    "retry_dlq_by_filter": ({},),
    "set_global_rate_limit": (5,),
    "upsert_job_scheduler": ("x", {"every": 1000}),
}
# What reaches no broker, or another one.
ELSEWHERE = {"close", "disconnect", "forward", "forget_parent", "move", "ping", "wait_until_ready"}
METHODS = sorted(
    name
    for name, member in inspect.getmembers(Queue, callable)
    if not name.startswith("_") and name not in ELSEWHERE
)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


class Elsewhere(Exception):
    """Raised by the call that took the other's place."""


def refuse(command: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
    del timeout  # a part of the signature
    raise Elsewhere(command["cmd"])


class OtherConnection:
    """Takes the place of a queue's connection."""

    call = staticmethod(refuse)


def arguments_of(name: str) -> tuple[Any, ...]:
    """Return arguments that lead to a command."""
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    required = [
        parameter
        for parameter in inspect.signature(getattr(Queue, name)).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return tuple("7" if each.annotation == "str" else 7 for each in required[1:])


def do(queue: Queue, name: str) -> None:
    """Call a method, and go through what it yields."""
    found = getattr(queue, name)(*arguments_of(name))
    if inspect.isgenerator(found):
        list(found)


@pytest.mark.parametrize("name", METHODS)
def test_a_replaced_connection_takes_every_call_of_its_queue(name: str) -> None:
    queue = Queue("q", port=1)
    queue.connection = OtherConnection()  # type: ignore[assignment]

    with pytest.raises(Elsewhere):
        do(queue, name)


@pytest.mark.parametrize("name", METHODS)
def test_a_replaced_call_takes_every_call_of_its_queue(name: str) -> None:
    queue = Queue("q", port=1)
    queue.connection.call = refuse  # type: ignore[method-assign]

    with pytest.raises(Elsewhere):
        do(queue, name)


def test_a_connection_shows_its_state_under_the_old_names(server: FakeServer) -> None:
    connection = Connection(port=server.port)
    assert (None, {}, False, False, 0, 0.0, 3) == (
        connection._sock,
        connection._pending,
        connection._connected,
        connection._closed,
        connection._failed_attempts,
        connection._next_attempt_at,
        connection._max_command_timeouts,
    )

    assert connection._send({"cmd": "Stats"})["ok"]

    assert connection._connected
    assert connection._sock is not None
    assert connection._sock.fileno() > 0
    connection.close()
    assert (True, False) == (connection._closed, connection._connected)


def test_a_worker_shows_its_parts_under_the_old_names(server: FakeServer) -> None:
    with Worker("q", print, port=server.port, autorun=False, ack_batch={}) as worker:
        worker._register()
        assert 0 == worker._poll_once()
        assert 1 == worker._registered_generation
        worker._registered_generation = None
        assert worker._ack_batcher is not None
        worker.start()
        assert worker._run_thread is not None

    assert "RegisterWorker" in server.commands


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: Worker("q", print, concurrency=0), ValueError, "concurrency must be >= 1"),
        (lambda: Bunqueue("q"), ValueError, 'Bunqueue requires "processor", "routes", or "batch"'),
        (
            lambda: Bunqueue("q", processor=print, routes={"x": print}),
            ValueError,
            'Bunqueue: use only one of "processor", "routes", or "batch"',
        ),
        (lambda: Job({"id": "1"}).log("x"), RuntimeError, "Job is not bound to a connection"),
    ],
)
def test_errors_read_as_those_of_the_official_client(
    call: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        call()

    assert text == str(caught.value)
