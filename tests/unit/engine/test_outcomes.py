"""How runs end: results, retries, and who charges what (engine.md 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bunqueue.engine.job import OLD_ERROR_CHARS_MAX
from bunqueue.engine.outcomes import ERROR_CHARS_MAX, STACK_CHARS_MAX
from tests.support.engine import World, persistent_world

BACKOFF = {"type": "fixed", "delay": 10_000}  # a retry waits 8..12 s


@pytest.fixture
def world() -> World:
    return World()


# -- success -------------------------------------------------------------------------------------


def test_a_completed_job_shows_its_result_and_when(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.clock.ms += 700
    assert {} == world.ok("ACK", id=job_id, result={"a": [1, None]})

    view = world.job(job_id)
    assert ("completed", {"a": [1, None]}, world.now) == (
        view["state"],
        view["returnvalue"],
        view["completedAt"],
    )
    assert ["waiting", "active", "completed"] == [entry["state"] for entry in view["timeline"]]


def test_no_result_and_a_null_result_are_different(world: World) -> None:
    without, null = world.push(), world.push()
    world.ok("PULLB", queue="q", count=2)
    world.ok("ACK", id=without)
    world.ok("ACK", id=null, result=None)

    assert {"id": without} == world.ok("GetResult", id=without)
    assert {"id": null, "result": None} == world.ok("GetResult", id=null)
    assert "returnvalue" not in world.job(without)
    assert world.job(null)["returnvalue"] is None


@pytest.mark.parametrize("truthy", [True, 1, 10, {"age": 5}, "yes"])
@pytest.mark.parametrize("where", ["push", "ack"])
def test_a_job_removed_on_completion_is_unknown(world: World, truthy: object, where: str) -> None:
    job_id = world.push(**({"removeOnComplete": truthy} if where == "push" else {}))
    world.pull()
    world.ok("ACK", id=job_id, **({"removeOnComplete": truthy} if where == "ack" else {}))

    assert "unknown" == world.state(job_id)
    assert {} == world.counts()


def test_an_ack_cannot_take_back_the_jobs_own_removal(world: World) -> None:
    job_id = world.push(removeOnComplete=True)
    world.pull()
    world.ok("ACK", id=job_id, removeOnComplete=False)

    assert "unknown" == world.state(job_id)


# -- failure -------------------------------------------------------------------------------------


def test_attempts_count_executions(world: World) -> None:
    job_id = world.push(maxAttempts=3, backoff=0)
    for expected in (1, 2, 3):
        assert job_id == world.pull()
        world.ok("FAIL", id=job_id)
        assert expected == world.job(job_id)["attempts"]

    assert world.pull() is None
    assert "failed" == world.state(job_id)


def test_three_attempts_are_the_default(world: World) -> None:
    assert 3 == world.job(world.push())["maxAttempts"]


def test_an_unrecoverable_failure_is_the_last(world: World) -> None:
    job_id = world.push(maxAttempts=9)
    world.pull()
    world.ok("FAIL", id=job_id, error="no use", unrecoverable=True)

    assert ("failed", 1) == (world.state(job_id), world.job(job_id)["attempts"])
    assert ("max_attempts_exceeded", "no use") == (
        world.entry()["reason"],
        world.entry()["error"],
    )


@pytest.mark.parametrize("where", ["push", "fail"])
def test_a_job_removed_on_failure_leaves_no_dead_letter(world: World, where: str) -> None:
    flag = {"removeOnFail": True}
    job_id = world.push(maxAttempts=1, **(flag if where == "push" else {}))
    world.pull()
    world.ok("FAIL", id=job_id, **(flag if where == "fail" else {}))

    assert "unknown" == world.state(job_id)
    assert {} == world.counts()


def test_removal_on_failure_waits_for_the_last_attempt(world: World) -> None:
    job_id = world.push(maxAttempts=2)
    world.pull()
    world.ok("FAIL", id=job_id, removeOnFail=True)

    assert "delayed" == world.state(job_id)


def test_the_stack_is_trimmed_blank_lines_dropped_and_cut(world: World) -> None:
    job_id = world.push(stackTraceLimit=3)
    world.pull()
    world.ok("FAIL", id=job_id, stack=["  a ", "", "  ", "b", "c", "d"])

    assert ["a", "b", "c"] == world.job(job_id)["stacktrace"]


def test_a_failure_without_a_stack_keeps_the_old_one(world: World) -> None:
    job_id = world.push(backoff=0)
    world.pull()
    world.ok("FAIL", id=job_id, stack=["a"])
    world.pull()
    world.ok("FAIL", id=job_id)

    assert ["a"] == world.job(job_id)["stacktrace"]


@pytest.mark.parametrize("stack", [[], ["", "  "]])
def test_a_stack_without_lines_is_none(world: World, stack: list[str]) -> None:
    job_id = world.push(backoff=0)
    world.pull()
    world.ok("FAIL", id=job_id, stack=stack)
    assert None is world.job(job_id)["stacktrace"]

    world.pull()
    world.ok("FAIL", id=job_id, stack=["a"])
    world.pull()
    world.ok("FAIL", id=job_id, stack=stack)
    assert ["a"] == world.job(job_id)["stacktrace"]


def test_a_limit_of_no_lines_keeps_no_stack(world: World) -> None:
    job_id = world.push(stackTraceLimit=0)
    world.pull()
    world.ok("FAIL", id=job_id, stack=["a"])

    assert None is world.job(job_id)["stacktrace"]


def test_an_empty_text_is_no_reason_to_have_failed(world: World) -> None:
    job_id = world.push(backoff=0, maxAttempts=5)
    world.pull()
    world.ok("FAIL", id=job_id, error="")
    assert "failedReason" not in world.job(job_id)

    for error in ("broke", ""):
        world.pull()
        world.ok("FAIL", id=job_id, error=error)
    assert "broke" == world.job(job_id)["failedReason"]


def test_a_stack_keeps_ten_lines_of_the_first_hundred_by_default(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.ok("FAIL", id=job_id, stack=[""] * 95 + [str(number) for number in range(20)])

    assert ["0", "1", "2", "3", "4"] == world.job(job_id)["stacktrace"]


# -- the table of charges ------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """One row of engine.md 4.2: how a run ends badly, and what that costs."""

    end: Callable[[World, str], None]
    stalls: int
    waits_backoff: bool
    reason: str
    error: str
    at_stall_bound: str | None = None
    events: tuple[str, ...] = ("failed", "retried")
    last_events: tuple[str, ...] = ("failed",)


def token_of(world: World, job_id: str) -> str:
    token: str = world.engine.find(job_id).token
    return token


def fail(world: World, job_id: str) -> None:
    world.ok("FAIL", id=job_id, token=token_of(world, job_id), error="broken")


def run_out(world: World, _job_id: str) -> None:
    world.forward(5_000)


def stall(world: World, _job_id: str) -> None:
    world.forward(45_000)


def lease_over(world: World, job_id: str) -> None:
    world.ok("JobHeartbeat", id=job_id, token=token_of(world, job_id), duration=1_000)
    world.forward(2_500)


PATHS = {
    "FAIL": Path(fail, 0, True, "max_attempts_exceeded", "broken"),
    "timeout": Path(run_out, 0, True, "timeout", "Job timeout exceeded"),
    "stall": Path(
        stall,
        1,
        True,
        "max_attempts_exceeded",
        "Job stalled at max attempts (N)",
        "Job stalled K times",
        ("stalled",),
        ("stalled", "failed"),
    ),
    "lease": Path(
        lease_over,
        1,
        False,
        "max_attempts_exceeded",
        "Lock expired at max attempts (N)",
        "Lock expired after 1 renewals",
        ("stalled",),
        ("stalled", "failed"),
    ),
}


def start(world: World, path: str, **fields: Any) -> str:
    timeout = 5_000 if path == "timeout" else 0
    job_id = world.push(backoff=BACKOFF, timeout=timeout, **fields)
    world.lease(lockTtl=600_000)
    return job_id


@pytest.mark.parametrize("path", PATHS)
def test_a_bad_end_charges_one_attempt(world: World, path: str) -> None:
    job_id = start(world, path)
    run_at = world.job(job_id)["runAt"]
    world.listen()

    PATHS[path].end(world, job_id)

    view = world.job(job_id)
    assert (1, PATHS[path].stalls) == (view["attempts"], view["stallCount"])
    if PATHS[path].waits_backoff:
        failed_at = view["timeline"][-1]["timestamp"]
        assert failed_at + 8_000 <= view["runAt"] <= failed_at + 12_000
    else:
        assert run_at == view["runAt"]
    assert view["startedAt"] is None
    assert PATHS[path].events == tuple(event["eventType"] for event in world.events)
    assert all(event.get("terminal", False) is False for event in world.events)


@pytest.mark.parametrize("path", PATHS)
def test_the_last_attempt_ends_among_the_dead_letters(world: World, path: str) -> None:
    job_id = start(world, path, maxAttempts=1)
    world.listen()

    PATHS[path].end(world, job_id)

    entry = world.entry()
    assert PATHS[path].reason == entry["reason"]
    assert PATHS[path].error.replace("N", "1") == entry["error"]
    assert PATHS[path].error.replace("N", "1") == world.job(job_id)["failedReason"]
    assert PATHS[path].last_events == tuple(event["eventType"] for event in world.events)
    assert world.events[-1]["terminal"] is True


@pytest.mark.parametrize("path", ["stall", "lease"])
def test_the_stall_bound_ends_a_job_with_attempts_left(world: World, path: str) -> None:
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 2})
    job_id = start(world, path, maxAttempts=10)
    PATHS[path].end(world, job_id)
    world.forward(15_000)
    world.lease(lockTtl=600_000)

    PATHS[path].end(world, job_id)

    assert "stalled" == world.entry()["reason"]
    assert (PATHS[path].at_stall_bound or "").replace("K", "2") == world.entry()["error"]
    assert 2 == world.job(job_id)["stallCount"]


@pytest.mark.parametrize("path", ["stall", "lease"])
def test_attempts_are_tested_before_stalls(world: World, path: str) -> None:
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 1})
    job_id = start(world, path, maxAttempts=1)

    PATHS[path].end(world, job_id)

    assert "max_attempts_exceeded" == world.entry()["reason"]


@pytest.mark.parametrize("path", ["stall", "lease"])
def test_a_stall_bound_of_0_is_none(world: World, path: str) -> None:
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 0})
    job_id = start(world, path, maxAttempts=10)

    PATHS[path].end(world, job_id)

    assert world.state(job_id) in ("waiting", "delayed")


@pytest.mark.parametrize("path", PATHS)
def test_only_a_failure_is_removed_never_a_stall(world: World, path: str) -> None:
    job_id = start(world, path, maxAttempts=1, removeOnFail=True)

    PATHS[path].end(world, job_id)

    assert ("failed" if PATHS[path].stalls else "unknown") == world.state(job_id)


@pytest.mark.parametrize("bound", ["attempts", "stalls"])
def test_a_restart_charges_an_interrupted_run_and_may_end_it(bound: str) -> None:
    world = persistent_world()
    job_id = world.push(maxAttempts=2 if bound == "attempts" else 9, backoff=0)
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 2})
    for _ in range(2):
        world.lease()
        world = world.restart()

    entry = world.entry()
    assert 2 == world.job(job_id)["attempts"]
    expected = {
        "attempts": (
            "max_attempts_exceeded",
            "Job reached max attempts (2) during startup recovery",
        ),
        "stalls": ("stalled", "Job stalled 2 times (recovered at startup)"),
    }
    assert expected[bound] == (entry["reason"], entry["error"])


def test_a_restart_waits_the_backoff() -> None:
    world = persistent_world()
    job_id = world.push(backoff=BACKOFF)
    world.lease()

    view = world.restart().job(job_id)

    assert (1, 1, "delayed") == (view["attempts"], view["stallCount"], view["state"])
    assert world.now + 8_000 <= view["runAt"] <= world.now + 12_000


def test_a_late_ack_after_a_restart_saves_the_second_run() -> None:
    world = persistent_world()
    job_id = world.push()
    _, token = world.lease()

    again = world.restart()

    text = f"Job not found or not in processing state: {job_id}"
    assert text == again.error("ACK", id=job_id, token="made-up")
    again.ok("ACK", id=job_id, token=token)
    assert "completed" == again.state(job_id)


@pytest.mark.parametrize("state", ["waiting", "active"])
def test_discard_is_not_charged(world: World, state: str) -> None:
    job_id = world.push()
    if state == "active":
        world.pull()
    world.ok("Discard", id=job_id)

    entry = world.entry()
    assert ("unknown", None, 0) == (
        entry["reason"],
        entry["error"],
        entry["job"]["attempts"],
    )


@pytest.mark.parametrize("command", ["MoveToWait", "MoveToDelayed", "ChangeDelay"])
def test_a_move_is_not_charged(world: World, command: str) -> None:
    job_id = world.push()
    world.pull()
    world.ok(command, id=job_id, **({} if command == "MoveToWait" else {"delay": 500}))

    view = world.job(job_id)
    assert (0, 0, None) == (view["attempts"], view["stallCount"], view["startedAt"])


def test_the_history_names_every_charge(world: World) -> None:
    job_id = world.push(maxAttempts=3, backoff=0, timeout=5_000)
    started = []
    for end in (fail, lease_over, run_out):
        started.append(world.now)
        world.lease(lockTtl=600_000)
        end(world, job_id)

    attempts = world.entry()["attempts"]
    assert [1, 2, 3] == [attempt["attempt"] for attempt in attempts]
    assert started == [attempt["startedAt"] for attempt in attempts]
    assert ["broken", "Lock expired", "Job timeout exceeded"] == [it["error"] for it in attempts]
    assert ["explicit_fail", "stalled", "timeout"] == [it["reason"] for it in attempts]
    assert [0, 1_000, 5_000] == [it["duration"] for it in attempts]


def test_a_run_out_fires_at_its_deadline_and_charges_once(world: World) -> None:
    job_id = world.push(timeout=1_234, backoff=60_000)
    world.lease()

    world.forward(1_233)
    assert "active" == world.state(job_id)
    world.forward(1)
    assert "delayed" == world.state(job_id)
    world.forward(50_000)
    assert 1 == world.job(job_id)["attempts"]


def test_a_settled_run_does_not_time_out(world: World) -> None:
    job_id = world.push(timeout=1_000)
    world.pull()
    world.ok("ACK", id=job_id)

    world.forward(2_000)

    assert "completed" == world.state(job_id)


# -- waiting for the end -------------------------------------------------------------------------


def test_wait_job_ends_with_the_result_that_the_ack_carried(world: World) -> None:
    job_id = world.push(removeOnComplete=True)
    world.pull()
    answer = world.send("WaitJob", id=job_id)

    world.ok("ACK", id=job_id, result=7)

    assert {"ok": True, "completed": True, "result": 7} == answer.reply


@pytest.mark.parametrize("end", ["FAIL", "Discard", "Cancel", "Obliterate", "Drain"])
def test_wait_job_ends_when_the_job_cannot_complete_any_more(world: World, end: str) -> None:
    job_id = world.push(maxAttempts=1)
    if end in ("FAIL",):
        world.pull()
    answer = world.send("WaitJob", id=job_id)

    world.ok(end, **({"queue": "q"} if end in ("Obliterate", "Drain") else {"id": job_id}))

    assert {"ok": True, "completed": False} == answer.reply


def test_wait_job_survives_a_retry(world: World) -> None:
    job_id = world.push(backoff=0)
    answer = world.send("WaitJob", id=job_id)
    world.pull()
    world.ok("FAIL", id=job_id)
    assert not answer.is_there
    world.pull()
    world.ok("ACK", id=job_id, result=1)

    assert answer.reply["completed"]


def test_wait_job_is_not_answered_before_the_completion_is_on_disk() -> None:
    world = persistent_world()
    job_id = world.push()
    world.pull()
    answer = world.send("WaitJob", peer=world.connect(), id=job_id)

    world.send("ACK", id=job_id, result=1)
    assert not answer.is_there
    world.settle()

    assert {"ok": True, "completed": True, "result": 1} == answer.reply


def test_only_the_newest_failures_keep_a_long_text(world: World) -> None:
    job_id = world.push(maxAttempts=100, backoff=0, stackTraceLimit=100)
    for _ in range(40):
        assert job_id == world.pull()
        world.ok("FAIL", id=job_id, error="e" * 40_000, stack=["s" * 1_000] * 100)
        world.forward(10_000)

    extra = world.engine.index.get(job_id).extra
    texts = [entry[4] for entry in extra.history] + [line[2] or "" for line in extra.timeline]
    assert ERROR_CHARS_MAX == len(extra.last_error) == len(extra.history[-1][4])
    assert sum(map(len, texts)) < 2 * ERROR_CHARS_MAX + len(texts) * OLD_ERROR_CHARS_MAX
    assert sum(map(len, extra.stacktrace)) <= STACK_CHARS_MAX
