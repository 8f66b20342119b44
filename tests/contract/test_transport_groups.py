"""What a QueueGroup does, over TCP and embedded alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bunqueue import CommandError, Queue, QueueGroup
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]


@pytest.fixture
def group(transport: Transport) -> Iterator[QueueGroup]:
    """A group of its own per test."""
    with QueueGroup(f"ns-{transport.queue_name}", **transport.options) as group:
        yield group


def test_queues_of_a_group_are_named_within_it(transport: Transport, group: QueueGroup) -> None:
    queue = group.get_queue("mail")
    transport.queue("elsewhere").add("x")
    transport.queue(group.prefix + "known").add("x")

    assert ("mail", group.prefix + "mail") == (queue.name, queue.queue_key)
    assert queue is group.get_queue("mail")
    assert ["known", "mail"] == group.list_queues()


def test_workers_of_a_group_run_its_jobs(group: QueueGroup) -> None:
    worker = group.get_worker("mail", lambda job: job.data + 1, poll_timeout_ms=100)
    queue = group.get_queue("mail")

    assert 42 == queue.wait_for_job(queue.add("x", 41).id)
    group.close()
    assert worker.is_closed()


def test_all_queues_are_controlled_at_once(transport: Transport, group: QueueGroup) -> None:
    outside = transport.queue()
    queues = [group.get_queue(name) for name in ("a", "b")]
    for queue in (*queues, outside):
        queue.add_bulk([{"name": "x"}] * 2)

    group.pause_all()
    assert [True, True, False] == [queue.is_paused() for queue in (*queues, outside)]
    group.resume_all()
    assert [False, False] == [queue.is_paused() for queue in queues]
    assert 4 == group.drain_all()
    queues[0].add("x")
    group.obliterate_all()
    assert ([0, 0], 2) == ([queue.count() for queue in queues], outside.count())


def test_all_are_attempted_before_the_first_error_is_raised(
    group: QueueGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refuse(queue: Queue) -> None:
        tried.append(str(queue.name))
        raise CommandError(f"not {queue.name}")

    monkeypatch.setattr(Queue, "pause", refuse)
    group.get_queue("a")
    group.get_queue("b")

    with pytest.raises(CommandError, match="not a"):
        group.pause_all()
    assert ["a", "b"] == tried


def test_a_group_needs_a_name_and_known_options() -> None:
    with pytest.raises(ValueError, match="namespace"):
        QueueGroup("")
    with pytest.raises(TypeError, match="colour"):
        QueueGroup("ns", colour="red")
