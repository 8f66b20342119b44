"""Operations on many jobs: bounded slices, others in between, failure and death between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from sys import getrefcount
from typing import Any

import pytest

from bunqueue.commands import dispatch
from bunqueue.engine import large_batches
from bunqueue.engine.later import Later
from bunqueue.engine.outcomes import ACKED_PER_STEP, ACKED_US
from bunqueue.engine.settings import EngineSettings
from bunqueue.engine.slices import COMMITTED, SLICE_US, Work, in_order, parts, weighed
from bunqueue.engine.sweeps import NOTE_SLICES_MAX, NOTES_PER_SLICE
from bunqueue.errors import Refused, StorageFailed
from bunqueue.storage.memory import MemoryStorage
from tests.support.engine import Answer, ScriptedStorage, World, done, persistent_world
from tests.support.flows import tree
from tests.support.whole import check_whole

MANY = 3_000


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStorage() if request.param == "memory" else ScriptedStorage())


def counting(steps: int, cost_us: int, log: list[int] | None = None) -> Work[str]:
    for number in range(steps):
        if log is not None:
            log.append(number)
        yield cost_us
    return "through"


def turn(world: World) -> None:
    """Let the engine tick once, and commit."""
    world.engine.tick(world.now)
    world.settle()


# -- the mechanism --------------------------------------------------------------------------------


def test_a_work_that_fits_a_slice_is_an_ordinary_operation(world: World) -> None:
    assert "through" == world.engine.run(counting(3, SLICE_US // 4), world.now)
    assert not world.engine.works.ring


def test_a_longer_work_is_answered_later(world: World) -> None:
    log: list[int] = []
    later = world.engine.run(counting(10, SLICE_US // 2, log), world.now)
    answers: list[Any] = []
    later.then(lambda answer, commits: answers.append((answer, commits)))

    assert [0, 1] == log
    for _ in range(5):
        turn(world)

    assert [("through", 0)] == answers


def test_a_tick_runs_one_slice_however_many_works_there_are(world: World) -> None:
    logs: list[list[int]] = [[], [], []]
    for log in logs:
        world.engine.run(counting(3, COMMITTED, log), world.now)

    assert [[0], [0], [0]] == logs
    world.engine.tick(world.now)
    assert [[0, 1], [0], [0]] == logs
    world.engine.tick(world.now)
    assert [[0, 1], [0, 1], [0]] == logs


def test_a_work_that_a_timer_begins_has_one_slice_in_that_tick(world: World) -> None:
    """Old completed jobs went two slices at a time, at the beginning."""
    log: list[int] = []
    engine = world.engine
    engine.timers.add(world.now, lambda *_: engine.run(counting(3, COMMITTED, log), world.now), 0)

    engine.tick(world.now)

    assert [0] == log


def test_how_long_commands_took_is_sorted_in_by_parts(world: World) -> None:
    """Ten thousand reads of a second took 4 ms at its end."""
    latencies = world.engine.latencies
    world.engine.tick(world.now)
    for _ in range(3 * NOTES_PER_SLICE):
        latencies.note((0.001, 1, 0, 0))
    world.clock.ms += 1_000
    left = [latencies.noted]
    while latencies.noted:
        world.engine.tick(world.now)
        left.append(latencies.noted)

    assert [3 * NOTES_PER_SLICE, 2 * NOTES_PER_SLICE, NOTES_PER_SLICE, 0] == left
    assert 3 * NOTES_PER_SLICE == latencies.push.count


def test_notes_that_come_faster_than_a_slice_has_room_for_are_bounded(world: World) -> None:
    """More connections than that are read from in each turn; the rates are sampled all the same."""
    latencies, engine = world.engine.latencies, world.engine
    turn = [(0.001, 1, 0, 0)] * (3 * NOTES_PER_SLICE)
    most = 0
    for _ in range(200):
        for note in turn:
            latencies.note(note)
        engine.totals.pushed += len(turn)
        world.clock.ms += 200
        engine.tick(world.now)
        most = max(most, latencies.noted)

    assert most <= (2 * NOTE_SLICES_MAX + 5) * len(turn)  # of two rounds, and a second
    assert engine.rates.push_per_s > len(turn)


def test_a_tick_asks_to_come_back_at_once_while_a_work_waits(world: World) -> None:
    sooner: list[int] = []
    world.engine.on_sooner = sooner.append
    world.engine.run(counting(3, COMMITTED), world.now)

    assert [world.now] == sooner
    assert world.now == world.engine.tick(world.now)


def test_what_ends_a_later_slice_is_the_answer(world: World) -> None:
    def refused() -> Work[None]:
        yield COMMITTED
        raise Refused("no")

    answers: list[Any] = []
    world.engine.run(refused(), world.now).then(lambda answer, _: answers.append(str(answer)))
    turn(world)

    assert ["no"] == answers


def test_what_nobody_foresaw_is_logged_and_stops_nobody_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Work[None]:
        yield COMMITTED
        raise RuntimeError("broken work")

    log: list[int] = []
    answers: list[Any] = []
    world.engine.run(broken(), world.now).then(lambda answer, _: answers.append(type(answer)))
    world.engine.run(counting(2, COMMITTED, log), world.now)
    turn(world)
    turn(world)

    assert ([RuntimeError], [0, 1]) == (answers, log)
    assert "broken work" in caplog.text


def test_a_reader_that_has_gone_ends_its_work_and_a_writer_does_not(world: World) -> None:
    logs: list[list[int]] = [[], []]
    for log, is_kept_on in zip(logs, (False, True), strict=True):
        world.engine.run(counting(3, COMMITTED, log), world.now, is_kept_on).cancel()
    for _ in range(8):
        turn(world)

    assert [[0], [0, 1, 2]] == logs


def test_the_next_slice_waits_for_the_commit_of_the_one_before() -> None:
    world = persistent_world()
    log: list[int] = []

    def writing() -> Work[None]:
        for number in range(3):
            log.append(number)
            world.storage.sync()
            yield COMMITTED

    world.engine.run(writing(), world.now)
    for _ in range(3):
        world.engine.tick(world.now)
    assert [0] == log

    world.settle()
    world.engine.tick(world.now)
    assert [0, 1] == log


def test_a_commit_that_fails_is_raised_where_the_work_yielded() -> None:
    world = persistent_world()
    caught: list[type] = []

    def writing() -> Work[str]:
        world.storage.sync()
        try:
            yield COMMITTED
        except StorageFailed as error:
            caught.append(type(error))
        return "gone on"

    later = world.engine.run(writing(), world.now)
    answers: list[Any] = []
    later.then(lambda answer, _: answers.append(answer))
    world.storage.fails = True
    world.settle()
    world.engine.tick(world.now)

    assert ([StorageFailed], ["gone on"]) == (caught, answers)


def test_parts_are_of_one_size_but_for_the_last() -> None:
    assert [[0, 1], [2, 3], [4]] == list(parts(range(5), 2))
    assert [] == list(parts([], 2))


@pytest.mark.parametrize("most", [None, 0, 10, 2_500, 9_000])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_any_number_of_items_is_sorted_in_steps(most: int | None, is_reversed: bool) -> None:
    items = [(number * 7919) % 5_003 for number in range(5_003)]
    expected = sorted(items, reverse=is_reversed)[:most]

    assert expected == list(done(in_order(items, lambda item: item, most, is_reversed)))


# -- the commands ---------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {"PromoteJobs": {"delay": 60_000}}
FIELDS: dict[str, dict[str, Any]] = {
    "Clean": {"grace": 0, "limit": MANY},
    "GetJobs": {"limit": MANY},
    "SetDlqConfig": {"config": {"maxEntries": 1}},
}
QUEUED_COMMANDS = ("Drain", "Obliterate", "Clean", "PromoteJobs", "GetJobs")
ENDED_COMMANDS = ("RetryDlq", "PurgeDlq", "RetryCompleted", "Dlq", "SetDlqConfig")


def filled(world: World, command: str) -> None:
    """Make as many jobs as the command needs, in the state that it is about."""
    jobs = [{"maxAttempts": 1, **OPTIONS.get(command, {})}] * MANY
    world.ok("PUSHB", queue="q", jobs=jobs)
    if command not in ENDED_COMMANDS:
        return
    world.ok("SetDlqConfig", queue="q", config={"maxEntries": MANY})
    while ids := [job["id"] for job in world.ok("PULLB", queue="q", count=1_000)["jobs"]]:
        if command == "RetryCompleted":
            world.ok("ACKB", ids=ids)
        else:
            for job_id in ids:
                world.ok("FAIL", id=job_id)


def awaited(world: World, answer: Answer) -> int:
    """Let the engine tick until the answer is there; return how often."""
    for turns in range(1_000):
        world.settle()
        if answer.is_there:
            return turns
        world.engine.tick(world.now)
    raise AssertionError("no answer")


@pytest.mark.parametrize("command", [*QUEUED_COMMANDS, *ENDED_COMMANDS])
def test_a_command_about_many_jobs_takes_several_turns(world: World, command: str) -> None:
    filled(world, command)
    others = world.push("other")
    answer = world.send(command, queue="q", **FIELDS.get(command, {}))
    assert not answer.is_there
    assert others == world.pull("other")

    assert 1 < awaited(world, answer)
    assert answer.reply is not None
    assert answer.reply["ok"]
    assert MANY == answer.reply.get("count", len(answer.reply.get("jobs", ())) or MANY)


@pytest.mark.parametrize("command", [*QUEUED_COMMANDS, *ENDED_COMMANDS, "GetJobCounts"])
def test_the_same_about_few_jobs_is_answered_at_once(world: World, command: str) -> None:
    world.ok("PUSHB", queue="q", jobs=[OPTIONS.get(command, {})] * 50)
    answer = world.send(command, queue="q", **FIELDS.get(command, {}))
    world.settle()

    assert answer.is_there


def in_memory(world: World) -> Counter[tuple[str, bool]]:
    """Count the jobs by place, and whether their time has come; nothing is committed by it."""
    return Counter((job.place, job.is_ripe) for job in world.engine.index)


WRITERS = (
    "Drain", "Clean", "Obliterate", "PromoteJobs", "RetryDlq", "PurgeDlq", "RetryCompleted",
    "SetDlqConfig",
)  # fmt: skip


@pytest.mark.parametrize("command", WRITERS)
def test_a_commit_that_fails_midway_undoes_its_slice_and_leaves_the_rest(command: str) -> None:
    world = persistent_world()
    filled(world, command)
    before = world.counts()
    answer = world.send(command, queue="q", **FIELDS.get(command, {}))
    while (after_first := world.counts()) == before:  # asking commits; some begin by looking
        world.engine.tick(world.now)
    world.storage.fails = True
    world.engine.tick(world.now)
    awaited(world, answer)
    world.storage.fails = False

    assert {"ok": False, "error": "Internal server error"} == answer.reply
    assert after_first == world.counts()
    assert after_first == world.restart().counts()


@pytest.mark.parametrize("command", WRITERS)
def test_a_broker_that_dies_midway_leaves_whole_slices(command: str) -> None:
    world = persistent_world()
    filled(world, command)
    world.send(command, queue="q", **FIELDS.get(command, {}))
    world.settle()
    committed, first = world.counts(), in_memory(world)
    world.engine.tick(world.now)  # this slice is never written

    assert first != in_memory(world)
    assert committed == world.restart().counts()


# -- a large ACKB ---------------------------------------------------------------------------------


def pulled(world: World, count: int = MANY) -> tuple[list[str], list[str]]:
    """Return ids and tokens of so many jobs that are active."""
    ids: list[str] = []
    tokens: list[str] = []
    for begin in range(0, count, 1_000):
        world.ok("PUSHB", queue="q", jobs=[{}] * min(1_000, count - begin))
        answer = world.ok("PULLB", queue="q", count=1_000, owner="w", lockTtl=600_000)
        ids += [job["id"] for job in answer["jobs"]]
        tokens += answer["tokens"]
    return ids, tokens


def completed(world: World) -> int:
    return in_memory(world)["completed", True]


def test_a_large_ackb_is_done_in_bounded_steps_with_others_in_between(world: World) -> None:
    ids, tokens = pulled(world)
    answer = world.send("ACKB", ids=ids, tokens=tokens, results=list(range(MANY)))
    counts = [completed(world)]
    others = world.push("other")
    assert others == world.pull("other")
    while not answer.is_there:
        world.settle()
        world.engine.tick(world.now)
        counts.append(completed(world))

    assert {"ok": True} == answer.reply
    assert MANY == counts[-1]
    steps = [after - before for before, after in pairwise([0, *counts])]
    assert 0 < max(steps) <= SLICE_US / ACKED_US + ACKED_PER_STEP
    assert [str(number) for number in (0, MANY - 1)] == [
        str(world.ok("GetResult", id=ids[number])["result"]) for number in (0, MANY - 1)
    ]


def test_an_ackb_of_a_thousand_is_an_ordinary_operation(world: World) -> None:
    ids, tokens = pulled(world, 1_000)
    answer = world.send("ACKB", ids=ids, tokens=tokens)
    world.settle()

    assert {"ok": True} == answer.reply


def test_a_large_ackb_with_a_wrong_token_applies_nothing(world: World) -> None:
    ids, tokens = pulled(world)
    answer = world.send("ACKB", ids=ids, tokens=[*tokens[:-1], "wrong"])
    awaited(world, answer)

    assert answer.reply is not None
    assert f"Invalid or expired lock token for job {ids[-1]}" == answer.reply["error"]
    assert 0 == completed(world)


@pytest.mark.parametrize("lists", [{"tokens": ["t"]}, {"results": [1] * MANY + [2]}])
def test_a_large_ackb_whose_lists_differ_in_length_is_refused(
    world: World, lists: dict[str, Any]
) -> None:
    (name,) = lists
    text = f"ACKB {name} length must match ids length"

    assert text == world.error("ACKB", ids=["a"] * MANY, **lists)


def test_what_is_no_id_refuses_a_large_ackb(world: World) -> None:
    ids, tokens = pulled(world)
    answer = world.send("ACKB", ids=[*ids[:-1], 7], tokens=tokens)
    awaited(world, answer)

    assert answer.reply is not None
    assert "ids must be an array of valid string job ids" == answer.reply["error"]
    assert 0 == completed(world)


def test_a_large_ackb_tells_which_had_no_effect(world: World) -> None:
    ids, tokens = pulled(world)
    late = [1, MANY - 1]
    for number in late:
        world.ok("ACK", id=ids[number], token=tokens[number])
    answer = world.send("ACKB", ids=ids, tokens=tokens)
    awaited(world, answer)

    assert answer.reply is not None
    assert not answer.reply["ok"]  # they ended by somebody's word, not by the broker's
    assert MANY == completed(world)


def test_a_lease_that_is_lost_while_a_large_ackb_is_under_way_is_told(world: World) -> None:
    ids, tokens = pulled(world)
    answer = world.send("ACKB", ids=ids, tokens=tokens)
    world.ok("FAIL", id=ids[-1], token=tokens[-1], error="no")
    awaited(world, answer)

    assert answer.reply is not None
    assert not answer.reply["ok"]
    assert MANY - ACKED_PER_STEP <= completed(world) < MANY


def test_a_commit_that_fails_in_a_large_ackb_undoes_its_slice_and_leaves_the_rest() -> None:
    world = persistent_world()
    ids, tokens = pulled(world)
    answer = world.send("ACKB", ids=ids, tokens=tokens)
    world.settle()
    while not (after_first := completed(world)):
        world.engine.tick(world.now)
        world.settle()
    world.storage.fails = True
    world.engine.tick(world.now)
    awaited(world, answer)
    world.storage.fails = False

    assert {"ok": False, "error": "Internal server error"} == answer.reply
    assert after_first == completed(world)
    assert MANY - after_first == in_memory(world)["active", True]


def test_what_comes_while_a_large_queue_is_obliterated_stays(world: World) -> None:
    world.ok("RateLimit", queue="q", limit=0)
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    poll = world.poll()
    answer = world.send("Obliterate", queue="q")
    grouped = world.push(groupId="g")
    job_id = world.push(uniqueKey="k")
    awaited(world, answer)

    assert poll.is_there  # the limit has gone with the queue
    assert {grouped, job_id} == {poll.reply["job"]["id"], *world.pull_all()}
    assert job_id == world.push(uniqueKey="k")
    world.settle()
    if world.storage.is_persistent:
        assert {grouped, job_id} == set(world.storage.rows)
        assert {} == world.storage.tables.get("queues", {})


def test_what_was_there_goes_with_a_large_queue_wherever_it_moves_meanwhile(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    raised = world.push(jobId="raised")
    answer = world.send("Obliterate", queue="q")
    pulled = [world.pull() for _ in range(3)]
    world.ok("ACK", id=pulled[0])
    world.ok("ChangePriority", id=raised, priority=7)
    awaited(world, answer)

    assert {} == world.counts()
    assert ["unknown"] * 4 == [world.state(str(job_id)) for job_id in (*pulled, raised)]


def test_groups_are_counted_right_after_an_obliteration_that_could_not_be_written() -> None:
    world = persistent_world()
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    old = world.engine.queues["q"]
    answer = world.send("Obliterate", queue="q")
    for _ in range(2):
        world.push(groupId="g")
    assert world.go("PULL", queue="q", group={"affinity": "g"})["job"]
    while world.engine.queues["q"] is old:
        world.settle()
        world.engine.tick(world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    world.settle()

    assert answer.reply == {"ok": False, "error": "Internal server error"}
    assert world.engine.queues["q"] is old
    check_whole(world.engine, world.now, [world.peer])


def test_the_second_of_two_obliterations_takes_what_came_between_them(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    first = world.send("Obliterate", queue="q")
    between = [world.push(), world.push(groupId="g"), world.push(delay=1_000)]
    second = world.send("Obliterate", queue="q")
    after = world.push()
    awaited(world, first)
    awaited(world, second)

    assert ["unknown"] * 3 == [world.state(job_id) for job_id in between]
    assert [after] == world.pull_all()


def test_jobs_that_fall_due_together_are_all_counted(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{"delay": 1_000}] * MANY)
    world.clock.ms += 1_000

    assert {"waiting": MANY} == world.counts()


def test_jobs_that_fall_due_together_are_handed_out_in_order(world: World) -> None:
    ids = world.ok("PUSHB", queue="q", jobs=[{"delay": 1_000}] * MANY)["ids"]
    world.clock.ms += 1_000

    assert ids == world.pull_all()


def test_a_peer_that_held_many_jobs_hands_them_back_in_slices(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 1_000)
    other = world.connect("other")
    world.ok("PULLB", other, queue="q", count=1_000, owner="w")
    world.engine.peer_closed(other, world.now)

    assert 0 < world.counts()["waiting"] < 1_000
    while world.engine.works.ring:
        turn(world)
    assert {"waiting": 1_000} == world.counts()


def test_what_a_peer_held_goes_back_even_if_a_commit_fails_meanwhile() -> None:
    world = persistent_world()
    world.ok("PUSHB", queue="q", jobs=[{}] * 1_000)
    other = world.connect("other")
    world.ok("PULLB", other, queue="q", count=1_000, owner="w")
    world.storage.sync()  # of whatever else was done in the same go
    world.engine.peer_closed(other, world.now)
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    while world.engine.works.unfinished:
        turn(world)

    assert {"waiting": 1_000} == world.counts()


# -- large batches --------------------------------------------------------------------------------


def entries(count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"data": {"n": n}, **options} for n in range(count)]


@pytest.mark.parametrize("options", [{}, {"priority": 3}])
def test_a_large_batch_is_added_in_slices_and_comes_back_in_order(
    world: World, options: dict[str, Any]
) -> None:
    answer = world.send("PUSHB", queue="q", jobs=entries(MANY, **options))

    assert 1 < awaited(world, answer)
    assert answer.reply is not None
    assert answer.reply["ids"] == world.pull_all()


def test_the_entries_of_a_large_batch_are_freed_as_they_are_taken_up(world: World) -> None:
    jobs = entries(MANY)
    first, nobody_elses = jobs[0], dict(jobs[0])
    dispatch(world.peer, {"cmd": "PUSHB", "queue": "q", "jobs": jobs}, is_large=True)

    assert getrefcount(nobody_elses) == getrefcount(first)


def test_a_large_batch_with_a_mistake_leaves_no_trace(world: World) -> None:
    jobs = [{"uniqueKey": f"k{n}", "jobId": f"j{n}"} for n in range(1_000)]
    jobs += [{"dependsOn": ["nope"]}]
    answer = world.send("PUSHB", queue="q", jobs=jobs)
    awaited(world, answer)

    assert {"ok": False, "error": "jobs[1000]: Dependency job not found: nope"} == answer.reply
    assert {} == world.counts()
    world.settle()
    assert not len(world.engine.index)
    assert not world.engine.queues["q"].keys
    if world.storage.is_persistent:
        assert {} == world.storage.rows


def test_a_large_batch_is_written_in_one_batch() -> None:
    world = persistent_world()
    answer = world.send("PUSHB", queue="q", jobs=entries(MANY, priority=1))
    seen = set()
    while not answer.is_there:
        world.engine.tick(world.now)
        seen.add(len(world.storage.rows))
        world.settle()

    assert {0, MANY} == seen | {len(world.storage.rows)}


def test_a_large_batch_that_could_not_be_written_leaves_everything_as_it_was() -> None:
    world = persistent_world()
    old = world.push(uniqueKey="k7", delay=60_000)
    policy = {"replace": True, "ttl": 60_000}
    jobs = [{"uniqueKey": f"k{n}", "dedup": policy} for n in range(1_000)]
    answer = world.send("PUSHB", queue="q", jobs=jobs)
    world.storage.fails = True
    awaited(world, answer)
    world.storage.fails = False
    world.settle()

    assert {"ok": False, "error": "Internal server error"} == answer.reply
    assert {"delayed": 1} == world.counts()
    assert {old} == set(world.storage.rows)
    assert old == world.push(uniqueKey="k7")


def test_jobs_of_a_large_batch_may_wait_for_each_other(world: World) -> None:
    jobs: list[dict[str, Any]] = [{"customId": f"j{n}"} for n in range(600)]
    jobs[0]["dependsOn"] = ["j599"]
    awaited(world, world.send("PUSHB", queue="q", jobs=jobs))

    assert {"waiting": 599, "waiting-children": 1} == world.counts()
    for job_id in world.pull_all():
        world.ok("ACK", id=job_id)
    world.forward(5)
    assert "j0" == world.pull()


def test_a_group_that_fills_up_refuses_a_large_batch(world: World) -> None:
    jobs = [{"groupId": "g", "groupMaxSize": 900}] * 1_000
    answer = world.send("PUSHB", queue="q", jobs=jobs)
    awaited(world, answer)

    text = "Group g has reached its maximum size of 900"
    assert {"ok": False, "error": text} == answer.reply
    assert {} == world.counts()


def test_who_meets_a_large_batch_on_its_way_is_answered_after_it() -> None:
    world = persistent_world()
    jobs = [{"uniqueKey": f"k{n}"} for n in range(1_000)]
    answer = world.send("PUSHB", queue="q", jobs=jobs)
    while "k0" not in world.engine.open_queue("q").keys:
        world.engine.tick(world.now)
    met = world.send("PUSH", queue="q", uniqueKey="k999")
    assert not met.is_there

    awaited(world, met)
    awaited(world, answer)
    assert answer.reply is not None
    assert met.reply == {"ok": True, "id": answer.reply["ids"][999]}


def children(parent_id: str, count: int) -> list[dict[str, Any]]:
    data = {"__parentId": parent_id, "__parentQueue": "parents"}
    return [{"parentId": parent_id, "data": data} for _ in range(count)]


def test_a_large_batch_of_children_is_added_in_slices(world: World) -> None:
    parent_id = world.push("parents")
    answer = world.send("PUSHB", queue="q", jobs=children(parent_id, 1_000))

    assert 1 < awaited(world, answer)
    assert {"waiting-children": 1} == world.counts("parents")
    for job_id in world.pull_all():
        world.ok("ACK", id=job_id)
    world.forward(5)
    assert parent_id == world.pull("parents")


def test_a_parent_that_begins_meanwhile_refuses_a_large_batch_of_children(world: World) -> None:
    parent_id = world.push("parents")
    answer = world.send("PUSHB", queue="q", jobs=children(parent_id, 1_000))
    assert not answer.is_there
    assert parent_id == world.pull("parents")
    awaited(world, answer)

    text = f"Parent job {parent_id} is not linkable"
    assert {"ok": False, "error": text} == answer.reply
    assert {} == world.counts()
    assert 1 == len(world.engine.index)


def test_a_large_batch_of_children_that_could_not_be_written_leaves_no_trace() -> None:
    world = persistent_world()
    parent_id = world.push("parents")
    answer = world.send("PUSHB", queue="q", jobs=children(parent_id, 1_000))
    world.storage.fails = True
    awaited(world, answer)
    world.storage.fails = False
    world.settle()

    assert {"ok": False, "error": "Internal server error"} == answer.reply
    assert {parent_id} == set(world.storage.rows)
    assert parent_id == world.pull("parents")


def test_a_large_batch_with_ids_and_keys_is_added_in_slices(world: World) -> None:
    jobs = [{"customId": f"j{n}", "uniqueKey": f"k{n}"} for n in range(1_000)]
    answer = world.send("PUSHB", queue="q", jobs=jobs)

    assert 1 < awaited(world, answer)
    assert [f"j{n}" for n in range(1_000)] == world.pull_all()


def half_way(world: World, *first: dict[str, Any], last: Sequence[Any] = ()) -> Answer:
    """Send a large batch, and stop once its first jobs are admitted."""
    jobs = [*first, *entries(1_000, priority=1), *last]
    answer = world.send("PUSHB", queue="q", jobs=jobs)
    while not answer.is_there and not any(a.jobs() for a in world.engine.arriving):
        world.engine.tick(world.now)
    return answer


REPLACES: dict[str, Any] = {"uniqueKey": "k", "dedup": {"replace": True}}


@pytest.mark.parametrize("fails", [False, True])
def test_whom_a_large_batch_replaces_is_there_until_it_is_written(fails: bool) -> None:
    """What had been promised of them went with the first commit after the batch had begun."""
    world = persistent_world()
    world.push(jobId="completed", priority=9)
    world.pull()
    owned = {"durable": True, "uniqueKey": "k"}
    acked = world.send("ACK", id="completed")
    durable = world.send("PUSH", queue="q", jobId="waiting", **owned)
    answer = half_way(world, {"customId": "completed"}, REPLACES)
    world.settle()
    assert (True, True) == (acked.is_there, durable.is_there)
    assert not answer.is_there
    crashed = world.restart()
    assert {"waiting": 1, "completed": 1} == crashed.counts() == world.counts()
    world.storage.fails = fails
    awaited(world, answer)
    world.storage.fails = False
    world.settle()

    replaced = {"waiting": 1, "completed": 1} if fails else {"waiting": 2, "prioritized": 1_000}
    for present in (world, world.restart()):
        assert replaced == {name: count for name, count in present.counts().items() if count}
        assert fails is (present.state("waiting") == "waiting")
    check_whole(world.engine, world.now, [world.peer])


def test_a_large_batch_that_replaces_others_keeps_its_order(world: World) -> None:
    for name in ("b", "d"):
        world.push(jobId=name)
        world.ok("ACK", id=world.pull())
    names = ["a", "b", "c", "d", *(f"e{n}" for n in range(500))]
    answer = world.send("PUSHB", queue="q", jobs=[{"customId": name} for name in names])

    assert 1 < awaited(world, answer)
    assert names == (answer.reply or {})["ids"]
    assert names == world.pull_all()


def test_entries_of_a_large_batch_that_follow_one_which_takes_a_key_meet_it(world: World) -> None:
    world.push(jobId="old", uniqueKey="k")
    jobs = [{"customId": "new", "priority": 9, **REPLACES}, {"customId": "twin", "uniqueKey": "k"}]
    waits = {"customId": "waits", "dependsOn": ["new"], "priority": 9}
    answer = world.send("PUSHB", queue="q", jobs=[*jobs, waits, *entries(1_000, priority=1)])
    awaited(world, answer)

    assert ["new", "new", "waits"] == (answer.reply or {})["ids"][:3]
    assert ("unknown", "waiting-children") == (world.state("old"), world.state("waits"))
    assert "new" == world.pull()
    world.ok("ACK", id="new")
    assert "waits" == world.pull()


def test_a_large_batch_may_replace_so_many_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_batches, "TAKING_MAX", 2)
    for name in "abc":
        world.push(jobId=name)
        world.ok("ACK", id=world.pull())
    for names, told in (("abc", "more than 2 jobs of a batch would take"), ("ab", "")):
        jobs = [{"customId": name, "priority": 9} for name in names]
        answer = world.send("PUSHB", queue="q", jobs=[*jobs, *entries(1_000, priority=1)])
        awaited(world, answer)
        assert (answer.reply or {}).get("error", "").startswith(told)
        assert bool(told) is not (answer.reply or {})["ok"]

    assert ["a", "b"] == [world.pull(), world.pull()]
    check_whole(world.engine, world.now, [world.peer])


def test_a_large_batch_relies_on_nobody_whose_commit_is_to_come() -> None:
    world = persistent_world()
    answer = half_way(world, last=[{"customId": "it"}])
    world.send("PUSH", queue="q", jobId="owner", uniqueKey="k", durable=True)
    twin = half_way(world, {"uniqueKey": "k"})
    world.storage.fails = True
    world.settle()
    world.storage.fails = False
    awaited(world, answer)
    awaited(world, twin)

    assert (twin.reply or {})["ok"]
    assert "owner" not in (twin.reply or {})["ids"]


def test_a_job_of_a_large_batch_is_not_in_the_file_before_the_others() -> None:
    world = persistent_world()
    world.push(jobId="met")
    world.ok("ACK", id=world.pull())
    extends = {"uniqueKey": "k", "dedup": {"extend": True, "ttl": 1_000}}
    answer = half_way(world, {"customId": "waits", "dependsOn": ["met"]}, extends, extends)
    world.ok("RetryCompleted", queue="q", id="met")
    world.settle()
    assert not answer.is_there
    assert {"met"} == set(world.storage.rows)
    awaited(world, answer)

    assert 1_003 == len(world.storage.rows)


def test_a_key_that_a_large_batch_takes_stays_in_the_file_until_that_is_written() -> None:
    world = persistent_world()
    world.push(jobId="a", uniqueKey="k")
    world.pull()
    answer = half_way(world, REPLACES)
    world.send("Progress", id="a", progress=5)
    world.send("Update", id="a", data=2)
    world.settle()
    crashed = world.restart()
    awaited(world, answer)

    assert "a" == crashed.push(uniqueKey="k")
    assert "a" != world.push(uniqueKey="k")
    assert "a" != world.restart().push(uniqueKey="k")


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_parent_knows_of_its_children_stays_in_the_file_until_its_end_is(
    fails: bool,
) -> None:
    world = persistent_world()
    world.push(jobId="p", uniqueKey="k")
    options = {"ignoreDependencyOnFailure": True, "maxAttempts": 1}
    data = {"__parentId": "p", "__parentQueue": "q"}
    for child_id in ("c", "d"):
        world.push(jobId=child_id, parentId="p", data=data, **options)
    assert "c" == world.pull()
    world.ok("FAIL", id="c", error="no")
    known = world.ok("GetIgnoredChildrenFailures", id="p")
    answer = half_way(world, REPLACES)
    assert known == world.restart().ok("GetIgnoredChildrenFailures", id="p")
    world.storage.fails = fails
    awaited(world, answer)
    world.storage.fails = False
    world.settle()

    assert {"values": {"q:c": "no"}} == known
    assert fails is bool(world.storage.tables["flow_failures"])
    if fails:
        assert known == world.restart().ok("GetIgnoredChildrenFailures", id="p")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("wire", ["childrenIds", "dependsOn"])
def test_a_completion_stays_proved_until_the_large_batch_that_uses_its_id_again_is_written(
    fails: bool, wire: str
) -> None:
    world = persistent_world()
    world.push(jobId="a", removeOnComplete=True)
    world.pull()
    world.push("r", jobId="b", **{wire: ["a"]})
    answer = half_way(world, last=[{"customId": "a"}, *entries(1_000, priority=1)])
    world.ok("ACK", id="a", result=1)
    values = world.ok("GetChildrenValues", id="b")
    world.storage.settle()
    assert not answer.is_there
    crashed = world.restart()
    assert "b" == crashed.pull("r")
    assert values == crashed.ok("GetChildrenValues", id="b")
    crashed.push("s", dependsOn=["a"])
    assert {"waiting": 1} == crashed.counts("s")
    world.storage.fails = fails
    awaited(world, answer)
    world.storage.fails = False
    world.settle()

    check_whole(world.engine, world.now, [world.peer])
    assert fails is (world.engine.find("a") is None)
    for present in (world, world.restart()):
        assert fails is ("a" in present.engine.graph.proofs)
        present.push("s", dependsOn=["a"])
        assert {"waiting" if fails else "waiting-children": 1} == present.counts("s")
        assert "b" == present.pull("r")


FAILS = {"failParentOnFailure": True, "maxAttempts": 1}
IGNORED = {"ignoreDependencyOnFailure": True, "maxAttempts": 1}
WHILE_AWAY: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    ({}, "ACK", {"result": 1}, "waiting"),
    ({"removeOnComplete": True}, "ACK", {"result": 1}, "waiting"),
    (FAILS, "FAIL", {"error": "no"}, "failed"),
    ({**FAILS, "removeOnFail": True}, "FAIL", {"error": "no"}, "failed"),
    (IGNORED, "FAIL", {"error": "no"}, "waiting"),
    ({**IGNORED, "removeOnFail": True}, "FAIL", {"error": "no"}, "waiting"),
    ({}, "FAIL", {"error": "no"}, "waiting-children"),
]


@pytest.mark.parametrize(("options", "command", "fields", "state"), WHILE_AWAY)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_parent_that_a_large_batch_fails_to_replace_knows_how_its_children_have_ended(
    options: dict[str, Any], command: str, fields: dict[str, Any], state: str, is_committed: bool
) -> None:
    world = persistent_world()
    world.push(jobId="p", uniqueKey="k")
    data = {"__parentId": "p", "__parentQueue": "q"}
    world.push("r", jobId="b", parentId="p", data=data, removeOnComplete=True)
    world.push("r", jobId="c", parentId="p", data=data, **options)
    assert "b" == world.pull("r")
    world.ok("ACK", id="b", result="b")
    assert "c" == world.pull("r")
    answer = half_way(world, REPLACES, last=[{"groupId": "g", "groupMaxSize": 1}] * 2)
    world.settle()
    world.send(command, id="c", **fields)
    if is_committed:
        world.settle()
    awaited(world, answer)
    for _ in range(3):
        world.forward(1)
        world.settle()

    assert False is (answer.reply or {})["ok"]
    assert state == world.state("p")
    check_whole(world.engine, world.now, [world.peer])
    for present in (world, world.restart()):
        assert state == present.state("p")
        values = present.ok("GetChildrenValues", id="p")["data"]["values"]
        completed = {"c" if options else "r:c": 1} if "result" in fields else {}
        assert values == {"b": "b", **completed}
        ignored = present.ok("GetIgnoredChildrenFailures", id="p")["values"]
        assert ignored == ({"r:c": "no"} if IGNORED.items() <= options.items() else {})


# -- several at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["childrenIds", "dependsOn"])
def test_jobs_that_name_many_others_are_admitted_and_removed_a_few_at_a_time(wire: str) -> None:
    """Fifty jobs were entered together, whatever they named: two seconds for fifty thousand each.

    The engine's own step is what is counted, so nothing is written here.
    """
    world = World()
    first = world.ok("PUSHB", queue="first", jobs=entries(1_000))["ids"]
    jobs = entries(40, **{wire: first})
    request = {"cmd": "PUSHB", "queue": "q", "jobs": jobs}
    later = dispatch(world.peer, request, is_large=True)
    assert isinstance(later, Later)
    answers: list[Any] = []
    later.then(lambda answer, _commits: answers.append(answer))
    admitted = [len(world.engine.index)]
    while not answers:
        turn(world)
        admitted.append(len(world.engine.index))
    gone = world.send("Obliterate", queue="q")
    removed = [len(world.engine.index)]
    while not gone.is_there:
        turn(world)
        removed.append(len(world.engine.index))

    assert 1_040 == max(admitted)
    assert 10 > max(after - before for before, after in pairwise(admitted))
    assert 1_000 == removed[-1]
    assert 30 > max(before - after for before, after in pairwise(removed))


def test_a_flow_of_jobs_that_wait_for_many_is_tied_a_few_at_a_time(world: World) -> None:
    ids = [f"j{number}" for number in range(300)]
    jobs = [
        {"id": job_id, "queue": "q", "input": {"data": {}, "dependsOn": ids[:number]}}
        for number, job_id in enumerate(ids)
    ]
    answer = world.send("PUSHF", jobs=jobs)
    edges = [0]
    while not answer.is_there:
        turn(world)
        edges.append(sum(map(len, world.engine.graph.consumers.values())))

    assert 300 * 299 // 2 == edges[-1]
    assert 5_000 > max(after - before for before, after in pairwise(edges))


def test_what_weighs_much_is_a_part_by_itself() -> None:
    assert [([1, 1], 2), ([5], 5), ([1, 1], 2), ([1], 1)] == list(
        weighed([1, 1, 5, 1, 1, 1], 2, lambda item: item)
    )


def turns(world: World, count: int = 1) -> None:
    for _ in range(count):
        turn(world)


def test_what_is_promoted_while_a_queue_is_drained_goes_too(world: World) -> None:
    ids = world.ok("PUSHB", queue="q", jobs=[{"delay": 60_000}] * MANY)["ids"]
    drained = world.send("Drain", queue="q")
    turns(world)
    for job_id in ids[-10:]:
        world.ok("Promote", id=job_id)
    awaited(world, drained)

    assert {"ok": True, "count": MANY} == drained.reply
    assert {} == world.counts()


def test_promoting_and_draining_the_same_jobs_loses_count_of_none(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{"delay": 60_000}] * MANY)
    promoted = world.send("PromoteJobs", queue="q")
    turns(world)
    drained = world.send("Drain", queue="q")
    awaited(world, drained)
    awaited(world, promoted)

    assert {"ok": True, "count": MANY} == drained.reply
    assert {} == world.counts()
    assert not len(world.engine.index)


def test_two_drains_at_once_share_the_jobs(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    answers = [world.send("Drain", queue="q") for _ in range(2)]
    for answer in answers:
        awaited(world, answer)

    assert MANY == sum(answer.reply["count"] for answer in answers if answer.reply is not None)
    assert {} == world.counts()


def test_a_drain_of_a_queue_that_is_obliterated_ends(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    drained = world.send("Drain", queue="q")
    obliterated = world.send("Obliterate", queue="q")
    turns(world)
    job_id = world.push()
    awaited(world, drained)
    awaited(world, obliterated)

    assert [job_id] == world.pull_all()
    assert {"active": 1} == world.counts()
    assert 1 == len(world.engine.index)


def test_what_is_moved_while_a_queue_is_obliterated_goes_too(world: World) -> None:
    ids = world.ok("PUSHB", queue="q", jobs=[{}] * MANY)["ids"]
    delayed = world.push(delay=60_000)
    answer = world.send("Obliterate", queue="q")
    turns(world)
    world.ok("ChangePriority", id=ids[-1], priority=5)
    world.ok("Promote", id=delayed)
    first, second = (world.ok("PULL", queue="q")["job"]["id"] for _ in range(2))
    world.ok("ACK", id=second)
    awaited(world, answer)

    assert {"ok": True} == answer.reply
    assert {} == world.counts()
    assert ["unknown"] * 3 == [
        world.ok("GetState", id=job_id)["state"] for job_id in (first, second, delayed)
    ]


def test_two_obliterations_at_once_both_end_with_nothing_left(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    first = world.send("Obliterate", queue="q")
    turns(world)
    world.push()
    second = world.send("Obliterate", queue="q")
    late = world.push()
    awaited(world, first)
    awaited(world, second)

    assert [late] == world.pull_all()
    assert 1 == len(world.engine.index)


def test_a_batch_that_meets_an_obliteration_stays_whole(world: World) -> None:
    batch = world.send("PUSHB", queue="q", jobs=entries(MANY, priority=1))
    while not world.engine.arriving:
        turn(world)
    obliterated = world.send("Obliterate", queue="q")
    awaited(world, obliterated)
    awaited(world, batch)

    assert {"prioritized": MANY} == world.counts()


def test_a_flow_that_meets_an_obliteration_stays_whole(world: World) -> None:
    jobs = tree(1_000)
    flow = world.send("PUSHF", jobs=jobs)
    job_id = world.push()
    obliterated = world.send("Obliterate", queue="q")
    assert not flow.is_there
    awaited(world, obliterated)
    awaited(world, flow)

    assert flow.reply is not None
    assert flow.reply["ok"], flow.reply
    assert {"waiting": 1_000} == world.counts()
    assert {"waiting-children": 1} == world.counts("pq")
    assert "unknown" == world.state(job_id)


def test_an_obliteration_removes_whom_a_batch_on_its_way_is_to_replace() -> None:
    world = persistent_world()
    world.push(jobId="old")
    world.ok("ACK", id=world.pull())
    batch = half_way(world, {"customId": "old"})
    awaited(world, world.send("Obliterate", queue="q"))
    assert not batch.is_there
    assert {} == world.counts() == world.restart().counts()
    world.storage.fails = True
    awaited(world, batch)
    world.storage.fails = False
    world.settle()

    assert {"ok": False, "error": "Internal server error"} == batch.reply
    assert {} == world.counts() == world.restart().counts()


def test_a_queue_that_is_paused_meanwhile_hands_out_nothing_and_is_emptied(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    drained = world.send("Drain", queue="q")
    turns(world)
    world.ok("Pause", queue="q")
    assert world.ok("PULL", queue="q")["job"] is None
    awaited(world, drained)
    world.ok("Resume", queue="q")

    assert {} == world.counts()


def test_works_are_counted_until_they_are_through(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * MANY)
    drained = world.send("Drain", queue="q")
    reader = world.engine.run(counting(3, COMMITTED), world.now, False)
    assert 2 == world.engine.works.unfinished
    reader.cancel()
    awaited(world, drained)
    turns(world)

    assert 0 == world.engine.works.unfinished


def test_a_cleanup_that_takes_several_slices_does_not_count_itself() -> None:
    """Else memory is never handed back beside many completed jobs that go."""
    world = World(settings=EngineSettings(completed_retention_ms=1))
    ids = world.ok("PUSHB", queue="q", jobs=[{}] * 1_000)["ids"]
    world.ok("PULLB", queue="q", count=1_000)
    world.ok("ACKB", ids=ids)
    others: list[int] = []
    world.engine.on_tidy = lambda _has_shrunk: others.append(world.engine.works.unfinished)
    world.forward(10_000)

    assert not len(world.engine.index)
    assert [0] == others


# -- large batches of heartbeats ------------------------------------------------------------------

HEARTBEATS = ("JobHeartbeatB", "ExtendLocks")


def renewing(command: str, ids: list[Any], tokens: list[str]) -> dict[str, Any]:
    """Return the fields of a command that renews leases."""
    spans = {"durations": [None] * len(ids)} if command == "ExtendLocks" else {}
    return {"ids": ids, "tokens": tokens, **spans}


@pytest.mark.parametrize("command", HEARTBEATS)
def test_many_heartbeats_are_taken_in_steps_with_others_in_between(
    world: World, command: str
) -> None:
    """A frame of a million ids kept everybody else waiting for half a second."""
    ids, tokens = pulled(world, 2 * MANY)
    world.clock.ms += 1_000
    answer = world.send(command, **renewing(command, ids, tokens))
    assert not answer.is_there
    others = world.push("other")
    assert others == world.pull("other")

    assert awaited(world, answer)
    assert answer.reply is not None
    assert 2 * MANY == answer.reply.get("data", answer.reply)["count"]


@pytest.mark.parametrize("command", HEARTBEATS)
def test_a_thousand_heartbeats_are_an_ordinary_operation(world: World, command: str) -> None:
    ids, tokens = pulled(world, 1_000)

    assert world.send(command, **renewing(command, ids, tokens)).is_there


@pytest.mark.parametrize("command", HEARTBEATS)
def test_what_is_no_id_refuses_many_heartbeats_before_the_first(world: World, command: str) -> None:
    ids, tokens = pulled(world)
    before = world.now
    world.clock.ms += 1_000
    answer = world.send(command, **renewing(command, [*ids[:-1], 7], tokens))
    awaited(world, answer)

    assert answer.reply is not None
    assert "ids must be an array of valid string job ids" == answer.reply["error"]
    deliveries = [job.delivery for job in world.engine.index]
    assert {before} == {each.heartbeat_at for each in deliveries if each is not None}
