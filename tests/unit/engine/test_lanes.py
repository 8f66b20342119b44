"""The order of a queue, against a sorted list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bunqueue.engine.job import Job
from bunqueue.engine.lanes import STALE_TOLERATED, RunSet
from bunqueue.engine.states import ACTIVE, GONE, QUEUED
from bunqueue.protocol.options import DEFAULT_OPTIONS, JobOptions

LIFO = JobOptions({"lifo": True})


def make(seq: int, priority: int = 0, run_at: int = 0, lifo: bool = False) -> Job:
    options = LIFO if lifo else DEFAULT_OPTIONS
    queue: Any = None
    return Job(f"job-{seq:04}", seq, queue, "n", b"\xc0", options, priority, 0, run_at, QUEUED)


def fill(*jobs: Job, now: int = 0) -> RunSet:
    run_set = RunSet()
    for job in jobs:
        run_set.enter(job, now)
    return run_set


def take(run_set: RunSet) -> Job | None:
    job = run_set.take()
    if job is not None:
        job.place = ACTIVE
    return job


def seqs(run_set: RunSet) -> list[int]:
    taken = []
    while (job := take(run_set)) is not None:
        taken.append(job.seq)
    return taken


def test_equal_jobs_come_out_in_order_of_admission() -> None:
    assert [1, 2, 3] == seqs(fill(make(1), make(2), make(3)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=8))
def test_jobs_that_enter_together_stand_where_each_would_alone(
    batches: list[tuple[int, int]],
) -> None:
    alone, together = RunSet(), RunSet()
    seq = 0
    for run_at, size in batches:  # the clock may have been set back
        numbers = range(seq + 1, seq + 1 + size)
        for number in numbers:
            alone.enter(make(number, run_at=run_at), now=run_at)
        together.enter_all([make(number, run_at=run_at) for number in numbers])
        seq += size

    assert (len(alone), alone.ready) == (len(together), together.ready)
    assert seqs(alone) == seqs(together)


def test_higher_priority_comes_first_below_zero_too() -> None:
    assert [3, 1, 2] == seqs(fill(make(1, 0), make(2, -5), make(3, 5)))


def test_lifo_jobs_come_before_fifo_jobs_newest_first() -> None:
    assert [4, 2, 1, 3] == seqs(fill(make(1), make(2, lifo=True), make(3), make(4, lifo=True)))


def test_lifo_never_beats_priority() -> None:
    assert [1, 2] == seqs(fill(make(1, 1), make(2, 0, lifo=True)))


def test_fifo_jobs_come_by_the_time_they_were_due() -> None:
    run_set = fill(make(1, run_at=30), make(2, run_at=10), make(3, run_at=20))

    run_set.mature(30)

    assert [2, 3, 1] == seqs(run_set)


def test_a_delayed_job_never_blocks_others() -> None:
    assert [2] == seqs(fill(make(1, 9, run_at=100), make(2)))


def test_a_delayed_job_is_due_at_its_time_and_not_before() -> None:
    run_set = fill(make(1, run_at=100))

    run_set.mature(99)
    assert run_set.take() is None
    assert 100 == run_set.next_due_at()

    run_set.mature(100)
    assert [1] == seqs(run_set)
    assert run_set.next_due_at() is None


def test_a_job_that_left_is_not_handed_out() -> None:
    first, second, delayed = make(1), make(2), make(3, run_at=50)
    run_set = fill(first, second, delayed)
    for job in (first, delayed):
        run_set.leave(job)
        job.place = GONE

    assert 1 == len(run_set)
    assert run_set.next_due_at() is None
    assert [2] == seqs(run_set)


def test_counts_follow_priorities_and_delays() -> None:
    run_set = fill(make(1), make(2, 5), make(3, 5, run_at=10))

    assert (3, 2, 1, 1) == (len(run_set), run_set.ready, run_set.ready_high, run_set.not_due)
    run_set.mature(10)
    assert (3, 3, 2, 0) == (len(run_set), run_set.ready, run_set.ready_high, run_set.not_due)


def test_stale_entries_are_swept_out_when_they_outnumber_the_good() -> None:
    jobs = [make(seq) for seq in range(1, 2 * STALE_TOLERATED)]
    run_set = fill(*jobs)
    for job in jobs[1:]:
        run_set.leave(job)
        job.place = GONE

    run_set.tidy()

    assert 1 == len(run_set.lanes[0].fifo)
    assert [1] == seqs(run_set)


def test_many_priorities_do_not_leave_empty_lanes_behind() -> None:
    run_set = fill(*(make(seq, priority=seq) for seq in range(1, 200)))

    assert list(range(199, 0, -1)) == seqs(run_set)
    assert len(run_set.lanes) <= 17


STEP = st.one_of(
    st.tuples(
        st.just("push"), st.integers(-2, 2), st.booleans(), st.integers(0, 3), st.integers(-3, 0)
    ),
    st.tuples(st.just("pull")),
    st.tuples(st.just("wait"), st.integers(1, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("back"), st.integers(0, 20), st.integers(-3, 3)),
    st.tuples(st.just("rank"), st.integers(0, 20), st.integers(-2, 2)),
    st.tuples(st.just("tidy")),
)


def rank(job: Job) -> tuple[int, int, int, int]:
    """Place in line, engine.md 2.1."""
    if job.options.lifo:
        return -job.priority, 0, -job.seq, 0
    return -job.priority, 1, job.run_at, job.seq


@given(st.lists(STEP, max_size=60))
def test_any_history_comes_out_as_a_sorted_list_says(steps: list[tuple[Any, ...]]) -> None:
    run_set, now, seq = RunSet(), 10, 0
    queued: list[Job] = []
    taken: list[Job] = []
    for kind, *arguments in steps:
        if kind == "push":
            seq += 1
            priority, lifo, delay, age = arguments
            job = make(seq, priority, now + delay + age, lifo)
            queued.append(job)
            run_set.enter(job, now)
        elif kind == "pull":
            run_set.mature(now)
            ready = [job for job in queued if job.run_at <= now]
            expected = min(ready, key=rank, default=None)
            assert expected is take(run_set)
            if expected is not None:
                queued.remove(expected)
                taken.append(expected)
        elif kind == "wait":
            now += arguments[0]
        elif kind == "cancel" and queued:
            job = queued.pop(arguments[0] % len(queued))
            run_set.leave(job)
            job.place = GONE
        elif kind == "back" and taken:
            job = taken.pop(arguments[0] % len(taken))
            job.run_at = now + arguments[1]
            job.place = QUEUED
            job.stamp += 1
            queued.append(job)
            run_set.enter(job, now)
        elif kind == "rank" and queued:
            job = queued[arguments[0] % len(queued)]
            run_set.leave(job)
            job.priority = arguments[1]
            job.stamp += 1
            run_set.enter(job, now)
        elif kind == "tidy":
            run_set.stale += STALE_TOLERATED + 1
            run_set.tidy()
        run_set.mature(now)
        ready = [job for job in queued if job.run_at <= now]
        assert len(ready) == run_set.ready
        assert len(queued) - len(ready) == run_set.not_due
        assert sum(job.priority > 0 for job in ready) == run_set.ready_high
        assert {job.seq for job in queued} == {job.seq for job in run_set.jobs()}
        assert min((job.run_at for job in queued if job.run_at > now), default=None) == (
            run_set.next_due_at()
        )


def test_the_lanes_of_priorities_that_have_gone_go_too() -> None:
    run_set = fill(make(0))
    for number in range(1, 3_001):
        gone = make(number, priority=number)
        run_set.enter(gone, 0)
        run_set.leave(gone)
        gone.place = GONE

    run_set.tidy()

    assert [0] == run_set.order
    assert [0] == list(run_set.lanes)


class Looked(int):
    """A priority that counts how often it is looked at."""

    looks = 0

    def __lt__(self, other: int) -> bool:
        Looked.looks += 1
        return int(self) < int(other)

    def __neg__(self) -> int:
        Looked.looks += 1
        return -int(self)


def test_a_new_priority_looks_at_few_of_the_others() -> None:
    run_set = RunSet()
    for number in range(1_000):
        run_set._open_lane(Looked(number * 7 % 1_000))

    assert list(range(999, -1, -1)) == run_set.order
    assert Looked.looks < 20 * 1_000
