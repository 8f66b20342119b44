"""What is pending when somebody sets the wall clock a day forward or back.

Two kinds of time. A *span* that the broker measures itself (a lease, a timeout, a long poll, the
wait before another attempt, a window of a limit) goes on as if nothing had happened. A *moment*
that was promised in wall time (a delay, a time to live, the age of a dead letter, a dedup ttl)
comes when the clock says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine import clock_steps
from tests.support.engine import World, persistent_world

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

PATIENT = {"stallTimeout": DAY}  # so that no stall ends what is tested

both_ways = pytest.mark.parametrize("delta", [DAY, -DAY])


@pytest.fixture
def world() -> World:
    return persistent_world()


def step(world: World, delta_ms: int) -> None:
    """Set the wall clock, as the broker's clock does."""
    world.clock.ms += delta_ms
    world.engine.clock_jumped(delta_ms)
    world.engine.tick(world.now)
    world.settle()


def fail(world: World, backoff: int = MINUTE) -> str:
    """Return a job that waits for its second attempt."""
    job_id = world.push(backoff={"type": "fixed", "delay": backoff})
    _, token = world.lease()
    world.ok("FAIL", id=job_id, token=token, error="no")
    return job_id


# -- spans ----------------------------------------------------------------------------------------


@both_ways
def test_a_lease_keeps_what_is_left_of_it(world: World, delta: int) -> None:
    job_id = world.push(**PATIENT)
    world.lease(lockTtl=MINUTE)
    world.forward(30 * SECOND)

    step(world, delta)

    world.forward(29 * SECOND)
    assert "active" == world.state(job_id)
    world.forward(3 * SECOND)
    assert "waiting" == world.state(job_id)


@both_ways
def test_a_timeout_keeps_what_is_left_of_it(world: World, delta: int) -> None:
    job_id = world.push(timeout=MINUTE, maxAttempts=1, **PATIENT)
    world.lease(lockTtl=HOUR)
    world.forward(30 * SECOND)

    step(world, delta)

    world.forward(30 * SECOND - 1)
    assert "active" == world.state(job_id)
    world.forward(1)
    assert "failed" == world.state(job_id)


@both_ways
def test_a_parked_pull_ends_when_it_would_have(world: World, delta: int) -> None:
    poll = world.poll(timeout=MINUTE)
    world.forward(30 * SECOND)

    step(world, delta)

    world.forward(30 * SECOND - 1)
    assert not poll.is_there
    world.forward(1)
    assert poll.is_there


@both_ways
def test_a_parked_pull_is_served_after_a_step(world: World, delta: int) -> None:
    poll = world.poll(timeout=MINUTE)
    step(world, delta)

    job_id = world.push()

    assert poll.reply is not None
    assert job_id == poll.reply["job"]["id"]


@both_ways
def test_the_wait_for_another_attempt_is_as_long_as_it_was(world: World, delta: int) -> None:
    job_id = fail(world, backoff=10 * MINUTE)
    poll = world.poll(timeout=MINUTE)

    step(world, delta)

    assert "delayed" == world.state(job_id)
    assert not poll.is_there
    world.forward(12 * MINUTE)  # fixed backoff is spread by a fifth
    assert job_id == world.pull()


@both_ways
def test_the_wait_for_another_attempt_is_stored_anew(world: World, delta: int) -> None:
    job_id = fail(world, backoff=10 * MINUTE)
    step(world, delta)

    world = world.restart()

    assert "delayed" == world.state(job_id)
    world.forward(12 * MINUTE)
    assert job_id == world.pull()


@both_ways
def test_a_job_that_repeats_by_interval_keeps_its_pace(world: World, delta: int) -> None:
    world.push(repeat={"every": MINUTE, "limit": 10}, **PATIENT)
    first, token = world.lease(lockTtl=HOUR)
    world.forward(2 * MINUTE)
    world.ok("ACK", id=first, token=token)
    world.forward(10 * SECOND)

    step(world, delta)

    for left_s in (50, 60, 60):  # its interval, and that of those who follow
        world.forward(left_s * SECOND - 1)
        assert world.pull() is None
        world.forward(1)
        job_id = world.pull()
        assert job_id is not None
        world.ok("ACK", id=job_id)


