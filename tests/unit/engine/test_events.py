"""What listeners are told, in which order, and that nobody hears of what did not happen (I49)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine import subscriptions
from bunqueue.engine.subscriptions import TOLD_PER_TICK
from tests.support.engine import World, persistent_world


@pytest.fixture
def world() -> World:
    world = World()
    world.listen()
    return world


@pytest.fixture
def file_world() -> World:
    world = persistent_world()
    world.listen()
    return world


def kinds(world: World) -> list[str]:
    return [event["eventType"] for event in world.events]


def told(world: World) -> list[dict[str, Any]]:
    """Return the events without what all of them have."""
    common = ("queue", "jobId", "timestamp")
    return [{key: each[key] for key in each if key not in common} for each in world.events]


# -- kinds and fields ------------------------------------------------------------------------------


def test_a_life_is_told_in_order(world: World) -> None:
    job_id = world.push(data={"n": 1})
    world.pull()
    world.ok("Progress", id=job_id, progress=5, message="m")
    world.ok("ACK", id=job_id, result={"r": 2})

    assert [
        {"eventType": "pushed"},
        {"eventType": "pulled"},
        {"eventType": "progress", "progress": 5, "data": {"progress": 5, "message": "m"}},
        {"eventType": "completed", "data": {"r": 2}},
    ] == told(world)
    assert {job_id} == {event["jobId"] for event in world.events}


def test_a_completion_without_result_has_no_data_and_a_null_result_has(world: World) -> None:
    for fields in ({}, {"result": None}):
        job_id = world.push()
        world.pull()
        world.ok("ACK", id=job_id, **fields)

    assert [{"eventType": "completed"}, {"eventType": "completed", "data": None}] == [
        event for event in told(world) if event["eventType"] == "completed"
    ]


def test_a_failure_tells_its_text_and_the_jobs_data(world: World) -> None:
    job_id = world.push(data={"n": 1}, backoff=0, maxAttempts=2)
    world.pull()
    world.ok("FAIL", id=job_id, error="boom")
    world.pull()
    world.ok("FAIL", id=job_id)

    assert [
        {"eventType": "failed", "error": "boom", "terminal": False, "data": {"n": 1}},
        {"eventType": "retried", "prev": "failed"},
        {"eventType": "pulled"},
        {"eventType": "failed", "terminal": True, "data": {"n": 1}},
    ] == told(world)[2:]


def test_a_lease_that_runs_out_is_a_bare_stall(world: World) -> None:
    world.push()
    world.lease(lockTtl=1_000)
    world.forward(5_000)

    assert {"eventType": "stalled"} == told(world)[-1]


def test_a_silent_worker_is_a_stall_with_its_count(world: World) -> None:
    world.push()
    world.lease(lockTtl=600_000)
    world.forward(60_000)

    data = {"stallCount": 1, "action": "retry"}
    assert {"eventType": "stalled", "data": data} == told(world)[2]


@pytest.mark.parametrize("command", ["MoveToDelayed", "ChangeDelay"])
@pytest.mark.parametrize("delay", [0, 5_000])
def test_a_move_to_delayed_is_told_with_its_delay(world: World, command: str, delay: int) -> None:
    job_id = world.push()
    world.pull()
    world.ok(command, id=job_id, delay=delay)

    assert {"eventType": "delayed", "delay": delay} == told(world)[-1]


def test_an_id_that_lives_is_no_event_but_a_key_is(world: World) -> None:
    world.push(jobId="a", uniqueKey="k")
    world.push(jobId="a")
    assert ["pushed"] == kinds(world)

    world.push(uniqueKey="k")
    assert ["pushed", "duplicated"] == kinds(world)
    assert "a" == world.events[-1]["jobId"]


def test_a_key_whose_life_is_extended_is_no_event(world: World) -> None:
    world.push(uniqueKey="k")
    world.push(uniqueKey="k", dedup={"extend": True, "ttl": 10_000})

    assert ["pushed"] == kinds(world)


@pytest.mark.parametrize("make", [World, persistent_world])
def test_a_job_that_is_replaced_is_told_as_removed(make: Callable[[], World]) -> None:
    world = make()
    world.listen()
    old = world.push(uniqueKey="k")
    new = world.push(uniqueKey="k", dedup={"replace": True})
    world.settle()

    assert [("pushed", old), ("removed", old), ("pushed", new)] == [
        (event["eventType"], event["jobId"]) for event in world.events
    ]


@pytest.mark.parametrize("make", [World, persistent_world])
def test_a_job_that_is_replaced_within_its_own_batch_is_told_too(
    make: Callable[[], World],
) -> None:
    world = make()
    world.listen()
    replace = {"uniqueKey": "k", "dedup": {"replace": True}}
    old, new = world.ok("PUSHB", queue="q", jobs=[{"data": 1, **replace}, {"data": 2, **replace}])[
        "ids"
    ]
    world.settle()

    assert [("pushed", old), ("removed", old), ("pushed", new)] == [
        (event["eventType"], event["jobId"]) for event in world.events
    ]
    assert 2 == world.ok("Metrics")["metrics"]["totalPushed"]


def test_a_parked_job_that_is_replaced_is_told_as_removed(world: World) -> None:
    child = world.push()
    parked = world.push(uniqueKey="k", dependsOn=[child])
    new = world.push(uniqueKey="k", dedup={"replace": True})
    world.settle()

    assert [child, parked, parked, new] == [event["jobId"] for event in world.events]
    assert ["pushed", "pushed", "removed", "pushed"] == kinds(world)


def test_a_queue_that_was_drained_is_told_once(world: World) -> None:
    world.push()
    world.ok("Drain", queue="q")
    world.ok("Drain", queue="q")

    assert ["pushed", "drained"] == kinds(world)


def test_pause_and_resume_are_told_even_if_they_change_nothing(world: World) -> None:
    for command in ("Pause", "Pause", "Resume", "Resume"):
        world.ok(command, queue="q")

    assert ["paused", "paused", "resumed", "resumed"] == kinds(world)


def test_resuming_a_queue_that_nobody_knows_is_told_too(world: World) -> None:
    world.ok("Resume", queue="unheard-of")

    assert ["resumed"] == kinds(world)
    assert {"queues": []} == world.ok("ListQueues")


# -- after the commit ------------------------------------------------------------------------------


def test_nothing_is_told_before_its_commit(file_world: World) -> None:
    world = file_world
    world.send("PUSH", queue="q", durable=True)
    assert [] == world.events

    world.settle()
    world.settle()
    assert ["pushed"] == kinds(world)


def test_an_outcome_whose_commit_fails_is_not_told(file_world: World) -> None:
    world = file_world
    job_id = world.push()
    world.pull()
    world.storage.fails = True
    assert "Internal server error" == world.error("ACK", id=job_id)

    assert ["pushed", "pulled"] == kinds(world)
    world.storage.fails = False
    world.ok("ACK", id=job_id)
    assert ["pushed", "pulled", "completed"] == kinds(world)


UNDONE: list[tuple[str, dict[str, Any]]] = [
    ("ACK", {"result": 1}),
    ("FAIL", {}),
    ("FAIL", {"unrecoverable": True}),
    ("MoveToWait", {}),
    ("MoveToDelayed", {"delay": 5}),
    ("Progress", {"progress": 5}),
]


@pytest.mark.parametrize(("command", "fields"), UNDONE)
def test_every_move_of_an_active_job_is_retracted_with_its_commit(
    file_world: World, command: str, fields: dict[str, Any]
) -> None:
    world = file_world
    job_id = world.push(backoff=0)
    world.pull()
    world.events.clear()
    world.storage.fails = True
    world.error(command, id=job_id, **fields)

    assert [] == world.events
    assert {} == world.engine.untold


@pytest.mark.parametrize(("command", "first"), [("Pause", None), ("Resume", "Pause")])
def test_a_queues_own_events_are_retracted_with_their_commit(
    file_world: World, command: str, first: str | None
) -> None:
    world = file_world
    if first:
        world.ok(first, queue="q")
    world.events.clear()
    world.storage.fails = True
    world.error(command, queue="q")

    assert [] == world.events


@pytest.mark.parametrize("command", ["Cancel", "Drain"])
def test_a_removal_is_retracted_with_its_commit(file_world: World, command: str) -> None:
    world = file_world
    job_id = world.push()
    world.events.clear()
    world.storage.fails = True
    world.error(command, id=job_id, queue="q")

    assert [] == world.events


def test_a_push_that_must_not_be_lost_and_is_lost_is_not_told(file_world: World) -> None:
    world = file_world
    world.storage.fails = True
    world.error("PUSH", queue="q", durable=True)
    world.storage.fails = False
    world.settle()

    assert [] == world.events


def test_a_move_is_told_whose_run_goes_on_although_the_commit_failed(file_world: World) -> None:
    """Whoever has been handed the job hears so, whatever becomes of the commit."""
    world = file_world
    job_id = world.push(backoff=0)
    world.pull()
    world.events.clear()
    world.storage.fails = True
    world.send("FAIL", id=job_id)
    answer = world.send("PULL", queue="q")
    world.settle()

    assert ["failed", "retried", "pulled"] == kinds(world)
    assert job_id == answer.reply["job"]["id"]
    assert "active" == world.state(job_id)


def test_what_no_undo_takes_back_is_told_although_the_commit_failed(file_world: World) -> None:
    world = file_world
    other = world.push("other")
    world.pull("other")
    world.events.clear()
    world.storage.fails = True
    world.send("PUSH", queue="q")
    world.send("PULL", queue="q")
    world.send("ACK", id=other)
    world.settle()

    assert ["pushed", "pulled"] == kinds(world)


def test_an_event_before_the_undone_ones_is_told(file_world: World) -> None:
    world = file_world
    world.send("PUSH", queue="q", jobId="a")
    world.storage.fails = True
    world.send("Cancel", id="a")
    world.settle()

    assert ["pushed"] == kinds(world)


def test_a_twin_in_a_batch_is_told_behind_its_owner(file_world: World) -> None:
    world = file_world
    entry = {"uniqueKey": "k", "durable": True}
    world.ok("PUSHB", queue="q", jobs=[entry, entry])
    world.settle()

    assert ["pushed", "duplicated"] == kinds(world)


def test_two_generations_of_an_id_are_told_one_after_the_other(file_world: World) -> None:
    world = file_world
    world.push(jobId="a")
    world.pull()
    world.send("ACK", id="a")
    world.send("PUSH", queue="q", jobId="a")
    world.settle()
    world.settle()

    assert ["pushed", "pulled", "completed", "pushed"] == kinds(world)


def test_a_successor_whose_commit_fails_is_not_told(file_world: World) -> None:
    world = file_world
    job_id = world.push(repeat={"every": 1_000})
    world.settle()
    world.forward(2_000)
    assert job_id == world.pull()
    world.events.clear()
    world.storage.fails = True
    world.error("ACK", id=job_id)
    assert [] == world.events

    world.storage.fails = False
    world.ok("ACK", id=job_id)
    assert ["pushed", "completed"] == kinds(world)


def test_a_scheduler_that_could_not_be_written_is_not_told(file_world: World) -> None:
    world = file_world
    world.storage.fails = True
    world.error("Cron", name="c", queue="q", repeatEvery=60_000, data={})

    assert [] == world.events


def test_a_subscriber_hears_of_jobs_not_of_schedulers(world: World) -> None:
    peer = world.connect()
    world.ok("SubscribeEvents", peer, queue="q")
    world.ok("Cron", name="c", queue="q", repeatEvery=60_000, data={})
    world.forward(61_000)

    assert ["pushed"] == [event.kind for event in peer.heard]


# -- who listens -----------------------------------------------------------------------------------


def test_a_peer_hears_of_its_queue_only(world: World) -> None:
    peer = world.connect()
    world.ok("SubscribeEvents", peer, queue="q")
    world.push("other")
    world.push()

    assert [("q", "pushed")] == [(event.queue_name, event.kind) for event in peer.heard]


def test_a_second_subscription_replaces_the_first(world: World) -> None:
    peer = world.connect()
    world.ok("SubscribeEvents", peer, queue="q")
    world.ok("SubscribeEvents", peer, queue="other")
    world.push()
    world.push("other")

    assert ["other"] == [event.queue_name for event in peer.heard]


def test_two_peers_hear_the_same_event(world: World) -> None:
    first, second = world.connect(), world.connect()
    for peer in (first, second):
        world.ok("SubscribeEvents", peer, queue="q")
    world.push()

    assert first.heard == second.heard != []


def test_nobody_is_left_listening_after_the_last_has_gone() -> None:
    world = World()
    first, second = world.connect(), world.connect()
    world.ok("SubscribeEvents", first, queue="q")
    world.ok("SubscribeEvents", second, queue="q")
    world.ok("UnsubscribeEvents", first)
    assert world.engine.listeners
    world.close(second)
    world.push()

    assert [] == world.engine.listeners
    assert [] == first.heard == second.heard


def test_a_listener_to_another_queue_costs_no_commit() -> None:
    world = persistent_world()
    world.ok("SubscribeEvents", queue="other")
    world.send("PUSH", queue="q")

    assert {} == world.engine.untold


def test_events_of_a_restart_wait_for_nobody() -> None:
    world = persistent_world()
    world.push()
    world.pull()
    again = world.restart()

    assert {} == again.engine.untold


# -- the journal's length --------------------------------------------------------------------------


@pytest.mark.parametrize("listens", [False, True])
def test_the_journal_counts_every_event(listens: bool) -> None:
    world = World()
    if listens:
        world.listen()
    job_id = world.push(backoff=0)
    world.pull()
    world.ok("FAIL", id=job_id)
    world.pull()
    world.ok("ACK", id=job_id)
    world.ok("Pause", queue="q")

    assert 5 == world.ok("TrimEvents", queue="q", maxLength=2)["data"]["removed"]
    assert 2 == world.ok("TrimEvents", queue="q", maxLength=0)["data"]["removed"]


def test_the_journal_is_cut_at_ten_thousand(world: World) -> None:
    world.push()
    world.engine.queues["q"].events_total = 12_345

    assert 10_000 == world.ok("TrimEvents", queue="q", maxLength=0)["data"]["removed"]


# -- many events for many peers -------------------------------------------------------------------


def test_many_events_for_many_peers_are_passed_on_in_slices_and_in_order(world: World) -> None:
    peers = [world.connect(f"peer{number}") for number in range(20)]
    for peer in peers:
        world.ok("SubscribeEvents", peer, queue="q")
    ids = world.ok("PUSHB", queue="q", jobs=[{}] * 500)["ids"]
    heard = sum(len(peer.heard) for peer in peers)
    assert TOLD_PER_TICK <= heard < 500 * 20

    while world.engine.works.ring:
        world.engine.tick(world.now)
        world.settle()

    assert [ids] * 20 == [[event.job_id for event in peer.heard] for peer in peers]


def test_whoever_makes_events_pays_for_them_once_far_too_many_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "TOLD_PER_TICK", 1)
    monkeypatch.setattr(subscriptions, "BEHIND_MAX", 10)
    peer = world.connect("listener")
    world.ok("SubscribeEvents", peer, queue="q")
    world.ok("PUSHB", queue="q", jobs=[{}] * 100)

    assert 90 == len(peer.heard)
