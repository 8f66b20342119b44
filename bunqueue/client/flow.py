"""FlowProducer: trees, chains and fan-ins of jobs, each created in one command or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bunqueue.client.connecting import address_of
from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import (
    COMMAND_TIMEOUT_S_DEFAULT,
    HOST_DEFAULT,
    PORT_DEFAULT,
    TlsOption,
)
from bunqueue.client.flow_plan import Plan, Planned
from bunqueue.client.job import Job
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.client.types import FlowSpec
from bunqueue.client.values import IntegerPolicy
from bunqueue.errors import BunqueueError, CommandError

Node = FlowSpec | Mapping[str, Any]


class FlowNode:
    """A job of a flow, and the nodes below it.

    Attributes:
        job: As the broker told it.
        children: Nodes of its children.
    """

    def __init__(self, job: Job[Any], children: list[FlowNode] | None = None) -> None:
        self.job = job
        self.children = children or []


class FlowProducer:
    """Creates jobs that depend on each other; safe to share between threads and greenlets.

    A node is ``{"name", "queueName" or "queue_name", "data", "opts", "children"}``; ``opts`` takes
    the options of ``Queue.add``.

    Args:
        host: Where the broker listens.
        port: Its TCP port.
        token: Authentication token.
        tls: See ``Connection``.
        connection: A ``Connection`` to share.
        on_telemetry: Called with a dict per event.
        embedded: Use the engine in this process; None reads ``BUNQUEUE_EMBEDDED``.
        data_path: The embedded engine's file.
        prefix_key: Namespace in front of queue names.
        url: ``bunqueue://[:token@]host[:port]``; explicit parameters win.
        command_timeout: Seconds a command may take; None for no bound.
        int64: What becomes of integers that the link cannot carry exactly.

    Attributes:
        connection: What every method goes through.
    """

    def __init__(
        self,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | Mapping[str, Any] | None = None,
        on_telemetry: TelemetryHandler | None = None,
        *,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        prefix_key: str = "",
        url: str | None = None,
        command_timeout: float | None = COMMAND_TIMEOUT_S_DEFAULT,
        int64: IntegerPolicy = "auto",
    ) -> None:
        address = address_of(
            "flows",  # only its prefix and connection are used
            prefix_key=prefix_key,
            connection=connection,
            url=url,
            given={
                "host": host,
                "port": port,
                "token": token,
                "tls": tls,
                "on_telemetry": on_telemetry,
                "embedded": embedded,
                "data_path": data_path,
                "command_timeout": command_timeout,
                "int64": int64,
            },
        )
        self.connection = address.connection
        self.prefix_key = address.name.prefix
        self.embedded = self.connection.embedded
        self._owns_connection = address.owns_connection

    # -- creating -------------------------------------------------------------------------------

    def add(self, flow: Node, opts: Mapping[str, Any] | None = None) -> FlowNode:
        """Create a tree; children run before their parent. Waits.

        Args:
            flow: The root.
            opts: ``{"queues_options": {queue: options}}``, defaults of each queue's jobs;
                ``queuesOptions`` is the same.

        Raises:
            ValueError: The tree cannot be; nothing was sent.
            CommandError: The broker refused it as a whole.
            CommandTimeoutError: Outcome unknown. With a ``job_id`` on every node, try again:
                ``already exists`` proves that the first try was committed.
        """
        given = opts or {}
        plan = Plan(self.prefix_key, given.get("queues_options", given.get("queuesOptions")))
        root = plan.tree(flow)
        return _node(root, self._push(plan))

    def add_bulk(self, flows: Sequence[Node]) -> list[FlowNode]:
        """Create several trees, all or none. Waits; raises as ``add``."""
        plan = Plan(self.prefix_key)
        roots = [plan.tree(flow) for flow in flows]
        jobs = self._push(plan)
        return [_node(root, jobs) for root in roots]

    def add_chain(self, steps: Sequence[Node]) -> list[str]:
        """Create jobs of which each depends on the one before; return their ids. Waits."""
        plan = Plan(self.prefix_key)
        ids: list[str] = []
        for step in steps:
            planned = plan.single(step)
            entry = planned.entry["input"]
            entry["data"]["__flowParentId"] = ids[-1] if ids else None
            if ids:
                entry["dependsOn"] = [ids[-1]]
            ids.append(planned.id)
        self._push(plan)
        return ids

    def add_bulk_then(self, parallel: Sequence[Node], final: Node) -> dict[str, Any]:
        """Create jobs side by side and one that runs after all of them. Waits.

        Returns:
            ``{"parallel_ids": [...], "final_id": str}``; the final job reads the others' results
            with ``get_children_values``.
        """
        plan = Plan(self.prefix_key)
        before = [plan.single(step) for step in parallel]
        last = plan.single(final)
        ids = [planned.id for planned in before]
        last.entry["input"]["data"]["__flowParentIds"] = ids
        plan.own(last, before)
        self._push(plan)
        return {"parallel_ids": ids, "final_id": last.id}

    def add_tree(self, root: Node) -> dict[str, list[str]]:
        """Create a tree; return ``{"job_ids": [...]}``, each parent before its children. Waits."""
        plan = Plan(self.prefix_key)
        plan.tree(root, parent_first=True)
        self._push(plan)
        return {"job_ids": [str(entry["id"]) for entry in plan.jobs]}

    def _push(self, plan: Plan) -> dict[str, Job[Any]]:
        """Send the plan; return id -> job."""
        if not plan.jobs:
            return {}
        reply = self.connection.call({"cmd": "PUSHF", "jobs": plan.jobs})
        told = (reply.get("data") or {}).get("jobs") or []
        jobs: dict[str, Job[Any]] = {str(raw.get("id")): Job(raw, self.connection) for raw in told}
        if len(told) != len(jobs) or jobs.keys() != {entry["id"] for entry in plan.jobs}:
            raise BunqueueError("the broker answered a flow with other jobs than were sent")
        return jobs

    # -- reading --------------------------------------------------------------------------------

    def get_flow(
        self,
        job_id: str,
        depth: int | None = None,
        *,
        max_children: int | None = None,
        strict: bool = False,
    ) -> FlowNode | None:
        """Read a tree back; None if there is no such root. Waits.

        Args:
            job_id: The root's.
            depth: Levels below the root; None is all.
            max_children: Children read per node at most.
            strict: Raise ``BunqueueError`` for a child that is gone or names another parent,
                instead of leaving it out.
        """
        return self._read(job_id, depth, max_children, strict, None, set())

    def _read(
        self,
        job_id: str,
        depth: int | None,
        max_children: int | None,
        strict: bool,
        parent_id: str | None,
        seen: set[str],
    ) -> FlowNode | None:
        if job_id in seen:
            return None
        seen.add(job_id)
        raw = self._job(job_id)
        if strict and parent_id is not None and (raw is None or raw.get("parentId") != parent_id):
            raise BunqueueError(f"job {job_id} is not there as a child of {parent_id}")
        if raw is None:
            return None
        node = FlowNode(Job(raw, self.connection))
        if depth is None or depth > 0:
            below = None if depth is None else depth - 1
            for child_id in (raw.get("childrenIds") or [])[:max_children]:
                child = self._read(child_id, below, max_children, strict, job_id, seen)
                if child is not None:
                    node.children.append(child)
        return node

    def _job(self, job_id: str) -> dict[str, Any] | None:
        try:
            reply = self.connection.call({"cmd": "GetJob", "id": job_id})
        except CommandError as error:
            if "not found" in str(error).lower():
                return None
            raise
        return reply.get("job") or None

    def get_parent_result(self, job_id: str) -> Any | None:
        """Return the result of a job that another one depended on, or None. Waits."""
        return self.connection.call({"cmd": "GetResult", "id": job_id}).get("result")

    def get_parent_results(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return id -> result of those that have one. Waits."""
        results = ((job_id, self.get_parent_result(job_id)) for job_id in ids)
        return {job_id: result for job_id, result in results if result is not None}

    # -- lifecycle ------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Open and authenticate now. Waits."""
        self.connection.connect()

    def close(self) -> None:
        """Close the connection if it is this producer's own; a second call does nothing."""
        if self._owns_connection:
            self.connection.close()

    disconnect = close

    def __enter__(self) -> FlowProducer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _node(planned: Planned, jobs: Mapping[str, Job[Any]]) -> FlowNode:
    return FlowNode(jobs[planned.id], [_node(child, jobs) for child in planned.children])
