"""Jobs out: gates, long polls, and everything that wakes one (engine.md 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.engine import World, persistent_world

MINUTE = 60_000


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


# -- what a pull takes ---------------------------------------------------------------------------


def test_a_pull_makes_the_job_active_at_the_moment_of_the_pull(world: World) -> None:
    job_id = world.push()
    world.clock.ms += 500

    job = world.ok("PULL", queue="q")["job"]

    assert (job_id, world.now, world.now) == (job["id"], job["startedAt"], job["lastHeartbeat"])
    assert "active" == world.state(job_id)


def test_nothing_to_pull_is_null(world: World) -> None:
    assert {"job": None} == world.ok("PULL", queue="q")
    assert {"job": None, "token": None} == world.ok("PULL", queue="q", owner="w")
    assert {"jobs": []} == world.ok("PULLB", queue="q", count=5)
    assert {"jobs": [], "tokens": []} == world.ok("PULLB", queue="q", count=5, owner="w")


def test_asking_an_unknown_queue_does_not_make_it(world: World) -> None:
    world.pull("nowhere")

    assert [] == world.ok("ListQueues")["queues"]


@pytest.mark.parametrize("owner", [None, "", 5])
def test_without_an_owner_there_is_no_lease(world: World, owner: object) -> None:
    world.push()

    assert "token" not in world.ok("PULL", queue="q", owner=owner)


def test_a_batch_takes_up_to_count_with_a_token_for_each(world: World) -> None:
    ids = [world.push() for _ in range(5)]

    reply = world.ok("PULLB", queue="q", count=3, owner="w")

    assert ids[:3] == [job["id"] for job in reply["jobs"]]
    assert 3 == len(set(reply["tokens"]))
    for job_id, token in zip(ids, reply["tokens"], strict=False):
        world.ok("ACK", id=job_id, token=token)


def test_a_batch_without_a_count_takes_one(world: World) -> None:
    world.push()
    world.push()

    assert 1 == len(world.ok("PULLB", queue="q")["jobs"])


def test_a_batch_returns_what_there_is_and_never_waits_to_fill(world: World) -> None:
    world.push()

    assert 1 == len(world.ok("PULLB", queue="q", count=5, timeout=MINUTE)["jobs"])


def test_a_waiting_batch_ends_with_the_first_job(world: World) -> None:
    answer = world.send("PULLB", queue="q", count=5, timeout=MINUTE, owner="w")
    world.push()
    world.settle()

    assert (1, 1) == (len(answer.reply["jobs"]), len(answer.reply["tokens"]))


BATCHES: dict[str, list[dict[str, Any]]] = {
    "options": [{"customId": "low"}, {"customId": "high", "priority": 9}],
    "keys": [{"customId": "low", "uniqueKey": "k"}, {"customId": "high", "priority": 9}],
    "durable": [{"customId": "low", "durable": True}, {"customId": "high", "priority": 9}],
    "lifo": [{"customId": "low"}, {"customId": "high", "lifo": True}],
    "large": [
        *({"customId": f"low{number}", "durable": True} for number in range(40)),
        {"customId": "high", "priority": 9},
    ],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_waiting_pull_gets_the_best_job_of_a_batch(world: World, kind: str) -> None:
    answer = world.poll()
    world.ok("PUSHB", queue="q", jobs=BATCHES[kind])
    world.settle()

    assert "high" == answer.reply["job"]["id"]


def test_a_waiting_pull_gets_the_best_job_of_a_flow(world: World) -> None:
    answer = world.poll()
    jobs = [
        {"id": name, "queue": "q", "input": {"name": "n", "data": {}, "priority": priority}}
        for name, priority in (("low", 0), ("high", 9))
    ]
    world.ok("PUSHF", jobs=jobs)
    world.settle()

    assert "high" == answer.reply["job"]["id"]


@pytest.mark.parametrize("jobs", [[{}] * 3, [{"durable": True}] * 3, [{"priority": 1}] * 3])
def test_a_waiting_batch_gets_all_that_a_batch_brings(
    world: World, jobs: list[dict[str, Any]]
) -> None:
    answer = world.send("PULLB", queue="q", count=2, timeout=MINUTE)
    other = world.send("PULLB", queue="q", count=2, timeout=MINUTE)
    world.ok("PUSHB", queue="q", jobs=jobs)
    world.settle()

    assert (2, 1) == (len(answer.reply["jobs"]), len(other.reply["jobs"]))


def test_a_waiting_pull_gets_the_best_job_that_a_completion_releases(world: World) -> None:
    world.push(jobId="first")
    for job_id, priority in (("low", 0), ("high", 9)):
        world.push(jobId=job_id, dependsOn=["first"], priority=priority)
    world.pull()
    answer = world.send("PULLB", queue="q", count=2, timeout=MINUTE)
    world.ok("ACK", id="first")
    world.settle()

    assert ["high", "low"] == [job["id"] for job in answer.reply["jobs"]]


def test_a_waiting_pull_gets_the_best_job_that_comes_back_from_the_dead_letters(
    world: World,
) -> None:
    for job_id, priority in (("low", 0), ("high", 9)):
        world.push(jobId=job_id, maxAttempts=1, priority=priority)
    world.ok("PULLB", queue="q", count=2)
    world.ok("FAIL", id="low")
    world.ok("FAIL", id="high")
    answer = world.send("PULLB", queue="q", count=2, timeout=MINUTE)
    world.ok("RetryDlq", queue="q")
    world.settle()

    assert ["high", "low"] == [job["id"] for job in answer.reply["jobs"]]


def test_after_a_batch_that_was_refused_waiting_pulls_are_served_again(world: World) -> None:
    answer = world.poll()
    world.error("PUSHB", queue="q", jobs=[{}, {"dependsOn": ["nobody"]}])
    world.push(jobId="a")
    world.settle()

    assert "a" == answer.reply["job"]["id"]


def test_a_paused_queue_hands_nothing_out(world: World) -> None:
    world.push()
    world.ok("Pause", queue="q")

    assert world.pull() is None


def test_concurrency_counts_what_was_active_before_it_was_set(world: World) -> None:
    for _ in range(3):
        world.push()
    world.pull()
    world.ok("SetConcurrency", queue="q", limit=2)

    assert [1, 0] == [len(world.ok("PULLB", queue="q", count=9)["jobs"]) for _ in range(2)]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_concurrency_of_nothing_lets_none_go(world: World, limit: int) -> None:
    world.push()
    world.ok("SetConcurrency", queue="q", limit=limit)

    assert world.pull() is None


def test_a_rate_limit_lets_a_full_bucket_go_and_then_waits(world: World) -> None:
    for _ in range(9):
        world.push()
    world.ok("RateLimit", queue="q", limit=4, duration=1_000)

    assert 4 == len(world.ok("PULLB", queue="q", count=9)["jobs"])
    world.clock.ms += 500
    assert 2 == len(world.ok("PULLB", queue="q", count=9)["jobs"])


def test_a_rate_limit_that_met_an_empty_queue_costs_nothing(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1)
    assert world.pull() is None
    world.push()

    assert world.pull() is not None


def test_one_queue_changes_nothing_for_another(world: World) -> None:
    for command, fields in (
        ("Pause", {}),
        ("RateLimit", {"limit": 0}),
        ("SetConcurrency", {"limit": 0}),
    ):
        world.ok(command, queue="q", **fields)
    world.push("q")
    job_id = world.push("other")

    assert job_id == world.pull("other")
    world.ok("Obliterate", queue="q")
    assert {"active": 1} == world.counts("other")


# -- long polls ----------------------------------------------------------------------------------


def test_a_long_poll_is_answered_with_nothing_at_its_deadline(world: World) -> None:
    poll = world.poll(timeout=1_000, owner="w")
    world.forward(999)
    assert not poll.is_there
    world.forward(1)

    assert {"ok": True, "job": None, "token": None} == poll.reply


def test_a_poll_that_has_ended_takes_no_job(world: World) -> None:
    world.poll(timeout=1_000)
    world.forward(1_000)
    job_id = world.push()

    assert "waiting" == world.state(job_id)


def test_waiters_are_served_in_order_of_arrival(world: World) -> None:
    polls = [world.poll(peer=world.connect(str(number))) for number in range(4)]
    ids = [world.push() for _ in range(4)]
    world.settle()

    assert ids == [poll.reply["job"]["id"] for poll in polls]


def test_a_pull_that_does_not_wait_cannot_overtake_a_waiter(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=1_000)
    world.push()
    world.pull()
    job_id = world.push()
    poll = world.poll(peer=world.connect())
    world.clock.ms += 1_000  # the token is there, the tick has not come yet

    assert world.pull() is None
    world.settle()

    assert job_id == poll.reply["job"]["id"]


def test_no_more_waiters_wake_than_there_are_jobs(world: World) -> None:
    polls = [world.poll() for _ in range(3)]
    world.ok("PUSHB", queue="q", jobs=[{}, {}])
    world.settle()

    assert [True, True, False] == [poll.is_there for poll in polls]


def test_a_waiter_of_a_closed_connection_claims_nothing(world: World) -> None:
    gone, other = world.connect(), world.connect()
    lost = world.poll(peer=gone)
    poll = world.poll(peer=other)
    world.close(gone)

    job_id = world.push()
    world.settle()

    assert not lost.is_there
    assert job_id == poll.reply["job"]["id"]


def test_a_closed_connection_claims_nothing(world: World) -> None:
    world.push()
    peer = world.connect()
    world.close(peer)

    assert {"ok": True, "job": None} == world.go("PULL", peer, queue="q", timeout=MINUTE)
    assert {"waiting": 1} == world.counts()


def test_a_ping_overtakes_a_waiting_pull(world: World) -> None:
    poll = world.poll()

    assert world.ok("Ping")["data"]["pong"]
    assert not poll.is_there


# -- wake-ups: everything that can make a claim succeed ------------------------------------------


def by_push(world: World) -> Callable[[], Any]:
    return lambda: world.push()


def by_push_batch(world: World) -> Callable[[], Any]:
    return lambda: world.ok("PUSHB", queue="q", jobs=[{}])


def by_durable_push(world: World) -> Callable[[], Any]:
    return lambda: world.push(durable=True)


def by_resume(world: World) -> Callable[[], Any]:
    world.ok("Pause", queue="q")
    world.push()
    return lambda: world.ok("Resume", queue="q")


def full(world: World, **fields: Any) -> str:
    """Use up a concurrency of 1 and leave one job waiting; return the active one's id."""
    world.ok("SetConcurrency", queue="q", limit=1)
    active = world.push(**fields)
    other = world.connect()
    world.pull(peer=other)
    world.push()
    return active


