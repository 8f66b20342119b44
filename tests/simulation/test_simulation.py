"""The short form of the simulation, and that it would notice."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from bunqueue.commands.registry import COMMANDS
from bunqueue.engine import large_batches, moves, outcomes
from bunqueue.engine.engine import Engine
from bunqueue.storage.log import MutationLog
from tests.simulation import rules, steps
from tests.simulation.history import Failed, Figures, run, shrunk, steps_of
from tests.simulation.sliced import SlicedRun, in_slices, sliced_history
from tests.simulation.steps import TOKEN, Step
from tests.simulation.world import World, silence
from tests.support.flows import flow_child, flow_parent

SECONDS = 6.0
HISTORIES_MIN = 15  # on a machine that is busy with other things
FIRST_SEED = 1
SLICED_SEED = 300_030
SLICED_HISTORIES = 40


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    log = logging.getLogger("bunqueue")
    before = log.level
    silence()
    yield
    log.setLevel(before)
    caplog.clear()


def test_no_history_breaks_an_invariant() -> None:
    figures = Figures()
    end = time.monotonic() + SECONDS
    seed = FIRST_SEED
    while time.monotonic() < end or figures.histories < HISTORIES_MIN:
        try:
            run(steps_of(seed), seed, figures)
        except Failed as failure:
            told = "\n".join(shrunk(failure, seconds=20).made.told)
            pytest.fail(f"python -m tests.simulation --once --seed {seed}\n{failure}\n{told}")
        seed += 1

    assert figures.steps > figures.histories
    assert figures.faults["crash"] >= figures.histories


def test_a_seed_makes_the_same_history_again() -> None:
    first, second = (run(steps_of(7), 7).told for _ in range(2))

    assert first == second


PUSHED: list[Step] = [
    ("command", 0, {"cmd": "PUSH", "queue": "q", "jobId": "a", "durable": True}, True),
    ("command", 0, {"cmd": "PULL", "queue": "q", "owner": "w"}, True),
]
ACKED: Step = ("command", 0, {"cmd": "ACK", "id": "a", "token": TOKEN}, True)


def test_an_answer_before_its_commit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MutationLog, "sync", lambda *_, **__: None)

    with pytest.raises(Failed, match="answered before its commit"):
        run(PUSHED + [ACKED], 1)


def test_a_change_without_a_note_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(engine: Any, job_id: str, *_: Any) -> None:
        engine.index.get(job_id).data = bytes([7])
        engine.storage.sync()

    monkeypatch.setattr("bunqueue.engine.engine.Engine.update_data", forgetful)
    changed = ("command", 0, {"cmd": "Update", "id": "a", "data": 7}, True)

    with pytest.raises(Failed, match="changed without a note"):
        run([*PUSHED[:1], changed, ("crash", True, 0)], 1)


def test_an_undo_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_uncomplete", lambda *_: None)

    with pytest.raises(Failed, match="left something behind"):
        run([*PUSHED, ("try", ACKED[2])], 1)


def test_a_move_that_no_table_has_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue.engine.engine.Engine.promote", moves.cancel)
    promoted = ("command", 0, {"cmd": "Promote", "id": "a"}, True)

    with pytest.raises(Failed, match="Promote moved a"):
        run([*PUSHED[:1], promoted], 1)


def test_a_run_that_comes_back_to_a_connection_that_has_closed_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[Step] = [
        *PUSHED,
        ("disk", "failing", 0),
        (*ACKED[:3], False),
        ("close", 0),
        ("pass", 1),
        ("disk", "quick", 0),
        ("pass", 1_500),
    ]
    assert run(steps, 1)
    monkeypatch.setattr(Engine, "run_left", lambda *_: None)

    with pytest.raises(Failed, match="a runs on, and peer 0 has closed"):
        run(steps, 1)


FLOW: list[Step] = [
    (
        "command",
        0,
        {
            "cmd": "PUSHF",
            "jobs": [
                flow_parent(["b"], "d", "r"),
                flow_child("b", "d", "q", "r", failParentOnFailure=True, maxAttempts=1),
            ],
        },
        True,
    ),
    ("command", 0, {"cmd": "PULL", "queue": "q", "owner": "w"}, True),
    ("command", 0, {"cmd": "FAIL", "id": "b", "token": TOKEN}, True),
    ("command", 0, {"cmd": "PUSH", "queue": "r", "jobId": "d", "dependsOn": ["b"]}, True),
]


def test_who_depends_on_a_dead_letter_waits_for_another_chance_of_it() -> None:
    """Though the dead letter has failed its parent, and that one had the same id."""
    assert run(FLOW, 1)


def test_a_second_failure_that_is_not_told_to_who_came_after_the_first_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[Step] = [
        ("pass", 1),
        ("command", 0, {"cmd": "RetryDlq", "queue": "q", "jobId": "b"}, True),
        *FLOW[1:3],
    ]
    assert run(FLOW + again, 1)
    child_failed = Engine.child_failed

    def told_once(engine: Any, job: Any, error: Any, now: int) -> None:
        if engine.index.get("d").seq == 1:
            child_failed(engine, job, error, now)

    monkeypatch.setattr(Engine, "child_failed", told_once)

    with pytest.raises(Failed, match="which has failed"):
        run(FLOW + again, 1)


def test_runs_of_schedulers_that_ended_before_their_jobs_were_written_are_owed() -> None:
    def limited(with_turn: bool, **fields: Any) -> Step:
        request = {"cmd": "Cron", "name": "nightly", "jobName": "made by nightly",
                   "immediately": True}  # fmt: skip
        return "command", 0, {**request, **fields}, with_turn

    run(
        [
            limited(False, queue="q", repeatEvery=70, maxLimit=1),
            ("disk", "slow", 3_000),
            ("pass", 250),
            limited(True, queue="q", repeatEvery=70, maxLimit=2, preventOverlap=False),
            ("pass", 250),
            limited(False, queue="r", repeatEvery=5_000, maxLimit=4),
        ],
        1,
    )


def test_a_job_may_take_the_place_of_one_that_takes_another_s_in_the_same_batch() -> None:
    batch = {
        "cmd": "PUSHB",
        "queue": "q",
        "jobs": [
            {"uniqueKey": "l", "dependsOn": ["a"], "customId": "d"},
            {"uniqueKey": "l", "dedup": {"replace": True}},
        ],
    }

    run(
        [
            ("command", 1, {"cmd": "PUSH", "queue": "q", "jobId": "a"}, False),
            ("command", 2, {"cmd": "PUSH", "queue": "r", "maxAttempts": 1, "jobId": "d"}, False),
            ("command", 2, {"cmd": "PULLB", "queue": "r", "detach": True, "count": 4}, True),
            ("crash", True, 5),
            ("command", 2, batch, False),
        ],
        1,
    )


def test_a_scheduler_that_tries_again_is_not_what_a_failed_command_left_behind() -> None:
    nightly = {"cmd": "Cron", "queue": "r", "name": "nightly", "jobName": "made by nightly",
               "repeatEvery": 70, "maxLimit": 4, "immediately": True}  # fmt: skip

    run(
        [
            ("disk", "dying", 0),
            ("command", 0, nightly, True),
            ("pass", 250),
            ("try", {**nightly, "repeatEvery": 5_000}),
        ],
        1,
    )


def test_a_run_that_an_undo_gives_back_to_a_closed_connection_may_be_anothers_at_once() -> None:
    pull = {"cmd": "PULL", "queue": "q", "owner": "w", "lockTtl": 2_000}

    run(
        [
            ("command", 1, {"cmd": "PUSH", "queue": "q", "jobId": "a"}, True),
            ("command", 0, pull, True),
            ("disk", "failing", 700),
            ("command", 1, {"cmd": "ACK", "id": "a", "token": TOKEN}, True),
            ("command", 1, {"cmd": "RetryCompleted", "queue": "q"}, True),
            ("command", 0, pull, False),
            ("command", 0, {"cmd": "SetConcurrency", "queue": "q", "limit": 0}, False),
            ("command", 2, {**pull, "timeout": 5_000}, True),
            ("close", 0),
            ("pass", 1_500),
        ],
        1,
    )


def test_work_in_slices_is_whole_whatever_happens_between_them() -> None:
    run_sliced(SLICED_HISTORIES)


BATCH: list[Step] = [
    ("command", 0, {"cmd": "PUSH", "queue": "q", "jobId": "a", "durable": True}, True),
    ("command", 0, {"cmd": "Discard", "id": "a"}, True),
    ("command", 0, {"cmd": "PUSH", "queue": "q", "jobId": "b", "uniqueKey": "k"}, True),
    ("command", 0, {"cmd": "PULL", "queue": "q", "owner": "w"}, True),
    (
        "command",
        0,
        {
            "cmd": "PUSHB",
            "queue": "q",
            "jobs": [
                {"customId": "a"},
                {"uniqueKey": "k", "dedup": {"replace": True}},
                *({"tags": ["x"]} for _ in range(9)),
            ],
        },
        False,
    ),
    ("pass", 15),
    ("command", 0, {"cmd": "Progress", "id": "b", "progress": 10}, True),
]  # it is half done by then


def test_what_a_batch_under_way_is_to_take_stays_until_it_is_written() -> None:
    with in_slices():
        made = SlicedRun(1, Figures())
        for step in BATCH:
            made.step(step)
        assert [3] == [len(batch.jobs()) for batch in made.world.engine.arriving]
        _check_others(made.world.engine)
        made.step(("crash", True, 0))

    _check_others(made.world.engine)
    assert len(made.world.engine.index) == 2


def _check_others(engine: Engine) -> None:
    dead, running = engine.index.get("a"), engine.index.get("b")
    assert dead is not None
    assert running is not None
    assert (dead.place, running.extra.unique_until) == ("failed", None)


def test_who_waits_to_be_shown_is_in_the_file_as_it_was_written() -> None:
    """Though what it waits for has completed by then, and given its id away."""

    def batch(queue: str, *jobs: dict[str, Any], with_turn: bool = False) -> Step:
        return "command", 1, {"cmd": "PUSHB", "queue": queue, "jobs": list(jobs)}, with_turn

    steps: list[Step] = [
        ("command", 1, {"cmd": "PUSH", "queue": "q", "jobId": "d"}, True),
        ("disk", "failing", 700),
        ("pass", 1_500),
        batch("r", {"dependsOn": ["b"]}, {"uniqueKey": "k"}, {"customId": "e"},
              {"dependsOn": ["a"], "childrenIds": ["a"], "customId": "b"}),
        ("command", 1, {"cmd": "PUSH", "queue": "r", "jobId": "a"}, False),
        batch("r", {"customId": "a"}, {"tags": ["x"]}, with_turn=True),
        ("disk", "dying", 3_000),
        ("command", 2, {"cmd": "PULLB", "queue": "r", "count": 2}, False),
        ("pass", 250),
        ("command", 1, {"cmd": "ACK", "id": "a"}, False),
        batch("q", {"customId": "a"}, {"tags": ["x"]}),
    ]  # fmt: skip
    with in_slices():
        run(steps, 1, of=SlicedRun)


def run_sliced(histories: int) -> None:
    """Run some histories in slices."""
    with in_slices():
        for seed in range(SLICED_SEED, SLICED_SEED + histories):
            run(sliced_history(seed), seed, of=SlicedRun)


def test_a_batch_that_is_not_withdrawn_between_slices_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_batches, "withdraw_all", lambda *_: None)

    with pytest.raises(Failed, match="changed without a note"):
        run_sliced(10 * SLICED_HISTORIES)


def test_a_failing_history_becomes_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_uncomplete", lambda *_: None)
    noise: list[Step] = [("pass", 9), ("command", 1, {"cmd": "Pause", "queue": "r"}, True)]

    with pytest.raises(Failed) as found:
        run([*noise, *PUSHED, *noise, ("try", ACKED[2]), *noise], 1)

    assert [*PUSHED, ("try", ACKED[2])] == shrunk(found.value).steps


def test_every_invariant_that_needs_no_socket_has_a_rule() -> None:
    named = {invariant for of_rule in rules.RULES.values() for invariant in of_rule}

    watching = rules.Rules(World(1))
    assert all(callable(attrgetter(name)(watching)) for name in rules.RULES)
    assert len(named) >= 30


def test_most_commands_that_change_something_can_be_drawn() -> None:
    left_out = {name for name, row in COMMANDS.items() if row.mutates} - set(steps.COMMANDS)

    assert not left_out - {
        # Tell of workers, logs and listeners, which no file keeps.
        "ClearLogs", "Heartbeat", "TrimEvents", "UnregisterWorker", "CompactMemory",
        # Batches of what is drawn one by one.
        "ExtendLocks", "JobHeartbeatB",
        # Definitions that only a server acts upon.
        "AddWebhook", "RemoveWebhook", "SetWebhookEnabled",
    }  # fmt: skip
