"""Short stories with one end each, told in a queue of their own in the midst of a history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.model.checks import checks
from tests.model.oracle import HOUR_MS
from tests.model.world import World

# A story that yields has the broker ended there and started again; see ``kills.py``.
Episode = Callable[[World], Iterator[str] | None]
EPISODES: list[Episode] = []
PULLERS: Final = 6
PULLS_EACH: Final = 8
RATE_MS: Final = 200


def episode(function: Episode) -> Episode:
    """Let histories have this story in them."""
    EPISODES.append(function)
    return function


def push(world: World, queue: str, **fields: object) -> str:
    return str(world.ok("PUSH", queue=queue, durable=True, data={}, **fields)["id"])


def pull(world: World, queue: str, **fields: object) -> tuple[str, str] | None:
    """Return id and token of the next job, None if nobody is let go."""
    answer = world.ok("PULL", queue=queue, owner="w", lockTtl=2_000 * HOUR_MS, **fields)
    return None if answer["job"] is None else (answer["job"]["id"], answer["token"])


def work(world: World, queue: str, **fields: object) -> str | None:
    """Pull and complete one job; return its id."""
    got = pull(world, queue, **fields)
    if got is None:
        return None
    world.ok("ACK", id=got[0], token=got[1])
    return got[0]


@episode
@checks("I27", "I28")
def unique_keys_have_one_owner(world: World) -> None:
    queue = world.name("unique")
    first = push(world, queue, uniqueKey="k")
    assert first == push(world, queue, uniqueKey="k")
    second = push(world, queue, uniqueKey="k", dedup={"replace": True})
    assert ("unknown", "waiting") == (world.state(first), world.state(second))
    world.ok("RemoveDeduplicationKey", queue=queue, deduplicationId="k")
    third = push(world, queue, uniqueKey="k")
    assert third != second
    world.ok("RemoveJobDeduplicationKey", id=third)
    assert third != push(world, queue, uniqueKey="k")
    world.ok("Obliterate", queue=queue)


@episode
@checks("I18", "I19")
def groups_take_turns(world: World) -> None:
    queue = world.name("groups")
    for number, group in enumerate("aaabbc"):
        push(world, queue, groupId=group, jobId=f"{queue}-{number}")
    assert [f"{queue}-{n}" for n in (0, 3, 5, 1, 4, 2)] == [work(world, queue) for _ in range(6)]
    world.ok("Obliterate", queue=queue)


@episode
@checks("I22", "I24")
def a_group_is_limited_and_paused(world: World) -> None:
    queue, limited = world.name("limits"), {"group": {"concurrency": 2}}
    for _ in range(3):
        push(world, queue, groupId="g")
    group = {"queue": queue, "groupId": "g"}
    world.ok("SetGroupConcurrency", **group, concurrency=1)
    assert pull(world, queue, **limited) is not None
    assert pull(world, queue, **limited) is None
    world.ok("RemoveGroupConcurrency", **group)
    world.ok("PauseGroup", **group)
    assert pull(world, queue, **limited) is None
    world.ok("ResumeGroup", **group)
    world.ok("RateLimitGroup", **group, duration=HOUR_MS)
    assert pull(world, queue, **limited) is None
    world.ok("Obliterate", queue=queue)


@episode
@checks("I22")
def a_group_has_its_share_of_each_window(world: World) -> None:
    """A stored rate holds in place of the puller's; another rate opens another window."""
    queue, limited = world.name("windows"), {"group": {"limit": {"max": 2, "duration": HOUR_MS}}}
    group = {"queue": queue, "groupId": "g"}
    for _ in range(6):
        push(world, queue, groupId="g")
    world.ok("SetGroupRateLimit", **group, max=1, duration=HOUR_MS)
    for expected in (1, 2):
        answer = world.ok("PULLB", queue=queue, owner="w", count=6, **limited)
        assert expected == len(answer["jobs"])
        assert pull(world, queue, **limited) is None
        world.ok("RemoveGroupRateLimit", **group)
    world.ok("Obliterate", queue=queue)


