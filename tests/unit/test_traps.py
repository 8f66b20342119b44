"""The traps of engine.md 15 that need neither a file nor a process, each under its number.

Every one of them is a defect that the reference broker has or had.
"""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue import compiled
from bunqueue.engine.events import ListenToAll
from tests.support.engine import World, persistent_world

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def test_trap_01_a_failed_reuse_of_an_id_leaves_the_old_generation() -> None:
    world = persistent_world()
    world.push(jobId="a", data=1)
    world.lease()
    world.go("ACK", id="a", token=world.engine.find("a").token, result="first")
    world.storage.fails = True

    assert "Internal server error" == world.error("PUSH", queue="q", jobId="a", data=2)

    assert "completed" == world.state("a")
    assert "first" == world.ok("GetResult", id="a")["result"]


def test_trap_01_old_and_new_generation_are_never_both_or_neither_in_the_file() -> None:
    world = persistent_world()
    world.push(jobId="a", data=1)
    world.pull()
    world.ok("ACK", id="a")

    world.ok("PUSH", queue="q", jobId="a", data=2)

    again = world.restart()
    assert "waiting" == again.state("a")
    assert 2 == again.job("a")["data"]


def test_trap_02_replace_waits_for_the_commit_of_both_jobs() -> None:
    world = persistent_world()
    old = world.push(uniqueKey="k")
    answer = world.send("PUSH", queue="q", uniqueKey="k", dedup={"replace": True})

    assert not answer.is_there

    world.settle()
    new = answer.reply["id"]
    assert ["unknown", "waiting"] == [world.state(old), world.state(new)]
    assert [new] == list(world.storage.rows)


def test_trap_02_a_failed_replace_keeps_the_old_job_and_its_key() -> None:
    world = persistent_world()
    old = world.push(uniqueKey="k")
    world.storage.fails = True

    world.error("PUSH", queue="q", uniqueKey="k", dedup={"replace": True})

    world.storage.fails = False
    assert {"waiting": 1} == world.counts()
    assert old == world.push(uniqueKey="k")
    assert [old] == world.pull_all()


def test_trap_03_an_uncharged_release_is_noted_for_the_file() -> None:
    world = persistent_world()
    job_id = world.push()
    peer = world.connect()
    world.pull(peer=peer)

    world.close(peer)

    assert "waiting" == world.restart().state(job_id)
    assert 0 == world.restart().job(job_id)["attempts"]


@pytest.mark.slow
def test_trap_04_live_custom_ids_are_never_forgotten(world: World) -> None:
    for start in range(0, 50_001, 1000):
        world.ok(
            "PUSHB",
            queue="q",
            jobs=[{"customId": f"id-{number}"} for number in range(start, start + 1000)],
        )

    world.push(jobId="id-0", data="other")

    assert {"waiting": 51_000} == world.counts()
    assert world.job("id-0")["data"] is None


def test_trap_05_live_unique_keys_are_never_trimmed(world: World) -> None:
    first = world.push(uniqueKey="key-0")
    for number in range(1, 1200):
        world.push(uniqueKey=f"key-{number}")

    world.forward(11_000)

    assert first == world.push(uniqueKey="key-0")
    assert {"waiting": 1200} == world.counts()


def stall(world: World, _job_id: str) -> None:
    world.forward(45_000)


def fail(world: World, job_id: str) -> None:
    world.ok("FAIL", id=job_id, token=world.engine.find(job_id).token)


def expire(world: World, _job_id: str) -> None:
    world.ok("SetStallConfig", queue="q", config={"enabled": False})
    world.forward(32_000)


def disconnect(world: World, _job_id: str) -> None:
    world.close(world.peer)
    world.peer = world.connect()


def move_to_wait(world: World, job_id: str) -> None:
    world.ok("MoveToWait", id=job_id, token=world.engine.find(job_id).token)


def move_to_delayed(world: World, job_id: str) -> None:
    world.ok("MoveToDelayed", id=job_id, delay=1_000, token=world.engine.find(job_id).token)


RETURNS = [fail, stall, expire, disconnect, move_to_wait, move_to_delayed]


