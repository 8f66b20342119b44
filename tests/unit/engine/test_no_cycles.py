"""A job that has gone is freed at once, by counting references alone.

The compiled job records are none of the collector's objects, so a cycle through one would never be
freed; in pure Python it would be freed late. Each way that a job can go is walked with the
collector off.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from bunqueue.commands import job_wire
from bunqueue.engine.settings import EngineSettings
from tests.support.engine import ScriptedStorage, World

HOUR_MS = 3_600_000


class Name(str):
    """The name of a job, which can be watched."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    job_wire._names.clear()  # it would keep the names that are watched
    yield
    gc.enable()


def watch(world: World, *job_ids: str) -> list[weakref.ref[Name]]:
    """Return what tells whether jobs are still there."""
    refs = []
    for job_id in job_ids:
        job = world.engine.index.get(job_id)
        assert job is not None
        job.name = name = Name("watched")
        refs.append(weakref.ref(name))
    return refs


def flow(parent: str, children: int) -> list[dict[str, object]]:
    ids = [f"{parent}-{number}" for number in range(children)]
    own = {"data": {"__childrenIds": ids}, "dependsOn": ids, "childrenIds": ids}
    link = {"__parentId": parent, "__parentQueue": "q"}
    return [
        {"id": parent, "queue": "q", "input": own},
        *({"id": each, "queue": "q", "input": {"data": link, "parentId": parent}} for each in ids),
    ]


def completed_and_cleaned(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, priority=2)
    refs = watch(world, job_id)
    world.ok("PULL", queue="q", owner="w")
    token = world.engine.index.get(job_id).token
    world.ok("ACK", id=job_id, token=token, result={"n": 1})
    world.forward(10)
    world.ok("Clean", queue="q", grace=0, state="completed", limit=10)
    return refs


def completed_and_removed(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, removeOnComplete=True, timeout=HOUR_MS)
    refs = watch(world, job_id)
    world.pull()
    world.ok("ACK", id=job_id)
    return refs


def failed_and_purged(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, maxAttempts=2, backoff=1)
    refs = watch(world, job_id)
    for _ in range(2):
        world.pull()
        world.ok("FAIL", id=job_id, error="no", stack=["line"])
        world.forward(5_000)
    world.ok("PurgeDlq", queue="q")
    return refs


def timed_out(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, maxAttempts=1, timeout=1_000, removeOnFail=True)
    refs = watch(world, job_id)
    world.pull()
    world.forward(2_000)
    return refs


def expired(world: World) -> list[weakref.ref[Name]]:
    refs = watch(world, world.push(data=1, ttl=1_000))
    world.forward(2_000)
    return refs


def cancelled(world: World) -> list[weakref.ref[Name]]:
    job_ids = [world.push(data=1), world.push(data=1, ttl=HOUR_MS), world.push(data=1, delay=9_000)]
    refs = watch(world, *job_ids)
    for job_id in job_ids:
        world.ok("Cancel", id=job_id)
    return refs


def drained_with_its_groups(world: World) -> list[weakref.ref[Name]]:
    refs = watch(world, *(world.push(data=1, groupId=f"g{number}") for number in range(3)))
    world.pull(group={"concurrency": 1})
    world.ok("Drain", queue="q")
    world.peer.held.clear()
    world.ok("Obliterate", queue="q", force=True)
    return refs


def left_by_its_peer(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, timeout=HOUR_MS)
    refs = watch(world, job_id)
    peer = world.connect("other")
    world.ok("PULL", peer, queue="q", owner="w")
    world.engine.peer_closed(peer, world.now)
    world.settle()
    world.ok("Cancel", id=job_id)
    return refs


def replaced_by_its_twin(world: World) -> list[weakref.ref[Name]]:
    refs = watch(world, world.push(data=1, uniqueKey="k", ttl=HOUR_MS))
    world.push(data=2, uniqueKey="k", dedup={"replace": True})
    world.pull()  # the entry of the first one stands in line until then
    return refs


def replaced_by_its_id(world: World) -> list[weakref.ref[Name]]:
    refs = watch(world, world.push(data=1, jobId="me"))
    world.pull()
    world.ok("ACK", id="me")
    world.push(data=2, jobId="me")
    return refs


def stalled(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, maxAttempts=1, removeOnFail=True)
    refs = watch(world, job_id)
    world.ok("PULL", queue="q", owner="w", lockTtl=1_000)
    world.forward(60_000)
    world.ok("PurgeDlq", queue="q")
    return refs


