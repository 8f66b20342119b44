"""Any history of commands, failed commits, lost links and passing time leaves the engine whole.

After every step each job must stand in exactly one place, counters and keys must agree with the
places, and after the last commit the file must hold what memory holds (invariants I1, I2, I26, I27,
I42, I48 of engine.md 14).
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue.engine.clock_steps import STEP_WRITTEN_MS_MIN
from bunqueue.engine.dependencies import Ties
from tests.support.engine import World, persistent_world
from tests.support.flows import flow_child, flow_parent
from tests.support.whole import check_whole

IDS = st.sampled_from(["a", "b", "c", "d"])
QUEUES = st.sampled_from(["q", "r"])
Step = tuple[str, dict[str, Any]]


def step(command: str, **fields: Any) -> Any:
    """Draw one command with its fields."""
    return st.tuples(st.just(command), st.fixed_dictionaries(fields))


PUSH_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "jobId": IDS,
        "priority": st.sampled_from([-1, 0, 0, 5]),
        "delay": st.sampled_from([0, 0, 50, 500]),
        "ttl": st.sampled_from([100, 1_000]),
        "timeout": st.sampled_from([0, 30, 300]),
        "maxAttempts": st.sampled_from([1, 2]),
        "backoff": st.sampled_from([0, 40]),
        "uniqueKey": st.sampled_from(["k", "l", "cron:x"]),
        "dedup": st.sampled_from([{}, {"replace": True}, {"ttl": 200, "extend": True}]),
        "lifo": st.booleans(),
        "durable": st.booleans(),
        "removeOnComplete": st.booleans(),
        "removeOnFail": st.booleans(),
        "dependsOn": st.lists(IDS, max_size=2),
        "childrenIds": st.lists(IDS, max_size=1),
        "failParentOnFailure": st.booleans(),
        "ignoreDependencyOnFailure": st.booleans(),
        "continueParentOnFailure": st.booleans(),
    },
)


def linked(queue: str, parent: str, parent_queue: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a push with a true link to a parent."""
    data = {"__parentId": parent, "__parentQueue": parent_queue}
    return {"queue": queue, **options, "parentId": parent, "data": data}