@pytest.mark.parametrize("way_back", RETURNS)
def test_trap_06_a_key_survives_every_way_back_to_the_queue(world: World, way_back: Any) -> None:
    job_id = world.push(uniqueKey="k", backoff={"type": "fixed", "delay": 5_000})
    world.lease()

    way_back(world, job_id)

    assert world.state(job_id) in ("waiting", "delayed")
    assert job_id == world.push(uniqueKey="k")


def test_trap_07_an_ack_needs_the_token_of_the_last_delivery(world: World) -> None:
    job_id = world.push()
    _, token = world.lease()
    world.ok("FAIL", id=job_id, token=token)

    for wrong in ("garbage", token, None):
        text = f"Job not found or not in processing state: {job_id}"
        assert text == world.error("ACK", id=job_id, token=wrong)
    assert "delayed" == world.state(job_id)


def test_trap_11_a_long_poll_wakes_when_the_next_token_matures(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=1, duration=500)
    world.push()
    second = world.push()
    world.pull()
    poll = world.poll(timeout=2_500)

    world.forward(499)
    assert not poll.is_there
    world.forward(1)

    assert second == poll.reply["job"]["id"]


def test_trap_11_a_long_poll_wakes_when_the_limit_is_raised(world: World) -> None:
    world.ok("SetConcurrency", queue="q", limit=1)
    world.push()
    second = world.push()
    world.pull()
    poll = world.poll()

    world.ok("SetConcurrency", queue="q", limit=2)

    assert second == poll.reply["job"]["id"]


def test_trap_11_resume_wakes_every_poller_there_is_a_job_for(world: World) -> None:
    world.ok("Pause", queue="q")
    ids = [world.push() for _ in range(3)]
    polls = [world.poll(peer=world.connect()) for _ in range(3)]

    world.ok("Resume", queue="q")

    assert ids == [poll.reply["job"]["id"] for poll in polls]


def test_trap_12_a_worker_belongs_to_the_connection_that_registered_it_last(world: World) -> None:
    first, second = world.connect(), world.connect()
    for peer in (first, second):
        world.ok("RegisterWorker", peer, name="w", queues=["q"], workerId="w1")

    world.close(first)
    assert ["w1"] == [worker["id"] for worker in world.ok("ListWorkers")["data"]["workers"]]

    world.close(second)
    assert [] == world.ok("ListWorkers")["data"]["workers"]


def test_trap_14_a_graceful_stop_lets_workers_finish(world: World) -> None:
    job_id = world.push()
    world.push()
    poll = world.poll("other")
    _, token = world.lease()

    world.engine.drain_begin()

    assert poll.reply["job"] is None
    assert world.pull() is None
    assert world.poll().reply["job"] is None
    world.forward(1_000)
    world.ok("JobHeartbeat", id=job_id, token=token)
    world.ok("ACK", id=job_id, token=token)
    assert "completed" == world.state(job_id)
    assert 0 == world.engine.active_count()


def test_trap_14_what_is_left_after_a_graceful_stop_goes_back_uncharged(world: World) -> None:
    job_id = world.push()
    _, token = world.lease()
    world.ok("JobHeartbeat", id=job_id, token=token)
    world.engine.drain_begin()

    assert 1 == world.engine.release_all(world.now)

    assert "waiting" == world.state(job_id)
    assert 0 == world.job(job_id)["attempts"]


def test_trap_15_failed_reason_is_the_last_error_after_many_retries(world: World) -> None:
    job_id = world.push(maxAttempts=20, backoff=0)
    for number in range(15):
        world.pull()
        world.ok("FAIL", id=job_id, error=f"error {number}")

    assert "error 14" == world.job(job_id)["failedReason"]
    assert 20 == len(world.job(job_id)["timeline"])
    errors = [entry["error"] for entry in world.job(job_id)["timeline"] if "error" in entry]
    assert "error 14" == errors[-1]


