"""The dead-letter queue: entries, filters, retries, bounds (engine.md 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.deadletters import REASONS
from bunqueue.protocol.fields import SAFE_INTEGER_MAX
from tests.support.engine import World, persistent_world

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.fixture
def world() -> World:
    return World()


def bury(world: World, job_id: str = "a", **fields: Any) -> str:
    """Let a job fail for good; time goes on by 10 ms."""
    world.push(jobId=job_id, maxAttempts=1, **fields)
    world.pull()
    world.ok("FAIL", id=job_id, error=f"error of {job_id}")
    world.forward(10)
    return job_id


def letters(world: World, **fields: Any) -> list[str]:
    reply = world.ok("Dlq", queue="q", **fields)
    assert len(reply["jobs"]) == len(reply["entries"])
    assert [job["id"] for job in reply["jobs"]] == [it["job"]["id"] for it in reply["entries"]]
    return [job["id"] for job in reply["jobs"]]


def configure(world: World, **config: Any) -> dict[str, Any]:
    world.ok("SetDlqConfig", queue="q", config=config)
    found: dict[str, Any] = world.ok("GetDlqConfig", queue="q")["config"]
    return found


def test_an_entry_has_every_field_of_the_wire(world: World) -> None:
    started = world.now
    bury(world)

    entry = world.entry()
    assert 47 == len(entry["job"])
    del entry["job"]
    assert {
        "enteredAt": started,
        "reason": "max_attempts_exceeded",
        "error": "error of a",
        "attempts": [
            {
                "attempt": 1,
                "startedAt": started,
                "failedAt": started,
                "reason": "max_attempts_exceeded",
                "error": "error of a",
                "duration": 0,
            }
        ],
        "retryCount": 0,
        "lastRetryAt": None,
        "nextRetryAt": None,
        "expiresAt": started + 7 * DAY,
    } == entry


def test_letters_come_in_order_of_entry(world: World) -> None:
    for name in ("c", "a", "b"):
        bury(world, name)

    assert ["c", "a", "b"] == letters(world)
    assert ["c", "a"] == letters(world, count=2)
    assert [] == letters(world, count=0)


# -- filters -------------------------------------------------------------------------------------


@pytest.fixture
def four(world: World) -> World:
    """Letters a (failed), b (discarded), c (timed out), d (failed), 10 ms apart."""
    bury(world, "a")
    world.push(jobId="b")
    world.ok("Discard", id="b")
    world.forward(10)
    world.push(jobId="c", maxAttempts=1, timeout=10)
    world.pull()
    world.forward(10)
    bury(world, "d")
    return world


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"reason": "unknown"}, ["b"]),
        ({"reason": "timeout"}, ["c"]),
        ({"reason": "max_attempts_exceeded"}, ["a", "d"]),
        ({"reason": "worker_lost"}, []),
        ({"limit": 2}, ["a", "b"]),
        ({"offset": 3}, ["d"]),
        ({"offset": 1, "limit": 2}, ["b", "c"]),
        ({"retriable": True}, []),
        ({"retriable": False}, ["a", "b", "c", "d"]),
        ({"expired": True}, []),
        ({"expired": False}, ["a", "b", "c", "d"]),
        ({}, ["a", "b", "c", "d"]),
        (None, ["a", "b", "c", "d"]),
    ],
)
def test_a_filter_chooses(four: World, chosen: Any, found: list[str]) -> None:
    assert found == letters(four, filter=chosen)


def test_older_and_newer_include_their_moment(four: World) -> None:
    entered = [it["enteredAt"] for it in four.ok("Dlq", queue="q")["entries"]]

    assert ["a", "b"] == letters(four, filter={"olderThan": entered[1]})
    assert ["c", "d"] == letters(four, filter={"newerThan": entered[2]})


def test_a_filter_and_a_count_both_bound(four: World) -> None:
    assert ["a"] == letters(four, count=1, filter={"limit": 3})
    assert ["a"] == letters(four, count=3, filter={"limit": 1})


def test_retriable_are_those_whose_automatic_retry_is_due(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=1_000)
    bury(world)

    assert [] == letters(world, filter={"retriable": True})
    world.clock.ms += 1_000
    assert ["a"] == letters(world, filter={"retriable": True})


def test_an_empty_map_in_a_flag_of_a_filter_is_true(world: World) -> None:
    bury(world)

    assert [] == letters(world, filter={"retriable": {}})
    assert [] == letters(world, filter={"expired": []})


def test_expired_are_those_past_their_age(world: World) -> None:
    configure(world, maxAge=1_000)
    bury(world)
    world.clock.ms += 1_000

    assert ["a"] == letters(world, filter={"expired": True})


# -- retrying by hand ----------------------------------------------------------------------------


def test_a_retry_gives_all_attempts_back_and_keeps_the_timeline(world: World) -> None:
    bury(world)
    world.ok("RetryDlq", queue="q")

    view = world.job("a")
    assert ("waiting", 0, 0, world.now) == (
        view["state"],
        view["attempts"],
        view["stallCount"],
        view["runAt"],
    )
    assert "error of a" == view["failedReason"]
    assert ["waiting", "active", "failed", "waiting"] == [it["state"] for it in view["timeline"]]


def test_a_manual_retry_starts_a_new_history(world: World) -> None:
    bury(world)
    world.ok("RetryDlq", queue="q")
    world.pull()
    world.ok("FAIL", id="a", error="again")

    assert ["again"] == [attempt["error"] for attempt in world.entry()["attempts"]]
    assert 0 == world.entry()["retryCount"]


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"jobId": "c"}, ["c"]),
        ({"jobId": "ghost"}, []),
        ({"count": 2}, ["a", "b"]),
        ({"count": 0}, []),
        ({"count": -1}, []),
        ({"filter": {"reason": "timeout"}}, ["c"]),
        ({"filter": {"limit": 3}, "count": 1}, ["a"]),
    ],
)
def test_what_is_retried_can_be_chosen(
    four: World, fields: dict[str, Any], moved: list[str]
) -> None:
    assert {"count": len(moved)} == four.ok("RetryDlq", queue="q", **fields)

    assert [name for name in "abcd" if name not in moved] == letters(four)
    assert moved == sorted(four.pull_all())


def test_a_retried_letter_goes_behind_its_peers(world: World) -> None:
    bury(world)
    peer = world.push()
    world.forward(1)
    world.ok("RetryDlq", queue="q")

    assert [peer, "a"] == world.pull_all()


# -- removing ------------------------------------------------------------------------------------


def test_purge_removes_and_counts(four: World) -> None:
    assert {"count": 4} == four.ok("PurgeDlq", queue="q")
    assert {"count": 0} == four.ok("PurgeDlq", queue="q")
    assert {} == four.counts()
    assert "unknown" == four.state("a")


def test_one_letter_is_removed(four: World) -> None:
    assert {"removed": True} == four.ok("RemoveDlqJob", queue="q", jobId="b")["data"]
    assert {"removed": False} == four.ok("RemoveDlqJob", queue="q", jobId="b")["data"]
    assert ["a", "c", "d"] == letters(four)


def test_a_job_that_is_no_letter_is_not_removed(world: World) -> None:
    world.push(jobId="a")

    assert {"removed": False} == world.ok("RemoveDlqJob", queue="q", jobId="a")["data"]
    assert "waiting" == world.state("a")


# -- bounds --------------------------------------------------------------------------------------


def test_the_oldest_letter_makes_room_at_entry(world: World) -> None:
    configure(world, maxEntries=2)
    for name in "abc":
        bury(world, name)

    assert ["b", "c"] == letters(world)
    assert "unknown" == world.state("a")


def test_a_smaller_bound_evicts_at_once(four: World) -> None:
    configure(four, maxEntries=1)

    assert ["d"] == letters(four)


def test_a_letter_expires_at_the_next_pass(world: World) -> None:
    configure(world, maxAge=5 * MINUTE)
    bury(world)

    world.forward(5 * MINUTE - 20)
    assert ["a"] == letters(world)
    world.forward(MINUTE + 20)

    assert [] == letters(world)
    assert "unknown" == world.state("a")


def test_a_letter_without_an_age_never_expires(world: World) -> None:
    configure(world, maxAge=None)
    bury(world)
    world.leap(1000 * DAY)

    assert ["a"] == letters(world)
    assert world.entry()["expiresAt"] is None


# -- retrying by itself --------------------------------------------------------------------------


def test_letters_are_retried_by_themselves_with_doubling_pauses(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=HOUR, maxAutoRetries=3)
    bury(world)
    pauses = []
    for _ in range(3):
        entry = world.entry()
        pauses.append((entry["nextRetryAt"] - world.now + 10) / HOUR)
        world.leap(int(entry["nextRetryAt"]) - world.now + MINUTE)
        assert ("waiting", 0) == (world.state("a"), world.job("a")["attempts"])
        world.pull()
        world.ok("FAIL", id="a")
        world.forward(10)

    assert [1, 1, 2] == pauses
    entry = world.entry()
    assert (3, None) == (entry["retryCount"], entry["nextRetryAt"])
    assert 4 == len(entry["attempts"])


@pytest.mark.parametrize("off", [{"autoRetry": False}, {"maxAutoRetries": 0}])
def test_what_is_set_now_decides_whether_a_letter_is_retried_by_itself(
    world: World, off: dict[str, Any]
) -> None:
    """As the 2.9.5 server does; a retry that was switched off came all the same."""
    configure(world, autoRetry=True, autoRetryInterval=1_000)
    bury(world)
    configure(world, **off)
    world.forward(2 * MINUTE)

    assert ["a"] == letters(world)
    assert [] == letters(world, filter={"retriable": True})
    assert "until" not in world.ok("ExplainJob", id="a")["explanation"]["reasons"][0]
    configure(world, autoRetry=True, maxAutoRetries=1)
    assert ["a"] == letters(world, filter={"retriable": True})
    world.forward(2 * MINUTE)
    assert [] == letters(world)


def test_an_automatic_retry_that_completes_leaves_nothing(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=0)
    bury(world)
    world.forward(MINUTE)
    world.pull()
    world.ok("ACK", id="a")

    assert [] == letters(world)
    assert {"completed": 1} == world.counts()


def test_no_retry_by_itself_while_another_job_owns_the_key(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=0)
    bury(world, uniqueKey="k")
    world.push(uniqueKey="k")

    world.forward(2 * MINUTE)

    assert ["a"] == letters(world)


# -- configuration -------------------------------------------------------------------------------

DEFAULTS = {
    "autoRetry": False,
    "autoRetryInterval": 3_600_000,
    "maxAutoRetries": 3,
    "maxAge": 604_800_000,
    "maxEntries": 10_000,
}


def test_the_defaults_are_those_of_the_wire(world: World) -> None:
    assert DEFAULTS == world.ok("GetDlqConfig", queue="q")["config"]
    assert {
        "enabled": True,
        "stallInterval": 30_000,
        "maxStalls": 3,
        "gracePeriod": 5_000,
    } == world.ok("GetStallConfig", queue="q")["config"]


def test_values_not_given_keep_what_they_were(world: World) -> None:
    configure(world, maxEntries=5)

    assert {**DEFAULTS, "maxEntries": 5, "maxAge": None} == configure(world, maxAge=None)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("maxEntries", 0, 1),
        ("maxEntries", -5, 1),
        ("maxEntries", 2.9, 2),
        ("maxEntries", "many", 10_000),
        ("maxEntries", True, 10_000),
        ("maxAge", -1, 0),
        ("maxAge", 1e300, SAFE_INTEGER_MAX),
        ("autoRetryInterval", "1e300", SAFE_INTEGER_MAX),
        ("maxAutoRetries", -1, 0),
        ("autoRetryInterval", 1.5, 1),
        ("autoRetryInterval", None, 3_600_000),
        ("autoRetry", "yes", False),
        ("autoRetry", 1, False),
        ("autoRetry", True, True),
    ],
)
def test_values_are_floored_and_raised_and_wrong_types_ignored(
    world: World, name: str, given: object, kept: object
) -> None:
    assert {**DEFAULTS, name: kept} == configure(world, **{name: given})


def test_unknown_settings_are_dropped(world: World) -> None:
    assert DEFAULTS == configure(world, colour="red")


def test_numeric_strings_are_read_in_a_stall_configuration(world: World) -> None:
    world.ok("SetStallConfig", queue="q", config={"stallInterval": "1500", "maxStalls": "x"})

    config = world.ok("GetStallConfig", queue="q")["config"]
    assert (1500, 3) == (config["stallInterval"], config["maxStalls"])


# -- figures -------------------------------------------------------------------------------------


def test_statistics_add_up(four: World) -> None:
    configure(four, autoRetry=True)
    bury(four, "e")

    stats = four.ok("GetDlqStats", queue="q")["data"]["stats"]
    entries = four.ok("Dlq", queue="q")["entries"]

    assert set(REASONS) == set(stats["byReason"])
    assert (5, 5) == (stats["total"], sum(stats["byReason"].values()))
    assert (3, 1, 1) == tuple(
        stats["byReason"][reason] for reason in ("max_attempts_exceeded", "unknown", "timeout")
    )
    assert {"q": 5} == stats["byQueue"]
    assert (0, 0) == (stats["pendingRetry"], stats["expired"])
    assert (entries[0]["enteredAt"], entries[-1]["enteredAt"]) == (
        stats["oldestEntry"],
        stats["newestEntry"],
    )


def test_statistics_count_what_is_due_and_what_is_over(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=1_000, maxAge=5_000)
    bury(world)

    def figures() -> tuple[int, int]:
        stats = world.ok("GetDlqStats", queue="q")["data"]["stats"]
        return stats["pendingRetry"], stats["expired"]

    assert (0, 0) == figures()
    world.clock.ms += 1_000
    assert (1, 0) == figures()
    world.clock.ms += 4_000
    assert (1, 1) == figures()


def test_statistics_go_on_counting_what_was_due_when_automatic_retries_were_switched_off(
    world: World,
) -> None:
    configure(world, autoRetry=True, autoRetryInterval=1_000)
    bury(world)
    world.clock.ms += 1_000
    configure(world, autoRetry=False)

    assert 1 == world.ok("GetDlqStats", queue="q")["data"]["stats"]["pendingRetry"]
    assert [] == letters(world, filter={"retriable": True})


def test_a_first_letter_has_a_moment_even_while_no_retries_are_allowed(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=1_000, maxAutoRetries=0)
    bury(world)

    def figures() -> tuple[Any, int]:
        [entry] = world.ok("Dlq", queue="q")["entries"]
        stats = world.ok("GetDlqStats", queue="q")["data"]["stats"]
        return entry["nextRetryAt"] - entry["enteredAt"], stats["pendingRetry"]

    world.leap(2 * MINUTE)
    assert (1_000, 0) == figures()
    assert "failed" == world.job("a")["state"]
    configure(world, maxAutoRetries=1)
    assert (1_000, 1) == figures()


def test_statistics_of_nothing(world: World) -> None:
    stats = world.ok("GetDlqStats", queue="nowhere")["data"]["stats"]

    assert {
        "total": 0,
        "byReason": dict.fromkeys(REASONS, 0),
        "byQueue": {"nowhere": 0},
        "pendingRetry": 0,
        "expired": 0,
        "oldestEntry": None,
        "newestEntry": None,
    } == stats


# -- a time to live after the end -----------------------------------------------------------------


def settings_of(command: str) -> dict[str, Any]:
    return {"RetryDlq": {"queue": "q"}, "MoveToWait": {"id": "a"}}[command]


@pytest.mark.parametrize("command", ["RetryDlq", "MoveToWait"])
def test_a_dead_letter_that_is_retried_lives_anew(world: World, command: str) -> None:
    # The reference lets it vanish at the next pull, without a word.
    bury(world, ttl=MINUTE)
    world.forward(HOUR)

    world.ok(command, **settings_of(command))

    world.forward(MINUTE)
    assert "waiting" == world.state("a")
    assert "a" == world.pull()


def test_a_fresh_time_to_live_ends_too(world: World) -> None:
    bury(world, ttl=MINUTE)
    world.forward(HOUR)
    world.ok("RetryDlq", queue="q")

    world.forward(MINUTE + 1)

    assert "unknown" == world.state("a")
    assert {} == world.counts()


def test_an_automatic_retry_lives_anew(world: World) -> None:
    configure(world, autoRetry=True, autoRetryInterval=HOUR)
    bury(world, ttl=5 * MINUTE)

    world.forward(HOUR + MINUTE)

    assert "a" == world.pull()


def test_a_completed_job_that_runs_again_lives_anew(world: World) -> None:
    world.push(jobId="a", ttl=MINUTE)
    world.ok("ACK", id=world.pull())
    world.forward(HOUR)

    assert 1 == world.ok("RetryCompleted", queue="q", id="a")["count"]

    assert "a" == world.pull()


def test_what_expired_can_be_retried() -> None:
    world = persistent_world()
    job_id = world.push(ttl=MINUTE, backoff=HOUR)
    _, token = world.lease()
    world.ok("FAIL", id=job_id, token=token, error="no")
    world.forward(2 * MINUTE)
    assert "ttl_expired" == world.entry()["reason"]
    world.ok("RetryDlq", queue="q")

    world = world.restart()

    assert "waiting" == world.state(job_id)
    world.forward(MINUTE)
    assert job_id == world.pull()
