"""Planning a flow: from what an application writes to the jobs of one PUSHF.

The whole graph is planned, with all ids, before anything is sent; the broker takes all of it or
nothing. The markers in ``data`` are those that every bunqueue client reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bunqueue.client.connecting import full_queue_name
from bunqueue.client.options import to_wire

DEPTH_MAX = 100  # client.md 4.1
JOBS_MAX = 10_000  # wire.md 2.1.2
OPTIONS_REFUSED = (
    "repeat", "deduplication", "unique_key", "debounce", "parent", "parent_id", "depends_on",
    "children_ids",
)  # fmt: skip
KEYS_RESERVED = (
    "__parentId",
    "__parentQueue",
    "__childrenIds",
    "__flowParentId",
    "__flowParentIds",
)


@dataclass(slots=True)
class Planned:
    """One node of the plan.

    Attributes:
        entry: Its part of PUSHF.
        children: The nodes below it.
    """

    entry: dict[str, Any]
    children: list[Planned] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.entry["id"])

    @property
    def queue(self) -> str:
        """Key of its queue."""
        return str(self.entry["queue"])


class Plan:
    """The jobs of one PUSHF.

    Args:
        prefix: Namespace of the queues.
        defaults: queue name -> options of its jobs.
    """

    def __init__(self, prefix: str = "", defaults: Mapping[str, Any] | None = None) -> None:
        self._prefix = prefix
        self._defaults = _mapping("queues_options", defaults)
        for options in self._defaults.values():
            if "job_id" in _mapping("queues_options", options):
                raise ValueError("job_id cannot be a queue's default")
        self._seen: set[int] = set()
        self._ids: set[str] = set()
        self.jobs: list[dict[str, Any]] = []

    def tree(
        self, node: Mapping[str, Any], *, parent_first: bool = False, depth: int = 1
    ) -> Planned:
        """Plan a node with everything below it; children come first unless told otherwise."""
        if depth > DEPTH_MAX:
            raise ValueError(f"a flow is at most {DEPTH_MAX} levels deep")
        planned = self._node(node)
        if parent_first:
            self.jobs.append(planned.entry)
        for child in _children(node):
            below = self.tree(child, parent_first=parent_first, depth=depth + 1)
            planned.children.append(below)
        self.own(planned, planned.children)
        if not parent_first:
            self.jobs.append(planned.entry)
        return planned

    def single(self, node: Mapping[str, Any]) -> Planned:
        """Plan a node of a chain or fan-in, which has no children of its own."""
        if _children(node):
            raise ValueError("a step of a chain or fan-in has no children")
        planned = self._node(node)
        self.jobs.append(planned.entry)
        return planned

    def own(self, parent: Planned, children: Sequence[Planned]) -> None:
        """Make nodes the children of another."""
        if not children:
            return
        ids = [child.id for child in children]
        entry = parent.entry["input"]
        entry["childrenIds"] = entry["dependsOn"] = ids
        entry["data"]["__childrenIds"] = ids
        for child in children:
            below = child.entry["input"]
            below["parentId"] = parent.id
            below["data"].update(__parentId=parent.id, __parentQueue=parent.queue)

    def _node(self, node: Mapping[str, Any]) -> Planned:
        if not isinstance(node, Mapping):
            raise ValueError("a flow node must be a dict")
        if id(node) in self._seen:
            raise ValueError("a flow node is used twice, or below itself")
        self._seen.add(id(node))
        if len(self._seen) > JOBS_MAX:
            raise ValueError(f"a flow has at most {JOBS_MAX} jobs")
        queue_name = node.get("queue_name", node.get("queueName"))
        queue = full_queue_name(queue_name, self._prefix)
        options = {
            **_mapping("queues_options", self._defaults.get(str(queue_name))),
            **_mapping("opts", node.get("opts")),
        }
        for name in OPTIONS_REFUSED:
            if options.get(name) is not None:
                raise ValueError(f"{name} cannot be set in a flow")
        job_id = self._take_id(options.pop("job_id", None))
        entry = {"name": node["name"], "data": _data(node.get("data")), **to_wire(options)}
        if job_id is None:
            job_id = self._take_id(uuid.uuid4().hex)
        else:
            entry["customId"] = job_id
        return Planned({"id": job_id, "queue": queue.key, "input": entry})

    def _take_id(self, job_id: Any) -> Any:
        if job_id is None:
            return None
        if not isinstance(job_id, str) or not job_id or ":" in job_id:
            raise ValueError(f"a job id in a flow is a string without a colon, not {job_id!r}")
        if job_id in self._ids:
            raise ValueError(f"two nodes have the id {job_id!r}")
        self._ids.add(job_id)
        return job_id


def _children(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    children = node.get("children") if isinstance(node, Mapping) else None
    if children is None:
        return ()
    if not isinstance(children, list):
        raise ValueError("children must be a list")
    return children


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a dict")
    return value


def _data(data: Any) -> dict[str, Any]:
    if data is not None and not isinstance(data, Mapping):
        raise ValueError("data in a flow must be a dict or None")
    found = dict(data or {})
    for key in KEYS_RESERVED:
        if key in found:
            raise ValueError(f"data key {key} is reserved")
    return found
