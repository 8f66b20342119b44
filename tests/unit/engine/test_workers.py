"""The register of workers (engine.md 8)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import workers
from tests.support.engine import START, World


@pytest.fixture
def world() -> World:
    return World()


def register(world: World, **fields: Any) -> dict[str, Any]:
    reply = world.ok("RegisterWorker", **{"name": "w", "queues": ["q"], **fields})
    found: dict[str, Any] = reply["data"]
    return found


def listed(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.ok("ListWorkers")["data"]["workers"]
    return found


def test_registering_answers_with_the_entry(world: World) -> None:
    entry = register(world, workerId="w1", concurrency=4, hostname="h", pid=7)

    assert {
        "workerId": "w1",
        "name": "w",
        "queues": ["q"],
        "concurrency": 4,
        "hostname": "h",
        "pid": 7,
        "status": "active",
        "registeredAt": START,
        "lastSeen": START,
        "activeJobs": 0,
        "processedJobs": 0,
        "failedJobs": 0,
        "currentJob": None,
    } == entry


def test_what_is_not_named_has_a_default(world: World) -> None:
    entry = register(world, queues=None)

    assert ([], 1, "unknown", 0) == tuple(
        entry[key] for key in ("queues", "concurrency", "hostname", "pid")
    )
    assert 36 == len(entry["workerId"])


def test_an_empty_host_name_is_kept(world: World) -> None:
    assert "" == register(world, workerId="w1", hostname="")["hostname"]
    assert "" == listed(world)[0]["hostname"]


def test_an_update_that_names_no_host_and_no_process_keeps_both(world: World) -> None:
    register(world, workerId="w1", hostname="h", pid=7)

    entry = register(world, workerId="w1", hostname="", pid=0)

    assert ("h", 7) == (entry["hostname"], entry["pid"])


def test_a_worker_needs_a_name(world: World) -> None:
    assert "name is required" == world.error("RegisterWorker", queues=["q"])


def test_the_same_id_updates_the_entry(world: World) -> None:
    register(world, workerId="w1")
    world.clock.ms += 1_000
    register(world, workerId="w1", queues=["other"], concurrency=9)

    (entry,) = listed(world)
    assert (["other"], 9, START, world.now) == tuple(
        entry[key] for key in ("queues", "concurrency", "registeredAt", "lastSeen")
    )


def test_the_list_shows_id_and_uptime(world: World) -> None:
    register(world, workerId="w1")
    world.clock.ms += 1_500

    (entry,) = listed(world)
    assert ("w1", 1_500) == (entry["id"], entry["uptime"])
    assert "workerId" not in entry


def test_a_silent_worker_is_stale_and_then_forgotten(world: World) -> None:
    register(world)
    world.forward(29_999)
    assert "active" == listed(world)[0]["status"]
    world.forward(1)
    assert "stale" == listed(world)[0]["status"]

    world.forward(90_000)

    assert [] == listed(world)


def test_a_heartbeat_keeps_a_worker_and_brings_its_counts(world: World) -> None:
    register(world, workerId="w1")
    for _ in range(10):
        world.forward(20_000)
        reply = world.ok("Heartbeat", id="w1", activeJobs=2, processed=10, failed=3)

    assert {"data": {"ok": True}} == reply
    (entry,) = listed(world)
    assert ("active", 2, 10, 3) == tuple(
        entry[key] for key in ("status", "activeJobs", "processedJobs", "failedJobs")
    )


def test_counts_not_given_stay(world: World) -> None:
    register(world, workerId="w1")
    world.ok("Heartbeat", id="w1", processed=10)
    world.ok("Heartbeat", id="w1")

    assert 10 == listed(world)[0]["processedJobs"]


@pytest.mark.parametrize(
    ("command", "fields"), [("Heartbeat", {"id": "x"}), ("UnregisterWorker", {"workerId": "x"})]
)
def test_an_unknown_worker_is_not_found(world: World, command: str, fields: dict[str, str]) -> None:
    assert "Worker not found" == world.error(command, **fields)


def test_totals_outlive_the_workers(world: World) -> None:
    register(world, workerId="w1", concurrency=3)
    register(world, workerId="w2", concurrency=2)
    world.ok("Heartbeat", id="w1", processed=10, failed=1, activeJobs=2)
    world.ok("Heartbeat", id="w2", processed=5)
    assert {"data": {"removed": True}} == world.ok("UnregisterWorker", workerId="w1")

    assert {
        "total": 1,
        "active": 1,
        "totalProcessed": 15,
        "totalFailed": 1,
        "activeJobs": 0,
        "concurrencySlots": 2,
    } == world.ok("ListWorkers")["data"]["stats"]


def test_a_worker_that_registers_elsewhere_leaves_no_poll_on_its_old_link(world: World) -> None:
    dead, alive = world.peer, world.connect()
    register(world, workerId="w1")
    lost = world.send("PULL", dead, queue="q", owner="w1", timeout=60_000)
    others = world.send("PULL", dead, queue="q", owner="w2", timeout=60_000)
    world.ok("RegisterWorker", alive, name="w", queues=["q"], workerId="w1")

    assert lost.reply["job"] is None
    assert not others.is_there


def test_the_end_of_a_connection_looks_at_no_workers_but_its_own(world: World) -> None:
    """Ten thousand that ended together looked at ten thousand workers each."""
    stays, leaves = world.peer, world.connect()
    register(world, workerId="w1")
    register(world, workerId="w2")
    world.ok("RegisterWorker", leaves, name="w", queues=["q"], workerId="w2")
    world.ok("RegisterWorker", leaves, name="w", queues=["q"], workerId="w3")

    class Unseen(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("all of them are looked at")

    world.engine.workers = Unseen(world.engine.workers)
    world.engine.peer_closed(leaves, world.now)

    assert ["w1"] == list(world.engine.workers)
    assert [stays] == list(world.engine.workers_of)


@pytest.mark.parametrize("command", ["ListWorkers", "DashboardOverview"])
def test_many_workers_are_listed_in_slices(world: World, command: str) -> None:
    """Ten thousand took 0.1 s, and nobody else had a turn."""
    for number in range(1_000):
        register(world, workerId=f"w{number}")

    answer = world.send(command)
    turns = 0
    while not answer.is_there:
        world.engine.tick(world.now)
        turns += 1

    assert 2 <= turns
    assert answer.reply is not None
    data = answer.reply["data"]
    found = data["workers"] if command == "ListWorkers" else data["workers"]["list"]
    assert [f"w{number}" for number in range(1_000)] == [worker["id"] for worker in found]
    counts = data["stats"] if command == "ListWorkers" else data["workers"]
    assert (1_000, 1_000) == (counts["total"], counts["active"])


def test_more_workers_than_there_is_room_for_push_the_longest_silent_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "WORKERS_MAX", 3)
    world = World()
    for number in range(3):
        world.ok("RegisterWorker", name="w", workerId=f"w{number}", queues=["q"])
        world.forward(10)
    world.ok("Heartbeat", id="w0")

    world.ok("RegisterWorker", name="w", workerId="w3", queues=["q"])

    assert ["w0", "w2", "w3"] == [worker.id for worker in world.engine.list_workers()]
