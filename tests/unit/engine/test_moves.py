"""What single moves do to a job's place in line, its lease and its record."""

from __future__ import annotations

import pytest

from tests.support.engine import World, persistent_world

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def two(world: World) -> tuple[str, str]:
    first = world.push()
    second = world.push()
    world.forward(5)
    return first, second


def test_a_retry_goes_behind_its_peers(world: World) -> None:
    first = world.push(backoff=0)
    second = world.push()
    world.forward(5)
    world.pull()
    world.ok("FAIL", id=first)

    assert [second, first] == world.pull_all()


@pytest.mark.parametrize("command", ["MoveToWait", "ChangeDelay"])
def test_a_job_sent_back_goes_behind_its_peers(world: World, command: str) -> None:
    first, second = two(world)
    world.pull()
    world.ok(command, id=first, delay=0)

    assert "waiting" == world.state(first)
    assert [second, first] == world.pull_all()


def test_a_promoted_job_counts_from_its_promotion(world: World) -> None:
    late = world.push(delay=MINUTE)
    first, second = two(world)
    world.ok("Promote", id=late)

    assert world.now == world.job(late)["runAt"]
    assert [first, second, late] == world.pull_all()


def test_move_to_wait_leaves_a_waiting_job_in_its_place(world: World) -> None:
    first, second = two(world)
    world.ok("MoveToWait", id=first)

    assert [first, second] == world.pull_all()


def test_a_new_priority_counts_at_once_and_admission_breaks_ties(world: World) -> None:
    first, second = two(world)
    third = world.push(priority=5)
    world.ok("ChangePriority", id=second, priority=5)
    world.ok("ChangePriority", id=first, priority=9)

    assert 9 == world.job(first)["priority"]
    assert [first, second, third] == world.pull_all()


def test_change_priority_may_turn_a_job_to_the_front(world: World) -> None:
    first, second = two(world)
    world.ok("ChangePriority", id=second, priority=0, lifo=True)

    assert [True, False] == [world.job(job_id)["lifo"] for job_id in (second, first)]
    assert [second, first] == world.pull_all()


def test_change_priority_keeps_lifo_when_it_is_not_named(world: World) -> None:
    job_id = world.push(lifo=True)
    world.ok("ChangePriority", id=job_id, priority=1)

    assert world.job(job_id)["lifo"]


def test_a_delayed_job_keeps_its_delay_with_a_new_priority(world: World) -> None:
    job_id = world.push(delay=1_000)
    world.ok("ChangePriority", id=job_id, priority=3)

    assert "delayed" == world.state(job_id)
    world.forward(1_000)
    assert "prioritized" == world.state(job_id)
    assert {"prioritized": 1} == world.counts()


@pytest.mark.parametrize("command", ["ChangeDelay", "MoveToDelayed"])
@pytest.mark.parametrize("was", ["waiting", "delayed", "active"])
def test_a_new_delay_counts_from_now(world: World, command: str, was: str) -> None:
    job_id = world.push(delay=500 if was == "delayed" else 0)
    if was == "active":
        world.pull()
    world.forward(100)
    world.ok(command, id=job_id, delay=1_000)

    assert world.now + 1_000 == world.job(job_id)["runAt"]
    world.forward(999)
    assert "delayed" == world.state(job_id)
    world.forward(1)
    assert "waiting" == world.state(job_id)


def test_a_move_ends_the_lease(world: World) -> None:
    job_id = world.push()
    _, token = world.lease()
    world.ok("MoveToDelayed", id=job_id, token=token, delay=0)
    _, new = world.lease()

    text = f"Invalid or expired lock token for job {job_id}"
    assert text == world.error("ACK", id=job_id, token=token)
    world.ok("ACK", id=job_id, token=new)


@pytest.mark.parametrize("delay", [0, 5_000])
def test_a_move_leaves_the_lines_of_the_timeline_as_they_were(world: World, delay: int) -> None:
    job_id = world.push()
    world.clock.ms += 1
    world.pull()
    world.clock.ms += 1
    world.ok("ChangeDelay", id=job_id, delay=delay)

    assert [("waiting", 2), ("active", 1)] == [
        (line["state"], world.now - line["timestamp"]) for line in world.job(job_id)["timeline"]
    ]


