"""PUSH to FAIL as requests: bounds, texts, and what an answer holds or leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.protocol.codec import UNDEFINED
from tests.support.engine import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("command", ["PULL", "PULLB"])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"timeout": "1"}, "timeout must be a number"),
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"timeout": 60_001}, "timeout must be at most 60000"),
        ({"group": "g"}, "group must be an object"),
        ({"lockTtl": "x"}, "lockTtl must be a number"),
    ],
)
def test_a_bad_pull_is_refused(
    world: World, command: str, fields: dict[str, Any], text: str
) -> None:
    assert text == world.error(command, queue="q", **fields)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "count must be at least 1"),
        (1_001, "count must be at most 1000"),
        ("5", "count must be a number"),
        (1.5, "count must be an integer"),
    ],
)
def test_a_bad_count_is_refused(world: World, count: object, text: str) -> None:
    assert text == world.error("PULLB", queue="q", count=count)


def test_a_count_may_be_1000(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 1_001)

    assert 1_000 == len(world.ok("PULLB", queue="q", count=1_000)["jobs"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "jobs is required"),
        ({"jobs": "x"}, "jobs must be a list"),
        ({"jobs": [5]}, "jobs[0]: job must be an object"),
        ({"jobs": [{}, {"maxAttempts": 0}]}, "jobs[1]: maxAttempts must be at least 1"),
        ({"jobs": [{"backoff": "x"}]}, "jobs[0]: backoff must be a number"),
    ],
)
def test_a_bad_batch_is_refused_by_position(
    world: World, fields: dict[str, Any], text: str
) -> None:
    assert text == world.error("PUSHB", queue="q", **fields)
    assert {} == world.counts()


def test_undefined_elements_of_results_store_no_result(world: World) -> None:
    from bunqueue.commands import dispatch

    for name in "abc":
        world.push(jobId=name)
    world.ok("PULLB", queue="q", count=3)
    request = {"cmd": "ACKB", "ids": ["a", "b", "c"], "results": [UNDEFINED, None, 1]}
    dispatch(world.peer, request)

    assert [{"id": "a"}, {"id": "b", "result": None}, {"id": "c", "result": 1}] == [
        world.ok("GetResult", id=name) for name in "abc"
    ]


def test_a_success_of_an_outcome_has_no_data_at_all(world: World) -> None:
    for name in "abc":
        world.push(jobId=name)
    world.ok("PULLB", queue="q", count=3)

    assert {"ok": True} == world.go("ACK", id="a")
    assert {"ok": True} == world.go("ACKB", ids=["b"])
    assert {"ok": True} == world.go("FAIL", id="c")


@pytest.mark.parametrize("ids", [[5], [None], ["a", b"b"]])
@pytest.mark.parametrize("command", ["ACKB", "JobHeartbeatB"])
def test_ids_must_be_strings(world: World, command: str, ids: list[object]) -> None:
    text = "ids must be an array of valid string job ids"
    assert text == world.error(command, ids=ids)


@pytest.mark.parametrize("data", ["\ud800"])
def test_a_lone_surrogate_cannot_be_kept(world: World, data: str) -> None:
    from bunqueue.commands import dispatch

    reply = dispatch(world.peer, {"cmd": "PUSH", "queue": "q", "data": data})

    assert {"ok": False, "error": "Job data must be JSON serializable"} == reply


def test_a_long_error_text_is_cut(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.ok("FAIL", id=job_id, error="x" * 100_000)

    assert 32_768 == len(world.job(job_id)["failedReason"])
