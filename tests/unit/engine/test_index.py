"""Finding a job by its id."""

from __future__ import annotations

from bunqueue.engine.index import JobIndex
from tests.unit.engine.test_lanes import make


def test_what_was_put_is_found_until_it_is_dropped() -> None:
    index, job = JobIndex(), make(1)
    index.put(job)

    assert job is index.get(job.id)
    assert (1, [job]) == (len(index), list(index))
    index.drop(job)
    assert index.get(job.id) is None
    assert 0 == len(index)


def test_an_id_that_passed_to_another_job_is_kept() -> None:
    index, old, new = JobIndex(), make(1), make(1)
    index.put(old)
    index.put(new)

    index.drop(old)

    assert new is index.get(new.id)


def test_dropping_what_is_not_there_is_harmless() -> None:
    JobIndex().drop(make(1))


def test_a_million_ids_would_spread_over_the_pieces() -> None:
    index = JobIndex()
    for seq in range(5_000):
        index.put(make(seq))

    assert 5_000 == len(index)
    assert max(map(len, index._pieces)) < 60


def test_memory_goes_back_once_when_most_of_many_jobs_have_gone() -> None:
    index = JobIndex()
    jobs = [make(seq) for seq in range(30_000)]
    for job in jobs:
        index.put(job)
    index.sample()
    assert not index.has_shrunk()
    for job in jobs[:25_000]:
        index.drop(job)

    assert [True, False] == [index.has_shrunk(), index.has_shrunk()]
    assert jobs[-1] is index.get(jobs[-1].id)
