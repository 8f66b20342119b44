"""A commit that fails leaves everything as it was (engine.md 1.4 B, invariant I48)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.engine.dependencies import SETTLED_PER_SLICE
from tests.support.engine import Answer, World, persistent_world
from tests.support.flows import flow_child, flow_parent
from tests.support.whole import check_whole

MINUTE = 60_000
MANY = 1_000
INTERNAL = "Internal server error"


@pytest.fixture
def world() -> World:
    return persistent_world()


def everything(world: World) -> list[Any]:
    """Ask all that a client can ask about the queue and the job."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("GetJob", {"id": "a"}),
        ("GetResult", {"id": "a"}),
        ("GetJobs", {"queue": "q"}),
        ("GetJobCounts", {"queue": "q"}),
        ("GetCountsPerPriority", {"queue": "q"}),
        ("Dlq", {"queue": "q"}),
        ("GetDlqStats", {"queue": "q"}),
        ("GetDeduplicationJobId", {"queue": "q", "deduplicationId": "k"}),
        ("IsPaused", {"queue": "q"}),
        ("GetQueueLimits", {"queue": "q"}),
        ("GetStallConfig", {"queue": "q"}),
        ("GetDlqConfig", {"queue": "q"}),
        ("ListQueues", {}),
        ("Stats", {}),
    ]
    return [world.go(command, **fields) for command, fields in asked]


