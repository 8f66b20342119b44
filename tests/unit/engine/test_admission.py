"""Jobs in: custom ids (the table of engine.md 3.2), batches, and what waits for its commit."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.engine.job import Job
from tests.support.engine import World, persistent_world
from tests.unit.test_legality import park

MINUTE = 60_000


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "memory" else persistent_world()


LIVE = ("waiting", "prioritized", "delayed", "waiting-children", "active")


def live_in(world: World, state: str) -> None:
    own = {"prioritized": {"priority": 5}, "delayed": {"delay": 5_000}}.get(state, {})
    world.push(jobId="a", data="old", **own)
    if state == "waiting-children":
        park(world, "a")
    if state == "active":
        world.pull()


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("queue", ["q", "other"])
@pytest.mark.parametrize("durable", [False, True])
def test_an_id_that_lives_is_answered_and_nothing_changes(
    world: World, state: str, queue: str, durable: bool
) -> None:
    live_in(world, state)
    pushed = world.engine.totals.pushed
    before = world.job("a")
    world.listen()

    assert "a" == world.push(queue, jobId="a", data="new", priority=9, durable=durable)

    assert before == world.job("a")
    assert {state: 1} == world.counts()
    assert {} == world.counts("other")
    assert pushed == world.engine.totals.pushed
    assert [] == world.events


def completed(world: World) -> None:
    world.pull()
    world.ok("ACK", id="a", result="old")


def failed(world: World) -> None:
    world.pull()
    world.ok("FAIL", id="a", unrecoverable=True, error="old")


def removed(world: World) -> None:
    world.pull()
    world.ok("ACK", id="a", removeOnComplete=True)


def cancelled(world: World) -> None:
    world.ok("Cancel", id="a")


def purged(world: World) -> None:
    failed(world)
    world.ok("PurgeDlq", queue="q")


def cleaned(world: World) -> None:
    world.ok("Clean", queue="q")


def expired(world: World) -> None:
    world.forward(MINUTE + 1)


ENDS = [completed, failed, removed, cancelled, purged, cleaned, expired]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("queue", ["q", "other"])
def test_an_id_that_has_ended_begins_a_new_generation(world: World, end: Any, queue: str) -> None:
    world.push(jobId="a", data="old", ttl=MINUTE)
    end(world)

    assert "a" == world.push(queue, jobId="a", data="new")

    view = world.job("a")
    assert ("new", queue, "waiting", 0) == (
        view["data"],
        view["queue"],
        view["state"],
        view["attempts"],
    )
    assert "failedReason" not in view
    assert {"id": "a"} == world.ok("GetResult", id="a")
    assert {"waiting": 1} == world.counts(queue)
    assert [] == world.ok("Dlq", queue="q")["jobs"]
    assert {} == (world.counts("q") if queue != "q" else {})


def test_a_twin_inside_one_batch_is_answered_with_the_same_id(world: World) -> None:
    jobs = [{"customId": "a", "data": 1}, {"customId": "a", "data": 2}]

    assert ["a", "a"] == world.ok("PUSHB", queue="q", jobs=jobs)["ids"]
    assert {"waiting": 1} == world.counts()
    assert 1 == world.job("a")["data"]


def test_an_empty_custom_id_is_none(world: World) -> None:
    assert 36 == len(world.push(jobId=""))


@pytest.mark.parametrize("number", [5, 1.5, ["a"], True])
def test_a_custom_id_that_is_no_string_is_refused(world: World, number: object) -> None:
    assert "jobId must be a string" == world.error("PUSH", queue="q", jobId=number)


def test_an_unfinished_job_is_found_by_its_custom_id(world: World) -> None:
    world.push(jobId="a")
    assert "a" == world.ok("GetJobByCustomId", customId="a")["job"]["customId"]

    completed(world)

    assert "Job not found" == world.error("GetJobByCustomId", customId="a")


def test_a_generated_id_is_no_custom_id(world: World) -> None:
    job_id = world.push()

    assert "Job not found" == world.error("GetJobByCustomId", customId=job_id)
    assert world.job(job_id)["customId"] is None


def test_ids_tie_in_order_of_admission_whatever_they_read(world: World) -> None:
    jobs = [{"customId": name} for name in ("zz", "mm", "aa")]
    world.ok("PUSHB", queue="q", jobs=jobs)

    assert ["zz", "mm", "aa"] == world.pull_all()


def test_lifo_ids_come_newest_first_whatever_they_read(world: World) -> None:
    for name in ("b", "c", "a"):
        world.push(jobId=name, lifo=True)

    assert ["a", "c", "b"] == world.pull_all()


def test_a_timestamp_is_where_delay_and_ttl_count_from(world: World) -> None:
    job_id = world.push(timestamp=world.now - 5_000, delay=6_000)

    assert "delayed" == world.state(job_id)
    world.forward(1_000)
    assert "waiting" == world.state(job_id)
    assert world.now - 6_000 == world.job(job_id)["createdAt"]


def test_a_timestamp_of_64_bits_is_taken(world: World) -> None:
    job_id = world.push(timestamp=2**53)

    assert 2.0**53 == world.job(job_id)["createdAt"]


def test_a_bad_entry_refuses_the_whole_batch(world: World) -> None:
    jobs = [{}, {"priority": "high"}]

    assert "jobs[1]: priority must be a number" == world.error("PUSHB", queue="q", jobs=jobs)
    assert {} == world.counts()


def test_an_empty_batch_is_fine(world: World) -> None:
    assert {"ids": []} == world.ok("PUSHB", queue="q", jobs=[])


def test_a_batch_keeps_its_order(world: World) -> None:
    jobs: list[dict[str, Any]] = [{}, {"durable": True}, {"priority": 0}, {"customId": "x"}]
    ids = world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    assert 4 == len(set(ids))
    assert set(ids) == set(world.pull_all())


# -- what waits for its commit -------------------------------------------------------------------


def test_a_plain_push_does_not_wait_for_the_disk() -> None:
    world = persistent_world()

    assert world.send("PUSH", queue="q").is_there
    assert world.send("PUSHB", queue="q", jobs=[{}, {}]).is_there


@pytest.mark.parametrize(
    ("command", "fields"), [("PUSH", {"durable": True}), ("PUSHB", {"jobs": [{"durable": True}]})]
)
def test_a_durable_push_waits_and_is_invisible_until_then(
    command: str, fields: dict[str, Any]
) -> None:
    world = persistent_world()
    answer = world.send(command, queue="q", **fields)
    assert not answer.is_there
    assert 0 == world.engine.count("q")
    assert [] == world.ok("GetJobs", queue="q")["jobs"]

    world.settle()

    assert answer.reply["ok"]
    assert {"waiting": 1} == world.counts()
    assert 1 == world.storage.durable_syncs


def test_a_durable_push_serves_a_waiting_pull_only_after_its_commit() -> None:
    world = persistent_world()
    poll = world.poll(peer=world.connect())
    world.send("PUSH", queue="q", durable=True)
    assert not poll.is_there

    world.settle()
    world.settle()

    assert poll.reply["job"] is not None


def test_a_slow_commit_takes_nothing_of_the_lease_of_who_waits_for_the_job() -> None:
    world = persistent_world()
    poll = world.poll(peer=world.connect(), owner="w", lockTtl=5_000)
    world.send("PUSH", queue="q", durable=True)
    world.leap(20_000)
    world.settle()

    job = poll.reply["job"]
    assert world.now == job["startedAt"]
    world.forward(4_000)
    assert "active" == world.state(job["id"])


def test_a_durable_push_that_fails_leaves_no_trace() -> None:
    world = persistent_world()
    world.storage.fails = True

    fields = {"jobId": "a", "uniqueKey": "k", "durable": True, "ttl": MINUTE}
    assert "Internal server error" == world.error("PUSH", queue="q", **fields)

    world.storage.fails = False
    assert "unknown" == world.state("a")
    assert {} == world.counts()
    assert 0 == world.engine.totals.pushed
    assert "b" == world.push(jobId="b", uniqueKey="k")


def test_a_failed_reuse_gives_everything_back_of_the_old_generation() -> None:
    world = persistent_world()
    world.push(jobId="a", data="old")
    failed(world)
    before, entry = world.job("a"), world.entry()
    world.storage.fails = True

    world.error("PUSH", queue="other", jobId="a", data="new")

    world.storage.fails = False
    assert before == world.job("a")
    assert entry == world.entry()
    assert {} == world.counts("other")


def test_a_twin_of_a_push_that_still_waits_waits_with_it() -> None:
    world = persistent_world()
    first = world.send("PUSH", queue="q", jobId="a", durable=True)
    second = world.send("PUSH", queue="q", jobId="a")
    assert not second.is_there

    world.storage.fails = True
    world.settle()

    assert "Internal server error" == first.reply["error"] == second.reply["error"]
    world.storage.fails = False
    assert "unknown" == world.state("a")


def test_a_durable_replace_of_a_durable_push_in_one_commit_leaves_one_job() -> None:
    world = persistent_world()
    fields = {"uniqueKey": "k", "dedup": {"replace": True}, "durable": True}
    first = world.send("PUSH", queue="q", **fields)
    second = world.send("PUSH", queue="q", **fields)

    world.settle()

    assert "unknown" == world.state(first.reply["id"])
    assert [second.reply["id"]] == world.pull_all()


def test_pushes_are_refused_while_the_backlog_is_full() -> None:
    world = persistent_world()
    world.storage.is_refusing = True

    assert "Internal server error" == world.error("PUSH", queue="q")
    assert "Internal server error" == world.error("PUSH", queue="q", priority=1)
    assert "Internal server error" == world.error("PUSHB", queue="q", jobs=[{}, {}])
    assert {} == world.counts()


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"durable": True}])
def test_a_batch_that_fills_the_backlog_is_taken_whole(options: dict[str, Any]) -> None:
    world = persistent_world()
    note = world.storage.added

    def added(job: Job) -> None:
        note(job)
        world.storage.is_refusing = True

    world.storage.added = added
    ids = world.ok("PUSHB", queue="q", jobs=[options, options, {}])["ids"]

    assert 3 == sum(world.counts().values())
    assert "Internal server error" == world.error("PUSHB", queue="q", jobs=[{}])
    assert set(ids) == set(world.pull_all())


REPLACE = {"uniqueKey": "k", "dedup": {"replace": True}}
CLASHES = [
    (
        [{"customId": "a", "uniqueKey": "k"}, {"dependsOn": ["a"]}, REPLACE],
        "Cannot replace deduplicated job a because live jobs depend on it",
    ),
    (
        [{"customId": "a", "uniqueKey": "k"}, {**REPLACE, "dependsOn": ["a"]}],
        "Dependency job not found: a",
    ),
    ([{}, REPLACE, {"dependsOn": ["old"]}], "Dependency job not found: old"),
    (
        [REPLACE, {"parentId": "old", "data": {"__parentId": "old", "__parentQueue": "q"}}],
        "Parent job not found: old",
    ),
]


@pytest.mark.parametrize(("jobs", "text"), CLASHES)
def test_a_batch_whose_entries_take_from_each_other_adds_nothing(
    world: World, jobs: list[dict[str, Any]], text: str
) -> None:
    if "old" in str(jobs):
        world.push(jobId="old", uniqueKey="k")
    before = world.ok("GetJobs", queue="q")

    assert text == world.error("PUSHB", queue="q", jobs=jobs)

    assert before == world.ok("GetJobs", queue="q")


def test_entries_that_take_a_key_from_each_other_are_added() -> None:
    world = persistent_world()
    jobs = [
        {"customId": "a", "uniqueKey": "k"},
        REPLACE,
        {"uniqueKey": "k"},
        {**REPLACE, "data": 1},
    ]

    ids = world.ok("PUSHB", queue="q", jobs=jobs)["ids"]

    assert ids[1] == ids[2]
    assert [ids[3]] == world.pull_all()
