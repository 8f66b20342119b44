"""A row that no disk will ever take: who was promised its job reads an error, nobody else does.

A trigger in the file, as a person with a SQL shell may have put it there, refuses jobs of one name.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from bunqueue import compiled
from bunqueue.broker.held import NOT_STORED
from tests.support.broker_process import BrokerProcess
from tests.support.flows import flow_child, flow_parent
from tests.support.wire import Reader, frame, push

pytestmark = pytest.mark.slow

WAIT_S_MAX = 20.0
SENT_S = 0.05  # a batch is with its writer by then
TRIGGER = (
    "CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.name = 'bad'"
    " BEGIN SELECT RAISE(ABORT, 'not in this file'); END"
)


@pytest.fixture(params=["compiled", "pure"])
def broker(request: Any, tmp_path: Path) -> Iterator[BrokerProcess]:
    if request.param == "compiled" and not compiled.IS_COMPILED:
        pytest.skip("the compiled core is not built")
    env = {"BUNQUEUE_PURE": "1" if request.param == "pure" else ""}
    path = tmp_path / "data.db"
    with BrokerProcess(tmp_path, data_path=path, env=env):
        pass
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(TRIGGER)
    with BrokerProcess(tmp_path, data_path=path, env=env) as broker:
        yield broker


def ask(broker: BrokerProcess, *requests: bytes) -> list[Any]:
    """Send all at once; return the answers by ``reqId``."""
    with socket.create_connection((broker.host, broker.port), WAIT_S_MAX) as sock:
        sock.sendall(b"".join(requests))
        reader = Reader(sock)
        answers = [reader.value() for _ in requests]
    return sorted(answers, key=lambda answer: answer["reqId"])


def test_a_durable_push_of_it_answers_an_error_and_those_beside_it_are_stored(
    broker: BrokerProcess,
) -> None:
    first, bad, twin, last = ask(
        broker,
        push(durable=True, reqId="1"),
        push(name="bad", durable=True, jobId="mine", reqId="2"),
        push(name="bad", durable=True, jobId="mine", reqId="3"),
        push(durable=True, reqId="4"),
    )
    (plain,) = ask(broker, push(name="bad", durable=True, reqId="1"))

    refused = {"ok": False, "error": NOT_STORED}
    assert [refused | {"reqId": number} for number in "231"] == [bad, twin, plain]
    assert first["ok"]
    assert last["ok"]
    count = frame({"cmd": "Count", "queue": "emails", "reqId": "1"})
    assert 2 == ask(broker, count)[0]["count"]
    broker.kill()
    broker.start()
    assert 2 == ask(broker, count)[0]["count"]


def test_its_id_is_free_again(broker: BrokerProcess) -> None:
    ask(broker, push(name="bad", durable=True, jobId="mine", reqId="1"))
    (good,) = ask(broker, push(durable=True, jobId="mine", reqId="1"))

    assert {"ok": True, "id": "mine", "reqId": "1"} == good


def test_a_twin_that_comes_while_it_is_in_flight_reads_the_same(broker: BrokerProcess) -> None:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
    writers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    if not writers:
        pytest.skip("no process writes here that can be stopped")
    bad = {"name": "bad", "durable": True, "jobId": "mine"}
    with socket.create_connection((broker.host, broker.port), WAIT_S_MAX) as sock:
        reader = Reader(sock)
        os.kill(writers[0], signal.SIGSTOP)
        try:
            sock.sendall(push(reqId="1", **bad))
            assert reader.call({"cmd": "Ping", "reqId": "0"})["ok"]  # a turn of the loop later
            time.sleep(SENT_S)
            sock.sendall(push(reqId="2", **bad))
            assert reader.call({"cmd": "Ping", "reqId": "0"})["ok"]
        finally:
            os.kill(writers[0], signal.SIGCONT)
        answers = [reader.value() for _ in range(2)]

    refused = {"ok": False, "error": NOT_STORED}
    assert [refused | {"reqId": number} for number in "12"] == answers


def test_what_depends_on_it_is_not_there_after_a_restart_either(broker: BrokerProcess) -> None:
    answers = ask(
        broker,
        push(name="bad", durable=True, jobId="mine", reqId="1"),
        push(durable=True, jobId="child", dependsOn=["mine"], reqId="2"),
        push(durable=True, jobId="other", reqId="3"),
    )
    flow = [flow_child("leaf", parent="top", name="bad"), flow_parent(["leaf"], "top")]
    (whole,) = ask(broker, frame({"cmd": "PUSHF", "jobs": flow, "reqId": "1"}))

    assert [False, False, True] == [answer["ok"] for answer in answers]
    assert {"ok": False, "error": NOT_STORED, "reqId": "1"} == whole
    ask(broker, push(durable=True, jobId="last", reqId="1"))  # committed after their removal
    broker.kill()
    broker.start()
    states = [
        ask(broker, frame({"cmd": "GetState", "id": job_id, "reqId": "1"}))[0]["state"]
        for job_id in ("mine", "child", "leaf", "top", "other", "last")
    ]
    assert ["unknown"] * 4 + ["waiting"] * 2 == states
