"""What a FlowProducer makes of the broker's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import BunqueueError, FlowProducer
from tests.support.fake_server import FakeConnection, FakeServer, Message

FLOW = {"name": "p", "queueName": "q", "children": [{"name": "c", "queueName": "q"}]}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def producer(server: FakeServer) -> Iterator[FlowProducer]:
    with FlowProducer(port=server.port) as producer:
        yield producer


def answering(server: FakeServer, change: Any) -> None:
    """Answer flows with the jobs that were sent, after a change."""

    def answer(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] != "PUSHF":
            connection.reply(message)
            return
        jobs = [{"id": job["id"]} for job in message["jobs"]]
        connection.reply(message, data={"jobs": change(jobs)})

    server.answer = answer


def test_a_flow_is_one_command(server: FakeServer, producer: FlowProducer) -> None:
    answering(server, lambda jobs: jobs)

    node = producer.add(FLOW, {"queuesOptions": {"q": {"priority": 3}}})

    assert ["Hello", "PUSHF"] == server.commands
    sent = server.received[1]["jobs"]
    assert [node.children[0].job.id, node.job.id] == [job["id"] for job in sent]
    assert [3, 3] == [job["input"]["priority"] for job in sent]


@pytest.mark.parametrize(
    "change",
    [
        lambda jobs: jobs[:1],
        lambda jobs: [*jobs, {"id": "foreign"}],
        lambda jobs: [jobs[0], {"id": "foreign"}],
        lambda jobs: [*jobs, jobs[0]],
        lambda _jobs: None,
    ],
)
def test_an_answer_with_other_jobs_is_refused(
    server: FakeServer, producer: FlowProducer, change: Any
) -> None:
    answering(server, change)

    with pytest.raises(BunqueueError, match="other jobs than were sent"):
        producer.add(FLOW)


def test_nothing_is_sent_for_nothing(server: FakeServer, producer: FlowProducer) -> None:
    assert ([], []) == (producer.add_bulk([]), producer.add_chain([]))
    assert [] == server.commands


@pytest.mark.parametrize("strict", [False, True])
def test_a_child_that_is_not_the_parents_is_left_out_or_refused(
    server: FakeServer, producer: FlowProducer, strict: bool
) -> None:
    jobs = {
        "root": {"id": "root", "childrenIds": ["mine", "stranger", "gone"]},
        "mine": {"id": "mine", "parentId": "root"},
        "stranger": {"id": "stranger", "parentId": "another"},
    }

    def answer(connection: FakeConnection, message: Message) -> None:
        if message["cmd"] != "GetJob":
            connection.reply(message)
        elif message["id"] in jobs:
            connection.reply(message, job=jobs[message["id"]])
        else:
            connection.reply(message, ok=False, error="Job not found")

    server.answer = answer
    if strict:
        with pytest.raises(BunqueueError, match="stranger"):
            producer.get_flow("root", strict=True)
    else:
        root = producer.get_flow("root")
        assert root is not None
        assert "gone" not in [node.job.id for node in root.children]
        assert None is producer.get_flow("gone")
