"""A row that no file takes: what is answered on the strength of it, whenever it was asked.

Jobs named ``bad`` are refused by the writer, which the test drives: a request can come before the
job's batch is cut, while that is in flight, or after it has been answered.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from bunqueue import compiled
from bunqueue.broker.held import NOT_STORED
from bunqueue.engine import flow_admission, large_batches
from bunqueue.engine.states import ADMITTED
from bunqueue.server.connection import Connection
from bunqueue.storage import log as log_module
from bunqueue.storage.log import MutationLog
from bunqueue.storage.memory import NothingSaved
from tests.support.flows import flow_child, flow_parent
from tests.support.stores import HandLoop, HandWriter
from tests.support.wire import frame, make_broker, push
from tests.unit.server.test_connection import Line

TURNS_MAX = 20


class Log(MutationLog):
    """A log that begins with nothing."""

    def load(self) -> NothingSaved:
        return NothingSaved()


class Side:
    """A broker whose file refuses the rows of jobs named ``bad``, and a connection to it."""

    def __init__(self, is_compiled: bool) -> None:
        self.loop = HandLoop()
        self.writer = HandWriter()
        self.log = Log(self.writer, self.loop)
        self.writer.start(self.log)
        self.broker = make_broker(self.log)
        self.engine = self.broker.engine
        self.line = Line()
        self.connection = Connection(self.broker, self.line, "peer", None)
        if not is_compiled:
            self.connection._runner = None
        self.written = 0
        self.file: dict[int, str] = {}  # its rows: admission number -> id

    def send(self, *requests: bytes) -> None:
        self.connection.received(b"".join(requests))

    def cut(self) -> None:
        """Put what has been noted in flight."""
        self.loop.end_turn()
        if len(self.writer.batches) == self.written:
            self.loop.ring()

    def answer(self) -> None:
        """Have the batch in flight committed, but for the rows that are refused."""
        if len(self.writer.batches) > self.written:
            self.written = len(self.writer.batches)
            for seq in self.writer.removed:
                self.file.pop(seq, None)
            refused = []
            for seq, job_id, *others in self.writer.rows("jobs"):
                if "bad" in others:
                    refused.append((seq, "ConstraintError: no"))
                else:
                    self.file[seq] = job_id
            self.writer.commit(refused)

    def told(self) -> dict[Any, Any]:
        """Commit until nothing waits; return the answers by ``reqId``."""
        for _ in range(TURNS_MAX):
            self.cut()
            self.answer()
            self.engine.tick(self.broker.clock.now())
        self.engine.tick(self.broker.clock.now() + 1)
        assert {job.seq: job.id for job in self.engine.index} == self.file
        return {answer["reqId"]: answer for answer in self.line.take()}

    def ids(self) -> set[str]:
        """Return the ids of the jobs that there are."""
        return {job.id for job in self.engine.index}


@pytest.fixture(params=["compiled", "pure"])
def side(request: Any, caplog: pytest.LogCaptureFixture) -> Side:
    caplog.set_level(logging.CRITICAL + 1, logger=log_module.__name__)
    if request.param == "compiled" and not compiled.IS_COMPILED:
        pytest.skip("the compiled core is not built")
    return Side(request.param == "compiled")


def refused(req_id: int) -> dict[str, Any]:
    return {"ok": False, "error": NOT_STORED, "reqId": req_id}


BAD = {"name": "bad", "durable": True}
POINTS = ("noted", "in flight", "answered")


def ask_at(side: Side, point: str, owner: bytes, *requests: bytes) -> dict[Any, Any]:
    """Ask when the owner's job is at this point; return the answers."""
    side.send(owner)
    if point != "noted":
        side.cut()
    if point == "answered":
        side.answer()
    side.send(*requests)
    return side.told()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "twin",
    [
        push(reqId=2, jobId="mine", **BAD),
        push(reqId=2, jobId="mine", name="bad"),
        frame(
            {"cmd": "PUSHB", "queue": "emails", "reqId": 2, "jobs": [{"customId": "mine", **BAD}]}
        ),
    ],
)
def test_a_twin_by_id_reads_what_its_owner_reads(side: Side, point: str, twin: bytes) -> None:
    told = ask_at(side, point, push(reqId=1, jobId="mine", **BAD), twin)

    assert refused(1) == told[1]
    if point != "answered":  # else it is a push of its own
        assert refused(2) == told[2]
    assert set() == side.ids()


