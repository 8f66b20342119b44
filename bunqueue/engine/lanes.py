"""The run set of a queue: which job is next.

Order (engine.md 2.1): higher priority first; among equals LIFO jobs before FIFO jobs; LIFO newest
first, FIFO by ``run_at``; ties by admission number. One lane per priority. As long as FIFO jobs
arrive in order, which is nearly always, a lane is a plain deque (0.05 us a job, where a heap
takes 1.1 at a million); what comes out of order, comes back or was delayed goes through a heap
beside it.

Jobs whose time has not come wait in one heap per queue and are moved over when somebody looks. A
job that leaves out of turn (cancelled, re-prioritised) stays in its lane as a stale entry: a bare
entry is good while the job is queued and was never moved (stamp 0), a heap entry while the stamps
are equal. Stale entries are swept out when they outnumber the good ones.
"""

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import neg
from typing import TYPE_CHECKING

from bunqueue import compiled
from bunqueue.engine.groups import NO_TERMS, Group, Groups, GroupTerms
from bunqueue.engine.states import QUEUED

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

EMPTY_LANES_TOLERATED = 16  # with more priorities than this, dry lanes are dropped as they are met
STALE_TOLERATED = 1024  # stale entries below this are left where they are
MATURED_AT_ONCE = 1000  # jobs that fall due together: some ms; whoever looks next takes more

Entry = tuple[int, int, int, "Job"]  # key, tie, stamp, job

Ring = deque
if not TYPE_CHECKING and compiled.IS_COMPILED:
    Ring = compiled.part("records").Ring


class LaneFields:
    """What ``Lane`` is made of; the compiled core's own where it runs."""

    __slots__ = ("fifo", "late", "lifo", "last_run_at", "last_seq")


class RunSetFields:
    """The same of ``RunSet``."""

    __slots__ = ("lanes", "order", "delayed", "ready", "ready_high", "not_due", "stale", "groups")


if not TYPE_CHECKING and compiled.IS_COMPILED:
    _records = compiled.part("records")
    LaneFields, RunSetFields = _records.LaneFields, _records.RunSetFields


class Lane(LaneFields):
    """The ready jobs of one priority."""

    __slots__ = ()

    def __init__(self) -> None:
        self.fifo: Ring[Job] = Ring()
        self.late: list[Entry] = []
        self.lifo: list[Entry] = []
        self.last_run_at = 0
        self.last_seq = 0

    @property
    def is_dry(self) -> bool:
        """No entry is left in it, good or stale."""
        return not (self.fifo or self.late or self.lifo)

    def add(self, job: "Job") -> None:
        """Put a ready job in."""
        if job.options.lifo:
            heapq.heappush(self.lifo, (-job.seq, 0, job.stamp, job))
        elif job.stamp == 0 and (
            job.run_at > self.last_run_at
            or (job.run_at == self.last_run_at and job.seq > self.last_seq)
        ):
            self.last_run_at = job.run_at
            self.last_seq = job.seq
            self.fifo.append(job)
        else:
            heapq.heappush(self.late, (job.run_at, job.seq, job.stamp, job))

    def add_all(self, jobs: "Sequence[Job]") -> None:
        """Put new FIFO jobs in that were admitted together: alike in time, in order, any."""
        first = jobs[0]
        if first.run_at < self.last_run_at:
            for job in jobs:
                self.add(job)
            return
        self.last_run_at = first.run_at
        self.last_seq = jobs[-1].seq
        self.fifo.extend(jobs)

    def take(self) -> "Job | None":
        """Remove and return the first job, or None."""
        while self.lifo:
            _, _, stamp, job = heapq.heappop(self.lifo)
            if job.place == QUEUED and job.stamp == stamp:
                return job
        fifo = self.fifo
        late = self.late
        if not late:  # the usual case
            while fifo:
                job = fifo.popleft()
                if job.place == QUEUED and job.stamp == 0:
                    return job
            return None
        while fifo and not (fifo[0].place == QUEUED and fifo[0].stamp == 0):
            fifo.popleft()
        while late and not (late[0][3].place == QUEUED and late[0][3].stamp == late[0][2]):
            heapq.heappop(late)
        if late and (not fifo or late[0][:2] < (fifo[0].run_at, fifo[0].seq)):
            return heapq.heappop(late)[3]
        return fifo.popleft() if fifo else None

    def trim(self) -> int:
        """Drop the stale entries at the head of the line; return how many."""
        fifo = self.fifo
        before = len(fifo)
        while fifo and not (fifo[0].place == QUEUED and fifo[0].stamp == 0):
            fifo.popleft()
        return before - len(fifo)

    def step_back(self, now: int, last_seq: int) -> None:
        """Let what comes from now on stand behind what is here, after the clock was set back."""
        if self.last_run_at > now:
            self.last_run_at = now
            self.last_seq = last_seq

    def sweep(self) -> None:
        """Drop the stale entries."""
        self.fifo = Ring(job for job in self.fifo if job.place == QUEUED and job.stamp == 0)
        self.late = _good(self.late)
        self.lifo = _good(self.lifo)