def small_flow(ids: list[str], queue: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a flow of a parent and its children."""
    parent, *children = ids
    jobs = [flow_child(child, parent, queue, "q", **options) for child in children]
    return {"jobs": [flow_parent(children, parent, "q"), *jobs]}


FLOW_OPTIONS = st.fixed_dictionaries(
    {"maxAttempts": st.sampled_from([1, 2])},
    optional={
        "removeOnComplete": st.booleans(),
        "removeOnFail": st.booleans(),
        "delay": st.just(50),
        "timeout": st.just(30),
    },
)
POLICIES = st.sampled_from(
    [{}, *({name: True} for name in (
        "failParentOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
        "removeDependencyOnFailure",
    ))]
)  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.just("PUSH"), st.builds(lambda q, o: {"queue": q, **o}, QUEUES, PUSH_OPTIONS)),
    st.tuples(st.just("PUSH"), st.builds(lambda q, o: {"queue": q, **o}, QUEUES, PUSH_OPTIONS)),
    st.tuples(st.just("PUSH"), st.builds(linked, QUEUES, IDS, QUEUES, PUSH_OPTIONS)),
    st.tuples(
        st.just("PUSHF"),
        st.builds(
            lambda ids, queue, options, policy: small_flow(ids, queue, {**options, **policy}),
            st.lists(IDS, min_size=1, max_size=3, unique=True),
            QUEUES,
            FLOW_OPTIONS,
            POLICIES,
        ),
    ),
    step(
        "PUSHB",
        queue=QUEUES,
        jobs=st.lists(
            st.builds(
                lambda job_id, others: {"customId": job_id, "dependsOn": others},
                IDS,
                st.lists(IDS, max_size=2),
            ),
            max_size=3,
        ),
    ),
    step("UpdateParent", childId=IDS, parentId=IDS),
    step("RemoveChildDependency", id=IDS),
    step("RemoveUnprocessedChildren", id=IDS),
    step("MoveToWaitingChildren", id=IDS),
    step("PULL", queue=QUEUES, owner=st.sampled_from(["w", None]), timeout=st.just(0)),
    step("PULL", queue=QUEUES, owner=st.sampled_from(["w", None]), timeout=st.just(200)),
    step("PULLB", queue=QUEUES, count=st.integers(1, 3), lockTtl=st.sampled_from([20, 5_000])),
    step("ACK", id=IDS, result=st.none()),
    step("ACK", id=IDS, removeOnComplete=st.booleans()),
    step("FAIL", id=IDS, error=st.just("no"), unrecoverable=st.booleans()),
    step("MoveToDelayed", id=IDS, delay=st.sampled_from([0, 60])),
    step("ChangeDelay", id=IDS, delay=st.sampled_from([0, 60])),
    step("ChangePriority", id=IDS, priority=st.integers(-1, 5), lifo=st.booleans()),
    step("MoveToWait", id=IDS),
    step("Promote", id=IDS),
    step("Cancel", id=IDS),
    step("Discard", id=IDS),
    step("Update", id=IDS, data=st.integers(0, 3)),
    step("Progress", id=IDS, progress=st.integers(0, 100)),
    step("JobHeartbeat", id=IDS),
    step("RemoveJobDeduplicationKey", id=IDS),
    step("WaitJob", id=IDS, timeout=st.just(100)),
    step("Drain", queue=QUEUES),
    step("Obliterate", queue=QUEUES),
    step("Clean", queue=QUEUES, state=st.sampled_from(["completed", "failed", "delayed", None])),
    step("PurgeDlq", queue=QUEUES),
    step("RetryDlq", queue=QUEUES),
    step("RetryCompleted", queue=QUEUES),
    step("PromoteJobs", queue=QUEUES),
    step("Pause", queue=QUEUES),
    step("Resume", queue=QUEUES),
    step("SetConcurrency", queue=QUEUES, limit=st.integers(0, 2)),
    step("ClearConcurrency", queue=QUEUES),
    step("RateLimit", queue=QUEUES, limit=st.integers(0, 2), duration=st.just(100)),
    step("RateLimitClear", queue=QUEUES),
    step("SetDlqConfig", queue=QUEUES, config=st.just({"maxEntries": 1})),
    st.tuples(st.just("wait"), st.sampled_from([{"ms": 1}, {"ms": 40}, {"ms": 1_500}])),
    # Back by what is written; after less, a restart may hold ready jobs up for as long.
    st.tuples(st.just("jump"), st.sampled_from([{"ms": 5_000}, {"ms": -STEP_WRITTEN_MS_MIN}])),
    st.tuples(st.just("close"), st.just({})),
    st.tuples(st.just("settle"), st.just({})),
    st.tuples(st.just("fail"), st.just({})),
)


TOKENED = ("ACK", "FAIL", "ChangeDelay", "MoveToWait", "Discard", "MoveToWaitingChildren")


def take(world: World, kind: str, fields: dict[str, Any]) -> None:
    """Do one step; commits happen at ``settle`` and ``fail`` steps and when time passes."""
    if kind == "wait":
        world.forward(fields["ms"])
    elif kind == "jump":
        world.clock.ms += fields["ms"]
        world.engine.clock_jumped(fields["ms"])
        world.storage.answer_waits = 0
    elif kind == "close":
        world.engine.peer_closed(world.peer, world.now)
        world.storage.answer_waits = 0
        world.peer = world.connect()
    elif kind in ("settle", "fail"):
        world.storage.fails = kind == "fail"
        world.settle()
        world.storage.fails = False
    else:
        job = world.engine.index.get(fields.get("id", ""))
        if job is not None and kind in TOKENED:
            fields = {**fields, "token": job.token}
        world.send(kind, **fields)


FIELDS = ("place", "priority", "run_at", "attempts", "stall_count", "data", "result", "token")


def check_file(world: World) -> None:
    """Check that the file holds what memory holds."""
    world.settle()
    world.settle()
    kept = {job.id: job for job in world.engine.index}
    assert set(kept) == set(world.storage.rows)
    for job_id, job in kept.items():
        row = world.storage.rows[job_id]
        assert [getattr(job, name) for name in FIELDS] == [getattr(row, name) for name in FIELDS]
    proofs = world.engine.graph.proofs
    held = {job_id: proof[2] for job_id, proof in {**proofs.free, **proofs.pinned}.items()}
    rows = world.storage.tables.get("proofs", {})
    assert held == {job_id: values[2] for job_id, values in rows.items()}


def edges_of(world: World) -> dict[str, Any]:
    """Return what a restart must find again of every job that has not been interrupted."""
    found = {}
    for job in world.engine.index:
        if job.place in ("parked", "completed", "queued") and job.options.ttl is None:
            ties = job.extra.flow or Ties(set())
            edges: Any = (
                (ties.missing, ties.failed, ties.ignored),
                (job.extra.parent_id, set(job.extra.depends_on), list(job.extra.children_ids)),
            )
            found[job.id] = job.place, edges if job.place != "completed" else ()
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_leaves_the_engine_whole(steps: list[Step]) -> None:
    world = persistent_world()
    for kind, fields in steps:
        take(world, kind, fields)
        check_whole(world.engine, world.now, [world.peer])
    check_file(world)
    interrupted = world.engine.active_count()
    before = edges_of(world)
    again = world.restart()
    check_whole(again.engine, again.now, [again.peer])
    if not interrupted:
        after = edges_of(again)
        assert before == {job_id: after[job_id] for job_id in before}


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_can_be_obliterated_to_nothing(steps: list[Step]) -> None:
    world = persistent_world()
    for kind, fields in steps:
        take(world, kind, fields)
    world.settle()
    for name in ("q", "r"):
        world.ok("Obliterate", queue=name)
    world.settle()

    assert 0 == len(world.engine.index)
    assert {} == world.storage.rows
    assert {} == world.storage.tables.get("queues", {})
    world.close(world.peer)
    world.forward(60_000)
    assert [] == world.ok("ListQueues")["queues"]
    assert len(world.engine.timers) <= 1
