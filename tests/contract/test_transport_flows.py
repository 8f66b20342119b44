"""FlowProducer, over TCP and embedded: the same sentences, the same code."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from bunqueue import CommandError, FlowProducer
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10


@pytest.fixture
def producer(transport: Transport) -> Any:
    with FlowProducer(**transport.options) as producer:
        yield producer


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex}"


def test_a_tree_runs_from_the_leaves_to_the_root(
    transport: Transport, producer: FlowProducer
) -> None:
    queue = transport.queue_name
    seen: list[str] = []
    done = threading.Event()
    results: dict[str, Any] = {}

    def handle(job: Any) -> Any:
        seen.append(job.name)
        if job.name == "root":
            results.update(job.get_children_values())
            done.set()
        return {"from": job.name}

    node = producer.add(
        {
            "name": "root",
            "queueName": queue,
            "data": {"n": 1},
            "children": [
                {"name": "left", "queue_name": queue, "opts": {"remove_on_complete": True}},
                {"name": "right", "queueName": queue, "children": [
                    {"name": "leaf", "queueName": queue},
                ]},
            ],
        }
    )  # fmt: skip
    transport.worker(handle).start()
    assert done.wait(WAIT_S)

    assert "root" == seen[-1]
    assert seen.index("leaf") < seen.index("right")
    assert [{"from": "left"}, {"from": "right"}] == sorted(results.values(), key=str)
    assert ["left", "right"] == [child.job.name for child in node.children]
    assert "waiting-children" == node.job.raw["timeline"][0]["state"]


def test_a_chain_runs_in_order_and_each_step_knows_the_one_before(
    transport: Transport, producer: FlowProducer
) -> None:
    queue = transport.queue()
    steps = [{"name": name, "queueName": transport.queue_name} for name in "abc"]
    ids = producer.add_chain(steps)

    jobs = [queue.get_job(job_id) for job_id in ids]

    before = [job.data["__flowParentId"] for job in jobs if job is not None]
    assert [None, ids[0], ids[1]] == before
    assert ["waiting", "waiting-children", "waiting-children"] == [
        queue.get_state(job_id) for job_id in ids
    ]


def test_a_fan_in_reads_what_ran_side_by_side(transport: Transport, producer: FlowProducer) -> None:
    name = transport.queue_name
    made = producer.add_bulk_then(
        [{"name": f"part {n}", "queueName": name, "data": {"n": n}} for n in range(3)],
        {"name": "sum", "queueName": name},
    )
    done = threading.Event()
    sums: list[int] = []

    def handle(job: Any) -> Any:
        if job.name != "sum":
            return job.data["n"]
        sums.append(sum(job.get_children_values().values()))
        done.set()
        return None

    transport.worker(handle).start()
    assert done.wait(WAIT_S)

    assert [3] == sums
    assert [0, 1, 2] == list(producer.get_parent_results(made["parallel_ids"]).values())
    assert None is producer.get_parent_result(made["final_id"])


def test_trees_in_bulk_are_all_or_none(transport: Transport, producer: FlowProducer) -> None:
    taken, free = fresh("taken"), fresh("free")
    queue = transport.queue()
    queue.add("x", job_id=taken)
    flows = [
        {"name": "n", "queueName": transport.queue_name, "opts": {"job_id": job_id}}
        for job_id in (free, taken)
    ]

    with pytest.raises(CommandError, match=f"Flow job {taken} already exists"):
        producer.add_bulk(flows)
    assert "unknown" == queue.get_state(free)

    assert [free] == [node.job.id for node in producer.add_bulk(flows[:1])]


def test_a_tree_is_read_back(transport: Transport, producer: FlowProducer) -> None:
    name = transport.queue_name
    children = [{"name": f"c{n}", "queueName": name} for n in range(3)]
    made = producer.add_tree({"name": "p", "queueName": name, "children": children})
    root, first, *_ = made["job_ids"]

    whole = producer.get_flow(root, strict=True)
    assert whole is not None
    assert ["c0", "c1", "c2"] == [child.job.name for child in whole.children]
    few = producer.get_flow(root, max_children=1)
    assert few is not None
    assert [first] == [child.job.id for child in few.children]
    shallow = producer.get_flow(root, depth=0)
    assert shallow is not None
    assert [] == shallow.children
    assert None is producer.get_flow(fresh("nobody"))


def test_options_of_a_queue_are_defaults_of_its_nodes(
    transport: Transport, producer: FlowProducer
) -> None:
    name = transport.queue_name
    node = producer.add(
        {"name": "p", "queueName": name, "children": [
            {"name": "c", "queueName": name, "opts": {"priority": 7}},
        ]},
        {"queues_options": {name: {"priority": 3, "attempts": 5}}},
    )  # fmt: skip

    assert (3, 5) == (node.job.priority, node.job.max_attempts)
    assert (7, 5) == (node.children[0].job.priority, node.children[0].job.max_attempts)
