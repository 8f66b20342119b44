"""Scenarios: what can be seen."""

from __future__ import annotations

from scenario import World, scenario

from bunqueue import Queue


def _one_in_each_state(world: World) -> tuple[Queue, dict[str, str]]:
    queue = world.queue()
    ids = {}
    for state in ("completed", "failed", "active"):
        ids[state] = queue.add(state, attempts=1).id
        job, token = world.pull(queue, owner="me")
        if state == "completed":
            queue.move_job_to_completed(job["id"], "r", token)
        elif state == "failed":
            queue.move_job_to_failed(job["id"], "e", token)
    ids["waiting"] = queue.add("waiting").id
    ids["prioritized"] = queue.add("prioritized", priority=3).id
    ids["delayed"] = queue.add("delayed", delay=60_000).id
    return queue, ids


@scenario()
def tells_every_state(world: World) -> None:
    queue, ids = _one_in_each_state(world)

    assert {state: state for state in ids} == {
        state: queue.get_state(job_id) for state, job_id in ids.items()
    }
    assert "unknown" == queue.get_state("no-such-job")
    assert queue.get_job("no-such-job") is None
    assert {state: state for state in ids} == {
        state: queue.get_job(job_id).state for state, job_id in ids.items()
    }


@scenario()
def counts_every_state(world: World) -> None:
    queue, ids = _one_in_each_state(world)

    expected = dict.fromkeys(ids, 1) | {"waiting-children": 0, "paused": 0}
    assert expected == queue.get_job_counts()
    assert 3 == queue.count()
    assert queue.get_waiting_count() == queue.get_active_count() == queue.get_delayed_count() == 1


@scenario()
def lists_every_state(world: World) -> None:
    queue, ids = _one_in_each_state(world)

    for state, job_id in ids.items():
        assert [job_id] == [job.id for job in queue.get_jobs(state)], state
    assert set(ids.values()) == {job.id for job in queue.get_jobs()}
    both = queue.get_jobs(["waiting", "delayed"])
    assert {ids["waiting"], ids["delayed"]} == {job.id for job in both}
    assert [] == queue.get_jobs("no-such-state")


@scenario()
def lists_page_by_page(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "n"} for _ in range(25)])

    assert ids[:10] == [job.id for job in queue.get_waiting(0, 10)]
    assert ids[20:] == [job.id for job in queue.get_waiting(20, 30)]
    assert [] == queue.get_waiting(25, 30)


@scenario()
def counts_priorities(world: World) -> None:
    queue = world.queue()
    for priority in (0, 0, 5, 9, 9):
        queue.add("p", priority=priority)

    counts = queue.get_counts_per_priority()

    assert {"0": 2, "5": 1, "9": 2} == {key: int(value) for key, value in counts.items()}


@scenario()
def lists_queues(world: World) -> None:
    queue = world.queue()
    queue.add("x")

    assert queue.name in queue.list_queues()


@scenario()
def tells_its_figures(world: World) -> None:
    queue = world.queue()
    queue.add("x")

    stats = queue.get_stats()

    assert {
        "waiting", "active", "delayed", "dlq", "completed", "failed",
        "uptime", "pushPerSec", "pullPerSec",
    } <= set(stats)  # fmt: skip
    assert stats["waiting"] >= 1
    assert stats["uptime"] > 0


@scenario()
def greets_and_answers(world: World) -> None:
    queue = world.queue()

    hello = queue.connection.hello()

    assert (3, "bunqueue") == (hello["protocolVersion"], hello["server"])
    assert "pipelining" in hello["capabilities"]
    assert queue.ping() is True


@scenario()
def finds_the_holder_of_a_deduplication_id(world: World) -> None:
    queue = world.queue()
    queue.add("x", job_id="holder-1")

    assert "holder-1" == queue.get_deduplication_job_id("holder-1")
    assert queue.get_deduplication_job_id("holder-2") is None
