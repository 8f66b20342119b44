"""What a Forwarder does, from either transport to a broker over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import Connection, ForwardedInfo, Queue, QueueEvents
from bunqueue.client import forwarder as forwarder_module
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.fake_server import FakeConnection, FakeServer, Message
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]


@pytest.fixture
def remote(tcp_broker: BrokerProcess, transport: Transport) -> Iterator[Queue]:
    """The queue that jobs are forwarded to."""
    name = f"{transport.queue_name}-remote"
    with Queue(name, host=tcp_broker.host, port=tcp_broker.port) as queue:
        yield queue


def there(remote: Queue) -> dict[str, Any]:
    return {"host": remote.connection.host, "port": remote.connection.port}


def test_jobs_go_over_with_fixed_ids(transport: Transport, remote: Queue) -> None:
    queue = transport.queue(prefix_key="edge:")

    with queue.forward(there(remote), queue=str(remote.name)) as forwarder:
        heard = Heard(forwarder, "forwarded", "error")
        job = queue.add("measure", {"t": 2**53 + 1}, priority=7, tags=["a"])
        result = queue.wait_for_job(job.id)
        heard.wait_for("forwarded")
        stats = forwarder.stats()

    remote_id = f"fwd:{queue.queue_key}:{job.id}"
    assert {"id": job.id, "remote_id": remote_id, "name": "measure"} == result
    assert [("forwarded", ForwardedInfo(job.id, remote_id, "measure"))] == heard.events[:1]
    found = remote.get_job(remote_id)
    assert found is not None
    assert ("measure", {"t": 2**53 + 1}, 7, []) == (
        found.name, found.data, found.priority, found.tags,
    )  # fmt: skip
    assert (1, 0, True) == (stats["forwarded"], stats["failed"], stats["reachable"])


def test_chosen_options_go_along(transport: Transport, remote: Queue) -> None:
    queue = transport.queue()
    options = {"tags": ["a"], "group_id": "g", "timeout": 5000, "attempts": 9, "ttl": 60_000}
    job = queue.add("x", backoff={"type": "fixed", "delay": 77}, lifo=True, **options)

    keep = ("tags", "group_id", "timeout", "attempts", "backoff", "ttl", "lifo")
    with queue.forward(
        remote.connection, queue=str(remote.name), durable=True, preserve=keep
    ) as forwarder:
        assert "reachable" in forwarder.stats()
        result = queue.wait_for_job(job.id)

    found = remote.get_job(result["remote_id"])
    assert found is not None
    assert (["a"], "g", 5000, 9, 60_000, True, True) == (
        found.tags, found.group_id, found.timeout, found.max_attempts, found.ttl, found.lifo,
        found.durable,
    )  # fmt: skip
    assert ("fixed", 77) == (found.backoff["type"], found.backoff["delay"])
    assert remote.ping()  # a connection that was handed in stays open


def test_a_job_handed_over_twice_is_one_job_there(transport: Transport, remote: Queue) -> None:
    queue = transport.queue()
    job = queue.add("x", job_id=f"once-{queue.name}")
    target = {**there(remote)}
    with queue.forward(target, queue=str(remote.name)):
        queue.wait_for_job(job.id)
    again = queue.retry_completed(job.id)
    with queue.forward(target, queue=str(remote.name)):
        queue.wait_for_job(job.id)

    assert (1, 1) == (again, remote.count())


def test_a_remote_refusal_fails_the_local_job(transport: Transport) -> None:
    def answer(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] == "PUSH":
            connection.reply(message, ok=False, error="no room")
        else:
            connection.reply(message)

    queue = transport.queue()
    with FakeServer(answer) as server:
        with queue.forward(f"bunqueue://127.0.0.1:{server.port}") as forwarder:
            heard = Heard(forwarder, "error")
            job = queue.add("x", attempts=2, backoff=1)
            heard.wait_for("error", 2)
            assert "no room" == str(heard.events[0][1])
        pushes = [one for one in server.received if one["cmd"] == "PUSH"]

    assert ["PUSH", "PUSH"] == [one["cmd"] for one in pushes]
    assert {(queue.queue_key, f"fwd:{queue.queue_key}:{job.id}")} == {
        (one["queue"], one["jobId"]) for one in pushes
    }
    assert [job.id] == [one["id"] for one in queue.get_dlq()]


def test_an_unreachable_broker_costs_few_attempts(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder_module, "RESTS_MS", (60_000,))
    queue = transport.queue()

    with queue.forward({"host": "127.0.0.1", "port": free_port()}) as forwarder:
        heard = Heard(forwarder, "error")
        queue.add_bulk([{"name": "x", "backoff": 60_000}] * 30)
        heard.wait_for("error")
        assert not forwarder.stats()["reachable"]

    tried = [job for job in queue.iter_jobs() if job.attempts]
    # Those pulled before the first failure was known; no pull brings more than the slots.
    assert 1 <= len(tried) <= 4
    assert 30 == len(list(queue.iter_jobs()))


def test_forwarding_can_be_paused(transport: Transport, remote: Queue) -> None:
    queue = transport.queue()
    with queue.forward(there(remote), queue=str(remote.name)) as forwarder:
        forwarder.pause()
        forwarder.resume()
        queue.wait_for_job(queue.add("x").id)
        forwarder.close()
        forwarder.close()
        assert forwarder.is_closed()

    queue.add("late")
    assert (1, 1) == (queue.count(), remote.count())


def test_a_queue_is_not_forwarded_to_itself(transport: Transport) -> None:
    queue = transport.queue()
    if transport.options.get("embedded"):
        itself: Any = Connection(embedded=True)
    else:
        itself = {"host": "localhost", "port": transport.options["port"]}

    with pytest.raises(ValueError, match="itself"):
        queue.forward(itself)
    with pytest.raises(ValueError, match="preserve"):
        queue.forward("bunqueue://127.0.0.1:1", preserve=("delay",))
    with pytest.raises(TypeError, match="to must be"):
        queue.forward(5)  # type: ignore[arg-type]
    assert 0 == queue.count()


def test_what_goes_over_can_be_listened_to(transport: Transport, remote: Queue) -> None:
    queue = transport.queue()
    with (
        QueueEvents(queue.name, **transport.options) as events,
        queue.forward(there(remote), queue=str(remote.name)),
    ):
        job = queue.add("x")
        assert "x" == queue.wait_for_job(job.id, queue_events=events)["name"]


def test_a_listener_may_close_the_forwarder(transport: Transport, remote: Queue) -> None:
    queue = transport.queue()
    forwarder = queue.forward(there(remote), queue=str(remote.name))
    forwarder.on("forwarded", lambda _info: forwarder.close())
    job = queue.add("x")

    assert queue.wait_for_job(job.id)
    assert forwarder.worker.closed.wait(10)
    assert "completed" == queue.get_state(job.id)