def by_set_concurrency(world: World) -> Callable[[], Any]:
    full(world)
    return lambda: world.ok("SetConcurrency", queue="q", limit=2)


def by_clear_concurrency(world: World) -> Callable[[], Any]:
    full(world)
    return lambda: world.ok("ClearConcurrency", queue="q")


def by_ack(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("ACK", id=active)


def by_ack_batch(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("ACKB", ids=[active])


def by_fail(world: World) -> Callable[[], Any]:
    active = full(world, backoff=MINUTE)
    return lambda: world.ok("FAIL", id=active)


def by_discard(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("Discard", id=active)


def by_move_to_delayed_of_an_active_job(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("MoveToDelayed", id=active, delay=MINUTE)


def by_change_delay_of_an_active_job(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("ChangeDelay", id=active, delay=MINUTE)


def by_timeout(world: World) -> Callable[[], Any]:
    full(world, timeout=2_000, backoff=MINUTE)
    return lambda: world.forward(2_000)


def by_rate_limit_clear(world: World) -> Callable[[], Any]:
    world.ok("RateLimit", queue="q", limit=0)
    world.push()
    return lambda: world.ok("RateLimitClear", queue="q")


def by_a_new_rate_limit(world: World) -> Callable[[], Any]:
    world.ok("RateLimit", queue="q", limit=0)
    world.push()
    return lambda: world.ok("RateLimit", queue="q", limit=1)


def by_the_end_of_a_temporary_rate_limit(world: World) -> Callable[[], Any]:
    world.ok("RateLimit", queue="q", limit=0, ttl=5_000)
    world.push()
    return lambda: world.forward(5_000)


def by_rate_refill(world: World) -> Callable[[], Any]:
    world.ok("RateLimit", queue="q", limit=1, duration=5_000)
    world.push()
    world.pull(peer=world.connect())
    world.push()
    return lambda: world.forward(5_000)


def by_maturing(world: World) -> Callable[[], Any]:
    world.push(delay=5_000)
    return lambda: world.forward(5_000)


def by_promote(world: World) -> Callable[[], Any]:
    job_id = world.push(delay=MINUTE)
    return lambda: world.ok("Promote", id=job_id)


def by_promote_jobs(world: World) -> Callable[[], Any]:
    world.push(delay=MINUTE)
    return lambda: world.ok("PromoteJobs", queue="q")


def by_move_to_wait(world: World) -> Callable[[], Any]:
    job_id = world.push(delay=MINUTE)
    return lambda: world.ok("MoveToWait", id=job_id)


def by_change_delay_to_0(world: World) -> Callable[[], Any]:
    job_id = world.push(delay=MINUTE)
    return lambda: world.ok("ChangeDelay", id=job_id, delay=0)


def by_a_shorter_delay(world: World) -> Callable[[], Any]:
    job_id = world.push(delay=MINUTE)

    def run() -> None:
        world.ok("ChangeDelay", id=job_id, delay=1_000)
        world.forward(1_000)

    return run


def by_retry_dlq(world: World) -> Callable[[], Any]:
    world.ok("Discard", id=world.push())
    return lambda: world.ok("RetryDlq", queue="q")


def by_auto_retry(world: World) -> Callable[[], Any]:
    world.ok("SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 0})
    world.ok("Discard", id=world.push())
    world.forward(MINUTE // 2)
    return lambda: world.forward(MINUTE // 2)


def by_retry_completed(world: World) -> Callable[[], Any]:
    job_id = world.push()
    world.pull()
    world.ok("ACK", id=job_id)
    return lambda: world.ok("RetryCompleted", queue="q")


def by_disconnect(world: World) -> Callable[[], Any]:
    world.push()
    other = world.connect()
    world.pull(peer=other)
    return lambda: world.close(other)


def by_lease_expiry(world: World) -> Callable[[], Any]:
    world.push()
    world.lease(peer=world.connect(), lockTtl=1_000)
    return lambda: world.forward(3_000)


def by_stall(world: World) -> Callable[[], Any]:
    world.push(backoff=0)
    world.pull(peer=world.connect())
    return lambda: world.forward(45_000)


def by_the_end_of_a_backoff(world: World) -> Callable[[], Any]:
    job_id = world.push(backoff={"type": "fixed", "delay": 1_000})
    world.pull()
    world.ok("FAIL", id=job_id)
    return lambda: world.forward(1_200)


def by_move_to_wait_of_an_active_job(world: World) -> Callable[[], Any]:
    active = full(world)
    return lambda: world.ok("MoveToWait", id=active)


WAKES = [value for name, value in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("wake", WAKES, ids=lambda wake: wake.__name__)
def test_a_long_poll_wakes(world: World, wake: Callable[[World], Callable[[], Any]]) -> None:
    act = wake(world)
    poll = world.poll()
    assert not poll.is_there

    act()
    world.settle()

    assert poll.is_there
    assert poll.reply["job"] is not None


def test_a_long_poll_is_served_the_moment_a_delay_is_over(world: World) -> None:
    job_id = world.push(delay=5_000)
    poll = world.poll()

    world.forward(4_999)
    assert not poll.is_there
    world.forward(1)

    assert (job_id, world.now) == (poll.reply["job"]["id"], poll.reply["job"]["startedAt"])


@pytest.mark.parametrize("command", ["ClearConcurrency", "RateLimitClear", "Resume"])
def test_every_waiter_there_is_a_job_for_wakes(world: World, command: str) -> None:
    closing = {
        "ClearConcurrency": ("SetConcurrency", {"limit": 0}),
        "RateLimitClear": ("RateLimit", {"limit": 0}),
        "Resume": ("Pause", {}),
    }
    close, fields = closing[command]
    world.ok(close, queue="q", **fields)
    ids = [world.push() for _ in range(3)]
    polls = [world.poll(peer=world.connect()) for _ in range(4)]

    world.ok(command, queue="q")
    world.settle()

    assert ids == [poll.reply["job"]["id"] for poll in polls[:3]]
    assert not polls[3].is_there


def test_a_waiter_survives_obliterate(world: World) -> None:
    poll = world.poll()
    world.ok("Obliterate", queue="q")
    job_id = world.push()
    world.settle()

    assert job_id == poll.reply["job"]["id"]


def test_the_ticker_is_told_when_a_poll_needs_it_sooner(world: World) -> None:
    sooner: list[int] = []
    world.engine.on_sooner = sooner.append
    world.push(delay=500)

    world.poll(timeout=200)

    assert min(sooner) <= world.now + 200


# -- commits ------------------------------------------------------------------------------------


def test_a_claim_waits_for_its_mark_on_disk() -> None:
    world = persistent_world()
    world.push()

    answer = world.send("PULL", queue="q")

    assert not answer.is_there
    world.settle()
    assert answer.is_there
    assert "active" == next(iter(world.storage.rows.values())).place


def test_a_failed_mark_does_not_fail_the_claim() -> None:
    world = persistent_world()
    job_id = world.push()
    world.settle()
    world.storage.fails = True

    assert job_id == world.ok("PULL", queue="q")["job"]["id"]


def test_a_served_poll_waits_for_its_mark_on_disk() -> None:
    world = persistent_world()
    poll = world.poll(peer=world.connect())
    world.send("PUSH", queue="q")
    assert not poll.is_there

    world.settle()

    assert poll.reply["job"] is not None


def test_a_batch_ends_before_its_reply_outgrows_a_frame(world: World) -> None:
    for _ in range(5):
        world.ok("PUSH", queue="big", data="x" * 9_000_000)

    pulls = [world.ok("PULLB", queue="big", count=5, owner="w") for _ in range(3)]

    assert [2, 2, 1] == [len(pull["jobs"]) for pull in pulls]  # the second passes 16 MiB


# -- found by tests/simulation --------------------------------------------------------------------


def test_a_poll_for_a_group_holds_up_nobody_who_takes_any_job(world: World) -> None:
    of_group = world.send("PULL", queue="q", timeout=MINUTE, group={"affinity": "g"})
    any_job = world.send("PULL", queue="q", timeout=MINUTE)

    job_id = world.push()
    world.settle()

    assert not of_group.is_there
    assert any_job.reply is not None
    assert job_id == any_job.reply["job"]["id"]


@pytest.mark.parametrize("limit", ["concurrency", "affinity"])
def test_a_poll_that_no_token_can_help_does_not_keep_the_ticker_busy(
    world: World, limit: str
) -> None:
    world.ok("RateLimit", queue="q", limit=3)
    if limit == "concurrency":
        world.ok("SetConcurrency", queue="q", limit=1)
        world.push()
        world.pull()
    world.push()
    fields = {"group": {"affinity": "g"}} if limit == "affinity" else {}
    world.send("PULL", queue="q", timeout=MINUTE, **fields)
    world.settle()

    assert world.engine.tick(world.now) > world.now + 100