def of_a_flow(world: World) -> list[weakref.ref[Name]]:
    jobs = flow("p", 3)
    world.ok("PUSHF", jobs=jobs)
    refs = watch(world, *(str(job["id"]) for job in jobs))
    for _ in jobs:
        job_id = world.pull()
        assert job_id is not None
        world.ok("ACK", id=job_id, result=1)
        world.forward(1)
    world.forward(10)
    world.ok("Obliterate", queue="q", force=True)
    return refs


def of_a_failed_flow(world: World) -> list[weakref.ref[Name]]:
    jobs = flow("p", 2)
    world.ok("PUSHF", jobs=jobs)
    refs = watch(world, *(str(job["id"]) for job in jobs))
    job_id = world.pull()
    assert job_id is not None
    world.ok("FAIL", id=job_id, error="no", unrecoverable=True)
    world.forward(10)
    world.ok("Obliterate", queue="q", force=True)
    return refs


def waited_for(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, removeOnComplete=True)
    refs = watch(world, job_id)
    answer = world.send("WaitJob", world.connect("other"), id=job_id, timeout=10_000)
    world.pull()
    world.ok("ACK", id=job_id)
    assert answer.is_there
    return refs


def repeated(world: World) -> list[weakref.ref[Name]]:
    job_id = world.push(data=1, repeat={"every": 1_000, "limit": 1}, removeOnComplete=True)
    refs = watch(world, job_id)
    world.pull()
    world.ok("ACK", id=job_id)
    world.ok("Drain", queue="q")  # the next generation has its name
    return refs


WAYS = (
    completed_and_cleaned,
    completed_and_removed,
    failed_and_purged,
    timed_out,
    expired,
    cancelled,
    drained_with_its_groups,
    left_by_its_peer,
    replaced_by_its_twin,
    replaced_by_its_id,
    stalled,
    of_a_flow,
    of_a_failed_flow,
    waited_for,
    repeated,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("storage", [ScriptedStorage, lambda: None], ids=["file", "memory"])
def test_a_job_that_has_gone_is_freed_without_the_collector(
    way: Callable[[World], list[weakref.ref[Name]]], storage: Callable[[], object]
) -> None:
    world = World(storage(), settings=EngineSettings(max_completed_jobs=10))

    refs = way(world)
    world.settle()
    world.forward(20_000)  # every sweep has had its turn
    job_wire._names.clear()

    assert refs
    assert [None] * len(refs) == [ref() for ref in refs]


@pytest.mark.parametrize("is_released", [True, False])
def test_every_job_is_freed_when_the_engine_lets_go(is_released: bool) -> None:
    world = World()
    jobs = flow("p", 2)
    world.ok("PUSHF", jobs=jobs)  # parked, and waited for
    world.push(data=1, queue="dead", maxAttempts=1)
    dead = world.pull(queue="dead")
    world.ok("FAIL", id=dead, error="no")
    done = world.push(data=1, queue="done")
    world.pull(queue="done")
    world.ok("ACK", id=done)
    world.push(data=1, queue="active", timeout=HOUR_MS)
    active = world.pull(queue="active")
    assert dead is not None
    assert active is not None
    refs = watch(
        world,
        *(str(job["id"]) for job in jobs),
        *(dead, done, active),
        world.push(data=1),
        world.push(data=1, priority=3, lifo=True),
        world.push(data=1, delay=9_000),
        world.push(data=1, groupId="g"),
        world.push(data=1, uniqueKey="k", ttl=HOUR_MS),
        world.push(data=1, repeat={"every": 1_000}),
    )
    world.send("PULL", world.connect("other"), queue="none", timeout=5_000)
    if is_released:
        world.engine.release_all(world.now)
    world.engine.let_go()
    assert 0 == sum(queue.size() for queue in world.engine.queues.values())

    del world
    gc.collect()

    assert [None] * len(refs) == [ref() for ref in refs]


def test_a_job_whose_removal_was_undone_is_freed_when_it_goes() -> None:
    world = World(ScriptedStorage())
    job_id = world.push(data=1, ttl=HOUR_MS, uniqueKey="k")
    refs = watch(world, job_id)
    world.storage.fails = True
    world.go("Cancel", id=job_id)
    world.storage.fails = False
    assert refs[0]() is not None

    world.ok("Cancel", id=job_id)
    world.forward(20_000)

    assert refs[0]() is None
