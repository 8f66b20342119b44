"""Flows as clients send them."""

from __future__ import annotations

from typing import Any


def flow_child(
    job_id: str = "c", parent: str = "p", queue: str = "q", parent_queue: str = "pq", **options: Any
) -> dict[str, Any]:
    """Return a planned child."""
    data = {"__parentId": parent, "__parentQueue": parent_queue, **options.pop("data", {})}
    entry = {"name": "child", "parentId": parent, "data": data, **options}
    return {"id": job_id, "queue": queue, "input": entry}


def flow_parent(
    children: list[str] | None = None, job_id: str = "p", queue: str = "pq", **options: Any
) -> dict[str, Any]:
    """Return a planned parent."""
    ids = ["c"] if children is None else children
    data = {"__childrenIds": ids, **options.pop("data", {})}
    entry = {"name": "parent", "data": data, "childrenIds": ids, "dependsOn": ids, **options}
    return {"id": job_id, "queue": queue, "input": entry}


def tree(children: int = 2, **options: Any) -> list[dict[str, Any]]:
    """Return a parent ``p`` with children ``c0``...; the options are the first child's."""
    ids = [f"c{number}" for number in range(children)]
    rest = [flow_child(job_id) for job_id in ids[1:]]
    return [flow_child(ids[0], **options), *rest, flow_parent(ids)]