@both_ways
def test_a_rate_limit_lets_the_next_job_go_in_time(world: World, delta: int) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=MINUTE)
    world.push(**PATIENT)
    job_id = world.push()
    world.pull()
    world.forward(30 * SECOND)
    poll = world.poll()

    step(world, delta)

    world.forward(30 * SECOND - 1)
    assert not poll.is_there
    world.forward(1)
    assert poll.reply is not None
    assert job_id == poll.reply["job"]["id"]


@both_ways
def test_a_temporary_limit_lasts_as_long_as_was_asked(world: World, delta: int) -> None:
    world.ok("RateLimit", queue="q", limit=0, duration=SECOND, ttl=10 * MINUTE)
    job_id = world.push()
    world.forward(5 * MINUTE)

    step(world, delta)

    world.forward(5 * MINUTE - 1)
    assert world.pull() is None
    world.forward(1)
    assert job_id == world.pull()


@both_ways
def test_a_temporary_limit_is_stored_anew(world: World, delta: int) -> None:
    world.ok("RateLimit", queue="q", limit=0, duration=SECOND, ttl=10 * MINUTE)
    job_id = world.push()
    step(world, delta)

    world = world.restart()

    world.forward(10 * MINUTE - 1)
    assert world.pull() is None
    world.forward(1)
    assert job_id == world.pull()


@both_ways
def test_a_temporary_limit_that_is_over_does_not_come_back(world: World, delta: int) -> None:
    world.ok("RateLimit", queue="q", limit=0, duration=SECOND, ttl=10 * SECOND)
    world.ok("SetConcurrency", queue="q", limit=5)
    world.forward(10 * SECOND)
    jobs = [world.push(), world.push()]
    assert jobs[0] == world.pull()
    step(world, delta)

    world = world.restart()

    assert jobs[1] == world.pull()


GROUP: dict[str, Any] = {"group": {"limit": {"max": 1, "duration": MINUTE}}}


@both_ways
def test_the_window_of_a_group_opens_in_time(world: World, delta: int) -> None:
    jobs = [world.push(groupId="g", **PATIENT) for _ in range(2)]
    assert jobs[0] == world.pull(**GROUP)
    world.forward(30 * SECOND)
    poll = world.poll(**GROUP)

    step(world, delta)

    world.forward(30 * SECOND - 1)
    assert not poll.is_there
    world.forward(1)
    assert poll.reply is not None
    assert jobs[1] == poll.reply["job"]["id"]


@both_ways
def test_a_group_rests_as_long_as_was_asked(world: World, delta: int) -> None:
    job_id = world.push(groupId="g")
    world.ok("RateLimitGroup", queue="q", groupId="g", duration=MINUTE)

    step(world, delta)

    world.forward(MINUTE - 1)
    assert world.pull() is None
    world.forward(1)
    assert job_id == world.pull()


@both_ways
def test_a_worker_is_fresh_for_as_long_as_it_would_have_been(world: World, delta: int) -> None:
    world.ok("RegisterWorker", name="w", queues=["q"])
    world.forward(20 * SECOND)

    step(world, delta)

    def status() -> str:
        found: str = world.ok("ListWorkers")["data"]["workers"][0]["status"]
        return found

    world.forward(9 * SECOND)
    assert "active" == status()
    world.forward(2 * SECOND)
    assert "stale" == status()


@both_ways
def test_an_empty_queue_name_goes_in_time(world: World, delta: int) -> None:
    world.push()
    world.ok("ACK", id=world.pull(), removeOnComplete=True)

    step(world, delta)

    world.forward(30 * SECOND)
    assert [] == world.ok("ListQueues")["queues"]


