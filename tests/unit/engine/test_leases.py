"""Leases, heartbeats, and late answers: the table of wire.md 5.2, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine import suspects
from tests.support.engine import ScriptedStorage, World, persistent_world

ID = "the-job"
E1 = f"Job not found or not in processing state: {ID}"
REQUIRED = f"Lock token required for job {ID}"
INVALID = f"Invalid or expired lock token for job {ID}"
FINALIZED = {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
IGNORED = {"ok": True, "data": {"ignoredIndices": [0], "ignoredIds": [ID]}}
DONE = {"ok": True}


@pytest.fixture
def world() -> World:
    return World()


# -- situations: each brings the job there and returns its last token ----------------------------


def leased(world: World) -> str:
    world.push(jobId=ID, backoff=60_000)
    return world.lease(lockTtl=1_000)[1]


def unleased(world: World) -> str:
    world.push(jobId=ID)
    world.pull()
    return "any"


def expired(world: World) -> str:
    token = leased(world)
    world.clock.ms += 1_500
    return token


def swept(world: World) -> str:
    token = leased(world)
    world.forward(3_000)
    assert "waiting" == world.state(ID)
    return token


def stalled(world: World) -> str:
    world.push(jobId=ID, backoff=60_000)
    token = world.lease(lockTtl=600_000)[1]
    world.forward(45_000)
    assert "delayed" == world.state(ID)
    return token


def never_pulled(world: World) -> str:
    world.push(jobId=ID)
    return "any"


def handed_to_another(world: World) -> str:
    token = swept(world)
    assert ID == world.lease()[0]
    return token


def timed_out(world: World) -> str:
    world.push(jobId=ID, timeout=500, backoff=60_000)
    token = world.lease()[1]
    world.forward(500)
    assert "delayed" == world.state(ID)
    return token


def timed_out_for_good(world: World) -> str:
    world.push(jobId=ID, timeout=500, maxAttempts=1)
    token = world.lease()[1]
    world.forward(500)
    assert "failed" == world.state(ID)
    return token


def cron_dropped(world: World) -> str:
    world.push(jobId=ID, uniqueKey="cron:nightly")
    token = world.lease(lockTtl=1_000)[1]
    world.forward(3_000)
    assert "unknown" == world.state(ID)
    return token


def completed(world: World) -> str:
    token = leased(world)
    world.ok("ACK", id=ID, token=token)
    return token


def failed(world: World) -> str:
    token = leased(world)
    world.ok("FAIL", id=ID, token=token, unrecoverable=True)
    return token


def swept_for_good(world: World) -> str:
    world.push(jobId=ID, maxAttempts=1)
    token = world.lease(lockTtl=1_000)[1]
    world.forward(3_000)
    assert "failed" == world.state(ID)
    return token


def cancelled(world: World) -> str:
    world.push(jobId=ID)
    world.ok("Cancel", id=ID)
    return "any"


def obliterated(world: World) -> str:
    token = leased(world)
    world.ok("Obliterate", queue="q")
    return token


def never_existed(_world: World) -> str:
    return "any"


def in_backoff(world: World) -> str:
    token = leased(world)
    world.ok("FAIL", id=ID, token=token)
    return token


def moved_back(world: World) -> str:
    token = leased(world)
    world.ok("MoveToDelayed", id=ID, token=token, delay=1_000)
    return token


RIGHT, NONE, WRONG = "right", "none", "wrong"
Row = tuple[Callable[[World], str], str, Any, Any, Any]

# situation, token, and the replies to ACK, FAIL and a batch of one
TABLE: list[Row] = [
    (leased, RIGHT, DONE, DONE, DONE),
    (leased, NONE, REQUIRED, REQUIRED, REQUIRED),
    (leased, WRONG, INVALID, INVALID, INVALID),
    (unleased, RIGHT, DONE, DONE, DONE),
    (unleased, NONE, DONE, DONE, DONE),
    (unleased, WRONG, DONE, DONE, DONE),
    (expired, RIGHT, DONE, DONE, DONE),
    (expired, WRONG, INVALID, INVALID, INVALID),
    (swept, RIGHT, DONE, FINALIZED, DONE),
    (swept, NONE, E1, E1, E1),
    (swept, WRONG, E1, E1, E1),
    (stalled, RIGHT, DONE, FINALIZED, DONE),
    (stalled, NONE, E1, E1, E1),
    (stalled, WRONG, E1, E1, E1),
    (never_pulled, RIGHT, E1, E1, E1),
    (never_pulled, NONE, E1, E1, E1),
    (handed_to_another, RIGHT, INVALID, INVALID, INVALID),
    (timed_out, RIGHT, FINALIZED, FINALIZED, IGNORED),
    (timed_out, NONE, E1, E1, E1),
    (timed_out, WRONG, E1, E1, E1),
    (timed_out_for_good, RIGHT, FINALIZED, FINALIZED, IGNORED),
    (timed_out_for_good, WRONG, E1, E1, E1),
    (cron_dropped, RIGHT, FINALIZED, FINALIZED, IGNORED),
    (cron_dropped, WRONG, E1, E1, E1),
    (cron_dropped, NONE, E1, E1, E1),
    *((end, token, E1, E1, E1) for end in (completed, failed, swept_for_good, cancelled,
                                           obliterated, never_existed, in_backoff, moved_back)
      for token in (RIGHT, NONE, WRONG)),
]  # fmt: skip
CELLS = [
    pytest.param(situation, token, command, reply, id=f"{situation.__name__}-{token}-{command}")
    for situation, token, *replies in TABLE
    for command, reply in zip(("ACK", "FAIL", "ACKB"), replies, strict=True)
]


@pytest.mark.parametrize(("situation", "token", "command", "reply"), CELLS)
def test_a_late_answer_is_treated_as_the_table_says(
    world: World, situation: Callable[[World], str], token: str, command: str, reply: Any
) -> None:
    right = situation(world)
    shown = {RIGHT: right, NONE: None, WRONG: "made-up"}[token]
    before = world.go("GetJob", id=ID)

    if command == "ACKB":
        found = world.go("ACKB", ids=[ID], tokens=[shown])
    else:
        found = world.go(command, id=ID, token=shown)

    assert ({"ok": False, "error": reply} if isinstance(reply, str) else reply) == found
    if reply == DONE:
        assert ("completed" if command != "FAIL" else "delayed") == world.state(ID)
    else:
        assert before == world.go("GetJob", id=ID)


# -- ACKB ----------------------------------------------------------------------------------------


def two_leased(world: World) -> tuple[list[str], list[str]]:
    world.push(jobId="a")
    world.push(jobId="b")
    reply = world.ok("PULLB", queue="q", count=2, owner="w")
    return ["a", "b"], reply["tokens"]


def test_a_batch_with_one_bad_token_is_refused_as_a_whole(world: World) -> None:
    ids, tokens = two_leased(world)

    text = "Invalid or expired lock token for job b"
    assert text == world.error("ACKB", ids=ids, tokens=[tokens[0], "bad"])
    assert {"active": 2} == world.counts()


def test_an_unknown_id_is_an_error_but_the_others_are_applied(world: World) -> None:
    ids, tokens = two_leased(world)

    text = "Job not found or not in processing state: ghost"
    assert text == world.error("ACKB", ids=["ghost", *ids], tokens=[None, *tokens])
    assert {"completed": 2} == world.counts()


def test_an_id_twice_is_applied_once_and_an_error(world: World) -> None:
    ids, tokens = two_leased(world)

    text = "Job not found or not in processing state: a"
    assert text == world.error("ACKB", ids=["a", *ids], tokens=[tokens[0], *tokens])
    assert {"completed": 2} == world.counts()


def test_ignored_positions_are_exact(world: World) -> None:
    ids, tokens = two_leased(world)
    world.push(jobId="late", timeout=500)
    _, late = world.lease()
    world.forward(500)

    reply = world.ok("ACKB", ids=["a", "late", "b"], tokens=[tokens[0], late, tokens[1]])

    assert {"ignoredIndices": [1], "ignoredIds": ["late"]} == reply["data"]
    assert ids == ["a", "b"]
    assert ["completed", "completed"] == [world.state("a"), world.state("b")]


@pytest.mark.parametrize("name", ["tokens", "results", "removeOnCompletes"])
def test_parallel_lists_must_be_as_long_as_ids(world: World, name: str) -> None:
    two_leased(world)

    text = f"ACKB {name} length must match ids length"
    assert text == world.error("ACKB", ids=["a", "b"], **{name: [None]})


def test_results_and_removals_are_positional(world: World) -> None:
    ids, tokens = two_leased(world)

    world.ok("ACKB", ids=ids, tokens=tokens, results=[None, 5], removeOnCompletes=[None, True])

    assert {"id": "a", "result": None} == world.ok("GetResult", id="a")
    assert "unknown" == world.state("b")


def test_removals_count_without_results(world: World) -> None:
    ids, tokens = two_leased(world)

    world.ok("ACKB", ids=ids, tokens=tokens, removeOnCompletes=[True, False])

    assert ["unknown", "completed"] == [world.state("a"), world.state("b")]


# -- renewal -------------------------------------------------------------------------------------


def test_a_heartbeat_with_the_token_renews_for_the_leases_own_span(world: World) -> None:
    token = leased(world)
    world.forward(900)
    assert {"data": {"ok": True}} == world.ok("JobHeartbeat", id=ID, token=token)

    world.forward(999)
    assert "active" == world.state(ID)
    world.forward(2_000)
    assert "waiting" == world.state(ID)


@pytest.mark.parametrize("command", ["JobHeartbeat", "ExtendLock"])
def test_a_renewal_may_name_its_span(world: World, command: str) -> None:
    token = leased(world)
    world.ok(command, id=ID, token=token, duration=20_000)

    world.forward(19_000)

    assert "active" == world.state(ID)
    world.forward(3_000)
    assert "waiting" == world.state(ID)


def test_a_heartbeat_without_the_token_does_not_extend_the_lease(world: World) -> None:
    leased(world)
    world.forward(900)
    world.ok("JobHeartbeat", id=ID)

    assert world.now == world.job(ID)["lastHeartbeat"]
    world.forward(2_000)
    assert "waiting" == world.state(ID)


def test_progress_does_not_extend_the_lease(world: World) -> None:
    leased(world)
    world.forward(900)
    world.ok("Progress", id=ID, progress=1)

    assert world.now == world.job(ID)["lastHeartbeat"]
    world.forward(2_000)
    assert "waiting" == world.state(ID)


def test_a_lock_may_be_extended_without_its_token(world: World) -> None:
    leased(world)
    world.ok("ExtendLock", id=ID, duration=10_000)

    world.forward(9_000)

    assert "active" == world.state(ID)


def test_a_token_proves_nothing_for_a_job_without_a_lease(world: World) -> None:
    unleased(world)

    text = "Job not found or not active (or invalid token)"
    assert text == world.error("JobHeartbeat", id=ID, token="any")
    world.ok("JobHeartbeat", id=ID)


def test_a_lease_of_no_span_ends_at_the_next_sweep(world: World) -> None:
    world.push(jobId=ID)
    world.lease(lockTtl=0)
    world.forward(2_000)

    assert "waiting" == world.state(ID)


def test_a_job_without_a_lease_has_no_lock_to_extend(world: World) -> None:
    unleased(world)

    assert "Lock not found or invalid token" == world.error("ExtendLock", id=ID)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("JobHeartbeat", "Job not found or not active (or invalid token)"),
        ("ExtendLock", "Lock not found or invalid token"),
    ],
)
def test_an_expired_lease_is_not_renewed_but_still_guards(
    world: World, command: str, text: str
) -> None:
    token = expired(world)

    assert text == world.error(command, id=ID, token=token)
    assert INVALID == world.error("ACK", id=ID, token="made-up")
    assert DONE == world.go("ACK", id=ID, token=token)


def test_a_batch_of_heartbeats_counts_those_that_took_effect(world: World) -> None:
    ids, tokens = two_leased(world)

    reply = world.ok("JobHeartbeatB", ids=[*ids, "ghost"], tokens=[tokens[0], "bad", None])

    assert {"ok": True, "count": 1} == reply["data"]
    assert {"ok": True, "count": 2} == world.ok("JobHeartbeatB", ids=ids)["data"]


def test_several_locks_are_extended_each_by_its_own_span(world: World) -> None:
    ids, tokens = two_leased(world)

    reply = world.ok("ExtendLocks", ids=ids, tokens=[tokens[0], "bad"], durations=[60_000, 60_000])

    assert {"count": 1} == reply
    world.ok("SetStallConfig", queue="q", config={"enabled": False})
    world.forward(45_000)
    assert ["active", "waiting"] == [world.state("a"), world.state("b")]


def test_retired_tokens_are_bounded() -> None:
    from bunqueue.engine.leases import RETIRED_TOKENS_MAX, RetiredTokens

    retired = RetiredTokens()
    for number in range(RETIRED_TOKENS_MAX + 2):
        retired.add(str(number), "t")
    retired.add("nothing", None)

    assert RETIRED_TOKENS_MAX == len(retired)
    assert ("1", "t") not in retired
    assert ("2", "t") in retired


# -- a connection that goes ----------------------------------------------------------------------


def test_what_a_closed_connection_had_goes_back_uncharged_to_its_place(world: World) -> None:
    peer = world.connect()
    first = world.push()
    second = world.push()
    assert first == world.pull(peer=peer)
    world.listen()

    world.close(peer)

    assert [] == world.events
    assert (0, 0, None) == tuple(
        world.job(first)[key] for key in ("attempts", "stallCount", "startedAt")
    )
    assert [first, second] == world.pull_all()


def test_a_lease_never_renewed_goes_back_too(world: World) -> None:
    peer = world.connect()
    world.push(jobId=ID)
    _, token = world.lease(peer=peer)
    world.ok("JobHeartbeat", id=ID)

    world.close(peer)

    assert "waiting" == world.state(ID)
    for outcome in ("ACK", "FAIL"):
        assert E1 == world.error(outcome, id=ID, token=token)


def test_a_detached_job_stays_active(world: World) -> None:
    peer = world.connect()
    job_id = world.push()
    world.pull(peer=peer, detach=True)

    world.close(peer)

    assert "active" == world.state(job_id)
    world.ok("ACK", id=job_id)


def test_detach_is_honoured_only_without_an_owner(world: World) -> None:
    peer = world.connect()
    job_id = world.push()
    world.lease(peer=peer, detach=True)

    world.close(peer)

    assert "waiting" == world.state(job_id)


def test_a_settled_job_is_not_touched_by_the_close(world: World) -> None:
    peer = world.connect()
    job_id = world.push()
    world.pull(peer=peer)
    world.ok("ACK", id=job_id)

    world.close(peer)

    assert "completed" == world.state(job_id)
    assert {} == peer.held


def test_a_cron_job_is_dropped_with_its_connection(world: World) -> None:
    peer = world.connect()
    job_id = world.push(uniqueKey="cron:nightly")
    world.pull(peer=peer)

    world.close(peer)

    assert "unknown" == world.state(job_id)
    assert job_id != world.push(uniqueKey="cron:nightly")


def test_five_free_releases_stay_free(world: World) -> None:
    job_id = world.push(maxAttempts=1)
    for _ in range(5):
        peer = world.connect()
        world.pull(peer=peer)
        world.close(peer)

    assert ("waiting", 0) == (world.state(job_id), world.job(job_id)["attempts"])


# -- A10 of the public reports: a job that kills its worker ----------------------------------------


def lose(world: World, count: int = 1) -> None:
    """Have workers take the next job and vanish with it, one after the other."""
    for _ in range(count):
        peer = world.connect()
        world.lease(peer=peer)
        world.close(peer)


def test_a10_a_job_that_takes_its_worker_along_gives_up_after_the_allowed_stalls(
    world: World,
) -> None:
    world.push(jobId=ID, backoff=0)
    world.listen()
    lose(world, 2)
    assert ("waiting", 0, 0) == (world.state(ID), *counts(world))

    lose(world)

    assert ("failed", 1, 1) == (world.state(ID), *counts(world))
    assert "Worker lost 3 times" == world.job(ID)["failedReason"]
    reasons = world.ok("GetDlqStats", queue="q")["data"]["stats"]["byReason"]
    assert {"stalled": 1} == {reason: count for reason, count in reasons.items() if count}


def counts(world: World) -> tuple[int, int]:
    job = world.job(ID)
    return job["attempts"], job["stallCount"]


def test_a10_from_the_second_time_on_it_lets_others_by(world: World) -> None:
    world.push(jobId=ID, backoff={"type": "fixed", "delay": 10_000})
    other = world.push()
    lose(world)
    assert "waiting" == world.state(ID)  # the first time may happen to any job

    lose(world)

    assert "delayed" == world.state(ID)
    assert [other] == world.pull_all()
    world.forward(12_000)
    assert [ID] == world.pull_all()


def test_a10_the_bound_is_the_queues(world: World) -> None:
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 5})
    world.push(jobId=ID, backoff=0)
    lose(world, 4)
    assert "waiting" == world.state(ID)

    lose(world)

    assert "failed" == world.state(ID)


@pytest.mark.parametrize("config", [{"maxStalls": 0}, {"enabled": False}])
def test_a10_without_a_bound_it_goes_back_for_ever(world: World, config: Any) -> None:
    world.ok("SetStallConfig", queue="q", config=config)
    world.push(jobId=ID, maxAttempts=1)

    lose(world, 10)

    assert ("waiting", 0, 0) == (world.state(ID), *counts(world))


def test_a10_a_run_that_ends_otherwise_begins_the_count_anew(world: World) -> None:
    world.push(jobId=ID, backoff=0, maxAttempts=10)
    lose(world, 2)
    _, token = world.lease()
    world.ok("FAIL", id=ID, token=token)

    lose(world, 2)

    assert "waiting" == world.state(ID)


@pytest.mark.parametrize(
    "commands",
    [
        [("MoveToWait", {})],
        [("MoveToDelayed", {"delay": 0})],
        [("ChangeDelay", {"delay": 0})],
        [("MoveToWaitingChildren", {})],
        [("ACK", {}), ("RetryCompleted", {})],
        [("Discard", {}), ("RetryDlq", {})],
    ],
    ids=lambda commands: commands[0][0],
)
def test_a10_losses_count_in_a_row_only(world: World, commands: Any) -> None:
    world.push(jobId=ID, backoff=0)
    for _ in range(2):
        lose(world)
        _, token = world.lease()
        for cmd, fields in commands:
            world.ok(cmd, **fields, id=ID, jobId=ID, queue="q", token=token)

    lose(world, 2)

    assert ("waiting", 0) == (world.state(ID), world.job(ID)["stallCount"])


def test_a10_a_retried_dead_letter_has_all_its_chances_again(world: World) -> None:
    world.push(jobId=ID, backoff=0)
    lose(world, 3)
    world.ok("RetryDlq", queue="q", jobId=ID)

    lose(world, 2)

    assert "waiting" == world.state(ID)


def test_a10_what_was_pulled_without_an_owner_is_no_workers_loss(world: World) -> None:
    world.push(jobId=ID)
    for _ in range(5):
        peer = world.connect()
        world.pull(peer=peer)
        world.close(peer)

    assert ("waiting", 0, 0) == (world.state(ID), *counts(world))


def test_a10_jobs_on_their_last_chance_go_to_a_connection_one_at_a_time(world: World) -> None:
    """So that what kills its worker does not take its neighbours to the dead letters."""
    ids = [world.push(jobId=f"job-{n}", backoff=0) for n in range(3)]
    for _ in range(2):
        peer = world.connect()
        world.ok("PULLB", queue="q", count=3, owner="w", peer=peer)
        world.close(peer)
    fresh = world.push(jobId="fresh")
    peer = world.connect()

    first = world.ok("PULLB", queue="q", count=4, owner="w", peer=peer)

    assert [ids[0], fresh] == [job["id"] for job in first["jobs"]]
    world.forward(300)
    assert [] == world.ok("PULLB", queue="q", count=4, owner="w", peer=peer)["jobs"]
    # Another worker may have one of them, and so may this one when the first has ended.
    world.forward(300)
    assert 1 == len(world.ok("PULLB", queue="q", count=4, owner="w", peer=world.connect())["jobs"])
    world.ok("ACK", id=ids[0], token=first["tokens"][0])
    world.forward(300)
    assert 1 == len(world.ok("PULLB", queue="q", count=4, owner="w", peer=peer)["jobs"])


def test_a10_a_job_that_has_outlived_its_first_seconds_holds_up_no_other(world: World) -> None:
    for n in range(2):
        world.push(jobId=f"job-{n}", backoff=0)
    for _ in range(2):
        peer = world.connect()
        world.ok("PULLB", queue="q", count=2, owner="w", peer=peer)
        world.close(peer)
    peer = world.connect()
    assert 1 == len(world.ok("PULLB", queue="q", count=2, owner="w", peer=peer)["jobs"])
    poll = world.poll(timeout=20_000, owner="w", peer=peer)

    world.forward(9_900)
    assert not poll.is_there
    world.forward(500)

    assert poll.is_there


def test_a10_what_must_wait_for_another_hides_no_other_job(world: World) -> None:
    count = 150
    for n in range(count):
        world.push(jobId=f"job-{n}", backoff=0)
    for _ in range(2):
        peer = world.connect()
        world.ok("PULLB", queue="q", count=count, owner="w", peer=peer)
        world.close(peer)
    fresh = world.push()
    peer = world.connect()
    world.lease(peer=peer)

    job_id, _ = world.lease(peer=peer)

    assert fresh == job_id


def test_a10_a_pull_looks_once_through_what_its_connection_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    has_one = suspects.has_one
    monkeypatch.setattr(suspects, "has_one", lambda *args: looks.append(1) or has_one(*args))
    for n in range(9):
        world.push(jobId=f"job-{n}", backoff=0)
    for _ in range(2):
        peer = world.connect()
        world.ok("PULLB", queue="q", count=9, owner="w", peer=peer)
        world.close(peer)

    reply = world.ok("PULLB", queue="q", count=9, owner="w", peer=world.connect())

    assert (1, 1) == (len(reply["jobs"]), len(looks))


def test_a10_what_must_wait_for_another_is_stored_with_its_later_turn() -> None:
    world = World(ScriptedStorage())
    for n in range(2):
        world.push(jobId=f"job-{n}", backoff=0)
    for _ in range(2):
        peer = world.connect()
        world.ok("PULLB", queue="q", count=2, owner="w", peer=peer)
        world.close(peer)

    world.ok("PULLB", queue="q", count=2, owner="w", peer=world.connect())

    assert "delayed" == world.state("job-1")
    assert "delayed" == world.restart().state("job-1")


def test_what_follows_from_a_closed_connection_leaves_no_answer_waiting() -> None:
    world = persistent_world()
    world.ok("SetStallConfig", queue="q", config={"maxStalls": 1})
    world.ok("SetDlqConfig", queue="q", config={"maxEntries": 1})
    world.push(jobId="old")
    world.ok("Discard", id="old")
    world.push(jobId="lost")
    peer = world.connect()
    world.lease(peer=peer)

    world.engine.peer_closed(peer, world.now)
    world.storage.fails = True
    pushed = world.send("PUSH", queue="q", priority=1)
    world.settle()

    assert "failed" == world.state("lost")
    assert pushed.reply is not None
    assert pushed.reply["ok"]