def test_trap_16_a_live_delivery_has_no_maximum_age(world: World) -> None:
    job_id = world.push()
    _, token = world.lease()

    for _ in range(31 * 3):
        world.forward(MINUTE // 3)
        world.ok("JobHeartbeat", id=job_id, token=token)

    world.ok("ACK", id=job_id, token=token)
    assert "completed" == world.state(job_id)


def test_trap_17_max_delay_caps_retries(world: World) -> None:
    job_id = world.push(backoff={"type": "fixed", "delay": 1000, "maxDelay": 100})
    world.pull()
    world.ok("FAIL", id=job_id)

    assert world.now + 100 == world.job(job_id)["runAt"]


def test_trap_18_a_late_disconnect_releases_only_its_own_delivery(world: World) -> None:
    job_id = world.push(backoff=0)
    silent, lively = world.connect(), world.connect()
    world.lease(peer=silent, lockTtl=MINUTE)
    world.forward(45_000)
    assert 1 == world.job(job_id)["stallCount"]
    _, token = world.lease(peer=lively)

    world.close(silent)

    assert "active" == world.state(job_id)
    world.ok("ACK", id=job_id, token=token)


def test_trap_19_a_heartbeat_between_two_stall_sweeps_keeps_the_job(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.forward(35_000)  # the sweep at 35 s has found it silent
    assert "active" == world.state(job_id)

    world.ok("JobHeartbeat", id=job_id)
    world.forward(10_000)

    assert "active" == world.state(job_id)
    assert 0 == world.job(job_id)["stallCount"]


def test_trap_19_a_renewal_before_the_lease_sweep_keeps_the_job(world: World) -> None:
    job_id = world.push()
    _, token = world.lease(lockTtl=10_000)
    world.forward(9_999)

    world.ok("ExtendLock", id=job_id, token=token)
    world.forward(9_999)

    assert "active" == world.state(job_id)


def ack(world: World, job_id: str) -> None:
    world.ok("ACK", id=job_id, token=world.engine.find(job_id).token)


def discard(world: World, job_id: str) -> None:
    world.ok("Discard", id=job_id, token=world.engine.find(job_id).token)


def change_delay(world: World, job_id: str) -> None:
    world.ok("ChangeDelay", id=job_id, delay=MINUTE, token=world.engine.find(job_id).token)


def fail_for_good(world: World, job_id: str) -> None:
    token = world.engine.find(job_id).token
    world.ok("FAIL", id=job_id, token=token, unrecoverable=True)


def run_out(world: World, _job_id: str) -> None:
    world.forward(2_000)


def obliterate(world: World, _job_id: str) -> None:
    world.ok("Obliterate", queue="q")
    world.ok("SetConcurrency", queue="q", limit=1)


@pytest.mark.parametrize(
    "leave", [*RETURNS, ack, discard, change_delay, fail_for_good, run_out, obliterate]
)
def test_trap_20_every_exit_from_active_frees_its_slot(world: World, leave: Any) -> None:
    world.ok("SetConcurrency", queue="q", limit=1)
    timeout = 2_000 if leave is run_out else 0
    job_id = world.push(uniqueKey="k", timeout=timeout, backoff=MINUTE)
    world.lease()
    assert world.pull() is None

    leave(world, job_id)

    other = world.push(priority=10)
    assert other == world.pull()


@pytest.mark.parametrize("leave", [ack, discard, fail_for_good, obliterate])
def test_trap_20_every_end_of_a_job_frees_its_key(world: World, leave: Any) -> None:
    job_id = world.push(uniqueKey="k")
    world.lease()

    leave(world, job_id)

    assert job_id != world.push(uniqueKey="k")


def test_trap_21_a_lease_that_ends_at_the_stall_bound_is_a_dead_letter_in_the_file() -> None:
    world = persistent_world()
    job_id = world.push(maxAttempts=10)
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 1})
    world.lease(lockTtl=1_000)
    world.forward(2_000)

    again = world.restart()

    assert "stalled" == again.entry()["reason"]
    assert "Lock expired after 0 renewals" == again.entry()["error"]
    assert 1 == again.ok("RetryDlq", queue="q")["count"]
    assert job_id == again.pull()