@pytest.mark.parametrize("point", POINTS)
def test_a_twin_by_key_reads_what_its_owner_reads(side: Side, point: str) -> None:
    key = {"uniqueKey": "k"}

    told = ask_at(side, point, push(reqId=1, **key, **BAD), push(reqId=2, **key, **BAD))

    assert {1: refused(1), 2: refused(2)} == told
    assert set() == side.ids()


def test_others_beside_it_are_answered_as_ever(side: Side) -> None:
    told = ask_at(
        side,
        "in flight",
        push(reqId=1, jobId="mine", **BAD),
        push(reqId=2, jobId="mine", **BAD),
        push(reqId=3, jobId="good", durable=True),
    )

    assert {1: refused(1), 2: refused(2), 3: {"ok": True, "id": "good", "reqId": 3}} == told
    assert {"good"} == side.ids()


def test_its_id_is_free_at_once(side: Side) -> None:
    good = push(reqId=2, jobId="mine", durable=True)

    told = ask_at(side, "answered", push(reqId=1, jobId="mine", **BAD), good)

    assert {1: refused(1), 2: {"ok": True, "id": "mine", "reqId": 2}} == told


def test_a_successor_of_one_that_was_removed_in_flight_is_answered_for_itself(side: Side) -> None:
    told = ask_at(
        side,
        "in flight",
        push(reqId=1, jobId="mine", name="bad"),
        frame({"cmd": "Cancel", "id": "mine", "reqId": 2}),
        push(reqId=3, jobId="mine", durable=True),
    )

    assert {"ok": True, "id": "mine", "reqId": 3} == told[3]
    assert {"mine"} == side.ids()


@pytest.mark.parametrize("point", ["noted", "in flight"])
@pytest.mark.parametrize(
    "tie",
    [{"dependsOn": ["mine"]}, {"childrenIds": ["mine"]}],
    ids=lambda tie: next(iter(tie)),
)
def test_a_job_tied_to_it_is_not_acknowledged_either(
    side: Side, point: str, tie: dict[str, Any]
) -> None:
    told = ask_at(
        side,
        point,
        push(reqId=1, jobId="mine", **BAD),
        push(reqId=2, jobId="child", durable=True, **tie),
        push(reqId=3, jobId="grandchild", dependsOn=["child"]),
    )

    assert {1: refused(1), 2: refused(2), 3: refused(3)} == told
    assert set() == side.ids()
    if side.writer.rows("jobs"):
        assert side.writer.removed


@pytest.mark.parametrize("state", ["waiting", "failed", "running"])
def test_what_had_to_make_room_for_it_is_back(side: Side, state: str) -> None:
    key = {"uniqueKey": "k", "dedup": {"ttl": 60_000}}
    side.send(push(reqId=1, jobId="old", durable=True, data={"a": 1}, **key))
    side.told()
    newcomer = {**BAD, "uniqueKey": "k", "dedup": {"replace": True, "ttl": 60_000}}
    if state != "waiting":
        side.send(frame({"cmd": "PULL", "queue": "emails", "reqId": 2}))
        side.told()
    if state == "failed":
        side.send(frame({"cmd": "Discard", "id": "old", "reqId": 3}))
        side.told()
        newcomer = {**BAD, "jobId": "old"}
    side.send(push(reqId=4, **newcomer))

    assert {4: refused(4)} == side.told()
    assert {"old"} == side.ids()
    assert not side.engine.refused
    if state != "failed":
        side.send(push(reqId=5, durable=True, **key))
        assert {5: {"ok": True, "id": "old", "reqId": 5}} == side.told()
    if state != "running":
        old = side.engine.index.get("old")
        assert old is not None
        assert side.file[old.seq] == "old"


LINK = {"parentId": "parent", "data": {"__parentId": "parent", "__parentQueue": "emails"}}


