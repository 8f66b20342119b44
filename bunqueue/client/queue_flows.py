"""Parents and children, as a queue reads and changes them (client.md 1.2, 1.3)."""

from __future__ import annotations

from typing import Any

from bunqueue.client import requests
from bunqueue.client.dependencies import Selector, read_dependencies


class QueueFlows:
    """The part of ``Queue`` that is about flows."""

    connection: Any

    def get_children_values(self, job_id: str) -> dict[str, Any]:
        """Return ``queue:id`` -> result of the job's children that left one. Waits."""
        reply = self.connection.call(requests.of_job("GetChildrenValues", job_id))
        return dict((reply.get("data") or {}).get("values") or {})

    def get_failed_children_values(self, job_id: str) -> dict[str, str]:
        """Return ``queue:id`` -> error of the children after whose failure it goes on. Waits."""
        reply = self.connection.call(requests.of_job("GetFailedChildrenValues", job_id))
        return dict(reply.get("values") or {})

    def get_ignored_children_failures(self, job_id: str) -> dict[str, str]:
        """Return ``queue:id`` -> error of the children whose failure it ignores. Waits."""
        reply = self.connection.call(requests.of_job("GetIgnoredChildrenFailures", job_id))
        return dict(reply.get("values") or {})

    def move_job_to_waiting_children(self, job_id: str, token: str | None = None) -> bool:
        """Park a running job until its children have settled. Waits."""
        command = requests.of_job("MoveToWaitingChildren", job_id, token=token)
        return bool(self.connection.call(command)["data"]["moved"])

    def remove_child_dependency(self, job_id: str) -> bool:
        """Detach a child from its parent; False if that does not know it. Waits."""
        return bool(
            self.connection.call(requests.of_job("RemoveChildDependency", job_id)).get("removed")
        )

    def remove_unprocessed_children(self, job_id: str) -> None:
        """Cancel the children of a job that nobody has begun. Waits."""
        self.connection.call(requests.of_job("RemoveUnprocessedChildren", job_id))

    def get_job_dependencies(
        self, job_id: str, processed: Selector = None, unprocessed: Selector = None
    ) -> dict[str, Any]:
        """Return a job's children by what has become of them, a page of each side. Waits.

        Args:
            job_id: The parent's.
            processed: ``{"cursor", "count"}``; all of them by default.
            unprocessed: The same for the other side.

        Returns:
            ``{"processed": {key: result}, "unprocessed": [ids], "next_processed_cursor",
            "next_unprocessed_cursor"}``, sorted; a next cursor is 0 at the end.
        """
        return read_dependencies(self.connection, job_id).pages(processed, unprocessed)

    def get_job_dependencies_count(self, job_id: str) -> dict[str, int]:
        """Return ``{"processed": n, "unprocessed": n}`` of a job's children. Waits."""
        return read_dependencies(self.connection, job_id).counts()

    def get_dependencies(
        self, parent_id: str, type: str | None = None, start: int = 0, end: int = -1
    ) -> dict[str, Any]:
        """Return ``{"processed", "unprocessed"}`` of a job's children. Waits.

        Args:
            parent_id: The parent's id.
            type: Only this side; the other one stays empty.
            start: The first place.
            end: The last place, included; -1 for all.
        """
        return read_dependencies(self.connection, parent_id).between(type, start, end)