def waiting(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k", data={"old": 1}, priority=2)
    return None


def delayed(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k", delay=MINUTE)
    return None


def active(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k", timeout=MINUTE, backoff=MINUTE)
    return world.lease()[1]


def active_again(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k", maxAttempts=2, backoff=0)
    world.pull()
    world.ok("FAIL", id="a", error="first", stack=["first"])
    return world.lease()[1]


def completed(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k")
    world.pull()
    world.ok("ACK", id="a", result={"r": 1})
    return None


def failed(world: World) -> str | None:
    world.push(jobId="a", uniqueKey="k", maxAttempts=1)
    world.pull()
    world.ok("FAIL", id="a", error="no", stack=["line"])
    return None


JOB = {"id": "a"}
QUEUE = {"queue": "q"}
CASES: list[tuple[Callable[[World], str | None], str, dict[str, Any]]] = [
    (active, "ACK", {**JOB, "result": 1}),
    (active, "ACK", {**JOB, "removeOnComplete": True}),
    (active_again, "ACK", {**JOB, "result": 1}),
    (active, "FAIL", {**JOB, "error": "no", "stack": ["x"]}),
    (active, "FAIL", {**JOB, "unrecoverable": True}),
    (active, "FAIL", {**JOB, "unrecoverable": True, "removeOnFail": True}),
    (active_again, "FAIL", {**JOB, "error": "second", "stack": ["second"]}),
    (active, "MoveToDelayed", {**JOB, "delay": 5}),
    (active, "MoveToWait", JOB),
    (active, "ChangeDelay", {**JOB, "delay": 5}),
    (active, "Discard", JOB),
    (active, "Progress", {**JOB, "progress": 5, "message": "m"}),
    (active, "Update", {**JOB, "data": 2}),
    (active, "Obliterate", QUEUE),
    (waiting, "Cancel", JOB),
    (waiting, "Discard", JOB),
    (waiting, "Update", {**JOB, "data": 2}),
    (waiting, "ChangePriority", {**JOB, "priority": 9, "lifo": True}),
    (waiting, "ChangeDelay", {**JOB, "delay": MINUTE}),
    (waiting, "MoveToDelayed", {**JOB, "delay": MINUTE}),
    (waiting, "Drain", QUEUE),
    (waiting, "Clean", QUEUE),
    (waiting, "Obliterate", QUEUE),
    (waiting, "RemoveDeduplicationKey", {**QUEUE, "deduplicationId": "k"}),
    (waiting, "RemoveJobDeduplicationKey", JOB),
    (waiting, "PUSH", {**QUEUE, "uniqueKey": "k", "dedup": {"replace": True}}),
    (delayed, "Promote", JOB),
    (delayed, "PromoteJobs", QUEUE),
    (delayed, "MoveToWait", JOB),
    (delayed, "Drain", QUEUE),
    (completed, "Clean", {**QUEUE, "state": "completed"}),
    (completed, "RetryCompleted", QUEUE),
    (completed, "Obliterate", QUEUE),
    (completed, "PUSH", {**QUEUE, "jobId": "a", "data": "new"}),
    (failed, "RetryDlq", QUEUE),
    (failed, "MoveToWait", JOB),
    (failed, "PurgeDlq", QUEUE),
    (failed, "RemoveDlqJob", {**QUEUE, "jobId": "a"}),
    (failed, "Clean", {**QUEUE, "state": "failed"}),
    (failed, "Obliterate", QUEUE),
    (failed, "PUSH", {**QUEUE, "jobId": "a", "data": "new"}),
]


@pytest.mark.parametrize(
    ("prepare", "command", "fields"),
    CASES,
    ids=[f"{prepare.__name__}-{command}-{len(fields)}" for prepare, command, fields in CASES],
)
def test_a_failed_commit_changes_nothing_and_the_next_try_works(
    world: World, prepare: Callable[[World], str | None], command: str, fields: dict[str, Any]
) -> None:
    token = prepare(world)
    shown = {} if token is None else {"token": token}
    fields = {**fields, **(shown if "id" in fields else {})}
    before = everything(world)
    world.storage.fails = True

    assert INTERNAL == world.error(command, **fields)

    world.storage.fails = False
    assert before == everything(world)
    world.ok(command, **fields)
    assert before != everything(world)


@pytest.mark.parametrize(
    ("prepare", "command", "fields"),
    CASES,
    ids=[f"{prepare.__name__}-{command}-{len(fields)}" for prepare, command, fields in CASES],
)
def test_what_was_undone_is_in_the_file_as_it_is_in_memory(
    world: World, prepare: Callable[[World], str | None], command: str, fields: dict[str, Any]
) -> None:
    token = prepare(world)
    shown = {} if token is None else {"token": token}
    world.storage.fails = True
    world.error(command, **{**fields, **(shown if "id" in fields else {})})
    world.storage.fails = False
    world.settle()

    row = world.storage.rows["a"]
    job = world.engine.find("a")
    names = ("place", "attempts", "run_at", "priority", "data", "result", "token")
    assert [getattr(job, name) for name in names] == [getattr(row, name) for name in names]


IDS = ["a", *(f"c{number}" for number in range(MANY))]
REST: list[dict[str, Any]] = [{"priority": 1}] * MANY
ARRIVALS: dict[str, dict[str, Any]] = {
    "its id": {"cmd": "PUSHB", "queue": "q", "jobs": [{"customId": "a", "durable": True}, *REST]},
    "its key": {"cmd": "PUSHB", "queue": "q", "jobs": [{"uniqueKey": "k", "durable": True}, *REST]},
    "a flow": {
        "cmd": "PUSHF",
        "jobs": [
            *(flow_child(job_id, parent_queue="q") for job_id in IDS),
            flow_parent(IDS, queue="q"),
        ],
    },
}


def half_way(world: World, request: dict[str, Any]) -> Answer:
    """Send a large batch or flow, and stop once its first jobs are admitted; commit nothing."""
    answer = world.send_raw(request)
    for _ in range(100):
        if any(True for arrival in world.engine.arriving for _ in arrival.jobs()):
            break
        world.engine.tick(world.now)
    return answer


@pytest.mark.parametrize("push", ARRIVALS.values(), ids=list(ARRIVALS))
@pytest.mark.parametrize(
    ("prepare", "command", "fields"),
    CASES,
    ids=[f"{prepare.__name__}-{command}-{len(fields)}" for prepare, command, fields in CASES],
)
def test_what_arrives_on_the_strength_of_a_command_is_undone_with_it(
    world: World,
    prepare: Callable[[World], str | None],
    command: str,
    fields: dict[str, Any],
    push: dict[str, Any],
) -> None:
    token = prepare(world)
    shown = {} if token is None else {"token": token}
    before = everything(world)
    answer = world.send(command, **{**fields, **(shown if "id" in fields else {})})
    arriving = half_way(world, push)
    world.storage.fails = True
    world.settle()
    while not arriving.is_there:
        world.engine.tick(world.now)
        world.settle()
    world.storage.fails = False
    world.engine.tick(world.now)
    world.settle()

    assert INTERNAL == (answer.reply or {}).get("error")
    assert False is (arriving.reply or {}).get("ok")
    assert before == everything(world)
    check_whole(world.engine, world.now, [world.peer])


def test_a_large_batch_does_not_run_on_the_strength_of_a_completion_that_is_undone(
    world: World,
) -> None:
    world.push("r", jobId="b")
    world.pull("r")
    world.send("ACK", id="b")
    jobs: list[dict[str, Any]] = [{"dependsOn": ["b"]}, *REST]
    arriving = half_way(world, {"cmd": "PUSHB", "queue": "q", "jobs": jobs})
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    while not arriving.is_there:
        world.engine.tick(world.now)
        world.settle()

    assert ("active", {}) == (world.state("b"), world.counts())
    assert False is (arriving.reply or {}).get("ok")


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("Pause", QUEUE),
    ("RateLimit", {**QUEUE, "limit": 3}),
    ("SetConcurrency", {**QUEUE, "limit": 3}),
    ("SetStallConfig", {**QUEUE, "config": {"maxStalls": 9}}),
    ("SetDlqConfig", {**QUEUE, "config": {"maxEntries": 9}}),
]
CLEARS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("Pause", QUEUE, "Resume", QUEUE),
    ("RateLimit", {**QUEUE, "limit": 3}, "RateLimitClear", QUEUE),
    ("SetConcurrency", {**QUEUE, "limit": 3}, "ClearConcurrency", QUEUE),
]


@pytest.mark.parametrize(("command", "fields"), SETTINGS)
def test_a_setting_that_is_not_on_disk_is_not_in_force(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    world.push(jobId="a")
    before = everything(world)
    world.storage.fails = True

    assert INTERNAL == world.error(command, **fields)

    world.storage.fails = False
    assert before == everything(world)


@pytest.mark.parametrize(("set_up", "fields", "command", "its_fields"), CLEARS)
def test_a_setting_that_could_not_be_cleared_on_disk_stays_in_force(
    world: World, set_up: str, fields: dict[str, Any], command: str, its_fields: dict[str, Any]
) -> None:
    world.push(jobId="a")
    world.ok(set_up, **fields)
    before = everything(world)
    world.storage.fails = True

    assert INTERNAL == world.error(command, **its_fields)

    world.storage.fails = False
    assert before == everything(world)


def test_an_undone_ack_keeps_the_lease_its_timeout_and_its_connection(world: World) -> None:
    world.push(jobId="a", timeout=10_000, backoff=MINUTE)
    peer = world.connect()
    _, token = world.lease(peer=peer, lockTtl=MINUTE)
    world.storage.fails = True
    world.error("ACK", id="a", token=token)
    world.storage.fails = False

    world.ok("JobHeartbeat", id="a", token=token)
    world.forward(10_000)

    assert "delayed" == world.state("a")
    assert "Job timeout exceeded" == world.job("a")["failedReason"]


def test_an_undone_late_ack_leaves_the_job_its_time_to_live(world: World) -> None:
    world.push(jobId="a", ttl=MINUTE)
    _, token = world.lease(lockTtl=1_000)
    world.forward(5_000)
    assert "waiting" == world.state("a")
    world.storage.fails = True
    world.error("ACK", id="a", token=token)
    world.storage.fails = False

    world.forward(MINUTE)

    assert "ttl_expired" == world.entry()["reason"]


def test_an_undone_ack_still_goes_with_its_connection(world: World) -> None:
    world.push(jobId="a")
    peer = world.connect()
    world.pull(peer=peer)
    world.storage.fails = True
    world.error("ACK", id="a")
    world.storage.fails = False

    world.close(peer)

    assert "waiting" == world.state("a")


@pytest.mark.parametrize("owner", [{}, {"owner": "w", "lockTtl": MINUTE}])
@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("ACK", JOB),
        ("FAIL", JOB),
        ("MoveToWait", JOB),
        ("ChangeDelay", {**JOB, "delay": 5}),
        ("Discard", JOB),
        ("Progress", {**JOB, "progress": 5}),
        ("Obliterate", QUEUE),
    ],
)
def test_a_run_undone_after_its_connection_closed_goes_back_to_the_queue(
    world: World, command: str, fields: dict[str, Any], owner: dict[str, Any]
) -> None:
    """At once and uncharged, as if it had been there when the connection closed."""
    world.push(jobId="a")
    world.ok("SetStallConfig", queue="q", config={"enabled": False})
    peer = world.connect()
    token = world.ok("PULL", peer, queue="q", **owner).get("token")
    answer = world.send(command, **fields, **({"token": token} if token and "id" in fields else {}))
    world.engine.peer_closed(peer, world.now)
    world.storage.answer_waits = 0
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(1)

    assert answer.reply is not None
    assert INTERNAL == answer.reply["error"]
    assert ("waiting", 0) == (world.state("a"), world.job("a")["attempts"])
    assert {} == peer.held
    check_whole(world.engine, world.now, [world.peer, peer])
    assert "a" == world.restart().pull()


def test_a_renewed_lease_undone_after_its_connection_closed_goes_on(world: World) -> None:
    world.push(jobId="a")
    peer = world.connect()
    _, token = world.lease(peer=peer, lockTtl=MINUTE)
    world.ok("JobHeartbeat", peer, id="a", token=token)
    world.send("ACK", id="a", token=token)
    world.engine.peer_closed(peer, world.now)
    world.storage.answer_waits = 0
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(1)

    assert "active" == world.state("a")
    assert {} == peer.held
    world.ok("ACK", id="a", token=token)


@pytest.mark.parametrize(
    ("prepare", "command", "fields"),
    [
        (delayed, "Promote", JOB),
        (delayed, "PromoteJobs", QUEUE),
        (delayed, "ChangeDelay", {**JOB, "delay": 0}),
        (active, "MoveToWait", JOB),
        (active_again, "ChangeDelay", {**JOB, "delay": 0}),
        (failed, "RetryDlq", QUEUE),
        (failed, "MoveToWait", JOB),
        (completed, "RetryCompleted", QUEUE),
    ],
)
@pytest.mark.parametrize("by", ["poll", "pull"])
def test_a_run_that_an_undone_command_made_possible_goes_on(
    world: World,
    prepare: Callable[[World], str | None],
    command: str,
    fields: dict[str, Any],
    by: str,
) -> None:
    """Its worker is told of it whatever becomes of the commit."""
    shown = prepare(world)
    peer = world.connect()
    taken = world.poll(peer=peer, owner="other") if by == "poll" else None
    world.storage.fails = True
    refused = world.send(command, **fields, **({} if shown is None else {"token": shown}))
    taken = taken or world.send("PULL", peer, queue="q", owner="other")
    world.settle()
    world.storage.fails = False
    world.settle()

    assert refused.reply is not None
    assert taken.reply is not None
    assert INTERNAL == refused.reply["error"]
    assert "a" == taken.reply["job"]["id"]
    assert "active" == world.storage.rows["a"].place
    check_whole(world.engine, world.now, [peer, world.peer])
    world.ok("ACK", id="a", token=taken.reply["token"])
    assert {"completed": 1} == world.counts()


def test_undone_together_everything_comes_back_in_its_old_order(world: World) -> None:
    for name in "abc":
        world.push(jobId=name)
    before = everything(world)
    world.storage.fails = True
    answers = [
        world.send("PULL", queue="q"),
        world.send("ACK", id="a"),
        world.send("ChangePriority", id="b", priority=7),
        world.send("Cancel", id="c"),
        world.send("Drain", queue="q"),
    ]
    world.settle()
    world.storage.fails = False

    assert [True, False, False, False, False] == [answer.reply["ok"] for answer in answers]
    assert "active" == world.state("a")
    world.clock.ms += 1
    world.ok("MoveToWait", id="a")
    assert before[2]["jobs"][1:] == everything(world)[2]["jobs"][1:]
    assert ["b", "c", "a"] == world.pull_all()


@pytest.mark.parametrize(
    ("command", "fields"),
    [("PurgeDlq", QUEUE), ("Clean", {**QUEUE, "state": "failed", "limit": 2}), ("RetryDlq", QUEUE)],
)
def test_undone_dead_letters_are_in_order_of_entry(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    for name in "abcd":
        world.push(jobId=name)
        world.ok("Discard", id=name)
        world.forward(1)
    world.storage.fails = True
    world.error(command, **fields)
    world.storage.fails = False

    assert ["a", "b", "c", "d"] == [job["id"] for job in world.ok("Dlq", queue="q")["jobs"]]


def test_undone_completed_jobs_are_in_order_of_completion(world: World) -> None:
    for name in "abcd":
        world.push(jobId=name)
        world.pull()
        world.ok("ACK", id=name)
        world.forward(1)
    world.storage.fails = True
    world.error("Clean", queue="q", state="completed", limit=2)
    world.storage.fails = False

    world.ok("RetryCompleted", queue="q", count=1)

    assert "waiting" == world.state("a")


def test_a_failed_batch_of_acks_leaves_all_of_them_active(world: World) -> None:
    ids = [world.push() for _ in range(3)]
    tokens = world.ok("PULLB", queue="q", count=3, owner="w")["tokens"]
    world.storage.fails = True

    assert INTERNAL == world.error("ACKB", ids=ids, tokens=tokens, results=[1, 2, 3])

    world.storage.fails = False
    assert {"active": 3} == world.counts()
    world.ok("ACKB", ids=ids, tokens=tokens)
    assert {"completed": 3} == world.counts()


def test_a_failed_completion_is_no_completion_for_who_waits(world: World) -> None:
    world.push(jobId="a")
    world.pull()
    answer = world.send("WaitJob", id="a")
    world.storage.fails = True
    world.error("ACK", id="a", result=1)

    assert answer.reply is None or answer.reply["ok"] is False


# -- what was promised while the disk was still writing ------------------------------------------


def test_a_push_after_an_obliterate_that_failed_is_kept(world: World) -> None:
    old = world.push()
    world.settle()
    drop = world.send("Obliterate", queue="q")
    new = world.send("PUSH", queue="q", uniqueKey="k").reply["id"]
    pulled = world.send("PULL", queue="q")
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    assert INTERNAL == drop.reply["error"]
    assert new == pulled.reply["job"]["id"]
    assert {"active": 1, "waiting": 1} == world.counts()
    assert new == world.push(uniqueKey="k")
    world.ok("ACK", id=new)
    assert [old] == world.pull_all()


@pytest.mark.parametrize("command", ["Cancel", "Drain", "Obliterate", "ACK"])
def test_an_id_pushed_again_after_a_removal_that_failed_keeps_its_new_job(
    world: World, command: str
) -> None:
    world.push(jobId="a", data="old", removeOnComplete=True)
    if command == "ACK":
        world.pull()
    world.settle()
    world.send(command, **(JOB if command in ("Cancel", "ACK") else QUEUE))
    assert "a" == world.send("PUSH", queue="q", jobId="a", data="new").reply["id"]
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    assert "new" == world.job("a")["data"]
    assert {"waiting": 1} == world.counts()
    assert ["a"] == world.pull_all()
    assert "new" == world.restart().job("a")["data"]


def test_a_key_taken_after_a_removal_that_failed_stays_with_the_taker(world: World) -> None:
    old = world.push(uniqueKey="k")
    world.settle()
    world.send("Cancel", id=old)
    new = world.send("PUSH", queue="q", uniqueKey="k").reply["id"]
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    assert {"waiting": 2} == world.counts()
    assert new == world.push(uniqueKey="k")
    assert new == world.restart().push(uniqueKey="k")


# -- found by tests/simulation --------------------------------------------------------------------


def failed(world: World, command: str, **fields: Any) -> str:
    """Send a command whose commit fails; return the text of the refusal."""
    world.storage.fails = True
    error = world.error(command, **fields)
    world.storage.fails = False
    world.settle()
    return error


@pytest.mark.parametrize("last", [
    {"durable": True},
    {"customId": "done"},
    {"uniqueKey": "k", "dedup": {"replace": True}},
])  # fmt: skip
def test_a_batch_whose_commit_fails_leaves_no_job_of_it(world: World, last: dict[str, Any]) -> None:
    world.push(jobId="done")
    world.pull()
    world.ok("ACK", id="done")
    world.push(uniqueKey="k")
    before = everything(world)

    error = failed(world, "PUSHB", queue="q", jobs=[{}, {"priority": 1}, last])

    assert INTERNAL == error
    assert before == everything(world)


@pytest.mark.parametrize("edge", ["childrenIds", "dependsOn"])
def test_a_batch_that_runs_anew_what_its_own_job_waits_for_leaves_nothing(
    world: World, edge: str
) -> None:
    world.push(jobId="done", removeOnComplete=True)
    world.pull()
    world.ok("ACK", id="done")
    before = everything(world)

    jobs = [{edge: ["done"]}, {"customId": "done"}, {}]
    assert INTERNAL == failed(world, "PUSHB", queue="q", jobs=jobs)

    assert before == everything(world)


def test_a_batch_that_waits_for_its_commit_appears_as_a_whole(world: World) -> None:
    world.send("PUSHB", queue="q", jobs=[{}, {"durable": True}])
    assert {} == world.counts()

    world.settle()

    assert {"waiting": 2} == world.counts()


@pytest.mark.parametrize(("command", "fields", "reader"), [
    ("PauseGroup", {}, "IsGroupPaused"),
    ("SetGroupConcurrency", {"concurrency": 1}, "GetGroupConcurrency"),
    ("SetGroupRateLimit", {"max": 1, "duration": 100}, "GetGroupRateLimit"),
    ("RemoveGroupConcurrency", {}, "GetGroupConcurrency"),
    ("RemoveGroupRateLimit", {}, "GetGroupRateLimit"),
])  # fmt: skip
def test_a_groups_setting_that_was_not_written_is_as_before(
    world: World, command: str, fields: dict[str, Any], reader: str
) -> None:
    of_group = {"queue": "q", "groupId": "g"}
    if command.startswith("Remove"):
        world.ok("SetGroupConcurrency", **of_group, concurrency=3)
        world.ok("SetGroupRateLimit", **of_group, max=3, duration=1_000)
    before = world.ok(reader, **of_group)
    rows = dict(world.storage.tables.get("groups", {}))

    assert INTERNAL == failed(world, command, **of_group, **fields)

    assert before == world.ok(reader, **of_group)
    assert rows == world.storage.tables.get("groups", {})


def test_nobody_hears_of_children_whose_removal_failed(world: World) -> None:
    world.ok("PUSHF", jobs=[flow_child(), flow_parent()])
    world.listen()

    assert INTERNAL == failed(world, "RemoveUnprocessedChildren", id="p")

    assert [] == world.events


def test_nobody_hears_of_a_parent_that_goes_on_after_a_failure_that_failed(world: World) -> None:
    world.ok("PUSHF", jobs=[flow_child(continueParentOnFailure=True), flow_parent()])
    world.pull()
    world.listen()

    assert INTERNAL == failed(world, "FAIL", id="c", unrecoverable=True)

    assert [] == world.events


def test_an_undone_job_can_be_removed_for_good(world: World) -> None:
    world.push(jobId="a")

    assert INTERNAL == failed(world, "MoveToWait", id="a")  # which has nothing to do

    world.ok("Obliterate", queue="q")
    assert "unknown" == world.restart().state("a")


def test_a_batch_whose_commit_fails_tells_nobody_of_its_twins(world: World) -> None:
    world.push(uniqueKey="k")
    world.listen()

    assert INTERNAL == failed(
        world, "PUSHB", queue="q", jobs=[{"durable": True}, {"uniqueKey": "k"}]
    )

    assert [] == world.events


def test_a_batch_whose_commit_fails_extends_no_key(world: World) -> None:
    world.push(jobId="a", uniqueKey="k", dedup={"ttl": 100})
    extend = {"uniqueKey": "k", "dedup": {"ttl": MINUTE, "extend": True}}

    assert INTERNAL == failed(world, "PUSHB", queue="q", jobs=[{"durable": True}, extend])

    world.forward(101)
    assert "a" != world.push(uniqueKey="k")


@pytest.mark.parametrize(("command", "fields"), [
    ("Cancel", JOB), ("Drain", QUEUE), ("Pause", QUEUE), ("SetConcurrency", {**QUEUE, "limit": 0}),
    ("PauseGroup", {**QUEUE, "groupId": "g"}),
])  # fmt: skip
def test_a_poll_that_comes_before_the_undo_is_served_after_it(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    world.push(jobId="a", **({"groupId": "g"} if command == "PauseGroup" else {}))
    world.settle()
    world.send(command, **fields)
    pulled = world.send("PULL", queue="q", timeout=MINUTE)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    world.forward(1)
    world.settle()

    assert pulled.reply is not None
    assert "a" == pulled.reply["job"]["id"]


def test_dead_letters_that_a_failed_one_had_pushed_out_come_back(world: World) -> None:
    world.ok("SetDlqConfig", queue="q", config={"maxEntries": 1})
    world.push(jobId="b", maxAttempts=1)
    world.pull()
    world.ok("FAIL", id="b", error="no")
    world.push(jobId="a")

    assert INTERNAL == failed(world, "Discard", id="a")

    assert ["b"] == [job["id"] for job in world.ok("Dlq", queue="q")["jobs"]]
    assert ["b"] == [job["id"] for job in world.restart().ok("Dlq", queue="q")["jobs"]]


def test_a_completed_job_that_comes_back_keeps_its_claim_to_a_key_that_is_free_later(
    world: World,
) -> None:
    world.push(jobId="a", uniqueKey="k")
    world.pull()
    world.ok("ACK", id="a")
    world.push(jobId="b", uniqueKey="k")

    assert INTERNAL == failed(world, "Clean", queue="q", state="completed")

    world.ok("Cancel", id="b")
    world.ok("RetryCompleted", queue="q")
    assert "a" == world.push(uniqueKey="k")


def while_it_is_committed(world: World, do: Callable[[], object], *, fails: bool = True) -> None:
    """Do something while the batch with all that came before is in flight; only its own fails."""
    storage = world.storage
    operations, storage._operations = storage._operations, []
    held, storage._held = storage._held, []
    do()
    later, storage._operations = storage._operations, operations
    later_held, storage._held = storage._held, held
    storage.settle()
    storage._operations, storage._held = later + storage._operations, later_held
    storage.fails = fails
    storage.settle()
    storage.fails = False


@pytest.mark.parametrize(("command", "fields"), [
    ("PUSH", {"uniqueKey": "k", "dedup": {"replace": True}}), ("Obliterate", {}),
])  # fmt: skip
def test_a_job_that_was_committed_while_it_was_taken_away_is_seen_if_that_is_undone(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    pushed = world.send("PUSH", queue="q", jobId="a", uniqueKey="k", durable=True)
    while_it_is_committed(world, lambda: world.send(command, queue="q", **fields))
    world.forward(1)
    world.settle()

    assert pushed.reply is not None
    assert "a" == pushed.reply["id"]
    assert "waiting" == world.state("a")
    assert ["a"] == world.pull_all()


@pytest.mark.parametrize(("command", "fields"), [
    ("RemoveJobDeduplicationKey", JOB),
    ("RemoveDeduplicationKey", {**QUEUE, "deduplicationId": "k"}),
    ("ChangePriority", {**JOB, "priority": 9}), ("Update", {**JOB, "data": 2}),
    ("ChangeDelay", {**JOB, "delay": MINUTE}), ("Discard", JOB), ("Cancel", JOB),
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"dependsOn": ["b"]}, {"lifo": True}])
def test_a_job_that_was_committed_while_it_was_changed_is_there_once_if_that_is_undone(
    world: World, command: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    world.ok("PUSH", queue="r", jobId="b")
    world.send("PUSH", queue="q", jobId="a", uniqueKey="k", durable=True, **options)
    while_it_is_committed(world, lambda: world.send(command, **fields))

    world.forward(1)
    world.settle()

    check_whole(world.engine, world.now, [world.peer])
    assert 2 == world.engine.totals.pushed
    if "dependsOn" in options:
        assert "waiting-children" == world.state("a")
        world.ok("PULL", queue="r")
        world.ok("ACK", id="b")
    assert ["a"] == world.pull_all()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("command", ["PUSH", "PUSHB"])
def test_a_job_whose_dependency_completes_while_it_is_committed_waits_for_that_commit(
    world: World, command: str, fails: bool
) -> None:
    world.push("r", jobId="b")
    world.pull("r")
    job = {"customId": "a", "dependsOn": ["b"], "durable": True}
    world.send(command, queue="q", **(job if command == "PUSH" else {"jobs": [job, {}]}))
    while_it_is_committed(world, lambda: world.send("ACK", id="b"), fails=fails)
    world.forward(1)
    world.settle()

    check_whole(world.engine, world.now, [world.peer])
    assert ("waiting-children" if fails else "waiting") == world.state("a")
    if fails:
        world.ok("ACK", id="b")
    assert "waiting" == world.state("a")
    lines = [line["state"] for line in world.job("a")["timeline"]]
    assert ["waiting-children", "waiting"] == lines


def test_a_job_whose_release_is_undone_after_what_it_waited_for_was_committed_is_released_again(
    world: World,
) -> None:
    world.push("r", jobId="b")
    world.pull("r")
    count = SETTLED_PER_SLICE + 1
    for _ in range(count):
        world.push(dependsOn=["b"])
    world.ok("ACK", id="b")  # all but one are released with it
    world.storage.fails = True
    world.forward(1)
    world.storage.fails = False
    for _ in range(3):
        world.forward(1)
        world.settle()

    assert count == world.counts()["waiting"]


@pytest.mark.parametrize(("command", "fields"), [
    ("Obliterate", QUEUE), ("Cancel", JOB), ("Update", {**JOB, "data": 1}),
])  # fmt: skip
def test_a_job_that_was_away_when_it_was_to_be_released_is_released_when_that_is_undone(
    world: World, command: str, fields: dict[str, Any]
) -> None:
    world.push("r", jobId="b")
    world.pull("r")
    for _ in range(SETTLED_PER_SLICE):
        world.push("r", dependsOn=["b"])
    world.push(jobId="a", dependsOn=["b"])
    world.ok("ACK", id="b")  # all but one are released with it
    world.send(command, **fields)
    world.engine.tick(world.now + 1)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.forward(3)
    world.settle()

    assert "waiting" == world.state("a")


def test_a_job_that_expired_before_its_move_is_undone_comes_back_with_its_edges(
    world: World,
) -> None:
    world.push(jobId="a", ttl=50, childrenIds=["b"])
    _, token = world.lease()
    operations = world.storage._operations
    world.send("MoveToDelayed", id="a", token=token, delay=10)
    world.clock.ms += 60
    world.engine.tick(world.now)
    world.storage.answer_waits = 0
    assert operations is world.storage._operations
    assert "unknown" == world.engine.state("a", world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False

    check_whole(world.engine, world.now, [world.peer])
    assert "active" == world.state("a")
    world.ok("ACK", id="a", token=token)


def test_a_batch_that_uses_the_id_of_a_proof_again_fails_as_a_whole(world: World) -> None:
    world.push(jobId="c", removeOnComplete=True)
    world.push(jobId="p", dependsOn=["c"])
    world.pull()
    world.ok("ACK", id="c")
    world.forward(1)

    assert INTERNAL == failed(
        world, "PUSHB", queue="q", jobs=[{"customId": "c"}, {"customId": "d"}]
    )

    assert ["unknown", "unknown"] == [world.state("c"), world.state("d")]


def test_a_child_that_uses_the_id_of_a_proof_again_leaves_the_proof_where_it_is_not_written(
    world: World,
) -> None:
    world.push(jobId="p")
    world.push("r", jobId="c", removeOnComplete=True)
    world.pull("r")
    world.ok("ACK", id="c")
    assert "c" in world.engine.graph.proofs

    data = {"__parentId": "p", "__parentQueue": "q"}
    assert INTERNAL == failed(world, "PUSH", queue="r", jobId="c", parentId="p", data=data)

    assert "c" in world.engine.graph.proofs


@pytest.mark.parametrize(
    ("policy", "state", "records"),
    [("failParentOnFailure", "failed", 0), ("continueParentOnFailure", "waiting", 1)],
)
def test_a_child_that_fails_while_a_new_parent_of_its_id_is_committed_does_to_it_what_it_says(
    world: World, policy: str, state: str, records: int
) -> None:
    children = [flow_child("a", failParentOnFailure=True),
                flow_child("e", removeOnFail=True, **{policy: True})]  # fmt: skip
    world.ok("PUSHF", jobs=[*children, flow_parent(["a", "e"])])
    world.pull()
    world.pull()
    world.ok("FAIL", id="a", unrecoverable=True)
    assert "failed" == world.state("p")
    world.send("PUSH", queue="r", jobId="p", dependsOn=["e"])
    while_it_is_committed(
        world, lambda: world.send("FAIL", id="e", unrecoverable=True), fails=False
    )
    world.forward(1)
    world.settle()

    assert state == world.state("p")
    assert records == len(world.storage.tables.get("flow_failures", {}))


def test_the_file_says_of_a_job_that_was_met_while_it_was_committed_that_it_waits(
    world: World,
) -> None:
    world.push("r", jobId="b")
    world.pull("r")
    world.send("PUSH", queue="q", jobId="a", dependsOn=["b"], durable=True)
    world.send("ACK", id="b")
    world.settle()
    world.settle()
    job = world.engine.index.get("a")

    assert job is not None
    assert world.storage.rows["a"].place == job.place
    assert "waiting" == world.restart().state("a")