@pytest.mark.parametrize("point", ["noted", "in flight"])
def test_a_child_linked_to_it_is_not_acknowledged_either(side: Side, point: str) -> None:
    told = ask_at(
        side,
        point,
        push(reqId=1, jobId="parent", name="bad"),
        push(reqId=2, jobId="child", **LINK),
    )

    assert {1: {"ok": True, "id": "parent", "reqId": 1}, 2: refused(2)} == told
    assert set() == side.ids()


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_parent_to_which_it_was_linked_does_without_it(side: Side, is_committed: bool) -> None:
    side.send(push(reqId=1, jobId="parent", data={"a": 1}))
    side.told()
    side.send(push(reqId=2, jobId="mine", name="bad", **LINK))
    side.cut()
    side.answer()
    if not is_committed:
        side.cut()
        side.written += 1
        side.writer.fail()
    told = side.told()

    if is_committed:
        assert {2: refused(2)} == told
    assert {"parent"} == side.ids()
    side.send(frame({"cmd": "PULL", "queue": "emails", "reqId": 3}))
    job = side.told()[3]["job"]
    assert ("parent", {"a": 1}) == (job["id"], job["data"])


@pytest.mark.parametrize("slices", ["one", "many"])
@pytest.mark.parametrize("bad", ["top", "low", "leaf"])
def test_a_flow_with_it_is_not_there_at_all(
    side: Side, monkeypatch: pytest.MonkeyPatch, bad: str, slices: str
) -> None:
    if slices == "many":
        monkeypatch.setattr(flow_admission, "SHOWN_AT_ONCE", 1)
    low = flow_parent(["leaf"], "low", "q")
    low["input"] |= {"parentId": "top"}
    low["input"]["data"] |= {"__parentId": "top", "__parentQueue": "q"}
    flow = [flow_child("leaf", "low", parent_queue="q"), low, flow_parent(["low"], "top", "q")]
    for job in flow:
        if job["id"] == bad:
            job["input"]["name"] = "bad"
    side.send(frame({"cmd": "PUSHF", "jobs": flow, "reqId": 1}))

    assert {1: refused(1)} == side.told()
    assert set() == side.ids()


def test_a_large_batch_with_it_reads_an_error(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_batches, "ADMITTED_AT_ONCE", 1)
    jobs = [{"name": name, "customId": name, "durable": True} for name in ("good", "bad")]
    entries = {"cmd": "PUSHB", "queue": "emails", "jobs": jobs, "reqId": 1}
    body = frame(entries)[4:]
    side.connection._decode_large(memoryview(body))

    assert {1: refused(1)} == side.told()


@pytest.mark.parametrize("point", ["noted", "in flight"])
@pytest.mark.parametrize(
    "change",
    [
        {"cmd": "Update", "id": "mine", "data": {"a": 1}},
        {"cmd": "ChangePriority", "id": "mine", "priority": 3},
        {"cmd": "Promote", "id": "mine"},
        {"cmd": "Discard", "id": "mine"},
        {"cmd": "UpdateParent", "childId": "mine", "parentId": "other"},
        {"cmd": "UpdateParent", "childId": "other", "parentId": "mine"},
    ],
    ids=lambda change: change["cmd"],
)
def test_a_change_of_it_reads_an_error(side: Side, point: str, change: dict[str, Any]) -> None:
    side.send(push(reqId=0, jobId="other", delay=60_000))
    side.told()

    told = ask_at(
        side, point, push(reqId=1, jobId="mine", name="bad", delay=60_000),
        frame({**change, "reqId": 2}),
    )  # fmt: skip

    assert {1: {"ok": True, "id": "mine", "reqId": 1}, 2: refused(2)} == told
    assert {"other"} == side.ids()


@pytest.mark.parametrize("point", ["noted", "in flight"])
def test_a_claim_of_it_reads_an_error(side: Side, point: str) -> None:
    pull = frame({"cmd": "PULL", "queue": "emails", "reqId": 2})

    told = ask_at(side, point, push(reqId=1, jobId="mine", name="bad"), pull)

    assert refused(2) == told[2]
    assert set() == side.ids()


@pytest.mark.parametrize("point", ["noted", "in flight"])
def test_who_waits_for_it_is_told_that_it_will_not_complete(side: Side, point: str) -> None:
    wait = frame({"cmd": "WaitJob", "id": "mine", "timeout": 60_000, "reqId": 2})

    told = ask_at(side, point, push(reqId=1, jobId="mine", name="bad"), wait)

    assert {"ok": True, "completed": False, "reqId": 2} == told[2]