def test_trap_26_obliterate_beats_a_late_ack(world: World) -> None:
    job_id = world.push()
    _, token = world.lease()
    world.ok("Obliterate", queue="q")

    text = f"Job not found or not in processing state: {job_id}"
    assert text == world.error("ACK", id=job_id, token=token)
    assert "unknown" == world.state(job_id)
    assert "q" not in world.ok("ListQueues")["queues"]


def test_trap_26_obliterate_beats_a_push_that_waits_for_its_commit() -> None:
    world = persistent_world()
    push = world.send("PUSH", queue="q", durable=True)
    drop = world.send("Obliterate", queue="q")

    world.settle()

    assert push.reply["ok"]
    assert drop.reply["ok"]
    assert "unknown" == world.state(push.reply["id"])
    assert {} == world.counts()
    assert {} == world.storage.rows


def test_trap_29_stall_count_and_attempts_bound_crash_loops() -> None:
    world = persistent_world()
    job_id = world.push(maxAttempts=10, backoff=0)
    for _ in range(3):
        assert job_id == world.lease()[0]
        world = world.restart()

    assert "failed" == world.state(job_id)
    assert "stalled" == world.entry()["reason"]
    assert "Job stalled 3 times (recovered at startup)" == world.entry()["error"]
    assert 3 == len(world.entry()["attempts"])


def test_trap_29_a_restart_without_a_delivery_charges_nothing() -> None:
    world = persistent_world()
    job_id = world.push(backoff=0)
    world.lease()

    world = world.restart().restart().restart()

    assert 1 == world.job(job_id)["attempts"]
    assert 1 == world.job(job_id)["stallCount"]


@pytest.mark.parametrize("owner", ["other", None])
@pytest.mark.parametrize("outcome", ["ACK", "FAIL"])
def test_trap_30_a_timed_out_delivery_cannot_settle_the_retry(
    world: World, outcome: str, owner: str | None
) -> None:
    job_id = world.push(timeout=1_000, backoff=0)
    _, old = world.lease()
    world.forward(1_000)
    assert job_id == world.pull(owner=owner)

    reply = world.ok(outcome, id=job_id, token=old)

    assert {"data": {"applied": False, "reason": "already-finalized"}} == reply
    assert "active" == world.state(job_id)
    assert 1 == world.job(job_id)["attempts"]


def test_trap_31_an_expired_but_unreclaimed_lease_still_acknowledges(world: World) -> None:
    job_id = world.push()
    _, token = world.lease(lockTtl=50)
    world.clock.ms += 150

    world.ok("ACK", id=job_id, token=token)

    assert "completed" == world.state(job_id)


def test_trap_32_a_job_is_in_one_place_whatever_happens_to_it(world: World) -> None:
    seen: list[str] = []
    job_id = ""

    def look(_event: dict[str, Any]) -> None:
        seen.append(world.engine.state(job_id, world.now))

    job_id = world.push(backoff=0)
    world.engine.listeners.append(ListenToAll(look))
    for _ in range(3):
        world.pull()
        world.ok("FAIL", id=job_id)
    world.ok("RetryDlq", queue="q")
    world.pull()
    world.ok("ACK", id=job_id)

    assert seen
    assert "unknown" not in seen


def test_trap_37_cleanup_does_not_wipe_the_keys_of_active_jobs(world: World) -> None:
    job_id = world.push(uniqueKey="k")
    _, token = world.lease()

    world.forward(11_000)
    world.ok("JobHeartbeat", id=job_id, token=token)
    world.forward(11_000)

    assert job_id == world.push(uniqueKey="k")
    assert {"active": 1} == world.counts()


def test_trap_43_max_entries_also_holds_at_recovery() -> None:
    world = persistent_world()
    ids = [world.push() for _ in range(5)]
    for job_id in ids:
        world.pull()
        world.ok("FAIL", id=job_id, unrecoverable=True)
        world.forward(1)
    world.storage.tables["queues"] = {
        "q": (0, None, None, None, None, None, '{"maxEntries": 2}'),
    }

    again = world.restart()

    letters = again.ok("Dlq", queue="q")["jobs"]
    assert ids[3:] == [job["id"] for job in letters]
    assert ids[3:] == sorted(again.storage.rows)


