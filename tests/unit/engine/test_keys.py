"""Dedup keys: the table of engine.md 3.3, cell by cell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import World, persistent_world
from tests.unit.test_legality import park

EXTENDED = "Duplicate unique_key (extended TTL)"
TTL_MS = 60_000
POLICIES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ttl": {"ttl": TTL_MS},
    "extend": {"ttl": TTL_MS, "extend": True},
    "replace": {"replace": True},
    "replace and extend": {"ttl": TTL_MS, "extend": True, "replace": True},
    "extend without ttl": {"extend": True},
}
REJECTING = ("none", "ttl", "extend without ttl")
REPLACING = ("replace", "replace and extend")


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


def owner_in(world: World, state: str, **fields: Any) -> str:
    """Push a job with the key ``k`` and bring it into a state; return its id."""
    own = {"prioritized": {"priority": 5}, "delayed": {"delay": 5_000}}.get(state, {})
    job_id = world.push(uniqueKey="k", **own, **fields)
    if state == "waiting-children":
        park(world, job_id)
    elif state == "active":
        world.pull()
    assert state == world.state(job_id)
    return job_id


def newcomer(world: World, policy: str) -> dict[str, Any]:
    return world.go("PUSH", queue="q", uniqueKey="k", dedup=POLICIES[policy])


QUEUED = ("waiting", "prioritized", "delayed")


@pytest.mark.parametrize("state", [*QUEUED, "waiting-children", "active"])
@pytest.mark.parametrize("policy", REJECTING)
def test_a_twin_is_answered_with_the_owners_id(world: World, state: str, policy: str) -> None:
    owner = owner_in(world, state)
    world.listen()

    assert {"ok": True, "id": owner} == newcomer(world, policy)
    assert {state: 1} == world.counts()
    assert [("duplicated", owner)] == [(it["eventType"], it["jobId"]) for it in world.events]


@pytest.mark.parametrize("state", QUEUED)
def test_extend_lengthens_the_life_of_a_queued_owners_key(world: World, state: str) -> None:
    owner = owner_in(world, state, dedup={"ttl": 1_000})
    world.clock.ms += 900

    assert {"ok": True, "id": owner} == newcomer(world, "extend")

    world.clock.ms += TTL_MS - 1
    assert owner == world.push(uniqueKey="k")
    world.clock.ms += 1
    assert owner != world.push(uniqueKey="k")


@pytest.mark.parametrize("state", ["waiting-children", "active"])
def test_extend_is_refused_for_a_running_or_parked_owner_but_extends(
    world: World, state: str
) -> None:
    owner = owner_in(world, state, dedup={"ttl": 1_000})
    world.clock.ms += 900

    assert {"ok": False, "error": EXTENDED} == newcomer(world, "extend")

    world.clock.ms += TTL_MS - 1
    assert owner == world.push(uniqueKey="k")
    world.clock.ms += 1
    assert owner != world.push(uniqueKey="k")


@pytest.mark.parametrize("state", [*QUEUED, "waiting-children"])
@pytest.mark.parametrize("policy", REPLACING)
def test_replace_puts_the_newcomer_in_the_owners_stead(
    world: World, state: str, policy: str
) -> None:
    owner = owner_in(world, state)

    new = newcomer(world, policy)["id"]

    assert owner != new
    assert {"waiting": 1} == world.counts()
    assert "unknown" == world.state(owner)
    assert new == world.push(uniqueKey="k")


@pytest.mark.parametrize("policy", REPLACING)
def test_replace_lets_a_running_owner_go_on_without_the_key(world: World, policy: str) -> None:
    owner = owner_in(world, "active")

    new = newcomer(world, policy)["id"]

    assert ["active", "waiting"] == [world.state(owner), world.state(new)]
    assert new == world.ok("GetDeduplicationJobId", queue="q", deduplicationId="k")["data"]["jobId"]
    world.ok("ACK", id=owner)
    assert new == world.push(uniqueKey="k")


@pytest.mark.parametrize("outcome", ["retry", "fail for good"])
def test_an_owner_that_lost_its_key_does_not_take_it_back(world: World, outcome: str) -> None:
    owner = owner_in(world, "active")
    new = newcomer(world, "replace")["id"]

    world.ok("FAIL", id=owner, unrecoverable=outcome != "retry")

    assert new == world.push(uniqueKey="k")


def test_an_owner_that_lost_its_key_does_not_take_it_back_at_a_restart() -> None:
    world = persistent_world()
    owner = owner_in(world, "active")
    new = newcomer(world, "replace")["id"]
    world.ok("FAIL", id=owner)

    again = world.restart()

    assert new == again.push(uniqueKey="k")


def test_the_newcomer_brings_its_own_ttl(world: World) -> None:
    owner_in(world, "waiting", dedup={"ttl": 1_000})
    new = world.push(uniqueKey="k", dedup={"replace": True, "ttl": TTL_MS})

    world.clock.ms += 2_000

    assert new == world.push(uniqueKey="k")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", [*QUEUED, "waiting-children", "active"])
def test_an_expired_key_is_free_although_its_owner_lives(
    world: World, state: str, policy: str
) -> None:
    owner = owner_in(world, state, dedup={"ttl": 1_000})
    world.clock.ms += 1_000

    new = newcomer(world, policy)["id"]

    assert owner != new
    assert state == world.state(owner)
    assert "waiting" == world.state(new)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("end", ["completed", "removed", "failed", "discarded", "cancelled"])
def test_the_key_of_a_job_that_has_ended_is_free(world: World, end: str, policy: str) -> None:
    owner = world.push(uniqueKey="k", removeOnComplete=end == "removed", dedup={"ttl": TTL_MS})
    if end in ("completed", "removed"):
        world.pull()
        world.ok("ACK", id=owner)
    elif end == "failed":
        world.pull()
        world.ok("FAIL", id=owner, unrecoverable=True)
    else:
        world.ok("Discard" if end == "discarded" else "Cancel", id=owner)

    assert owner != newcomer(world, policy)["id"]


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("Drain", {"queue": "q"}),
        ("Clean", {"queue": "q", "state": "waiting"}),
        ("Obliterate", {"queue": "q"}),
        ("RemoveDeduplicationKey", {"queue": "q", "deduplicationId": "k"}),
    ],
)
def test_a_command_that_ends_the_owner_or_the_key_frees_it(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    owner = world.push(uniqueKey="k")
    world.ok(command, **fields)

    assert owner != world.push(uniqueKey="k")


def test_an_expired_jobs_key_is_free(world: World) -> None:
    owner = world.push(uniqueKey="k", ttl=1_000)
    world.forward(1_001)

    assert owner != world.push(uniqueKey="k")


def test_keys_belong_to_their_queue(world: World) -> None:
    assert world.push("q", uniqueKey="k") != world.push("other", uniqueKey="k")


def test_dedup_without_a_key_does_nothing(world: World) -> None:
    world.push(dedup={"ttl": TTL_MS})
    world.push(dedup={"ttl": TTL_MS})

    assert {"waiting": 2} == world.counts()


def test_debounce_never_suppresses(world: World) -> None:
    first = world.push(debounceId="d", debounceTtl=TTL_MS)
    world.push(debounceId="d", debounceTtl=TTL_MS)

    assert {"waiting": 2} == world.counts()
    assert "d" == world.job(first)["debounceId"]


def test_a_custom_id_is_examined_before_the_key(world: World) -> None:
    world.push(jobId="a", data=1)
    owner = world.push(uniqueKey="k")

    assert "a" == world.push(jobId="a", uniqueKey="k")
    assert owner == world.push(jobId="b", uniqueKey="k")


def test_a_dead_letter_takes_its_key_back_when_it_is_retried(world: World) -> None:
    job_id = world.push(uniqueKey="k")
    world.ok("Discard", id=job_id)

    assert 1 == world.ok("RetryDlq", queue="q")["count"]

    assert job_id == world.push(uniqueKey="k")


def test_a_dead_letter_stays_while_another_live_job_owns_its_key(world: World) -> None:
    job_id = world.push(uniqueKey="k")
    world.ok("Discard", id=job_id)
    world.push(uniqueKey="k")

    assert 0 == world.ok("RetryDlq", queue="q")["count"]

    assert "failed" == world.state(job_id)


def test_a_completed_job_stays_while_another_live_job_owns_its_key(world: World) -> None:
    job_id = world.push(uniqueKey="k")
    world.pull()
    world.ok("ACK", id=job_id)
    world.push(uniqueKey="k")

    assert 0 == world.ok("RetryCompleted", queue="q", id=job_id)["count"]

    assert "completed" == world.state(job_id)


def test_a_key_keeps_its_absolute_expiry_over_a_restart() -> None:
    world = persistent_world()
    owner = world.push(uniqueKey="k", dedup={"ttl": TTL_MS})
    world.clock.ms += TTL_MS - 1

    again = world.restart()

    assert owner == again.push(uniqueKey="k")
    again.clock.ms += 1
    assert owner != again.push(uniqueKey="k")


def test_a_freed_key_stays_free_over_a_restart() -> None:
    world = persistent_world()
    owner = world.push(uniqueKey="k")
    assert world.ok("RemoveJobDeduplicationKey", id=owner)["data"]["removed"]

    assert owner != world.restart().push(uniqueKey="k")


def test_who_holds_a_key_can_be_asked(world: World) -> None:
    asked = {"queue": "q", "deduplicationId": "k"}
    assert {"jobId": None} == world.ok("GetDeduplicationJobId", **asked)["data"]
    owner = world.push(uniqueKey="k")

    assert {"jobId": owner} == world.ok("GetDeduplicationJobId", **asked)["data"]
    assert {"count": 1} == world.ok("RemoveDeduplicationKey", **asked)["data"]
    assert {"count": 0} == world.ok("RemoveDeduplicationKey", **asked)["data"]
    assert {"removed": False} == world.ok("RemoveJobDeduplicationKey", id=owner)["data"]
    assert {"jobId": None} == world.ok("GetDeduplicationJobId", **asked)["data"]


def test_a_batch_with_a_refused_key_is_refused_as_a_whole(world: World) -> None:
    owner_in(world, "active")

    jobs = [{}, {"uniqueKey": "k", "dedup": POLICIES["extend"]}]
    assert EXTENDED == world.error("PUSHB", queue="q", jobs=jobs)
    assert {"active": 1} == world.counts()


def test_a_batch_meets_its_own_keys(world: World) -> None:
    ids = world.ok("PUSHB", queue="q", jobs=[{"uniqueKey": "k"}, {"uniqueKey": "k"}, {}])["ids"]

    assert ids[0] == ids[1] != ids[2]
    assert {"waiting": 2} == world.counts()


def test_a_failed_durable_replace_gives_a_running_owner_its_key_back() -> None:
    world = persistent_world()
    owner = owner_in(world, "active", dedup={"ttl": TTL_MS})
    world.storage.fails = True

    fields = {"uniqueKey": "k", "dedup": {"replace": True}, "durable": True}
    assert "Internal server error" == world.error("PUSH", queue="q", **fields)

    world.storage.fails = False
    assert owner == world.push(uniqueKey="k")
    world.clock.ms += TTL_MS
    assert owner != world.push(uniqueKey="k")


def test_a_dead_letter_that_lost_its_key_stays_while_the_taker_lives(world: World) -> None:
    owner = owner_in(world, "active")
    new = newcomer(world, "replace")["id"]
    world.ok("FAIL", id=owner, unrecoverable=True)

    assert 0 == world.ok("RetryDlq", queue="q")["count"]

    world.ok("Cancel", id=new)
    assert 1 == world.ok("RetryDlq", queue="q")["count"]


# -- found by tests/simulation --------------------------------------------------------------------

REPLACE = {"uniqueKey": "k", "dedup": {"replace": True}}
LINK = {"parentId": "a", "data": {"__parentId": "a", "__parentQueue": "q"}}


@pytest.mark.parametrize("command", ["PUSH", "PUSHB"])
@pytest.mark.parametrize(
    ("needed", "text"),
    [
        (LINK, "Parent job not found: a"),
        ({"dependsOn": ["a"]}, "Dependency job not found: a"),
    ],
)
def test_a_push_cannot_replace_the_job_that_it_needs(
    world: World, command: str, needed: dict[str, Any], text: str
) -> None:
    world.push(jobId="a", uniqueKey="k")
    fields = {**REPLACE, **needed}

    error = world.error(command, queue="q", **(fields if command == "PUSH" else {"jobs": [fields]}))

    assert text == error
    assert "waiting" == world.state("a")
    assert "a" == world.push(uniqueKey="k")
