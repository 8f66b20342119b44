"""A storage that keeps nothing."""

from bunqueue.engine.ports import NO_WAIT
from bunqueue.storage.memory import MemoryStorage
from tests.support.stores import NamedQueue, make_job


def test_nothing_waits_and_nothing_is_kept():
    storage = MemoryStorage()
    calls = []
    storage.added(make_job(1))
    storage.sync(calls.append, ("then",), calls.append, durable=True)
    storage.claimed()
    storage.hold(calls.append)
    storage.on_relief(lambda: calls.append("relief"))

    assert ["then", True, "relief"] == calls
    assert NO_WAIT == storage.answer_waits
    assert [] == list(storage.load().jobs(NamedQueue))


def test_jobs_are_not_marked_as_dirty():
    storage = MemoryStorage()
    job = make_job(1)
    for note in (storage.added, storage.changed, storage.rewritten, storage.removed):
        note(job)

    assert 0 == job.dirty
