"""Scenarios: labels that share turns and limits.

Client 0.1.5 puts a label on a job; for everything else about groups it has only `call`.
"""

from __future__ import annotations

from typing import Any

from scenario import World, raises, scenario, until

from bunqueue import CommandError, Queue


def _call(queue: Queue, command: str, group: str | None = None, **fields: Any) -> dict[str, Any]:
    request = {"cmd": command, "queue": queue.name, **fields}
    if group is not None:
        request["groupId"] = group
    return queue.connection.call(request).get("data", {})


def _filled(world: World, **sizes: int) -> Queue:
    queue = world.queue()
    for group, size in sizes.items():
        queue.add_bulk(
            [{"name": "n", "data": {"g": group}, "group_id": group} for _ in range(size)]
        )
    return queue


def _order(world: World, queue: Queue, **fields: Any) -> list[Any]:
    order = []
    while (job := world.pull(queue, **fields)[0]) is not None:
        order.append(job["groupId"])
    return order


@scenario()
def groups_take_turns(world: World) -> None:
    queue = _filled(world, ann=3, bob=2, cid=1)
    alone = queue.add("no group")

    order = _order(world, queue)

    assert [None, "ann", "bob", "cid", "ann", "bob", "ann"] == order
    assert queue.get_job(alone.id).group_id is None


@scenario()
def a_job_shows_its_group(world: World) -> None:
    queue = world.queue()

    job = queue.add("x", group_id="ann")

    assert "ann" == queue.get_job(job.id).group_id
    raises(
        CommandError,
        "groupId must be at most 256 characters",
        lambda: queue.add("x", group_id="g" * 257),
    )


@scenario()
def counts_the_jobs_of_groups(world: World) -> None:
    queue = _filled(world, ann=3, bob=2)
    world.pull(queue)

    assert {"count": 2} == _call(queue, "GetGroupJobsCount", "ann")
    assert {"count": 1} == _call(queue, "GetGroupActiveCount", "ann")
    assert {"count": 4} == _call(queue, "GetGroupsJobsCount")


@scenario()
def a_paused_group_stands_aside(world: World) -> None:
    queue = _filled(world, ann=2, bob=1)
    assert {"changed": True} == _call(queue, "PauseGroup", "ann")
    assert {"paused": True} == _call(queue, "IsGroupPaused", "ann")

    assert ["bob"] == _order(world, queue)

    assert {"changed": True} == _call(queue, "ResumeGroup", "ann")
    assert ["ann", "ann"] == _order(world, queue)


@scenario()
def a_group_has_a_concurrency(world: World) -> None:
    queue = _filled(world, ann=3, bob=1)

    assert ["ann", "bob"] == _order(world, queue, group={"concurrency": 1})

    _call(queue, "SetGroupConcurrency", "ann", concurrency=2)
    assert {"concurrency": 2} == _call(queue, "GetGroupConcurrency", "ann")
    assert ["ann"] == _order(world, queue, group={"concurrency": 1})
    assert {"removed": 1} == _call(queue, "RemoveGroupConcurrency", "ann")
    assert ["ann"] == _order(world, queue)


@scenario()
def a_group_has_a_rate(world: World) -> None:
    queue = _filled(world, ann=3, bob=1)
    minute = {"limit": {"max": 1, "duration": 60_000}}

    assert ["ann", "bob"] == _order(world, queue, group=minute)

    _call(queue, "SetGroupRateLimit", "ann", max=5, duration=60_000)
    assert {"limit": {"max": 5, "duration": 60_000}} == _call(queue, "GetGroupRateLimit", "ann")
    assert ["ann", "ann"] == _order(world, queue, group=minute)
    assert {"removed": 1} == _call(queue, "RemoveGroupRateLimit", "ann")


@scenario()
def a_group_can_rest_for_a_while(world: World) -> None:
    queue = _filled(world, ann=1, bob=1)

    _call(queue, "RateLimitGroup", "ann", duration=60_000)

    assert ["bob"] == _order(world, queue)
    assert 0 < _call(queue, "GetGroupRateLimitTtl", "ann")["ttl"] <= 60_000
    assert {"ttl": -2} == _call(queue, "GetGroupRateLimitTtl", "bob")


@scenario()
def a_puller_can_ask_for_one_group(world: World) -> None:
    queue = _filled(world, ann=2, bob=1)
    alone = queue.add("no group")

    assert ["bob"] == _order(world, queue, group={"affinity": "bob"})

    job, _ = world.pull(queue, group={"affinity": None})
    assert alone.id == job["id"]
    assert world.pull(queue, group={"affinity": None})[0] is None


@scenario()
def a_worker_serves_all_groups(world: World) -> None:
    queue = _filled(world, ann=5, bob=5, cid=5)
    seen: list[str] = []

    world.worker(queue, lambda job: seen.append(job.group_id), concurrency=3)

    until(lambda: queue.get_completed_count() == 15)
    assert {"ann": 5, "bob": 5, "cid": 5} == {group: seen.count(group) for group in set(seen)}
