"""Stories in which the broker ends: each ``yield`` is where it is killed, or stopped, and started.

What a story leaves in the midst is what the broker had not answered yet, so that the end comes at
any moment of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.model.checks import checks
from tests.model.episodes import episode, push, running_child, work
from tests.model.oracle import HOUR_MS
from tests.model.world import KILL, STOP, World

FLOW_SIZE: Final = 30
CRON_MS: Final = 50
RUNS: Final = 5


@episode
@checks("I28")
def of_two_that_follow_each_other_one_is_left(world: World) -> Iterator[str]:
    """With an answer, it is the second; without, either of them."""
    for is_answered in (True, False):
        queue, first, second = world.name("replace"), world.name("old"), world.name("new")
        push(world, queue, uniqueKey="k", jobId=first)
        fields = {"queue": queue, "uniqueKey": "k", "dedup": {"replace": True}, "jobId": second}
        if is_answered:
            assert second == world.ok("PUSH", **fields)["id"]
        else:
            world.send("PUSH", **fields)
        yield KILL
        states = world.state(first), world.state(second)
        assert ["unknown", "waiting"] == sorted(states), states
        assert (states[1] == "waiting") or not is_answered
        assert 1 == world.ok("Count", queue=queue)["count"]
        world.ok("Obliterate", queue=queue)


@episode
@checks("I28")
def a_new_generation_follows_the_old_one(world: World) -> Iterator[str]:
    queue, job = world.name("again"), world.name("twice")
    push(world, queue, jobId=job)
    assert job == work(world, queue)
    world.send("PUSH", queue=queue, jobId=job)
    yield KILL
    assert world.state(job) in ("completed", "waiting")
    world.ok("Obliterate", queue=queue)


@episode
@checks("I30")
def a_parent_is_claimable_once_after_its_last_child(world: World) -> Iterator[str]:
    for is_answered in (True, False):
        queue, top, part, token = running_child(world)
        (world.ok if is_answered else world.send)("ACK", id=part, token=token)
        yield KILL
        is_met = world.state(part) == "completed"
        assert is_met or not is_answered
        assert ("waiting" if is_met else "waiting-children") == world.state(top)
        if is_met:
            assert [top, None] == [work(world, queue), work(world, queue)]
            yield KILL
            assert ("completed", None) == (world.state(top), work(world, queue))
        world.ok("Obliterate", queue=queue)


@episode
@checks("I30")
def a_poll_gets_the_parent_as_its_child_completes(world: World) -> None:
    queue, top, part, token = running_child(world)
    polls = [world.dial(), world.dial()]
    for poll in polls:
        poll.send({"cmd": "PULL", "queue": queue, "timeout": 20_000})
    world.ok("ACK", id=part, token=token)
    other = push(world, queue)  # one of them gets this, and not the parent again
    assert sorted((top, other)) == sorted(poll.value()["job"]["id"] for poll in polls)
    for poll in polls:
        poll.sock.close()
    world.ok("Obliterate", queue=queue)


@episode
@checks("I32")
def a_flow_is_there_whole_or_not_at_all(world: World) -> Iterator[str]:
    for is_answered in (True, False):
        queue, top = world.name("flow"), world.name("top")
        parts = [world.name("part") for _ in range(FLOW_SIZE)]
        jobs = wide_flow(queue, top, parts)
        if is_answered:
            world.ok("PUSHF", jobs=jobs)
        else:
            world.send("PUSHF", jobs=jobs)
        yield KILL
        states = {world.state(job_id) for job_id in parts}
        expected = {("waiting-children", "waiting")}
        assert (world.state(top), *states) in expected | (
            set() if is_answered else {("unknown", "unknown")}
        )
        taken = [{**jobs[1], "id": world.name("part")}, jobs[1]]
        if is_answered:  # one of its ids is taken: nothing of it comes
            assert not world.call("PUSHF", jobs=taken)["ok"]
            yield KILL
            assert "unknown" == world.state(str(taken[0]["id"]))
        world.ok("Obliterate", queue=queue)


def wide_flow(queue: str, top: str, parts: list[str]) -> list[dict[str, Any]]:
    """Return the entries of a parent with many children."""
    own = {"data": {"__childrenIds": parts}, "childrenIds": parts, "dependsOn": parts}
    child = {"data": {"__parentId": top, "__parentQueue": queue}, "parentId": top}
    return [
        {"id": top, "queue": queue, "input": own},
        *({"id": part, "queue": queue, "input": child} for part in parts),
    ]


@episode
@checks("I33")
def a_child_that_fails_fails_its_parent_once_over_all_ends(world: World) -> Iterator[str]:
    for is_answered in (True, False):
        queue, top, part, token = running_child(world, failParentOnFailure=True, maxAttempts=1)
        (world.ok if is_answered else world.send)("FAIL", id=part, token=token, error="no")
        for end in (KILL, STOP):
            yield end  # who ran when the broker died has lost its last attempt
            assert ("failed", "failed") == (world.state(part), world.state(top))
            entries = world.ok("Dlq", queue=queue)["entries"]
            assert sorted((part, top)) == sorted(entry["job"]["id"] for entry in entries)
        assert 1 == world.ok("RetryDlq", queue=queue, jobId=top)["count"]
        yield KILL  # the policy is not applied again to a parent that was given another chance
        assert "waiting" == world.state(top)
        world.ok("Obliterate", queue=queue)


@episode
@checks("I33")
def a_failure_that_is_ignored_stays_noted(world: World) -> Iterator[str]:
    queue, top, part, token = running_child(world, ignoreDependencyOnFailure=True, maxAttempts=1)
    world.ok("FAIL", id=part, token=token, error="no")
    for end in (KILL, STOP):
        yield end
        noted = world.ok("GetIgnoredChildrenFailures", id=top)["values"]
        assert {f"{queue}:{part}": "no"} == noted
        assert "waiting" == world.state(top)
    world.ok("Obliterate", queue=queue)


@episode
@checks("I40")
def what_was_set_is_read_after_every_end(world: World) -> Iterator[str]:
    queue, cron = world.name("control"), world.name("cron")
    push(world, queue, groupId="g")
    for number, end in enumerate((KILL, STOP, KILL), start=1):
        written = write_all(world, queue, cron, number)
        yield end
        assert written == read_all(world, queue, cron)
    world.ok("CronDelete", name=cron)
    world.ok("Obliterate", queue=queue)
    empty = read_all(world, queue, cron)
    yield KILL
    assert empty == read_all(world, queue, cron)


def write_all(world: World, queue: str, cron: str, number: int) -> dict[str, Any]:
    """Set everything that can be set on a queue, its group and a scheduler; return what is read."""
    is_odd, group = number % 2 == 1, {"queue": queue, "groupId": "g"}
    world.ok("Pause" if is_odd else "Resume", queue=queue)
    if number == 2:
        world.ok("RateLimitClear", queue=queue)
        world.ok("RemoveGroupRateLimit", **group)
    else:
        world.ok("RateLimit", queue=queue, limit=number, duration=1_000 + number)
        world.ok("SetGroupRateLimit", **group, max=number, duration=2_000 + number)
    world.ok("SetConcurrency", queue=queue, limit=10 + number)
    world.ok("SetGroupConcurrency", **group, concurrency=20 + number)
    world.ok("PauseGroup" if is_odd else "ResumeGroup", **group)
    stall = {"enabled": is_odd, "stallInterval": 30_000 + number, "maxStalls": 1 + number}
    world.ok("SetStallConfig", queue=queue, config=stall)
    dlq = {"autoRetry": is_odd, "maxEntries": 100 + number, "maxAge": 1_000 * HOUR_MS + number}
    world.ok("SetDlqConfig", queue=queue, config=dlq)
    fields = {"repeatEvery": 1_000 * HOUR_MS + number, "maxLimit": number, "priority": number}
    world.ok("Cron", name=cron, queue=queue, **fields)
    return read_all(world, queue, cron)


def read_all(world: World, queue: str, cron: str) -> dict[str, Any]:
    """Read all that ``write_all`` sets."""
    group = {"queue": queue, "groupId": "g"}
    limits = world.ok("GetQueueLimits", queue=queue)["data"]["limits"]
    limits.pop("rateLimitTtl", None)  # how full the bucket is; a restart fills it
    return {
        "paused": world.ok("IsPaused", queue=queue)["paused"],
        "limits": limits,
        "group": [
            world.ok(cmd, **group)
            for cmd in ("GetGroupRateLimit", "GetGroupConcurrency", "IsGroupPaused")
        ],
        "stall": world.ok("GetStallConfig", queue=queue),
        "dlq": world.ok("GetDlqConfig", queue=queue),
        "cron": world.call("CronGet", name=cron).get("cron"),
    }


@episode
@checks("I45")
def a_scheduler_goes_on_where_it_was(world: World) -> Iterator[str]:
    """Its moments are on a grid, each later than the last; of its jobs one lives at a time."""
    queue, cron, was_killed = world.name("cron"), world.name("scheduler"), False
    world.ok("Cron", name=cron, queue=queue, repeatEvery=CRON_MS, maxLimit=RUNS)
    first, looked_at = look(world, cron), world.now()
    seen = [first]
    assert first is not None
    while True:
        is_there = work_is_there(world, queue)
        if seen[-1][0] > first[0] + 3 * CRON_MS and is_there:  # till then its only job was in line
            assert work(world, queue) is not None
        if is_there and seen[-1][1] >= RUNS - 2 and not was_killed:  # a run with a job is written
            was_killed = True
            yield KILL
        now = look(world, cron)
        if now is None:
            break  # it has run as often as it may
        looked_at = world.now()
        before = seen[-1]
        assert now[0] >= before[0]
        assert now[1] >= before[1], "it takes runs back"
        assert now[0] > before[0] or now[1] == before[1], "two runs of one moment"
        assert (now[0] - before[0]) % CRON_MS == 0, "it left its grid"
        assert now[1] <= RUNS
        if now != before:
            seen.append(now)
    assert was_killed
    unseen = 1 + (world.now() - looked_at) // CRON_MS  # between two looks on a busy machine
    assert seen[-1][1] + unseen >= RUNS, "it ended before it had run as often as it may"
    world.ok("Obliterate", queue=queue)


def look(world: World, cron: str) -> tuple[int, int] | None:
    """Return a scheduler's next moment and its runs so far."""
    found = world.call("CronGet", name=cron).get("cron")
    return None if found is None else (int(found["nextRun"]), found["executions"])


def work_is_there(world: World, queue: str) -> bool:
    """Say whether a job waits; never two of one scheduler."""
    count: int = world.ok("Count", queue=queue)["count"]
    assert count <= 1, f"{count} live jobs of one scheduler"
    return count == 1
