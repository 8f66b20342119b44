"""The order of locks, and that the engine keeps it and never switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine.engine import Engine
from bunqueue.engine.locks import CheckedLock, LockOrderError, Rank, in_order, no_lock
from bunqueue.engine.queue import Shard
from tests.support.engine import SEED, START, Clock, FakePeer, World


class Inner:
    """A lock that notes when it is held."""

    def __init__(self) -> None:
        self.depth = 0

    def acquire(self) -> None:
        self.depth += 1

    def release(self) -> None:
        self.depth -= 1

    def locked(self) -> bool:
        return self.depth > 0


WHO = object()


def lock(rank: Rank, number: int, inner: Inner | None = None, who: object = WHO) -> CheckedLock:
    return CheckedLock(rank, number, inner or Inner(), lambda: who)


def test_locks_are_taken_by_rank_then_number() -> None:
    with lock(Rank.JOB_INDEX, 0), lock(Rank.COMPLETED, 0), lock(Rank.SHARD, 1):  # noqa: SIM117
        with lock(Rank.SHARD, 2), lock(Rank.ACTIVE, 0):
            pass


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ((Rank.SHARD, 0), (Rank.JOB_INDEX, 0)),
        ((Rank.SHARD, 1), (Rank.SHARD, 0)),
        ((Rank.SHARD, 1), (Rank.SHARD, 1)),
        ((Rank.ACTIVE, 0), (Rank.SHARD, 3)),
        ((Rank.COMPLETED, 0), (Rank.JOB_INDEX, 0)),
    ],
)
def test_a_lock_out_of_order_is_refused(held: Any, wanted: Any) -> None:
    with lock(*held), pytest.raises(LockOrderError):
        lock(*wanted).__enter__()


def test_who_asks_whether_a_lock_is_held_could_take_it() -> None:
    inner = Inner()
    asked = lock(Rank.SHARD, 0, inner)

    assert not asked.locked()
    with asked:
        assert lock(Rank.SHARD, 1, inner).locked()
        with pytest.raises(LockOrderError):
            asked.locked()


def test_another_greenlet_has_its_own_order() -> None:
    with lock(Rank.SHARD, 1), lock(Rank.SHARD, 0, who=object()):
        pass


def test_a_lock_is_released_whatever_happens() -> None:
    inner = Inner()
    with pytest.raises(ValueError, match="inside"), lock(Rank.SHARD, 0, inner):
        raise ValueError("inside")

    assert 0 == inner.depth
    with lock(Rank.SHARD, 0):
        pass


def test_several_shards_are_taken_by_number_each_once() -> None:
    inners = [Inner() for _ in range(3)]
    shards = [Shard(number, lock(Rank.SHARD, number, inners[number])) for number in range(3)]

    with in_order([shards[2], shards[0], shards[2]]):
        assert [1, 0, 1] == [inner.depth for inner in inners]
    assert [0, 0, 0] == [inner.depth for inner in inners]


def test_no_lock_excludes_nobody() -> None:
    with no_lock(Rank.SHARD, 0), no_lock(Rank.SHARD, 0):
        assert not no_lock(Rank.SHARD, 0).locked()


# -- in the engine -------------------------------------------------------------------------------


def name_in_shard(world: World, number: int) -> str:
    names = map(str, range(1000))
    return next(name for name in names if world.engine.open_queue(name).shard.number == number)


def test_an_id_may_pass_to_a_queue_of_a_lower_shard() -> None:
    world = World()
    first, second = name_in_shard(world, 3), name_in_shard(world, 1)
    world.push(first, jobId="a")
    world.pull(first)
    world.ok("ACK", id="a")

    world.ok("PUSHB", queue=second, jobs=[{"customId": "a"}, {}])

    assert second == world.job("a")["queue"]


class Held:
    """A lock that another holds; ``seen()`` is noted when it lets go."""

    def __init__(self, seen: Callable[[], object]) -> None:
        self.noted: list[object] = []
        self._seen = seen

    def locked(self) -> bool:
        return not self.noted

    def __enter__(self) -> None:
        self.noted.append(self._seen())

    def __exit__(self, *_: object) -> None:
        pass


def test_a_push_a_pull_and_an_ack_change_nothing_while_the_lock_is_held() -> None:
    world = World()
    world.push()
    queue = world.engine.queues["q"]

    def held() -> Held:
        lock = queue.shard.lock = Held(lambda: (len(queue.run_set), len(queue.active)))
        return lock

    lock = held()
    world.push()
    assert [(1, 0)] == lock.noted
    lock = held()
    job_id, token = world.lease()
    assert [(2, 0)] == lock.noted
    lock = held()
    world.ok("ACK", id=job_id, token=token)
    assert [(1, 1)] == lock.noted
    assert 0 == len(queue.active)


def everything_once(world: World) -> None:
    """Run every kind of operation once."""
    other = world.connect()
    for number, fields in enumerate(
        ({}, {"jobId": "a"}, {"uniqueKey": "k"}, {"delay": 1_000}, {"durable": True})
    ):
        world.push(ttl=600_000 + number, timeout=5_000, **fields)
    world.ok("PUSHB", queue="q", jobs=[{}, {"customId": "b"}, {"uniqueKey": "k"}])
    _, token = world.lease()
    world.ok("JobHeartbeat", id=world.ok("GetJobs", queue="q", state="active")["jobs"][0]["id"])
    world.poll("empty", peer=other)
    world.pull(peer=other)
    for command in ("Pause", "Resume", "PromoteJobs", "RetryDlq", "Clean", "Drain"):
        world.ok(command, queue="q")
    world.ok("RateLimit", queue="q", limit=5)
    world.ok("SetConcurrency", queue="q", limit=5)
    world.close(other)
    world.forward(120_000)
    world.ok("RetryCompleted", queue="q")
    world.engine.clock_jumped(5)
    world.engine.drain_begin()
    world.engine.release_all(world.now)
    world.ok("Obliterate", queue="q")
    assert token


def test_every_operation_keeps_the_order_and_leaves_no_lock_held() -> None:
    everything_once(World())


def test_engine_operations_never_switch_greenlets() -> None:
    """The engine can switch at its locks only, and these do not here: so not at all."""
    greenlet = pytest.importorskip("greenlet")
    switches: list[Any] = []
    world = World()
    before = greenlet.gettrace()
    greenlet.settrace(lambda event, arguments: switches.append((event, arguments)))
    try:
        everything_once(world)
    finally:
        greenlet.settrace(before)

    assert [] == switches


def test_an_engine_needs_no_locks_where_its_caller_excludes_everyone() -> None:
    from random import Random

    from bunqueue.storage.memory import MemoryStorage

    engine = Engine(MemoryStorage(), rng=Random(SEED))
    engine.recover(START)
    peer = FakePeer(engine, Clock())

    assert [] == engine.pull(peer, "q", 1, 0, None, None, False, None, START)
