"""Which command is legal on a job in which state: the matrix of engine.md 1.3, cell by cell.

A cell is either the refusal, word for word, or the state the job is in afterwards. A refused
command must not change anything that anybody can see (invariant I11).
"""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.dependencies import tie
from bunqueue.engine.places import put_in, take_out
from bunqueue.engine.states import PARKED
from tests.support.engine import World, persistent_world

STATES = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
    "unknown",
)
ID = "the-job"
DELAY_MS = 5_000

E1 = f"Job not found or not in processing state: {ID}"
E3 = "Job not found or cannot be cancelled"
E4 = "Job not found or not delayed"
E5 = "Job not found or not in queue"
E6 = "Job not found or cannot change delay"
E8 = "Job is not active"
E9 = "Job not found"
E10 = "Job not found or cannot be updated"
E11 = "Lock not found or invalid token"
E12 = "Job not found or not active (or invalid token)"


def e2(state: str) -> str:
    return f"Job is not active (current state: {state})"


def e7(state: str) -> str:
    return f"Cannot move job from state '{state}' to waiting"


WAITING, PRIORITIZED, DELAYED = "= waiting", "= prioritized", "= delayed"
PARENT, ACTIVE, COMPLETED = "= waiting-children", "= active", "= completed"
FAILED, GONE = "= failed", "= unknown"
SAME = (WAITING, PRIORITIZED, DELAYED, PARENT, ACTIVE, COMPLETED, FAILED)

# command -> its fields besides the id and the token, and one cell per state.
MATRIX: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ACK": ({}, (E1, E1, E1, E1, COMPLETED, E1, E1, E1)),
    "FAIL": ({}, (E1, E1, E1, E1, DELAYED, E1, E1, E1)),
    "Progress": (
        {"progress": 7},
        (
            e2("waiting"),
            e2("prioritized"),
            e2("delayed"),
            e2("waiting-children"),
            ACTIVE,
            e2("completed"),
            e2("failed"),
            "Job not found",
        ),
    ),
    "GetProgress": (
        {},
        (
            e2("waiting"),
            e2("prioritized"),
            e2("delayed"),
            e2("waiting-children"),
            ACTIVE,
            e2("completed"),
            e2("failed"),
            "Job not found",
        ),
    ),
    "Cancel": ({}, (GONE, GONE, GONE, GONE, E3, E3, E3, E3)),
    "Promote": ({}, (E4, E4, WAITING, E4, E4, E4, E4, E4)),
    "ChangePriority": (
        {"priority": 3},
        (PRIORITIZED, PRIORITIZED, DELAYED, E5, E5, E5, E5, E5),
    ),
    "MoveToDelayed": (
        {"delay": DELAY_MS},
        (
            DELAYED,
            DELAYED,
            DELAYED,
            e2("waiting-children"),
            DELAYED,
            e2("completed"),
            e2("failed"),
            "Job not found",
        ),
    ),
    "ChangeDelay": (
        {"delay": DELAY_MS},
        (DELAYED, DELAYED, DELAYED, E6, DELAYED, E6, E6, E6),
    ),
    "MoveToWait": (
        {},
        (
            WAITING,
            PRIORITIZED,
            WAITING,
            e7("waiting-children"),
            WAITING,
            e7("completed"),
            WAITING,
            e7("unknown"),
        ),
    ),
    "MoveToWaitingChildren": ({}, (E8, E8, E8, E8, WAITING, E8, E8, E8)),
    "Discard": ({}, (FAILED, FAILED, FAILED, E9, FAILED, E9, E9, E9)),
    "Update": (
        {"data": {"new": 1}},
        (WAITING, PRIORITIZED, DELAYED, PARENT, ACTIVE, E10, E10, E10),
    ),
    "ExtendLock": ({}, (E11, E11, E11, E11, ACTIVE, E11, E11, E11)),
    "JobHeartbeat": ({}, (E12, E12, E12, E12, ACTIVE, E12, E12, E12)),
    "AddLog": ({"message": "hello"}, (*SAME, "Job not found")),
    "WaitJob": ({"timeout": 0}, (*SAME, "Job not found")),
}
CELLS = [
    pytest.param(command, fields, state, cell, id=f"{command}-{state}")
    for command, (fields, cells) in MATRIX.items()
    for state, cell in zip(STATES, cells, strict=True)
]


def job_in(world: World, state: str) -> dict[str, Any]:
    """Bring a job with the id ``ID`` into a state; return the fields that prove its lease."""
    fields = {"prioritized": {"priority": 5}, "delayed": {"delay": 60_000}}.get(state, {})
    if state == "unknown":
        return {}
    world.push(jobId=ID, data={"old": 1}, uniqueKey="key", **fields)
    if state == "waiting-children":
        park(world, ID)
    if state not in ("active", "completed", "failed"):
        return {}
    _, token = world.lease()
    if state == "completed":
        world.ok("ACK", id=ID, token=token, result="done")
        return {}
    if state == "failed":
        world.ok("FAIL", id=ID, token=token, error="no", unrecoverable=True)
        return {}
    return {"token": token}