def test_promote_jobs_takes_the_oldest_first(world: World) -> None:
    young = world.push(delay=MINUTE, timestamp=world.now - 1)
    old = world.push(delay=MINUTE, timestamp=world.now - 5)
    middle = world.push(delay=MINUTE, timestamp=world.now - 3)

    assert {"count": 2} == world.ok("PromoteJobs", queue="q", count=2)

    assert {"waiting": 2, "delayed": 1} == world.counts()
    assert "delayed" == world.state(young)
    assert [old, middle] == [*world.pull_all()]


@pytest.mark.parametrize(
    ("fields", "moved"), [({"count": 0}, 0), ({"count": -1}, 0), ({}, 2), ({"count": 9}, 2)]
)
def test_promote_jobs_counts(world: World, fields: dict[str, int], moved: int) -> None:
    world.push(delay=MINUTE)
    world.push(delay=MINUTE)
    world.push()

    assert {"count": moved} == world.ok("PromoteJobs", queue="q", **fields)


def test_promote_jobs_of_no_queue_is_0(world: World) -> None:
    assert {"count": 0} == world.ok("PromoteJobs", queue="nowhere")


def test_update_replaces_the_payload(world: World) -> None:
    job_id = world.push(data={"old": 1}, name="n")
    world.ok("Update", id=job_id, data={"name": "kept in the data", "new": [1]})

    view = world.job(job_id)
    assert {"name": "kept in the data", "new": [1]} == view["data"]
    assert "n" == view["name"]


@pytest.mark.parametrize(("given", "kept"), [(-5, 0), (0, 0), (42.5, 42.5), (100, 100), (900, 100)])
def test_progress_is_clamped_and_keeps_fractions(world: World, given: float, kept: float) -> None:
    job_id = world.push()
    world.pull()
    world.ok("Progress", id=job_id, progress=given, message="m")
    world.ok("Progress", id=job_id, progress=given)

    assert {"progress": kept, "message": "m"} == world.ok("GetProgress", id=job_id)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "5", None, True])
def test_progress_must_be_a_number(world: World, value: object) -> None:
    job_id = world.push()
    world.pull()

    assert world.error("Progress", id=job_id, progress=value).startswith("progress ")


def test_cancel_removes_and_tells(world: World) -> None:
    job_id = world.push()
    world.listen()
    world.ok("Cancel", id=job_id)

    assert "unknown" == world.state(job_id)
    assert [("removed", "waiting")] == [(it["eventType"], it["prev"]) for it in world.events]


@pytest.mark.parametrize(
    ("command", "fields", "names"),
    [
        ("MoveToWait", {}, {"active": 0}),
        ("Cancel", {}, {}),
    ],
)
def test_moves_wait_for_their_commit(
    command: str, fields: dict[str, int], names: dict[str, int]
) -> None:
    world = persistent_world()
    job_id = world.push(delay=MINUTE)
    answer = world.send(command, id=job_id, **fields)

    assert not answer.is_there
    world.settle()
    assert answer.reply["ok"]
    assert names.get("active", 0) == world.engine.active_count()


EVENTS = [
    ("MoveToWait", {}, ("waiting", {"prev": "active"})),
    ("MoveToDelayed", {"delay": 5}, ("delayed", {"delay": 5})),
    ("ChangeDelay", {"delay": 5}, ("delayed", {"delay": 5})),
    (
        "Progress",
        {"progress": 5, "message": "m"},
        ("progress", {"progress": 5, "data": {"progress": 5, "message": "m"}}),
    ),
]


@pytest.mark.parametrize(("command", "fields", "event"), EVENTS)
def test_a_move_of_an_active_job_is_an_event(
    world: World, command: str, fields: dict[str, object], event: tuple[str, dict[str, object]]
) -> None:
    job_id = world.push()
    world.pull()
    world.listen()
    world.ok(command, id=job_id, **fields)

    kind, extra = event
    common = {"eventType": kind, "queue": "q", "jobId": job_id, "timestamp": world.now}
    assert [{**common, **extra}] == world.events