def test_trap_43_the_history_of_a_dead_letter_survives_automatic_retries(world: World) -> None:
    world.ok("SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 1_000})
    job_id = world.push(maxAttempts=1)
    world.pull()
    world.ok("FAIL", id=job_id, error="first")
    entered_at = world.entry()["enteredAt"]

    world.forward(61_000)
    world.pull()
    world.ok("FAIL", id=job_id, error="second")

    entry = world.entry()
    assert ["first", "second"] == [attempt["error"] for attempt in entry["attempts"]]
    assert entered_at == entry["enteredAt"]
    assert 1 == entry["retryCount"]


def test_trap_44_a_renewed_lease_survives_the_loss_of_one_pooled_socket(world: World) -> None:
    job_id = world.push()
    first, second = world.connect(), world.connect()
    _, token = world.lease(peer=first)
    world.ok("JobHeartbeat", second, id=job_id, token=token)

    world.close(first)

    assert "active" == world.state(job_id)
    world.ok("ACK", second, id=job_id, token=token)


def test_trap_45_counts_do_not_double_while_a_queue_is_paused(world: World) -> None:
    world.push()
    world.push(priority=1)
    world.push(delay=MINUTE)
    world.ok("Pause", queue="q")

    assert {"paused": 2, "delayed": 1} == world.counts()


def test_trap_45_pause_survives_a_restart() -> None:
    world = persistent_world()
    world.push()
    world.ok("Pause", queue="q")

    again = world.restart()

    assert again.ok("IsPaused", queue="q")["paused"]
    assert {"paused": 1} == again.counts()
    assert again.pull() is None


def test_trap_46_nothing_of_an_old_generation_is_left_in_a_recycled_id(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    world.ok("AddLog", id="a", message="old")
    world.ok("Progress", id="a", progress=50, message="half")
    world.ok("ACK", id="a", result="old")

    world.push(jobId="a")

    assert {"id": "a"} == world.ok("GetResult", id="a")
    assert {"logs": [], "count": 0} == world.ok("GetLogs", id="a")["data"]
    view = world.job("a")
    assert 0 == view["progress"]
    assert view["progressMessage"] is None
    assert view["completedAt"] is None


@pytest.mark.slow
def test_trap_48_large_batches_stay_linear(world: World) -> None:
    calls = []
    for count in (1_000, 4_000, 8_000):
        before = calls_of(lambda count=count: world.ok("PUSHB", queue="q", jobs=[{}] * count))
        calls.append(before / count)

    # In slices, which costs more; a batch that is none is admitted in one go, compiled or not.
    assert calls[1] < (3 if compiled.IS_COMPILED else 2) * calls[0]
    assert calls[2] < 1.1 * calls[1]
    assert 13_000 == len(world.pull_all())


def calls_of(run: Any) -> int:
    import sys

    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call" or event == "c_call"

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_trap_47_a_blocked_group_does_not_starve_the_queue(world: World) -> None:
    terms = {"concurrency": 1}
    world.ok("PUSHB", queue="q", jobs=[{"groupId": "a"}] * 5_000)
    world.ok("PULL", queue="q", group=terms)
    world.push(groupId="b", data="free")

    costs = [calls_of(lambda: world.ok("PULL", queue="q", group=terms)) for _ in range(2)]

    assert 1 == world.ok("GetGroupActiveCount", queue="q", groupId="b")["data"]["count"]
    assert 2 == world.counts()["active"]
    assert max(costs) < 500


@pytest.mark.parametrize("garbage", ["abc", None, [], {}, float("nan"), True])
@pytest.mark.parametrize("name", ["stallInterval", "maxStalls", "gracePeriod"])
def test_trap_50_garbage_in_a_configuration_never_disables_a_sweep(
    world: World, name: str, garbage: Any
) -> None:
    usual = world.ok("GetStallConfig", queue="q")["config"]

    world.ok("SetStallConfig", queue="q", config={name: garbage, "enabled": "no"})

    assert usual == world.ok("GetStallConfig", queue="q")["config"]
