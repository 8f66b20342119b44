"""What a job waits for, and what of that is done, as Queue and Job both tell it.

The broker tells a job's children with the job and each child's state and result with the child, so
one read per child is needed; there is no command for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.options import compact
from bunqueue.errors import CommandError

SETTLED = ("completed", "failed")
SELECTOR_KEYS = frozenset({"cursor", "count"})
SIDES = ("processed", "unprocessed")

Selector = Mapping[str, int] | None


class Dependencies:
    """The children of one job, by what has become of them.

    Attributes:
        processed: ``queue:id`` -> result, by key; a child that is not kept any more stands under
            its bare id.
        unprocessed: Ids in order.
    """

    def __init__(self, processed: Mapping[str, Any], unprocessed: list[str]) -> None:
        self.processed = dict(sorted(processed.items()))
        self.unprocessed = sorted(unprocessed)

    def counts(self) -> dict[str, int]:
        """Return how many there are on each side."""
        return {"processed": len(self.processed), "unprocessed": len(self.unprocessed)}

    def pages(self, processed: Selector, unprocessed: Selector) -> dict[str, Any]:
        """Return a page of each side and where the next one starts, 0 at the end."""
        done, next_done = _page(list(self.processed), processed)
        open_ids, next_open = _page(self.unprocessed, unprocessed)
        return {
            "processed": {key: self.processed[key] for key in done},
            "unprocessed": open_ids,
            "next_processed_cursor": next_done,
            "next_unprocessed_cursor": next_open,
        }

    def between(self, side: str | None, start: int, end: int) -> dict[str, Any]:
        """Return one side, or both, from place ``start`` to ``end``, included; -1 is the last.

        Raises:
            ValueError: There is no such side.
        """
        if side is not None and side not in SIDES:
            raise ValueError("type must be 'processed', 'unprocessed' or None")
        stop = None if end < 0 else end + 1
        done = list(self.processed)[start:stop] if side != "unprocessed" else []
        return {
            "processed": {key: self.processed[key] for key in done},
            "unprocessed": self.unprocessed[start:stop] if side != "processed" else [],
        }


def read_dependencies(connection: Any, job_id: str) -> Dependencies:
    """Return a job's children; none for a job that does not exist. Waits for each child."""
    parent = _job(connection, job_id) or {}
    child_ids = [str(child_id) for child_id in parent.get("childrenIds") or []]
    if not child_ids:
        return Dependencies({}, [])
    reply = connection.call({"cmd": "GetChildrenValues", "id": job_id})
    values = (reply.get("data") or {}).get("values") or {}
    processed: dict[str, Any] = {}
    unprocessed: list[str] = []
    for child_id in child_ids:
        child = _job(connection, child_id)
        if child is None:
            processed[child_id] = values.get(child_id)
        elif child.get("state") in SETTLED:
            processed[f"{child.get('queue')}:{child_id}"] = child.get("returnvalue")
        else:
            unprocessed.append(child_id)
    return Dependencies(processed, unprocessed)


def _job(connection: Any, job_id: str) -> dict[str, Any] | None:
    try:
        reply = connection.call({"cmd": "GetJob", "id": job_id})
    except CommandError as error:
        if "not found" in str(error).lower():
            return None
        raise
    return reply.get("job") or None


def _page(keys: list[str], selector: Selector) -> tuple[list[str], int]:
    """Return the page and the next cursor, 0 when there is none."""
    given = compact(selector or {})
    unknown = given.keys() - SELECTOR_KEYS
    if unknown:
        raise TypeError(f"unknown selector: {', '.join(sorted(unknown))}")
    start = max(0, int(given.get("cursor", 0)))
    stop = min(len(keys), start + max(0, int(given.get("count", len(keys)))))
    return keys[start:stop], stop if stop < len(keys) else 0
