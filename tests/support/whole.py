"""Whether an engine is whole: each job in one place, and everything that counts jobs agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from bunqueue.engine.job import Job
from bunqueue.engine.states import state_of

PLACES = ("admitted", "parked", "active", "completed", "failed")


def check_whole(engine: Any, now: int, peers: Iterable[Any]) -> None:
    """Check that places, index, counters, keys and connections agree."""
    everywhere: list[Job] = []
    for queue in engine.queues.values():
        for place in PLACES:
            jobs: dict[str, Job] = getattr(queue, place)
            everywhere += jobs.values()
            for job_id, job in jobs.items():
                assert (job_id, place, queue) == (job.id, job.place, job.queue)
        queue.run_set.mature(now)
        queued = list(queue.run_set.jobs())
        everywhere += queued
        assert {"queued"} >= {job.place for job in queued}
        assert len(queue.run_set) == len(queued)
        ready = [job for job in queued if state_of(job, now) != "delayed"]
        assert len(ready) == queue.run_set.ready
        assert sum(job.priority > 0 for job in ready) == queue.run_set.ready_high
        if queue.run_set.groups is not None:
            check_groups(queue, queued)
        for key, owner in queue.keys.items():
            assert owner.job.extra.unique_key == key
            assert engine.index.get(owner.job.id) is owner.job
    assert len(everywhere) == len({id(job) for job in everywhere}), "a job in two places"
    assert {id(job) for job in everywhere} == {id(job) for job in engine.index}
    for job in everywhere:
        assert (job.place == "active") == (job.delivery is not None)
    for peer in peers:
        for job in everywhere:
            if job.delivery is not None and job.delivery.peer is peer:
                assert peer.held[job] is job.delivery
        for job, delivery in peer.held.items():
            assert job.delivery is delivery
    keyed = [
        (job.queue.name, job.extra.unique_key)
        for job in everywhere
        if (key := job.extra.unique_key) is not None
        and (owner := job.queue.keys.get(key)) is not None
        and owner.job is job
    ]
    assert len(keyed) == len(set(keyed))
    assert engine.active_count() == sum(job.place == "active" for job in everywhere)
    check_edges(engine, everywhere)


def check_groups(queue: Any, queued: list[Job]) -> None:
    """Check that the groups of a queue count its jobs."""
    groups = queue.run_set.groups
    pending = Counter(job.extra.group_id for job in queued)
    active = Counter(job.extra.group_id for job in queue.active.values())
    del pending[None], active[None]
    counted = groups.by_id.values()
    assert pending == {group.id: group.pending for group in counted if group.pending}
    assert active == {group.id: group.active for group in counted if group.active}
    assert pending.total() == groups.pending


def check_edges(engine: Any, everywhere: list[Job]) -> None:
    """Check that the index of consumers is exactly what the unfinished jobs refer to."""
    expected: dict[str, set[str]] = {}
    for job in everywhere:
        extra = job.extra
        if job.place == "completed":
            continue
        for job_id in {*extra.depends_on, *extra.children_ids}:
            expected.setdefault(job_id, set()).add(job.id)
        if extra.flow is not None:
            assert extra.flow.missing <= set(extra.depends_on)
        if job.place == "parked":
            assert extra.flow is not None
            assert extra.flow.missing or extra.flow.is_released or engine.graph.due
    graph = engine.graph
    found = {job_id: {job.id for job in jobs} for job_id, jobs in graph.consumers.items()}
    assert expected == found
    assert set(graph.proofs.pinned) <= set(found)