def _good(heap: list[Entry]) -> list[Entry]:
    kept = [entry for entry in heap if entry[3].place == QUEUED and entry[3].stamp == entry[2]]
    heapq.heapify(kept)
    return kept


class RunSet(RunSetFields):
    """All pending jobs of a queue that wait for a worker or for their time."""

    __slots__ = ("is_held",)

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.order: list[int] = []  # priorities, highest first
        self.delayed: list[Entry] = []
        self.ready = 0  # jobs in lanes
        self.ready_high = 0  # of these, with a priority above 0
        self.not_due = 0  # jobs in the delayed heap
        self.stale = 0
        self.groups: Groups | None = None  # made with the first label
        self.is_held = False  # no delayed job falls due, until a step of the clock was followed

    def __len__(self) -> int:
        return self.ready + self.not_due

    @property
    def groups_size(self) -> int:
        """How many groups there are."""
        return 0 if self.groups is None else len(self.groups.by_id)

    def enter(self, job: "Job", now: int) -> None:
        """Put a queued job where it belongs. Raise its stamp first if it ever stood here before."""
        group_id = job.extra.group_id
        if group_id is not None:
            self._count(group_id, 1)
        if job.run_at > now:
            job.is_ripe = False
            heapq.heappush(self.delayed, (job.run_at, job.seq, job.stamp, job))
            self.not_due += 1
            return
        job.is_ripe = True
        priority = job.priority
        if group_id is not None and self.groups is not None:
            self.groups.add(job)
        else:
            lane = self.lanes.get(priority) or self._open_lane(priority)
            lane.add(job)
        self.ready += 1
        if priority > 0:
            self.ready_high += 1

    def enter_all(self, jobs: "Sequence[Job]") -> None:
        """Put new jobs in without options, whose time is now; as ``enter`` of each."""
        for job in jobs:
            job.is_ripe = True
        (self.lanes.get(0) or self._open_lane(0)).add_all(jobs)
        self.ready += len(jobs)

    def _count(self, group_id: str, change: int) -> None:
        """Note that a group has one queued job more or less."""
        self.open_group(group_id).pending += change
        if self.groups is not None:
            self.groups.pending += change

    def open_group(self, group_id: str) -> Group:
        """Return the group of that name, made now if there is none."""
        if self.groups is None:
            self.groups = Groups()
        return self.groups.open(group_id)

    def wake_group(self, group_id: str) -> None:
        """Let a group take turns again that may have been set aside."""
        if self.groups is not None:
            self.groups.wake(group_id)

    def _open_lane(self, priority: int) -> Lane:
        lane = self.lanes[priority] = Lane()
        insort(self.order, priority, key=neg)  # there may be a lane for every job
        return lane

    def mature(self, now: int) -> bool:
        """Move jobs whose time has come into their lanes, a bounded number of them.

        Returns:
            True if that was all.
        """
        delayed = self.delayed
        if self.is_held:
            return True
        left = MATURED_AT_ONCE
        while delayed and delayed[0][0] <= now:
            if not left:
                return False
            left -= 1
            _, _, stamp, job = heapq.heappop(delayed)
            if job.place == QUEUED and job.stamp == stamp and not job.is_ripe:
                self.not_due -= 1
                if job.extra.group_id is not None:
                    self._count(job.extra.group_id, -1)
                self.enter(job, now)
        return True

    def take(self) -> "Job | None":
        """Remove and return the next ready job without a group, or None. ``mature`` first."""
        if not self.ready:
            return None
        if len(self.order) > EMPTY_LANES_TOLERATED:
            self._close_empty_lanes()
        for priority in self.order:
            job = self.lanes[priority].take()
            if job is not None:
                self.ready -= 1
                if priority > 0:
                    self.ready_high -= 1
                return job
        return None

    def take_for(self, terms: GroupTerms | None, now: int) -> "Job | None":
        """Remove and return the next ready job: those without a group, then the groups in turn.

        Args:
            terms: What the puller says about groups, or None.
        """
        terms = terms or NO_TERMS
        if not terms.is_affine or terms.affinity is None:
            job = self.take()
            if job is not None or terms.is_affine:
                return job
        if self.groups is None:
            return None
        job = self.groups.take(terms, now)
        if job is not None:
            self.ready -= 1
            if job.priority > 0:
                self.ready_high -= 1
            self._count(job.extra.group_id or "", -1)
        return job

    def count_in(self, job: "Job") -> None:
        """Count a job in that has just been taken, so that it can leave; its entry is gone."""
        self.ready += 1
        if job.priority > 0:
            self.ready_high += 1
        if job.extra.group_id is not None:
            self._count(job.extra.group_id, 1)
        self.stale -= 1

    def _close_empty_lanes(self) -> None:
        """Drop the lanes at the top that have run dry."""
        while self.order:
            if not self.lanes[self.order[0]].is_dry:
                return
            del self.lanes[self.order.pop(0)]

    def leave(self, job: "Job") -> None:
        """Count out a job that goes out of turn; its entry turns stale by place or stamp.

        Call it before the job's priority, place or stamp changes.
        """
        if job.is_ripe:
            self.ready -= 1
            if job.priority > 0:
                self.ready_high -= 1
        else:
            self.not_due -= 1
        if job.extra.group_id is not None:
            self._count(job.extra.group_id, -1)
        self.stale += 1

    def tidy(self) -> None:
        """Sweep stale entries out when they outnumber the good ones, or are all there is."""
        if not self.ready and not self.not_due:
            self.clear()
            return
        if self.stale > STALE_TOLERATED and self.stale > len(self):
            for lane in self.lanes.values():
                lane.sweep()
            self.order = [priority for priority in self.order if not self.lanes[priority].is_dry]
            self.lanes = {priority: self.lanes[priority] for priority in self.order}
            self.delayed = _good(self.delayed)
            if self.groups is not None:
                self.groups.sweep()
            self.stale = 0

    def delayed_jobs(self) -> "Iterator[Job]":
        """Return an iterator over the delayed jobs, in no order; it stands on a copy."""
        return _jobs([], [], list(self.delayed))

    def late_jobs(self) -> "Iterator[Job]":
        """The same of the ready jobs that came out of order."""
        return _jobs([], [list(lane.late) for lane in self.lanes.values()], [])

    def step_back(self, now: int, last_seq: int) -> None:
        """Keep the order of what is ready, after the wall clock was set back.

        Args:
            last_seq: No job that comes from now on has a lower admission number.
        """
        for lane in self.lanes.values():
            lane.step_back(now, last_seq)

    def next_due_at(self) -> int | None:
        """Return when the earliest delayed job falls due, or None."""
        delayed = self.delayed
        while delayed:
            _, _, stamp, job = delayed[0]
            if job.place == QUEUED and job.stamp == stamp and not job.is_ripe:
                return delayed[0][0]
            heapq.heappop(delayed)
        return None

    def trim(self, gone: "Iterable[Job]") -> None:
        """Drop stale entries at the head of the lanes that so many jobs have just left."""
        for priority in {job.priority for job in gone}:
            lane = self.lanes.get(priority)
            if lane is not None:
                self.stale -= lane.trim()

    def jobs(self) -> "Iterator[Job]":
        """Return an iterator over every pending job, in no order.

        It stands on copies: the run set may change under way. What leaves before its turn is not
        met, and neither is what enters or moves.
        """
        fifos = [list(lane.fifo) for lane in self.lanes.values()]
        heaps = [list(heap) for lane in self.lanes.values() for heap in (lane.late, lane.lifo)]
        if self.groups is not None:
            heaps += self.groups.entries()
        return _jobs(fifos, heaps, list(self.delayed))

    def clear(self) -> None:
        """Forget every entry; the caller has taken the jobs away."""
        self.lanes.clear()
        self.order.clear()
        self.delayed.clear()
        if self.groups is not None:
            self.groups.clear_ready()
        self.ready = self.ready_high = self.not_due = self.stale = 0


def _jobs(
    fifos: "list[list[Job]]", heaps: list[list[Entry]], delayed: list[Entry]
) -> "Iterator[Job]":
    """Yield the jobs of the entries that are good when it is their turn."""
    for fifo in fifos:
        for job in fifo:
            if job.place == QUEUED and job.stamp == 0:
                yield job
    for heap in heaps:
        for _, _, stamp, job in heap:
            if job.place == QUEUED and job.stamp == stamp:
                yield job
    for _, _, stamp, job in delayed:
        if job.place == QUEUED and job.stamp == stamp:  # it may have fallen due meanwhile
            yield job
