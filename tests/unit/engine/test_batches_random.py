"""Random batches on random queues: what is refused leaves all as it was, at once or in slices."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.simulation.sliced import in_slices
from tests.support.engine import World, persistent_world
from tests.support.whole import check_whole

IDS = ["a", "b", "c", "d", "e"]
CASES = 500
DEDUPS: list[dict[str, Any] | None] = [
    None, {"replace": True}, {"replace": True}, {"extend": True, "ttl": 60_000}, {"ttl": 5_000},
]  # fmt: skip


def entry(rng: Random) -> dict[str, Any]:
    """Draw a job that names others, and that others may name."""
    job: dict[str, Any] = {}
    if rng.random() < 0.5:
        job["customId"] = rng.choice(IDS)
    if rng.random() < 0.5:
        job |= {"uniqueKey": rng.choice("kl"), "dedup": rng.choice(DEDUPS)}
    if rng.random() < 0.15:
        job["dependsOn"] = rng.sample(IDS, rng.choice([1, 1, 2]))
    if rng.random() < 0.15:
        job["childrenIds"] = rng.sample(IDS, 1)
    if rng.random() < 0.15:
        parent_id = rng.choice(IDS)
        job |= {"parentId": parent_id, "data": {"__parentId": parent_id, "__parentQueue": "q"}}
    if rng.random() < 0.3:
        job |= {"groupId": rng.choice("gh"), "groupMaxSize": rng.choice([1, 2, 9])}
    if rng.random() < 0.1:
        job["durable"] = True
    return job


def fill(world: World, rng: Random) -> None:
    """Bring some jobs into the queue, and some of these further."""
    for _ in range(rng.randrange(6)):
        job_id = rng.choice(IDS)
        command, fields = rng.choice([
            ("PUSH", {"queue": "q", **entry(rng), "jobId": job_id}), ("PUSH", {"queue": "q"}),
            ("PUSH", {"queue": "q", "jobId": job_id, "uniqueKey": rng.choice("kl")}),
            ("PULL", {"queue": "q"}), ("ACK", {"id": job_id}), ("FAIL", {"id": job_id}),
            ("ACK", {"id": job_id, "removeOnComplete": True}), ("Discard", {"id": job_id}),
        ])  # fmt: skip
        world.go(command, **fields)
    world.forward(2)
    world.settle()


def picture(world: World) -> Any:
    """Return what a batch that is refused must not change."""
    engine = world.engine
    jobs = {
        job.id: (
            job.seq, job.place, bytes(job.data), set(job.extra.depends_on),
            set(job.extra.children_ids), job.extra.parent_id, job.extra.unique_key,
            None if job.extra.flow is None else set(job.extra.flow.missing),
        )
        for job in engine.index
    }  # fmt: skip
    owners = {key: owner.job.id for key, owner in engine.open_queue("q").keys.items()}
    return jobs, owners, set(engine.graph.proofs.free), set(engine.graph.proofs.pinned)


@pytest.mark.parametrize(("is_sliced", "begin"), [(False, 1_000), (True, 3_000)])
def test_a_random_batch_that_is_refused_leaves_all_as_it_was(is_sliced: bool, begin: int) -> None:
    taken = 0
    for seed in range(begin, begin + CASES):
        rng = Random(seed)
        world = persistent_world()
        fill(world, rng)
        before = picture(world)
        jobs = [entry(rng) for _ in range(rng.randrange(2, 6))]
        if is_sliced:
            with in_slices():
                reply = world.go("PUSHB", queue="q", jobs=jobs)
        else:
            reply = world.go("PUSHB", queue="q", jobs=jobs)
        world.forward(2)
        world.settle()

        check_whole(world.engine, world.now, [world.peer])
        if reply["ok"]:
            taken += 1
        else:
            assert before == picture(world), (seed, reply, jobs)
    assert CASES // 10 < taken < CASES
