"""What a worker that has not started can still be told."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue import Connection, Worker


def worker(**options: Any) -> Worker:
    return Worker("emails", lambda job: job, autorun=False, **options)


def test_a_shorter_lease_beats_more_often() -> None:
    one = worker()

    one.change(lock_ttl_ms=3_000)

    assert 1.0 == one.leases.beat_s


def test_a_listener_and_a_pause_stay() -> None:
    heard: list[str] = []
    one = worker()
    one.on("closed", lambda: heard.append("closed"))
    one.pause()

    one.change(concurrency=9, max_jobs=3)

    assert one.is_paused()
    assert one.has_listeners("closed")
    assert (9, 3) == (one.concurrency, one.free_slots())  # no more jobs than are wanted


def test_a_prefix_changes_the_key_and_not_the_name() -> None:
    one = worker(prefix_key="old:")

    one.change(prefix_key="new:")

    assert ("emails", "new:emails") == (one.queue, one.queue_key)


def test_a_shared_connection_is_left_as_it_is() -> None:
    with Connection(port=7000) as shared:
        one = worker(connection=shared)

        one.change(port=7001)

        assert (7000, 7001) == (shared.port, one.connection.port)
        assert one.pull_connection is one.connection


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        worker().change(colour="red")


def test_a_closed_worker_keeps_its_options() -> None:
    one = worker()
    one.close()

    with pytest.raises(RuntimeError, match="keeps its options"):
        one.change(concurrency=9)
