"""Flows over a real file: what a restart must find again (engine.md 5, 11.5)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bunqueue.engine.settings import EngineSettings
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.sqlite import SqliteStorage
from tests.support.engine import World
from tests.support.flows import flow_child, flow_parent, tree


class DiskWorld(World):
    """A world on a file; every command waits for its commit."""

    def __init__(self, path: Path, settings: EngineSettings | None = None) -> None:
        self.path = path
        super().__init__(SqliteStorage.open(path, PollLoop(), "thread"), settings=settings)

    def settle(self) -> None:
        """Write everything."""
        self.storage.flush()

    def restart(self) -> DiskWorld:
        """Return the world after a stop."""
        self.storage.close()
        self.storage = None
        return DiskWorld(self.path, self.settings)


class Opened:
    """The world that is open now, so that it is closed at the end."""

    def __init__(self, path: Path) -> None:
        self.world = DiskWorld(path)

    def again(self) -> DiskWorld:
        """Restart."""
        self.world = self.world.restart()
        return self.world


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "data.db")
    yield opened
    if opened.world.storage is not None:
        opened.world.storage.close()


def complete(world: World, job_id: str, queue: str = "q", **fields: object) -> None:
    assert job_id == world.pull(queue)
    world.ok("ACK", id=job_id, **fields)


def test_a_flow_waits_runs_and_reads_results_over_restarts(opened: Opened) -> None:
    world = opened.world
    world.ok("PUSHF", jobs=tree(2, removeOnComplete=True))
    world = opened.again()
    assert ["waiting", "waiting", "waiting-children"] == [
        world.state(job_id) for job_id in ("c0", "c1", "p")
    ]
    complete(world, "c0", result={"n": 1})
    world = opened.again()
    complete(world, "c1", result=2)
    world = opened.again()

    assert "waiting" == world.state("p")
    values = world.ok("GetChildrenValues", id="p")["data"]["values"]
    assert {"c0": {"n": 1}, "q:c1": 2} == values
    complete(world, "p", "pq")
    world = opened.again()
    assert {} == world.engine.graph.consumers
    assert ["c0"] == list(world.engine.graph.proofs.free)
    assert None is world.engine.graph.proofs.free["c0"][2]


def test_trap_33_a_proof_counts_after_a_restart(opened: Opened) -> None:
    opened.world.push(jobId="a", removeOnComplete=True)
    complete(opened.world, "a")
    world = opened.again()

    world.push(jobId="b", dependsOn=["a"])

    assert "waiting" == world.state("b")


def test_trap_34_a_cancelled_parked_job_stays_away(opened: Opened) -> None:
    world = opened.world
    world.push(jobId="a")
    world.push(jobId="b", dependsOn=["a"])
    world.push(jobId="c", dependsOn=["b"])
    world.ok("Cancel", id="b")
    world = opened.again()

    assert "unknown" == world.state("b")
    assert "waiting-children" == world.state("c")


@pytest.mark.parametrize(
    ("policy", "state", "noted"),
    [
        ("failParentOnFailure", "failed", ({}, {})),
        ("continueParentOnFailure", "waiting", ({"q:c0": "boom"}, {})),
        ("ignoreDependencyOnFailure", "waiting-children", ({}, {"q:c0": "boom"})),
        ("removeDependencyOnFailure", "waiting-children", ({}, {})),
    ],
)
def test_a_policy_is_applied_once_over_restarts(
    opened: Opened, policy: str, state: str, noted: tuple[dict[str, str], dict[str, str]]
) -> None:
    world = opened.world
    world.ok("PUSHF", jobs=tree(2, maxAttempts=1, **{policy: True}))
    world.pull()
    world.ok("FAIL", id="c0", error="boom")
    for _ in range(2):
        world = opened.again()

        assert state == world.state("p")
        asked = ("GetFailedChildrenValues", "GetIgnoredChildrenFailures")
        assert noted == tuple(world.ok(command, id="p")["values"] for command in asked)
    if state == "waiting-children":
        complete(world, "c1")
        assert "p" == opened.again().pull("pq")


def test_a_link_and_its_removal_survive(opened: Opened) -> None:
    world = opened.world
    world.push("pq", jobId="p", data={"k": 1})
    for job_id in ("a", "b"):
        data = {"__parentId": "p", "__parentQueue": "pq"}
        world.push(jobId=job_id, parentId="p", data=data)
    world.ok("RemoveChildDependency", id="a")
    world = opened.again()

    job = world.job("p")
    assert ("waiting-children", ["b"], ["b"]) == (
        job["state"], job["dependsOn"], job["childrenIds"],
    )  # fmt: skip
    assert {"k": 1, "__childrenIds": ["b"]} == job["data"]
    assert (None, {}) == (world.job("a")["parentId"], world.job("a")["data"])


def test_trap_42_damaged_dependencies_send_the_job_to_the_dead_letters(opened: Opened) -> None:
    opened.world.ok("PUSHF", jobs=[flow_child(), flow_parent()])
    opened.world.storage.close()
    with closing(sqlite3.connect(opened.world.path)) as file, file:
        file.execute("UPDATE jobs SET depends_on = x'c1' WHERE id = 'p'")
    opened.world = DiskWorld(opened.world.path)
    world = opened.world

    assert ("unknown", "corrupt-dependency-metadata") == (
        world.entry("pq")["reason"], world.entry("pq")["error"],
    )  # fmt: skip
    complete(world, "c")
    assert "failed" == world.state("p")
    assert "failed" == opened.again().state("p")