@episode
@checks("I22")
def a_running_group_counts_over_all_pulls(world: World) -> None:
    queue, limited = world.name("running"), {"group": {"concurrency": 2}}
    for _ in range(5):
        push(world, queue, groupId="g", backoff=0)
    answer = world.ok("PULLB", queue=queue, owner="w", count=5, lockTtl=HOUR_MS, **limited)
    assert 2 == len(answer["jobs"])
    polls = []
    for way, job, token in zip(("ACK", "FAIL"), answer["jobs"], answer["tokens"], strict=True):
        poll = world.dial()
        poll.send({"cmd": "PULL", "queue": queue, "timeout": 20_000, **limited})
        world.ok("Count", queue=queue)
        world.ok(way, id=job["id"], token=token)
        assert poll.value()["job"] is not None
        assert pull(world, queue, **limited) is None
        polls.append(poll)
    for poll in polls:
        poll.sock.close()
    world.ok("Obliterate", queue=queue)


@episode
@checks("I5")
def each_job_goes_to_one_of_many_pullers(world: World) -> None:
    """Half of them wait before there are jobs, the others come in between."""
    queue, total = world.name("pullers"), PULLERS * PULLS_EACH
    pullers = [world.dial() for _ in range(PULLERS)]
    ask = {"cmd": "PULL", "queue": queue, "owner": "w", "lockTtl": HOUR_MS, "timeout": 20_000}
    for puller in pullers[: PULLERS // 2]:
        for _ in range(PULLS_EACH):
            puller.send(ask)
    ids = []
    for number in range(2):
        jobs = [{"data": {}} for _ in range(total // 2)]
        ids += world.ok("PUSHB", queue=queue, jobs=jobs)["ids"]
        if not number:
            for puller in pullers[PULLERS // 2 :]:
                for _ in range(PULLS_EACH):
                    puller.send(ask)
    answers = [puller.value() for puller in pullers for _ in range(PULLS_EACH)]
    assert sorted(ids) == sorted(answer["job"]["id"] for answer in answers)
    assert total == len({answer["token"] for answer in answers})
    assert pull(world, queue) is None
    for puller in pullers:
        puller.sock.close()
    world.ok("Obliterate", queue=queue)


@episode
@checks("I20", "I23")
def slots_are_kept_and_come_back(world: World) -> None:
    queue = world.name("slots")
    for _ in range(5):
        push(world, queue, backoff=0)
    world.ok("SetConcurrency", queue=queue, limit=1)
    for way in ("ACK", "FAIL", "MoveToWait", "Discard"):
        got = pull(world, queue)
        assert got is not None, f"no slot before {way}"
        assert pull(world, queue) is None
        world.ok(way, id=got[0], token=got[1])
    world.ok("ClearConcurrency", queue=queue)
    world.ok("Obliterate", queue=queue)


@episode
@checks("I21")
def a_rate_is_kept(world: World) -> None:
    queue = world.name("rate")
    for _ in range(12):
        push(world, queue)
    world.ok("RateLimit", queue=queue, limit=2, duration=10_000 * HOUR_MS)
    got = [work(world, queue) for _ in range(5)]
    assert 2 == len([job for job in got if job is not None])
    begin = time.monotonic()
    world.ok("RateLimit", queue=queue, limit=2, duration=RATE_MS)
    count = 0
    while count < 8:  # a full bucket, and what has flowed in since it was set
        count += len(world.ok("PULLB", queue=queue, count=3, timeout=20_000)["jobs"])
        passed_ms = 1000 * (time.monotonic() - begin)
        assert count <= 2 * (1 + (passed_ms + 2) / RATE_MS)
    world.ok("RateLimitClear", queue=queue)
    while work(world, queue) is not None:
        pass
    assert 0 == world.ok("Count", queue=queue)["count"]
    world.ok("Obliterate", queue=queue)


@episode
@checks("I29", "I30", "I31")
def a_parent_waits_for_its_child(world: World) -> None:
    queue, top, part, token = running_child(world)
    assert pull(world, queue) is None
    world.ok("ACK", id=part, token=token, result=7)
    assert {f"{queue}:{part}": 7} == world.ok("GetChildrenValues", id=top)["data"]["values"]
    assert [top, None] == [work(world, queue), work(world, queue)]
    world.ok("Obliterate", queue=queue)


@episode
@checks("I32")
def a_flow_with_a_bad_part_leaves_nothing(world: World) -> None:
    queue, top, part = world.name("flow"), world.name("top"), world.name("part")
    assert not world.call("PUSHF", jobs=[*flow(queue, top, part), {"id": "bad:id"}])["ok"]
    assert ("unknown", "unknown") == (world.state(top), world.state(part))


@episode
@checks("I33")
def a_failed_child_fails_its_parent_once(world: World) -> None:
    queue, top, part, token = running_child(world, failParentOnFailure=True, maxAttempts=1)
    world.ok("FAIL", id=part, token=token)
    world.eventually("failed", lambda: world.state(top))
    assert 2 == len(world.ok("Dlq", queue=queue)["entries"])
    world.ok("Obliterate", queue=queue)


def running_child(world: World, **options: object) -> tuple[str, str, str, str]:
    """Push a parent and its child, and pull that; return queue, parent, child and token."""
    queue, top, part = world.name("flow"), world.name("top"), world.name("part")
    world.ok("PUSHF", jobs=flow(queue, top, part, **options))
    assert "waiting-children" == world.state(top)
    got = pull(world, queue)
    assert got is not None
    assert part == got[0]
    return queue, top, part, got[1]


def flow(queue: str, top: str, part: str, **options: object) -> list[dict[str, object]]:
    """Return the entries of a parent with one child, which has these options."""
    return [
        {"id": top, "queue": queue, "input": {
            "data": {"__childrenIds": [part]}, "childrenIds": [part], "dependsOn": [part]}},
        {"id": part, "queue": queue, "input": {
            "data": {"__parentId": top, "__parentQueue": queue}, "parentId": top, **options}},
    ]  # fmt: skip


@episode
@checks("I34")
def dead_letters_have_their_attempts_and_a_bound(world: World) -> None:
    queue = world.name("dead")
    for _ in range(3):
        job = push(world, queue, maxAttempts=2, backoff=0)
        for _ in range(2):
            got = pull(world, queue)
            assert got is not None
            world.ok("FAIL", id=job, token=got[1])
    entries = world.ok("Dlq", queue=queue)["entries"]
    assert [2, 2, 2] == [len(entry["attempts"]) for entry in entries]
    world.ok("SetDlqConfig", queue=queue, config={"maxEntries": 2})
    assert 2 == len(world.ok("Dlq", queue=queue)["entries"])
    world.ok("Obliterate", queue=queue)


@episode
@checks("I44")
def a_late_ack_does_not_bring_back(world: World) -> None:
    queue = world.name("late")
    push(world, queue)
    got = pull(world, queue)
    assert got is not None
    world.ok("Obliterate", queue=queue)
    assert not world.call("ACK", id=got[0], token=got[1])["ok"]
    assert "unknown" == world.state(got[0])


@episode
@checks("I6", "I49")
def events_come_in_the_order_of_the_moves(world: World) -> None:
    queue, link = world.name("events"), world.dial()
    assert link.call({"cmd": "SubscribeEvents", "queue": queue})["ok"]
    job = push(world, queue)
    assert job == work(world, queue)
    heard = [link.value()["event"] for _ in range(3)]
    link.sock.close()
    assert ["pushed", "pulled", "completed"] == [event["eventType"] for event in heard]
    assert {job} == {event["jobId"] for event in heard}
    world.ok("Obliterate", queue=queue)


@episode
def logs_workers_and_leases_are_noted(world: World) -> None:
    """The rest of what can be changed, each once."""
    queue = world.name("rest")
    job = push(world, queue)
    world.ok("AddLog", id=job, message="here")
    assert 1 == len(world.ok("GetLogs", id=job)["data"]["logs"])
    world.ok("ClearLogs", id=job)
    assert [] == world.ok("GetLogs", id=job)["data"]["logs"]
    worker = world.name("worker")
    world.ok("RegisterWorker", name="w", workerId=worker, queues=[queue])
    world.ok("Heartbeat", id=worker)
    world.ok("UnregisterWorker", workerId=worker)
    got = pull(world, queue)
    assert got is not None
    leases = {"ids": [job], "tokens": [got[1]]}
    assert 1 == world.ok("JobHeartbeatB", **leases)["data"]["count"]
    assert 1 == world.ok("ExtendLocks", **leases, durations=[HOUR_MS])["count"]
    world.ok("ACK", id=job, token=got[1])
    push(world, queue, delay=HOUR_MS)
    assert 1 == world.ok("PromoteJobs", queue=queue)["count"]
    cron = world.name("cron")
    world.ok("Cron", name=cron, queue=queue, repeatEvery=1_000 * HOUR_MS)
    world.ok("CronDelete", name=cron)
    world.ok("Obliterate", queue=queue)


@episode
@checks("I13", "I37")
def a_timeout_charges_once_and_retires_its_token(world: World) -> None:
    queue = world.name("timeout")
    job = push(world, queue, timeout=30, backoff=0)
    late = pull(world, queue)
    assert late is not None
    world.eventually("waiting", lambda: world.state(job))
    world.ok("ACK", id=job, token=late[1])
    found = world.ok("GetJob", id=job)["job"]
    assert ("waiting", 1) == (found["state"], found["attempts"])
    world.ok("Obliterate", queue=queue)


@episode
@checks("I36")
def an_expired_job_is_gone_and_its_key_free(world: World) -> None:
    queue, job = world.name("ttl"), world.name("expired")
    push(world, queue, jobId=job, ttl=20, uniqueKey="k")
    world.eventually("unknown", lambda: world.state(job))
    assert pull(world, queue) is None
    assert job == push(world, queue, jobId=job, uniqueKey="k")
    world.ok("Obliterate", queue=queue)


@episode
@checks("I45")
def a_scheduler_keeps_its_limit(world: World) -> None:
    queue, cron = world.name("cron"), world.name("scheduler")
    fields = {"repeatEvery": 50, "maxLimit": 2, "preventOverlap": False}
    world.ok("Cron", name=cron, queue=queue, **fields)
    world.eventually(2, lambda: world.ok("Count", queue=queue)["count"])
    assert work(world, queue) is not None
    assert 1 == world.ok("Count", queue=queue)["count"]
    world.call("CronDelete", name=cron)
    world.ok("Obliterate", queue=queue)


@episode
def links_between_jobs_are_made_and_cut(world: World) -> None:
    queue, top, part = world.name("links"), world.name("top"), world.name("part")
    push(world, queue, jobId=top)
    push(world, queue, jobId=part, delay=HOUR_MS)
    world.ok("UpdateParent", childId=part, parentId=top)
    assert "waiting-children" == world.state(top)
    world.ok("RemoveChildDependency", id=part)
    assert "waiting" == world.state(top)
    got = pull(world, queue)
    assert got is not None
    assert top == got[0]
    world.call("MoveToWaitingChildren", id=top, token=got[1])
    world.call("RemoveUnprocessedChildren", id=top)
    world.ok("Obliterate", queue=queue)


@episode
def webhooks_come_and_go(world: World) -> None:
    hook = world.ok("AddWebhook", url="https://example.org/", events=["job.failed"], queue="none")
    hook_id = hook["data"]["webhookId"]
    world.ok("SetWebhookEnabled", id=hook_id, enabled=False)
    world.ok("RemoveWebhook", webhookId=hook_id)
