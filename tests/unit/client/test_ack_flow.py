"""ACKs that meet leave together, each with its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue.client import worlds
from bunqueue.client.ack_flow import AckFlow, Success
from bunqueue.client.delivery import Delivery
from bunqueue.client.job import Job
from bunqueue.errors import CommandError, ConnectionClosedError, LockLostError

Command = dict[str, Any]
Reply = dict[str, Any]
OK: Reply = {"ok": True}


def success(job_id: str, result: Any = None) -> Success:
    return Success(Delivery(Job({"id": job_id}), f"token of {job_id}"), result)


class Flow:
    """An AckFlow over a broker that the test plays."""

    def __init__(self, answer: Callable[[Command], Reply], **options: Any) -> None:
        self.sent: list[Command] = []
        self.settled: list[tuple[str, Any]] = []
        self._answer = answer
        self.flow = AckFlow(self._call, worlds.current(), self._settle, **options)

    def _call(self, command: Command) -> Reply:
        self.sent.append(command)
        return self._answer(command)

    def _settle(self, done: Success) -> None:
        self.settled.append((done.delivery.id, done.error or done.reply))

    def report(self, done: Success) -> None:
        if not self.flow.join(done):
            self.flow.send(done)


def meeting(others: list[Success], answer: Callable[[Command], Reply], **options: Any) -> Flow:
    """Return a flow in which ``others`` come while the first ACK is under way."""
    came = iter([others])

    def answer_late(command: Command) -> Reply:
        for other in next(came, []):
            made.report(other)
        return answer(command)

    made = Flow(answer_late, **options)
    return made


def test_one_that_meets_nobody_is_a_plain_ack():
    made = Flow(lambda _command: OK)

    made.report(success("a", 7))
    made.report(success("b"))

    assert [
        {"cmd": "ACK", "id": "a", "result": 7, "token": "token of a"},
        {"cmd": "ACK", "id": "b", "token": "token of b"},
    ] == made.sent
    assert [("a", OK), ("b", OK)] == made.settled
    assert 0 == made.flow.waiting


def test_those_that_come_meanwhile_leave_as_one_batch():
    made = meeting([success("b", 1), success("c", 2)], lambda _command: OK)

    made.report(success("a", 0))

    batch = {
        "cmd": "ACKB",
        "ids": ["b", "c"],
        "tokens": ["token of b", "token of c"],
        "results": [1, 2],
    }
    assert ["ACK", "ACKB"] == [command["cmd"] for command in made.sent]
    assert batch == made.sent[1]
    assert ["a", "b", "c"] == [job_id for job_id, _ in made.settled]


def test_a_result_of_none_stays_absent_beside_results():
    made = meeting([success("b", 1), success("c"), success("d"), success("e", 4)], lambda _c: OK)

    made.report(success("a"))

    assert [("ACKB", ["b", "e"], [1, 4]), ("ACKB", ["c", "d"], None)] == [
        (command["cmd"], command["ids"], command.get("results")) for command in made.sent[1:]
    ]


def test_only_those_called_ignored_are_late():
    def answer(command: Command) -> Reply:
        late = command["cmd"] == "ACKB"
        return {"ok": True, "data": {"ignoredIndices": [1], "ignoredIds": ["c"]}} if late else OK

    made = meeting([success("b"), success("c")], answer)
    made.report(success("a"))

    replies = dict(made.settled)
    assert {"applied": False} == replies["c"]["data"]
    assert "applied" not in replies["b"]["data"]


def test_a_refused_batch_is_sent_one_by_one():
    def answer(command: Command) -> Reply:
        if command["cmd"] == "ACKB" or command["id"] == "c":
            raise LockLostError("Invalid or expired lock token for job c", command["cmd"])
        return OK

    made = meeting([success("b"), success("c"), success("d")], answer)
    made.report(success("a"))

    outcomes = dict(made.settled)
    assert (OK, OK) == (outcomes["b"], outcomes["d"])
    assert isinstance(outcomes["c"], LockLostError)


def test_what_a_refused_batch_has_done_all_the_same_counts_as_done():
    states = {"b": "completed", "c": "waiting"}

    def answer(command: Command) -> Reply:
        if command["cmd"] == "ACKB":
            raise CommandError("Job not found or not in processing state: c", "ACKB")
        if command["cmd"] == "GetState":
            return {"ok": True, "state": states[command["id"]]}
        return OK if command["id"] == "a" else {"ok": True, "data": {"applied": False}}

    made = meeting([success("b"), success("c")], answer)
    made.report(success("a"))

    outcomes = dict(made.settled)
    assert OK == outcomes["b"]
    assert {"applied": False} == outcomes["c"]["data"]


def test_a_lost_batch_is_lost_for_all_its_members_and_not_sent_again():
    def answer(command: Command) -> Reply:
        if command["cmd"] == "ACKB":
            raise ConnectionClosedError("connection lost")
        return OK

    made = meeting([success("b"), success("c")], answer)
    made.report(success("a"))

    assert ["ACK", "ACKB"] == [command["cmd"] for command in made.sent]
    assert ["connection lost"] * 2 == [str(outcome) for _, outcome in made.settled[1:]]


def test_a_sender_that_is_interrupted_leaves_the_others_to_another_task():
    is_first = iter([True])

    def answer(_command: Command) -> Reply:
        if next(is_first, False):
            raise KeyboardInterrupt
        return OK

    made = meeting([success("b"), success("c")], answer)
    with pytest.raises(KeyboardInterrupt):
        made.report(success("a"))
    latch = worlds.Latch()
    made.flow._world.spawn(latch.set, "after")  # behind the sender's task
    latch.wait(5)
    while len(made.settled) < 3:
        worlds.current().sleep(0)

    assert isinstance(dict(made.settled)["a"], ConnectionClosedError)
    assert (OK, OK) == (dict(made.settled)["b"], dict(made.settled)["c"])


class Killing:
    """A world of greenlets, in which the first that lets others run is killed."""

    is_native = False

    def __init__(self) -> None:
        self.lock = threading.Lock
        self.meanwhile: list[Callable[[], object]] = []

    def sleep(self, _seconds: float) -> None:
        for act in self.meanwhile:
            act()
        raise KeyboardInterrupt

    def spawn(self, run: Callable[[], object], _name: str) -> None:
        run()


def test_a_greenlet_killed_before_it_has_sent_leaves_nobody_behind():
    made = Flow(lambda _command: OK)
    world: Any = Killing()
    world.meanwhile.append(lambda: made.report(success("b")))
    made.flow = AckFlow(made._call, world, made._settle)

    with pytest.raises(KeyboardInterrupt):
        made.report(success("a"))

    outcomes = dict(made.settled)
    assert isinstance(outcomes["a"], ConnectionClosedError)
    assert OK == outcomes["b"]
    assert 0 == made.flow.waiting


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_where_no_task_can_be_begun_the_sender_takes_the_others_along(is_interrupted: bool):
    """Python begins no thread any more while it ends, and a process may have all it may."""

    class Full(Killing):
        def sleep(self, _seconds: float) -> None:
            """Let nobody run."""

        def spawn(self, _run: Callable[[], object], _name: str) -> None:
            raise RuntimeError("can't start new thread")

    is_first = iter([is_interrupted])

    def answer(_command: Command) -> Reply:
        if next(is_first, False):
            raise KeyboardInterrupt
        return OK

    made = meeting([success("b"), success("c")], answer)
    world: Any = Full()
    made.flow = AckFlow(made._call, world, made._settle)
    first = success("a")
    first.gate = None if is_interrupted else worlds.current().local_gate()
    if is_interrupted:
        with pytest.raises(KeyboardInterrupt):
            made.report(first)
    else:
        made.report(first)

    assert (OK, OK) == (dict(made.settled)["b"], dict(made.settled)["c"])
    assert 0 == made.flow.waiting
    made.report(success("d"))
    assert "d" == made.settled[-1][0]


def test_batches_can_be_switched_off():
    made = meeting([success("b"), success("c")], lambda _command: OK, batches=False)

    made.report(success("a"))

    assert ["ACK", "ACK", "ACK"] == [command["cmd"] for command in made.sent]


def test_removal_travels_with_every_member():
    made = meeting([success("b"), success("c")], lambda _c: OK, remove_on_complete=True)

    made.report(success("a"))

    assert made.sent[0]["removeOnComplete"] is True
    assert ([True, True], [None, None]) == (
        made.sent[1]["removeOnCompletes"],
        made.sent[1]["results"],
    )