def park(world: World, job_id: str) -> None:
    """Put a queued job among those that wait for others: for one that never comes."""
    job = world.engine.find(job_id)
    assert job is not None
    take_out(world.engine, job)
    job.place = PARKED
    job.own_extra().depends_on = {"never": None}
    tie(world.engine, job)
    put_in(world.engine, job, world.now)
    world.storage.rewritten(job)
    world.storage.changed(job)
    world.settle()


def everything_visible(world: World) -> list[Any]:
    """Ask everything that could tell a change."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("GetJob", {"id": ID}),
        ("GetState", {"id": ID}),
        ("GetResult", {"id": ID}),
        ("GetLogs", {"id": ID}),
        ("GetProgress", {"id": ID}),
        ("GetJobByCustomId", {"customId": ID}),
        ("GetJobCounts", {"queue": "q"}),
        ("GetCountsPerPriority", {"queue": "q"}),
        ("Count", {"queue": "q"}),
        ("GetJobs", {"queue": "q"}),
        ("Dlq", {"queue": "q"}),
        ("GetDlqStats", {"queue": "q"}),
        ("GetDeduplicationJobId", {"queue": "q", "deduplicationId": "key"}),
        ("ListQueues", {}),
        ("Stats", {}),
    ]
    return [world.go(command, **fields) for command, fields in asked]


@pytest.mark.parametrize(("command", "fields", "state", "cell"), CELLS)
def test_a_command_is_legal_exactly_where_the_matrix_says(
    command: str, fields: dict[str, Any], state: str, cell: str
) -> None:
    world = persistent_world()
    proof = job_in(world, state)
    before = everything_visible(world)
    rows_before = dict(world.storage.rows)

    reply = world.go(command, id=ID, **proof, **fields)

    if cell.startswith("= "):
        assert reply["ok"] is True, reply
        assert cell[2:] == world.state(ID)
    else:
        assert {"ok": False, "error": cell} == reply
        assert before == everything_visible(world)
        assert rows_before == world.storage.rows


@pytest.mark.parametrize("state", STATES)
def test_retry_completed_counts_only_a_completed_job(state: str) -> None:
    world = persistent_world()
    job_in(world, state)

    assert int(state == "completed") == world.ok("RetryCompleted", queue="q", id=ID)["count"]
    assert ("waiting" if state == "completed" else state) == world.state(ID)


@pytest.mark.parametrize("state", STATES[:5])
def test_wait_job_waits_while_the_job_has_not_ended(state: str) -> None:
    world = persistent_world()
    job_in(world, state)

    answer = world.send("WaitJob", id=ID, timeout=1_000)

    assert not answer.is_there
    world.forward(1_000)
    assert {"ok": True, "completed": False} == answer.reply


def test_wait_job_answers_a_completed_job_at_once() -> None:
    world = persistent_world()
    job_in(world, "completed")

    assert {"completed": True, "result": "done"} == world.ok("WaitJob", id=ID, timeout=1_000)


LEASED = ("ACK", "FAIL", "MoveToDelayed", "ChangeDelay", "MoveToWait", "Discard")


@pytest.mark.parametrize("command", LEASED)
@pytest.mark.parametrize(
    ("token", "text"),
    [
        (None, f"Lock token required for job {ID}"),
        ("", f"Lock token required for job {ID}"),
        ("other", f"Invalid or expired lock token for job {ID}"),
    ],
)
def test_a_leased_job_is_safe_from_a_missing_or_wrong_token(
    command: str, token: str | None, text: str
) -> None:
    world = persistent_world()
    proof = job_in(world, "active")
    before = everything_visible(world)
    fields = MATRIX[command][0]

    assert text == world.error(command, id=ID, token=token, **fields)
    assert before == everything_visible(world)
    world.ok("ACK", id=ID, **proof)


@pytest.mark.parametrize("command", LEASED)
@pytest.mark.parametrize("token", [None, "anything"])
def test_a_job_without_a_lease_is_anyones(command: str, token: str | None) -> None:
    world = persistent_world()
    world.push(jobId=ID)
    world.pull()

    world.ok(command, id=ID, token=token, **MATRIX[command][0])


@pytest.mark.parametrize("command", ["ExtendLock", "JobHeartbeat"])
def test_a_wrong_token_renews_nothing(command: str) -> None:
    world = persistent_world()
    job_in(world, "active")
    before = everything_visible(world)

    assert MATRIX[command][1][0] == world.error(command, id=ID, token="other")
    assert before == everything_visible(world)


def test_the_matrix_covers_every_cell_of_the_commands_there_are() -> None:
    assert 17 * 8 == len(CELLS)
