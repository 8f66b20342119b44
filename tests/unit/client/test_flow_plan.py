"""What a flow may look like before anything is sent (client.md 4.1)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.client.flow_plan import DEPTH_MAX, OPTIONS_REFUSED, Plan


def node(name: str = "n", **more: Any) -> dict[str, Any]:
    return {"name": name, "queueName": "q", **more}


def deep(levels: int) -> dict[str, Any]:
    tree = node()
    for _ in range(levels - 1):
        tree = node(children=[tree])
    return tree


def test_a_tree_is_planned_with_all_its_links() -> None:
    plan = Plan("app:")
    root = plan.tree(node("p", data={"k": 1}, children=[node("c", opts={"job_id": "c1"})]))

    child, parent = plan.jobs
    assert {
        "id": "c1",
        "queue": "app:q",
        "input": {
            "name": "c",
            "customId": "c1",
            "parentId": root.id,
            "data": {"__parentId": root.id, "__parentQueue": "app:q"},
        },
    } == child
    assert {
        "name": "p",
        "childrenIds": ["c1"],
        "dependsOn": ["c1"],
        "data": {"k": 1, "__childrenIds": ["c1"]},
    } == parent["input"]


def test_parents_come_first_where_that_is_wanted() -> None:
    plan = Plan()
    plan.tree(node("p", children=[node("c")]), parent_first=True)

    assert ["p", "c"] == [job["input"]["name"] for job in plan.jobs]


SHARED = node()
CYCLE = node()
CYCLE["children"] = [CYCLE]


@pytest.mark.parametrize(
    "tree",
    [
        node(children=[SHARED, SHARED]),
        CYCLE,
        node(children=[node(opts={"job_id": "a"}), node(opts={"job_id": "a"})]),
        node(opts={"job_id": ""}),
        node(opts={"job_id": "a:b"}),
        node(opts={"job_id": 5}),
        node(children={"a": 1}),
        node(children=(node(),)),
        node(opts=[1]),
        node(data=[1]),
        node(data=5),
        *(node(data={key: 1}) for key in ("__parentId", "__childrenIds", "__flowParentIds")),
        *(node(opts={name: "x"}) for name in OPTIONS_REFUSED),
        deep(DEPTH_MAX + 1),
        {"name": "n"},
        5,
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_is_sent(tree: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # many texts
        Plan().tree(tree)


def test_a_flow_may_be_as_deep_as_the_limit() -> None:
    plan = Plan()
    plan.tree(deep(DEPTH_MAX))

    assert DEPTH_MAX == len(plan.jobs)


def test_a_queues_default_has_no_id() -> None:
    with pytest.raises(ValueError, match="job_id cannot be a queue's default"):
        Plan("", {"q": {"job_id": "a"}})


def test_a_step_of_a_chain_has_no_children() -> None:
    Plan().single(node(children=[]))
    with pytest.raises(ValueError, match="has no children"):
        Plan().single(node(children=[node()]))