@both_ways
def test_sweeps_go_on(world: World, delta: int) -> None:
    job_id = world.push(stallTimeout=10 * SECOND)
    world.pull()

    step(world, delta)

    world.forward(30 * SECOND)
    assert 1 == world.job(job_id)["stallCount"]


# -- jobs that wait -------------------------------------------------------------------------------


@both_ways
def test_what_is_ready_stays_ready(world: World, delta: int) -> None:
    job_id = world.push()

    step(world, delta)

    assert "waiting" == world.state(job_id)
    assert {"waiting": 1} == world.counts()
    assert job_id == world.pull()


@both_ways
def test_what_is_ready_stays_ready_after_a_restart(world: World, delta: int) -> None:
    job_id = world.push()
    step(world, delta)

    world = world.restart()

    assert "waiting" == world.state(job_id)
    assert job_id == world.pull()


@both_ways
def test_what_was_ready_before_a_stop_is_ready_after_it(world: World, delta: int) -> None:
    first = world.push(priority=1)
    ids = [first, world.push(), world.push(dependsOn=[first])]
    world.clock.ms += delta

    world = world.restart()

    assert ["prioritized", "waiting", "waiting-children"] == [world.state(each) for each in ids]
    assert ids[:2] == [world.pull(), world.pull()]
    world.ok("ACK", id=first)
    assert ids[2] == world.pull()


def test_a_retry_waits_no_longer_for_a_clock_set_back_during_a_stop(world: World) -> None:
    job_id = fail(world)
    world.clock.ms -= DAY

    world = world.restart()

    assert "delayed" == world.state(job_id)
    world.forward(2 * MINUTE)
    assert job_id == world.pull()


def test_a_promised_moment_stays_when_the_clock_was_set_back_during_a_stop(world: World) -> None:
    delayed = world.push(delay=MINUTE)
    dated = world.push(timestamp=world.now + HOUR)
    due = [world.job(each)["runAt"] for each in (delayed, dated)]
    world.clock.ms -= DAY

    world = world.restart()

    assert due == [world.job(each)["runAt"] for each in (delayed, dated)]


@pytest.mark.parametrize("event", ["MoveToWait", "close"])
@both_ways
def test_what_is_handed_back_is_ready(world: World, delta: int, event: str) -> None:
    job_id = world.push()
    worker = world.connect()
    _, token = world.lease(peer=worker)
    step(world, delta)

    if event == "close":
        world.close(worker)
    else:
        world.ok(event, id=job_id, token=token)

    assert "waiting" == world.state(job_id)
    assert job_id == world.pull()


@both_ways
def test_what_came_before_a_step_goes_before_what_comes_after_it(world: World, delta: int) -> None:
    fresh = [world.push() for _ in range(3)]
    lifo = [world.push(lifo=True) for _ in range(2)]
    high = [world.push(priority=1) for _ in range(2)]
    world.forward(SECOND)
    again = fail_at_once(world)

    step(world, delta)

    later = [world.push() for _ in range(2)]
    expected = [*high[1:], *reversed(lifo), *fresh, again, *later]
    assert expected == world.pull_all()


def fail_at_once(world: World) -> str:
    """Fail the first job, which may run again at once; return its id."""
    job_id, token = world.lease()
    world.ok("FAIL", id=job_id, token=token, error="no")
    world.ok("Promote", id=job_id)
    world.ok("ChangePriority", id=job_id, priority=0)
    return job_id


# -- moments --------------------------------------------------------------------------------------


def test_a_delay_has_passed_when_the_clock_was_set_beyond_it(world: World) -> None:
    job_id = world.push(delay=HOUR)
    poll = world.poll()

    step(world, DAY)

    assert poll.reply is not None
    assert job_id == poll.reply["job"]["id"]


