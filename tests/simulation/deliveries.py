"""What holds at the very moment at which jobs are handed to a puller: I5, I20, I21, I22, I24.

The world tells of each answer to a pull as the engine makes it, be it at once or to a long poll
that another command or the ticker serves. What was handed out is counted here, by ids, moments and
groups; of the engine only the settings are read, and who is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.simulation.picture import Picture
from tests.simulation.world import Asked, Broken, World

ROUNDING = 1e-6
Run = tuple[str, str | None]  # a job's id, and the token with which it was handed out
GROUP_RATES = ("SetGroupRateLimit", "RemoveGroupRateLimit", "Obliterate")


class Window:
    """A group's window: ``rate`` is (jobs, ms), ``count`` were handed out before ``until``."""

    __slots__ = ("rate", "until", "count")

    def __init__(self, rate: tuple[int, int], until: int) -> None:
        self.rate = rate
        self.until = until
        self.count = 0


class Deliveries:
    """Watches what is handed out.

    Attributes:
        leaving: Ids of the jobs that may stop running in the step that is being done, None if
            every job may; a command without a say in it lets none.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.leaving: frozenset[str] | None = None
        self._running: dict[str, str | None] = {}  # id -> token, of who was handed out
        self._of_peer: dict[Run, int] = {}  # who was handed each run, an undo may bring back any
        self._left: set[Run] = set()  # what closed connections had
        self._taken: dict[int, tuple[Any, list[int]]] = {}  # a bucket's id -> itself, moments
        self._windows: dict[tuple[str, str], Window] = {}
        world.handed_out = self.handed_out

    def handed_out(self, asked: Asked, jobs: list[Mapping[str, Any]], tokens: list[Any]) -> None:
        """A puller gets these jobs now."""
        request, now = asked.request, self.world.now
        if not jobs:
            return
        queue = self.world.engine.queues[request["queue"]]
        for job, token in zip(jobs, tokens, strict=True):
            self._only_once(job["id"], token)
            self._of_peer[job["id"], token] = asked.peer
            self._left.discard((job["id"], token))  # an earlier run without a token
            record = queue.active.get(job["id"])
            if record is None or record.token != token:
                raise Broken(f"{job['id']} was handed out and does not run: {record}")
        gate = queue.gate
        if gate.is_paused:
            raise Broken(f"a paused queue handed out {[job['id'] for job in jobs]}")
        if gate.concurrency is not None and len(queue.active) > gate.concurrency:
            raise Broken(f"{len(queue.active)} active, the limit is {gate.concurrency}")
        if gate.rate is not None:
            self._within_rate(gate.rate, len(jobs), now)
        for job in jobs:
            group_id = queue.active[job["id"]].extra.group_id
            if group_id is not None:
                self._within_group(queue, group_id, request.get("group") or {}, now)

    def _only_once(self, job_id: str, token: str | None) -> None:
        if job_id in self._running:
            is_new = token is None or token != self._running[job_id]
            may_leave = self.leaving is None or job_id in self.leaving
            if not (is_new and may_leave):
                raise Broken(f"{job_id} was handed out twice")
        self._running[job_id] = token

    def _within_rate(self, rate: Any, count: int, now: int) -> None:
        """In a window of any length, a full bucket and what has flowed in meanwhile."""
        _, moments = self._taken.setdefault(id(rate), (rate, []))
        moments += [now] * count
        for first, at in enumerate(moments):
            most = max(rate.limit, 0) * (1 + (now - at) / rate.duration_ms)
            if len(moments) - first > most + ROUNDING:
                raise Broken(
                    f"{len(moments) - first} handed out in {now - at} ms, the rate is"
                    f" {rate.limit} in {rate.duration_ms} ms"
                )

    def _within_group(self, queue: Any, group_id: str, terms: Mapping[str, Any], now: int) -> None:
        """A stored limit holds in place of the one that the puller brings, if it brings one."""
        group = queue.run_set.groups.by_id[group_id]
        if group.is_paused or group.rests_until > now:
            raise Broken(f"group {group_id} handed out a job while it was held")
        if terms.get("concurrency") is not None:
            limit = terms["concurrency"] if group.concurrency is None else group.concurrency
            active = sum(job.extra.group_id == group_id for job in queue.active.values())
            if active > limit:
                raise Broken(f"{active} active of group {group_id}, the limit is {limit}")
        if terms.get("limit") is None:
            return
        stored = group.rate
        given = terms["limit"]["max"], terms["limit"]["duration"]
        rate = given if stored is None else (stored.max, stored.duration_ms)
        window = self._windows.get((queue.name, group_id))
        if window is None or window.rate != rate or window.until <= now:
            window = self._windows[queue.name, group_id] = Window(rate, now + rate[1])
        window.count += 1
        if window.count > rate[0]:
            raise Broken(f"{window.count} of group {group_id} within a window of {rate}")

    def asking(self, request: Mapping[str, Any], leaving: Iterable[str] | None) -> None:
        """A command is about to be done."""
        self.leaving = None if leaving is None else frozenset(leaving)
        if request["cmd"] in GROUP_RATES:
            self.forget_windows()

    def looked(self, kind: str, old: Picture, new: Picture | None, is_undone: bool) -> None:
        """A job has changed in a step; ``is_undone``: a commit has failed in it."""
        if new is None or new.place != "active":
            self._running.pop(old.id, None)
            return
        if old.place == "active" and old.token != new.token and not is_undone:
            may_leave = self.leaving is None or old.id in self.leaving
            # Time takes a job from its worker only at the price of an attempt, unless an undo has
            # given it back to a connection that has closed.
            is_free = kind in ("tick", "turn") and new.attempts == old.attempts
            is_free = is_free and not self.has_left(old)
            if not may_leave or is_free:
                raise Broken(f"{kind} handed out {old.id}, which was running")
        self._running[old.id] = new.token

    def closes(self, peer: int) -> None:
        """Close a connection: nobody works on what it was handed."""
        gone = {run for run, number in self._of_peer.items() if number == peer}
        self._left |= gone
        for run in gone:
            del self._of_peer[run]

    def has_left(self, job: Picture) -> bool:
        """Say whether the connection that was handed this run has closed."""
        return (job.id, job.token) in self._left

    def settled(self) -> None:
        """Whose connection has closed runs on only if the lease has been renewed."""
        for queue in self.world.engine.queues.values():
            for job in queue.active.values():
                peer = job.delivery.peer
                if peer is not None and not peer.is_open:
                    raise Broken(f"{job.id} runs on, and {peer.id} has closed")

    def forget_windows(self) -> None:
        """What has opened the windows of groups may be as if it had not been."""
        self._windows.clear()

    def forget_times(self) -> None:
        """The clock was set: what went before is at no known distance."""
        self._taken.clear()
        self._windows.clear()

    def restarted(self) -> None:
        """Nobody runs anything any more, and every bucket is full."""
        self._running.clear()
        self._of_peer.clear()
        self._left.clear()
        self.forget_times()