@pytest.mark.parametrize("ids", ["id", "ids"])
def test_an_outcome_that_its_file_refuses_reads_an_error(side: Side, ids: str) -> None:
    side.send(push(reqId=1, jobId="mine"), push(reqId=2, jobId="good"))
    side.told()
    side.send(frame({"cmd": "PULLB", "queue": "emails", "count": 2, "reqId": 3}))
    side.told()
    if ids == "id":
        side.send(
            frame({"cmd": "ACK", "id": "mine", "reqId": 4}),
            frame({"cmd": "ACK", "id": "good", "reqId": 5}),
        )
    else:
        side.send(
            frame({"cmd": "ACKB", "ids": ["mine"], "reqId": 4}),
            frame({"cmd": "ACKB", "ids": ["good"], "reqId": 5}),
        )
    side.cut()
    side.written += 1
    mine = side.engine.index.get("mine")
    assert mine is not None
    side.writer.commit([(mine.seq, "ConstraintError: no")])

    assert {4: refused(4), 5: {"ok": True, "reqId": 5}} == side.told()
    assert {"good"} == side.ids()


@pytest.mark.parametrize("point", ["noted", "in flight"])
def test_a_durable_twin_of_a_plain_job_waits_for_its_commit(side: Side, point: str) -> None:
    plain = push(reqId=1, jobId="mine", name="bad")

    told = ask_at(side, point, plain, push(reqId=2, jobId="mine", durable=True))

    assert {1: {"ok": True, "id": "mine", "reqId": 1}, 2: refused(2)} == told


# -- anything, in any order ------------------------------------------------------------------------

HISTORIES = 300
IDS = tuple(f"job {number}" for number in range(6))


def any_push(rng: Random) -> dict[str, Any]:
    """Return some push; it may be tied to others, and take their ids and keys."""
    fields: dict[str, Any] = {"cmd": "PUSH", "name": rng.choice(("bad", "good", "good"))}
    if rng.random() < 0.8:
        fields["jobId"] = rng.choice(IDS)
    if rng.random() < 0.5:
        fields["durable"] = True
    if rng.random() < 0.3:
        fields["uniqueKey"] = rng.choice("kl")
    if rng.random() < 0.15:
        fields["dedup"] = {"replace": True}
    if rng.random() < 0.3:
        fields["dependsOn"] = [rng.choice(IDS)]
    elif rng.random() < 0.3:
        parent = rng.choice(IDS)
        fields |= {"parentId": parent, "data": {"__parentId": parent, "__parentQueue": "emails"}}
    if rng.random() < 0.2:
        fields["childrenIds"] = [rng.choice(IDS)]
    if rng.random() < 0.2:
        fields["delay"] = 60_000
    return fields


def any_other(rng: Random) -> dict[str, Any]:
    """Return some command about a job."""
    name = rng.choice(("Cancel", "Discard", "RemoveChildDependency", "UpdateParent", "PULL"))
    if name == "UpdateParent":
        return {"cmd": name, "childId": rng.choice(IDS), "parentId": rng.choice(IDS)}
    return {"cmd": name, "id": rng.choice(IDS)}


def play(side: Side, rng: Random) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Let anything happen in any order; return the requests with their answers."""
    requests = []
    for _ in range(rng.randrange(3, 25)):
        chance = rng.random()
        if chance < 0.75:
            fields = any_push(rng) if chance < 0.6 else any_other(rng)
            side.send(frame({"queue": "emails", "reqId": len(requests), **fields}))
            requests.append(fields)
        elif chance < 0.85:
            side.cut()
        elif rng.random() < 0.1 and len(side.writer.batches) > side.written:
            side.written = len(side.writer.batches)
            side.writer.fail()
        else:
            side.answer()
    told = side.told()
    return [(fields, told[number]) for number, fields in enumerate(requests)]


def test_a_durable_yes_is_in_the_file_whatever_came_in_between(side: Side) -> None:
    is_compiled = side.connection._runner is not None
    for seed in range(HISTORIES):
        side = Side(is_compiled)
        answers = play(side, Random(seed))

        assert not side.engine.refused, seed
        assert not [job for job in side.engine.index if job.place == ADMITTED], seed
        may_go = {fields["id"] for fields, _ in answers if fields["cmd"] == "Cancel"}
        if any("dedup" in fields and answer["ok"] for fields, answer in answers):
            continue
        for fields, answer in answers:
            if fields.get("durable") and answer["ok"] and answer["id"] not in may_go:
                assert answer["id"] in side.file.values(), (seed, fields, answer)