def test_a_delay_ends_at_its_moment_though_the_clock_was_set_back(world: World) -> None:
    job_id = world.push(delay=HOUR)
    step(world, -DAY)

    world.leap(DAY)
    poll = world.poll(timeout=MINUTE)
    assert not poll.is_there
    assert world.pull() is None
    world.forward(MINUTE)
    world.forward(HOUR - MINUTE - 1)
    assert "delayed" == world.state(job_id)
    world.forward(1)
    assert job_id == world.pull()


def test_a_time_to_live_is_over_when_the_clock_was_set_beyond_it(world: World) -> None:
    job_id = world.push(ttl=HOUR)

    step(world, DAY)

    assert "unknown" == world.state(job_id)


def test_a_time_to_live_ends_at_its_moment_though_the_clock_was_set_back(world: World) -> None:
    job_id = world.push(ttl=HOUR)
    step(world, -DAY)

    world.leap(DAY + HOUR)
    assert "waiting" == world.state(job_id)
    world.forward(1)
    assert "unknown" == world.state(job_id)


def bury(world: World) -> str:
    """Return a job that has given up."""
    job_id = world.push(maxAttempts=1)
    world.pull()
    world.ok("FAIL", id=job_id, error="no")
    return job_id


def test_a_dead_letter_ages_by_the_clock(world: World) -> None:
    world.ok("SetDlqConfig", queue="q", config={"maxAge": 2 * DAY})
    job_id = bury(world)

    step(world, DAY)
    world.forward(5 * MINUTE)
    assert "failed" == world.state(job_id)
    step(world, DAY)
    world.forward(5 * MINUTE)

    assert "unknown" == world.state(job_id)


def test_a_dead_letter_lives_longer_when_the_clock_was_set_back(world: World) -> None:
    world.ok("SetDlqConfig", queue="q", config={"maxAge": HOUR})
    job_id = bury(world)

    step(world, -DAY)

    world.leap(DAY)
    assert "failed" == world.state(job_id)
    world.forward(HOUR + MINUTE)
    assert "unknown" == world.state(job_id)


@both_ways
def test_a_dedup_key_follows_the_clock(world: World, delta: int) -> None:
    owner = world.push(uniqueKey="k", dedup={"ttl": HOUR})

    step(world, delta)

    is_over = delta > 0
    assert is_over == (owner != world.push(uniqueKey="k", dedup={"ttl": HOUR}))


def test_a_push_that_waited_for_its_commit_is_not_behind_the_ones_after_it() -> None:
    world = persistent_world()
    world.send("PUSH", queue="q", jobId="first", durable=True)
    world.clock.ms -= DAY
    world.engine.clock_jumped(-DAY)
    world.settle()
    world.push(jobId="second")

    assert ["first", "second"] == world.pull_all()


@pytest.mark.parametrize("listens", [True, False])
def test_a_push_that_waited_for_its_commit_ends_no_limit_when_the_clock_was_set_back(
    listens: bool,
) -> None:
    world = persistent_world()
    if not listens:
        world.engine.listeners.clear()
    world.ok("RateLimit", queue="q", limit=0, duration=SECOND, ttl=10 * MINUTE)
    poll = world.poll(timeout=MINUTE)
    world.send("PUSH", queue="q", durable=True)

    step(world, -DAY)
    world.settle()

    assert not poll.is_there


def test_a_clock_set_back_between_two_starts_changes_no_order(world: World) -> None:
    world.push(jobId="first")
    world.clock.ms -= DAY
    again = world.restart()
    again.forward(SECOND)
    again.push(jobId="second")
    again.clock.ms += SECOND

    assert ["first", "second"] == again.restart().pull_all()


# -- many jobs ------------------------------------------------------------------------------------


def many(world: World, count: int, **options: Any) -> list[str]:
    """Push many jobs."""
    jobs = [{"name": "n", "data": number, **options} for number in range(count)]
    ids: list[str] = []
    for begin in range(0, count, 500):
        ids += world.ok("PUSHB", queue="q", jobs=jobs[begin : begin + 500])["ids"]
    return ids


