"""Groups of a queue: jobs that share a label, and that label's turns, limits and pause."""

from __future__ import annotations

from typing import Any

from bunqueue.client.job import Job
from bunqueue.client.options import compact, milliseconds

# States a job of a group may be in before it runs, in the order in which they are listed.
QUEUED_STATES = ("prioritized", "waiting", "delayed")

GroupId = str | int


class QueueGroups:
    """The part of ``Queue`` that is about groups; an ``int`` id stands for its digits."""

    connection: Any
    queue_key: str

    def _group(self, cmd: str, group_id: GroupId, **fields: Any) -> dict[str, Any]:
        """Send a command about a group and return the reply's data. Waits."""
        reply = self.connection.call(
            compact({"cmd": cmd, "queue": self.queue_key, "groupId": group_key(group_id), **fields})
        )
        data: dict[str, Any] = reply.get("data") or {}
        return data

    # -- counts and jobs ------------------------------------------------------------------------

    def get_group_jobs_count(self, group_id: GroupId) -> int:
        """Return how many jobs of a group are queued. Waits."""
        return int(self._group("GetGroupJobsCount", group_id).get("count") or 0)

    def get_groups_jobs_count(self, max_count: int | None = None) -> int:
        """Return how many jobs of all groups are queued, at most ``max_count``. Waits."""
        command = {"cmd": "GetGroupsJobsCount", "queue": self.queue_key, "maxCount": max_count}
        data = self.connection.call(compact(command)).get("data") or {}
        count = int(data.get("count") or 0)
        return count if max_count is None else min(count, max_count)

    def get_group_active_count(self, group_id: GroupId) -> int:
        """Return how many jobs of a group run. Waits."""
        return int(self._group("GetGroupActiveCount", group_id).get("count") or 0)

    def get_group_jobs(self, group_id: GroupId, start: int = 0, end: int = -1) -> list[Job[Any]]:
        """Return the queued jobs of a group from place ``start`` to ``end``, included. Waits.

        The broker has no list of a group, so the queue's is read and looked through.
        """
        found = self._queued_of(group_id)
        return found[start:] if end < 0 else found[start : end + 1]

    def get_counts_per_priority_for_group(self, group_id: GroupId) -> dict[str, int]:
        """Return priority -> how many queued jobs of a group have it. Waits."""
        counts: dict[str, int] = {}
        for job in self._queued_of(group_id):
            key = str(job.priority)
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _queued_of(self, group_id: GroupId) -> list[Job[Any]]:
        key = group_key(group_id)
        jobs: list[Job[Any]] = self.iter_jobs(QUEUED_STATES)  # type: ignore[attr-defined]
        return [job for job in jobs if job.group_id == key]

    # -- limits ---------------------------------------------------------------------------------

    def set_group_rate_limit(self, group_id: GroupId, max: int, duration_ms: Any) -> None:
        """Let at most ``max`` jobs of a group start per ``duration_ms``. Waits.

        It binds workers that bring a default, ``group={"limit": ...}``, in whose place it stands.
        """
        duration = _whole_ms(duration_ms)
        self._group("SetGroupRateLimit", group_id, max=max, duration=duration)

    def get_group_rate_limit(self, group_id: GroupId) -> dict[str, Any] | None:
        """Return a group's ``{"max", "duration"}``, or None. Waits."""
        return self._group("GetGroupRateLimit", group_id).get("limit")

    def remove_group_rate_limit(self, group_id: GroupId) -> int:
        """Drop a group's rate limit; return how many there were. Waits."""
        return int(self._group("RemoveGroupRateLimit", group_id).get("removed") or 0)

    def get_group_rate_limit_ttl(self, group_id: GroupId, max_jobs: int | None = None) -> int:
        """Return the ms until a group may go again; -2 when nothing holds it. Waits."""
        return int(self._group("GetGroupRateLimitTtl", group_id, maxJobs=max_jobs).get("ttl", -2))

    def rate_limit_group(self, group_id: GroupId, duration_ms: Any) -> None:
        """Let nothing of a group start for a while. Waits."""
        self.connection.call(resting(self.queue_key, group_id, duration_ms))

    def set_group_concurrency(self, group_id: GroupId, concurrency: int) -> None:
        """Let at most that many jobs of a group run at once. Waits.

        It binds workers that bring a default, ``group={"concurrency": ...}``, in whose place it
        stands.
        """
        self._group("SetGroupConcurrency", group_id, concurrency=concurrency)

    def get_group_concurrency(self, group_id: GroupId) -> int | None:
        """Return how many jobs of a group may run at once, or None. Waits."""
        limit = self._group("GetGroupConcurrency", group_id).get("concurrency")
        return None if limit is None else int(limit)

    def remove_group_concurrency(self, group_id: GroupId) -> int:
        """Drop a group's concurrency limit; return how many there were. Waits."""
        return int(self._group("RemoveGroupConcurrency", group_id).get("removed") or 0)

    # -- pause ----------------------------------------------------------------------------------

    def pause_group(self, group_id: GroupId) -> bool:
        """Hand out no more jobs of a group; False if it was paused already. Waits."""
        return bool(self._group("PauseGroup", group_id).get("changed"))

    def resume_group(self, group_id: GroupId) -> bool:
        """Hand out a group's jobs again; False if it was not paused. Waits."""
        return bool(self._group("ResumeGroup", group_id).get("changed"))

    def is_group_paused(self, group_id: GroupId) -> bool:
        """Ask whether a group is paused. Waits."""
        return bool(self._group("IsGroupPaused", group_id).get("paused"))


def group_key(group_id: GroupId) -> str:
    """Return a group's id as the wire has it."""
    return str(group_id) if isinstance(group_id, int) else group_id


def resting(queue_key: str, group_id: GroupId, duration_ms: Any) -> dict[str, Any]:
    """Return the command that lets nothing of a group start for a while."""
    return {
        "cmd": "RateLimitGroup",
        "queue": queue_key,
        "groupId": group_key(group_id),
        "duration": _whole_ms(duration_ms),
    }


def _whole_ms(value: Any) -> Any:
    """Return a span in ms, as an ``int`` where it is a whole number."""
    spent = milliseconds(value)
    return int(spent) if isinstance(spent, float) and spent.is_integer() else spent
