"""What time brings: silent workers, expiry, jumps of the clock, housekeeping."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.slices import COMMITTED, Work
from bunqueue.engine.sweeps import TIMED, TIMERS_PER_TICK, Timed
from tests.support.engine import World, done, persistent_world

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def world() -> World:
    return World()


def held(world: World, **fields: Any) -> str:
    job_id = world.push(**fields)
    assert job_id == world.pull()
    return job_id


# -- stalls, in two phases -----------------------------------------------------------------------


def test_a_silent_job_is_acted_on_by_the_second_sweep_that_finds_it(world: World) -> None:
    job_id = held(world, backoff=MINUTE)

    world.forward(35_000)  # silent for more than 30 s: suspicious
    assert "active" == world.state(job_id)
    world.forward(5_000)

    assert "delayed" == world.state(job_id)


@pytest.mark.parametrize("sign_of_life", ["JobHeartbeat", "Progress"])
def test_a_sign_of_life_between_the_phases_starts_anew(world: World, sign_of_life: str) -> None:
    job_id = held(world)
    world.forward(35_000)
    fields = {"progress": 1} if sign_of_life == "Progress" else {}
    world.ok(sign_of_life, id=job_id, **fields)

    world.forward(34_000)

    assert "active" == world.state(job_id)


def test_a_job_has_its_own_stall_timeout(world: World) -> None:
    job_id = held(world, stallTimeout=6_000, backoff=MINUTE)

    world.forward(15_000)

    assert "delayed" == world.state(job_id)


def test_a_young_delivery_is_in_grace(world: World) -> None:
    world.ok("SetStallConfig", queue="q", config={"gracePeriod": 20_000, "stallInterval": 1})
    job_id = held(world, backoff=MINUTE)

    world.forward(24_000)
    assert "active" == world.state(job_id)
    world.forward(2_000)
    assert "delayed" == world.state(job_id)


def test_a_disabled_stall_sweep_leaves_jobs_alone_but_leases_still_expire(world: World) -> None:
    world.ok("SetStallConfig", queue="q", config={"enabled": False})
    first = held(world)
    second = world.push()
    world.lease(lockTtl=1_000)

    world.forward(5 * MINUTE)

    assert ["active", "waiting"] == [world.state(first), world.state(second)]


def test_an_expired_lease_gives_the_job_its_old_place(world: World) -> None:
    first = world.push()
    second = world.push()
    world.lease(lockTtl=1_000)

    world.forward(3_000)

    assert [first, second] == world.pull_all()


def test_a_stalled_job_goes_behind_its_peers(world: World) -> None:
    first = held(world, backoff=0)
    second = world.push()

    world.forward(45_000)

    assert [second, first] == world.pull_all()


def test_a_stalled_cron_job_is_dropped(world: World) -> None:
    job_id = held(world, uniqueKey="cron:nightly")

    world.forward(45_000)

    assert "unknown" == world.state(job_id)
    assert [] == world.ok("Dlq", queue="q")["jobs"]


def test_an_interrupted_cron_job_is_dropped_at_the_restart() -> None:
    world = persistent_world()
    held(world, uniqueKey="cron:nightly")

    again = world.restart()

    assert {} == again.counts()
    assert {} == again.storage.rows


# -- expiry --------------------------------------------------------------------------------------


def test_a_job_expires_the_moment_its_time_is_over(world: World) -> None:
    job_id = world.push(ttl=1_000)
    world.listen()

    world.forward(1_000)
    assert "waiting" == world.state(job_id)
    world.forward(1)

    assert "unknown" == world.state(job_id)
    assert [("removed", job_id)] == [(it["eventType"], it["jobId"]) for it in world.events]
    assert 1 == world.engine.totals.expired


def test_a_delayed_job_expires_too(world: World) -> None:
    job_id = world.push(ttl=1_000, delay=5_000)
    world.forward(1_001)

    assert "unknown" == world.state(job_id)


def test_an_expired_job_is_not_handed_out_even_before_the_tick(world: World) -> None:
    world.push(ttl=1_000)
    fresh = world.push()
    world.clock.ms += 1_001

    assert [fresh] == world.pull_all()
    assert {"active": 1} == world.counts()


def test_a_running_job_does_not_expire(world: World) -> None:
    job_id = world.push(ttl=1_000)
    world.pull()

    world.forward(5_000)

    assert "active" == world.state(job_id)
    world.ok("ACK", id=job_id)
    world.forward(5_000)
    assert "completed" == world.state(job_id)


@pytest.mark.parametrize("when", ["while it waits for its retry", "while it runs"])
def test_a_job_that_has_failed_before_expires_to_the_dead_letters(world: World, when: str) -> None:
    job_id = world.push(ttl=1_000, backoff=MINUTE)
    world.pull()
    if when == "while it runs":
        world.forward(1_500)
    world.ok("FAIL", id=job_id)

    world.forward(1_001)

    assert "failed" == world.state(job_id)
    assert "ttl_expired" == world.entry()["reason"]


def test_a_job_released_after_its_time_is_removed(world: World) -> None:
    peer = world.connect()
    job_id = world.push(ttl=1_000)
    world.pull(peer=peer)
    world.forward(1_500)

    world.close(peer)
    world.forward(1)

    assert "unknown" == world.state(job_id)


def test_an_expired_job_leaves_the_file() -> None:
    world = persistent_world()
    world.push(ttl=1_000)
    world.settle()
    world.forward(1_001)

    assert {} == world.storage.rows


# -- jumps of the clock --------------------------------------------------------------------------


def jump(world: World, ms: int) -> None:
    world.clock.ms += ms
    world.engine.clock_jumped(ms)
    world.engine.tick(world.now)


@pytest.mark.parametrize("delta", [HOUR, -HOUR])
def test_no_lease_timeout_or_stall_ends_by_a_jump(world: World, delta: int) -> None:
    leased = world.push(timeout=10_000)
    _, token = world.lease(lockTtl=10_000)
    silent = held(world)

    jump(world, delta)
    world.forward(9_000)

    assert ["active", "active"] == [world.state(leased), world.state(silent)]
    world.ok("ACK", id=leased, token=token)


@pytest.mark.parametrize("delta", [HOUR, -HOUR])
def test_spans_go_on_after_a_jump(world: World, delta: int) -> None:
    timed = world.push(timeout=10_000, backoff=MINUTE)
    world.lease(lockTtl=600_000)
    poll = world.poll(timeout=10_000)

    jump(world, delta)
    world.forward(9_999)
    assert "active" == world.state(timed)
    assert not poll.is_there
    world.forward(1)

    assert "delayed" == world.state(timed)
    assert poll.is_there


def test_a_jump_back_does_not_stop_the_rate_limit(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=1_000)
    world.push()
    world.pull()
    job_id = world.push()

    jump(world, -HOUR)
    world.forward(1_000)

    assert job_id == world.pull()


def test_a_delay_is_a_promise_in_wall_time(world: World) -> None:
    job_id = world.push(delay=HOUR)
    poll = world.poll()

    jump(world, HOUR)
    world.settle()

    assert job_id == poll.reply["job"]["id"]
    assert world.now == poll.reply["job"]["startedAt"]


def test_a_time_to_live_is_a_promise_in_wall_time(world: World) -> None:
    job_id = world.push(ttl=HOUR)

    jump(world, HOUR + 1)

    assert "unknown" == world.state(job_id)


def test_workers_do_not_die_by_a_jump(world: World) -> None:
    world.ok("RegisterWorker", name="w", queues=["q"])

    jump(world, HOUR)

    assert "active" == world.ok("ListWorkers")["data"]["workers"][0]["status"]


# -- housekeeping --------------------------------------------------------------------------------


def test_an_empty_queue_name_is_forgotten_after_a_while(world: World) -> None:
    world.forward(5 * MINUTE)
    job_id = world.push()
    world.pull()
    world.ok("ACK", id=job_id, removeOnComplete=True)
    world.forward(1_000)
    assert ["q"] == world.ok("ListQueues")["queues"]

    world.forward(30_000)

    assert [] == world.ok("ListQueues")["queues"]


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("Pause", {}),
        ("RateLimit", {"limit": 1}),
        ("SetConcurrency", {"limit": 1}),
        ("SetStallConfig", {"config": {"maxStalls": 9}}),
        ("SetDlqConfig", {"config": {"maxEntries": 9}}),
    ],
)
def test_a_queue_with_a_setting_keeps_its_name(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    world.ok(command, queue="q", **fields)

    world.forward(5 * MINUTE)

    assert ["q"] == world.ok("ListQueues")["queues"]


def test_expired_keys_are_swept(world: World) -> None:
    held(world, uniqueKey="k", dedup={"ttl": 1_000})

    world.forward(11_000)

    assert {} == world.engine.queues["q"].keys


def test_old_completed_jobs_go_after_their_retention() -> None:
    world = World(settings=EngineSettings(completed_retention_ms=MINUTE))
    old = held(world)
    world.ok("ACK", id=old)
    world.forward(MINUTE // 2)
    young = held(world)
    world.ok("ACK", id=young)

    world.forward(MINUTE * 3 // 4)

    assert ["unknown", "completed"] == [world.state(old), world.state(young)]


def test_the_oldest_completed_jobs_make_room() -> None:
    world = World(settings=EngineSettings(max_completed_jobs=20))
    ids = []
    for _ in range(21):
        ids.append(held(world))
        world.ok("ACK", id=ids[-1])

    world.forward(1)

    assert {"completed": 18} == world.counts()
    assert ["unknown"] * 3 == [world.state(job_id) for job_id in ids[:3]]


def test_completed_jobs_that_are_gone_take_nobody_s_place() -> None:
    world = World(settings=EngineSettings(max_completed_jobs=20))
    first = held(world)
    world.ok("ACK", id=first)
    for _ in range(19):
        job_id = world.push(queue="other")
        world.ok("PULL", queue="other")
        world.ok("ACK", id=job_id)
    world.ok("Obliterate", queue="other", force=True)
    for _ in range(15):
        world.ok("ACK", id=held(world))

    world.forward(1)

    assert {"completed": 16} == world.counts()
    assert "completed" == world.state(first)


def test_a_job_that_completes_again_and_again_takes_one_place() -> None:
    world = World(settings=EngineSettings(max_completed_jobs=20))
    again = held(world)
    world.ok("ACK", id=again)
    for _ in range(25):
        world.ok("RetryCompleted", queue="q", id=again)
        world.pull()
        world.ok("ACK", id=again)
    for _ in range(10):
        world.ok("ACK", id=held(world))

    world.forward(1)

    assert {"completed": 11} == world.counts()
    assert [again] == [job.id for job in world.engine.retained][:1]


def test_a_completed_job_that_ran_again_counts_from_its_second_completion() -> None:
    world = World(settings=EngineSettings(completed_retention_ms=MINUTE))
    again = held(world)
    world.ok("ACK", id=again)
    world.forward(MINUTE * 3 // 4)
    world.ok("RetryCompleted", queue="q")
    world.pull()
    world.ok("ACK", id=again)
    other = held(world)
    world.ok("ACK", id=other)

    world.forward(MINUTE // 2)
    assert ["completed", "completed"] == [world.state(again), world.state(other)]
    world.forward(MINUTE)

    assert ["unknown", "unknown"] == [world.state(again), world.state(other)]


def test_a_sweep_that_throws_is_logged_counted_and_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    def broken(_engine: Any, now: int) -> Work[None]:
        runs.append(now)
        yield COMMITTED
        raise RuntimeError("broken sweep")

    rows = (Timed("broken", 1_000, broken), *TIMED)
    monkeypatch.setattr("bunqueue.engine.sweeps.TIMED", rows)
    job_id = world.push(backoff=MINUTE)
    world.lease(lockTtl=1_000)
    with caplog.at_level(logging.ERROR):
        world.forward(3_500)

    assert 3 == len(runs) == world.engine.totals.failed_sweeps
    assert "broken sweep" in caplog.text
    assert "waiting" == world.state(job_id)


def test_late_sweeps_let_waiting_heartbeats_in_first(world: World) -> None:
    job_id = world.push()
    _, token = world.lease(lockTtl=10_000)

    world.leap(25_000)  # the process stood still: heartbeats are in the sockets
    assert "active" == world.state(job_id)
    world.forward(2_000)

    assert "waiting" == world.state(job_id)
    assert token


def test_time_in_which_nobody_could_be_heard_ends_no_lease() -> None:
    world = persistent_world()
    job_id = world.push()
    _, token = world.lease(lockTtl=3_000)
    world.ok("SetStallConfig", queue="q", config={"stallInterval": 2_000, "gracePeriod": 0})

    world.storage.is_hanging = True  # heartbeats wait in the sockets
    world.forward(60_000)
    world.storage.is_hanging = False

    assert "active" == world.state(job_id)
    world.ok("JobHeartbeat", id=job_id, token=token)
    world.forward(2_500)
    assert "active" == world.state(job_id)
    world.forward(2_500)
    assert "waiting" == world.state(job_id)


@pytest.mark.parametrize("row", TIMED, ids=lambda row: row.name)
def test_every_sweep_runs_on_an_empty_engine(world: World, row: Timed) -> None:
    assert None is done(row.run(world.engine, world.now))


def test_a_tick_says_when_to_come_back(world: World) -> None:
    held(world, timeout=300)

    assert world.now + 300 == world.engine.tick(world.now)
    assert world.now < world.engine.tick(world.now + 300)


def test_a_tick_does_a_bounded_amount_and_asks_to_come_back_at_once(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{"ttl": 10}] * (TIMERS_PER_TICK + 50))
    world.clock.ms += 11

    assert world.now == world.engine.tick(world.now)
    assert {"waiting": 50} == world.counts()
    assert world.now < world.engine.tick(world.now)
    assert {} == world.counts()