def moments(world: World, ids: list[str]) -> list[int]:
    """Return when the jobs are due."""
    return [world.engine.index.get(job_id).run_at for job_id in ids]


def test_many_jobs_follow_a_step_in_slices_and_none_falls_due_meanwhile(world: World) -> None:
    ids = many(world, 5_000, delay=HOUR)
    for job_id in ids:
        world.engine.index.get(job_id).attempts = 1  # they wait for a span
    due_at = moments(world, ids)

    world.clock.ms += DAY
    world.engine.clock_jumped(DAY)

    assert 1 == world.engine.works.unfinished
    assert world.pull() is None
    world.forward(100)
    assert 0 == world.engine.works.unfinished
    assert [at + DAY for at in due_at] == moments(world, ids)
    assert {"delayed": 5_000} == world.counts()
    world.forward(HOUR)
    assert ids == [world.pull() for _ in ids]


def test_a_second_step_is_followed_after_the_first(world: World) -> None:
    ids = many(world, 5_000, delay=HOUR)
    for job_id in ids:
        world.engine.index.get(job_id).attempts = 1
    due_at = moments(world, ids)

    for delta in (DAY, -HOUR):
        world.clock.ms += delta
        world.engine.clock_jumped(delta)
    world.forward(200)

    assert [] == world.engine.clock_steps
    assert [at + DAY - HOUR for at in due_at] == moments(world, ids)
    world.forward(HOUR)
    assert ids == [world.pull() for _ in ids]


def test_many_ready_jobs_keep_their_place_while_a_clock_set_back_is_followed(world: World) -> None:
    ids = many(world, 6_000)

    world.clock.ms -= DAY
    world.engine.clock_jumped(-DAY)
    assert 1 == world.engine.works.unfinished
    late = world.push()
    first = world.pull()
    world.forward(100)

    assert 0 == world.engine.works.unfinished
    assert [*ids, late] == [first, *(world.pull() for _ in ids)]


def test_a_step_that_cannot_be_followed_holds_no_queue_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.push(delay=HOUR)
    monkeypatch.setattr(clock_steps, "_is_span", None)  # whatever goes wrong

    world.clock.ms += MINUTE
    with pytest.raises(TypeError):
        world.engine.clock_jumped(MINUTE)

    assert [] == world.engine.clock_steps
    world.forward(HOUR)
    assert world.pull() is not None


@pytest.mark.parametrize("delta", [MINUTE, -MINUTE])
def test_a_time_to_live_ends_when_the_clock_says_so_though_nobody_looks(
    world: World, delta: int
) -> None:
    ids = [world.push(ttl=2 * MINUTE) for _ in range(300)]
    assert ids

    step(world, delta)
    world.forward(2 * MINUTE - delta - 1)
    assert {"waiting": 300} == world.counts()
    world.forward(10)

    assert {} == world.counts()


# -- a commit that fails while the clock is set back ----------------------------------------------


def set_back_before_it_fails(world: World) -> None:
    """Set the clock back while a commit is under way, which then fails."""
    world.clock.ms -= DAY
    world.engine.clock_jumped(-DAY)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False


def test_a_lease_whose_outcome_could_not_be_written_runs_out_in_its_time(world: World) -> None:
    job_id = world.push(**PATIENT)
    _, token = world.lease(lockTtl=MINUTE)
    world.send("ACK", id=job_id, token=token)
    set_back_before_it_fails(world)
    assert "active" == world.state(job_id)

    world.forward(MINUTE - SECOND)
    assert "active" == world.state(job_id)
    world.forward(3 * SECOND)
    assert "waiting" == world.state(job_id)


def test_a_ready_job_whose_removal_could_not_be_written_is_not_overtaken(world: World) -> None:
    world.push(jobId="first")
    world.send("Cancel", id="first")
    set_back_before_it_fails(world)
    world.push(jobId="second")

    assert ["first", "second"] == world.pull_all()
