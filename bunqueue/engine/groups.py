"""Groups: labels that share a turn, a concurrency and a rate inside one queue (engine.md 2.2).

Ready jobs with a label stand in a lane per group: lowest priority number first, then by
admission. The groups that have some take turns in a ring: the one at its head gives a job and
goes to the tail. A group that may not go now is set aside, so that it costs nobody a look: until
a slot of it frees, its window ends or it is resumed. Whether a group may go depends on what the
puller brings as defaults (a stored limit only replaces a default that is there), so groups that
were set aside under one puller's terms come back when another pulls on different ones.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bunqueue.engine.states import QUEUED

if TYPE_CHECKING:
    from bunqueue.engine.job import Job


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``max`` jobs in a window of ``duration_ms``, opened by its first."""

    max: int
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTerms:
    """What a puller says about groups.

    Attributes:
        concurrency, rate: Defaults for each group, or None.
        is_affine: Only the jobs that ``affinity`` names.
        affinity: A group, or None for jobs without one.
    """

    concurrency: int | None = None
    rate: Rate | None = None
    is_affine: bool = False
    affinity: str | None = None


NO_TERMS = GroupTerms()


class Group:
    """One group of a queue.

    Attributes:
        ready: Heap of ``(priority, seq, stamp, job)``.
        pending: Queued jobs, due or not.
        active: Running jobs.
        concurrency, rate: Stored limits, or None.
        is_paused: Nothing goes.
        rests_until: Nothing goes before (epoch ms): a manual rest.
        window_until, window_count, window_rate: The window that runs, and what went in it.
    """

    __slots__ = (
        "id",
        "ready",
        "pending",
        "active",
        "concurrency",
        "rate",
        "is_paused",
        "rests_until",
        "window_until",
        "window_count",
        "window_rate",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.ready: list[tuple[int, int, int, Job]] = []
        self.pending = 0
        self.active = 0
        self.concurrency: int | None = None
        self.rate: Rate | None = None
        self.is_paused = False
        self.rests_until = 0
        self.window_until = 0
        self.window_count = 0
        self.window_rate: Rate | None = None

    @property
    def has_settings(self) -> bool:
        """Something about it is stored."""
        return self.is_paused or self.concurrency is not None or self.rate is not None

    def is_idle(self, now: int) -> bool:
        """Nothing is left of it that anybody could miss."""
        return not (
            self.pending
            or self.active
            or self.has_settings
            or self.rests_until > now
            or self.window_until > now
        )

    def head(self) -> "Job | None":
        """Return its next job, without taking it."""
        ready = self.ready
        while ready:
            if _is_good(ready[0]):
                return ready[0][3]
            heapq.heappop(ready)
        return None

    def effective_rate(self, terms: GroupTerms) -> Rate | None:
        """Return the rate that holds for a puller: the stored one in place of its default."""
        return None if terms.rate is None else self.rate or terms.rate

    def blocked_until(self, terms: GroupTerms, now: int) -> float | None:
        """Return when it may go again (infinity: an event will tell), None if it may now."""
        if self.is_paused:
            return float("inf")
        if self.rests_until > now:
            return self.rests_until
        if terms.concurrency is not None:
            limit = terms.concurrency if self.concurrency is None else self.concurrency
            if self.active >= limit:
                return float("inf")
        rate = self.effective_rate(terms)
        if rate is not None and rate == self.window_rate and self.window_until > now:
            return self.window_until if self.window_count >= rate.max else None
        return None

    def took(self, terms: GroupTerms, now: int) -> None:
        """Count a delivery against the window."""
        rate = self.effective_rate(terms)
        if rate is None:
            return
        if rate != self.window_rate or self.window_until <= now:
            self.window_rate = rate
            self.window_until = now + rate.duration_ms
            self.window_count = 0
        self.window_count += 1

    def set_rate(self, rate: Rate | None) -> None:
        """Store a rate, or drop the stored one; the next delivery opens a window."""
        self.rate = rate
        self.window_until = self.window_count = 0
        self.window_rate = None

    def rest_ms(self, now: int) -> int | None:
        """Return what is left of its manual rest, else of its window; None if neither runs."""
        until = self.rests_until if self.rests_until > now else self.window_until
        return until - now if until > now else None


class Groups:
    """The groups of one queue.

    Attributes:
        by_id: id -> group.
        pending: Queued jobs of all of them, due or not.
    """

    __slots__ = ("by_id", "pending", "_ring", "_resting", "_rests", "_terms")

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        self.pending = 0
        self._ring: OrderedDict[str, None] = OrderedDict()
        self._resting: list[tuple[float, str]] = []  # heap: until, group
        self._rests: set[tuple[float, str]] = set()  # what is in it: every change of terms asks
        self._terms = NO_TERMS

    @property
    def last_terms(self) -> GroupTerms:
        """On which terms somebody pulled last."""
        return self._terms

    def open(self, group_id: str) -> Group:
        """Return the group of that name, made now if there is none."""
        group = self.by_id.get(group_id)
        if group is None:
            group = self.by_id[group_id] = Group(group_id)
        return group

    def add(self, job: "Job") -> None:
        """Put a ready job in; a group that was empty joins at the tail."""
        group = self.open(job.extra.group_id or "")
        was_empty = group.head() is None
        heapq.heappush(group.ready, (job.priority, job.seq, job.stamp, job))
        if was_empty:
            self._ring.pop(group.id, None)  # it may stand there still: its jobs left out of turn
            self._ring[group.id] = None

    def wake(self, group_id: str | None) -> None:
        """Let a group take turns again that may have been set aside."""
        group = self.by_id.get(group_id or "")
        if group is not None and group.head() is not None:
            self._ring.setdefault(group.id, None)

    def wake_all(self) -> None:
        """Let every group with a ready job take turns again."""
        for group_id in self.by_id:
            self.wake(group_id)

    def take(self, terms: GroupTerms, now: int) -> "Job | None":
        """Take the next job of the group whose turn it is, or of the one the puller names."""
        if terms.is_affine:
            named = self.by_id.get(terms.affinity or "")
            return None if named is None else self._take_if_free(named, terms, now)
        if terms != self._terms:
            self._terms = terms
            self.wake_all()
        while self._resting and self._resting[0][0] <= now:
            self.wake(self._end_rest())
        ring = self._ring
        while ring:
            group_id = next(iter(ring))
            job = self._take_if_free(self.by_id[group_id], terms, now)
            if job is not None:
                return job
            ring.pop(group_id, None)
        return None

    def _take_if_free(self, group: Group, terms: GroupTerms, now: int) -> "Job | None":
        """Take the next job of a group, or note from when on it may go."""
        until = group.blocked_until(terms, now)
        if until is None:
            return self._take_of(group)
        rest = until, group.id
        if until != float("inf") and rest not in self._rests:
            self._rests.add(rest)
            heapq.heappush(self._resting, rest)
        return None

    def _end_rest(self) -> str:
        """Take the first of those that are set aside for a time; return its id."""
        rest = heapq.heappop(self._resting)
        self._rests.discard(rest)
        return rest[1]

    def _take_of(self, group: Group) -> "Job | None":
        job = group.head()
        if job is None:
            return None
        heapq.heappop(group.ready)
        if group.head() is None:
            self._ring.pop(group.id, None)
        elif group.id in self._ring:
            self._ring.move_to_end(group.id)
        return job

    def next_rest_over(self, now: int) -> int | None:
        """Return when the first group that is set aside for a time may go again, or None."""
        while self._resting:
            until, group_id = self._resting[0]
            group = self.by_id.get(group_id)
            if until > now and group is not None and group.head() is not None:
                return int(until)
            self.wake(self._end_rest())
        return None

    def entries(self) -> "list[list[tuple[int, int, int, Job]]]":
        """Return copies of the groups' heaps, stale entries among them."""
        return [list(group.ready) for group in self.by_id.values() if group.ready]

    def sweep(self) -> None:
        """Drop the stale entries."""
        for group in self.by_id.values():
            group.ready = [entry for entry in group.ready if _is_good(entry)]
            heapq.heapify(group.ready)

    def tidy(self, groups: Iterable[Group], now: int) -> None:
        """Forget those of the groups of which nothing is left."""
        for group in groups:
            if group.is_idle(now) and self.by_id.get(group.id) is group:
                del self.by_id[group.id]
                self._ring.pop(group.id, None)

    def clear_ready(self) -> None:
        """Forget every ready job; the caller has taken them away."""
        for group in self.by_id.values():
            group.ready.clear()
        self._ring.clear()
        self._resting.clear()
        self._rests.clear()

    def shift(self, delta_ms: int) -> None:
        """Follow a jump of the wall clock."""
        for group in self.by_id.values():
            group.rests_until += delta_ms if group.rests_until else 0
            group.window_until += delta_ms if group.window_until else 0
        self._resting = [(until + delta_ms, group_id) for until, group_id in self._resting]
        self._rests = set(self._resting)


def _is_good(entry: "tuple[int, int, int, Job]") -> bool:
    """Say whether the job still stands here by this entry."""
    _, _, stamp, job = entry
    return job.place == QUEUED and job.stamp == stamp and job.is_ripe
