"""Reports of other queues about what is told and kept: A2, A8, A12 to A16 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Connection
from bunqueue.errors import BunqueueError, CommandError
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
STATES = (
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    "waiting-children",
)
WRITERS = ({}, {"BUNQUEUE_PURE": "1"})
IS_PAUSED = ("waiting", "prioritized")  # these two are shown as paused while their queue is


class Peer:
    """A connection, and the commands that many tests need."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.connection = Connection(broker.host, broker.port)

    def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        return self.connection.call({"cmd": cmd, **fields})

    def push(self, queue: str, **fields: Any) -> str:
        return str(self.call("PUSH", queue=queue, name="n", data={}, durable=True, **fields)["id"])

    def pull(self, queue: str, **fields: Any) -> tuple[str, str]:
        answer = self.call("PULL", queue=queue, owner="w", **{"lockTtl": HOUR_MS} | fields)
        return answer["job"]["id"], answer["token"]

    def state(self, job_id: str) -> str:
        return str(self.call("GetState", id=job_id)["state"])

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.call("GetJob", id=job_id)["job"]
        return job

    def listed(self, queue: str, state: str | None, page: int = 3) -> list[dict[str, Any]]:
        """Read a list page by page."""
        found: list[dict[str, Any]] = []
        while True:
            fields = {"queue": queue, "limit": page, "offset": len(found)}
            some = self.call("GetJobs", **fields, **({} if state is None else {"state": state}))
            found += some["jobs"]
            if len(some["jobs"]) < page:
                return found

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def check_agreement(peer: Peer, queue: str, ids: Sequence[str]) -> dict[str, int]:
    """Hold counts, lists, GetState and GetJob to each other; return how many have each state."""
    counts = peer.call("GetJobCounts", queue=queue)["counts"]
    lists = {state: [job["id"] for job in peer.listed(queue, state)] for state in counts}
    everything = [(job["id"], job["state"]) for job in peer.listed(queue, None)]
    is_paused = peer.call("IsPaused", queue=queue)["paused"]
    assert counts == {state: len(found) for state, found in lists.items()}
    assert len({job_id for job_id, _ in everything}) == len(everything) == sum(counts.values())
    priorities = peer.call("GetCountsPerPriority", queue=queue)["counts"]
    queued = sum(counts[state] for state in ("waiting", "prioritized", "delayed", "paused"))
    assert sum(priorities.values()) == peer.call("Count", queue=queue)["count"] == queued
    for job_id in ids:
        state = peer.state(job_id)
        shown = "paused" if is_paused and state in IS_PAUSED else state
        assert shown == "unknown" or [shown] == [name for name in lists if job_id in lists[name]]
        if state == "unknown":
            with pytest.raises(CommandError, match="Job not found"):
                peer.job(job_id)
        else:
            assert state == peer.job(job_id)["state"]
            assert (job_id, state) in everything
    return {state: count for state, count in counts.items() if count}


# -- A2: counts, lists and the state of a job ------------------------------------------------------


@pytest.mark.parametrize("env", WRITERS, ids=("compiled", "pure"))
def test_a02_counts_lists_and_states_agree_over_pauses_stops_and_kills(
    env: dict[str, str], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        # Given jobs in every state
        with Peer(broker) as peer:
            ids = drive_into_every_state(peer, "all")
            there = {"waiting": 5, "prioritized": 3, "delayed": 7, "active": 3, "completed": 4}
            there |= {"failed": 3, "waiting-children": 2}
            assert there == check_agreement(peer, "all", ids)

            # When the queue is paused, twice: what waits is paused, and counted once
            for _ in range(2):
                peer.call("Pause", queue="all")
                told = check_agreement(peer, "all", ids)
            paused = {name: there[name] for name in there if name not in IS_PAUSED} | {"paused": 8}
            assert paused == told
            done = [job_id for job_id in ids if peer.state(job_id) == "completed"]

        # And the broker is killed: active jobs wait for their next attempt
        broker.restart()
        paused["delayed"] += paused.pop("active")
        with Peer(broker) as peer:
            assert paused == check_agreement(peer, "all", ids)
            assert done == [peer.call("GetResult", id=job_id)["result"] for job_id in done]

        # And stopped gracefully
        assert 0 == broker.terminate()
        broker.start()
        with Peer(broker) as peer:
            assert paused == check_agreement(peer, "all", ids)
            assert done == [peer.call("GetResult", id=job_id)["result"] for job_id in done]
            peer.call("Resume", queue="all")
            left = {name: paused[name] for name in paused if name != "paused"}
            assert left | {"waiting": 5, "prioritized": 3} == check_agreement(peer, "all", ids)


def drive_into_every_state(peer: Peer, queue: str) -> list[str]:
    ids: list[str] = []

    def take(count: int, **pushed: Any) -> Iterator[tuple[str, str]]:
        for _ in range(count):
            peer.push(queue, **pushed)
            ids.append((job := peer.pull(queue))[0])
            yield job

    for job_id, token in take(4):
        peer.call("ACK", id=job_id, token=token, result=job_id)
    for job_id, token in take(3):
        peer.call("FAIL", id=job_id, token=token, error="e", unrecoverable=True)
    for job_id, token in take(2, backoff=HOUR_MS):
        peer.call("FAIL", id=job_id, token=token, error="e")
    list(take(3, backoff=HOUR_MS))
    ids += [peer.push(queue) for _ in range(5)]
    ids += [peer.push(queue, priority=priority) for priority in (1, 2, 3)]
    ids += [peer.push(queue, delay=HOUR_MS) for _ in range(5)]
    ids += [peer.push(queue, dependsOn=[ids[-1]]) for _ in range(2)]
    return ids


@pytest.mark.parametrize("env", WRITERS, ids=("compiled", "pure"))
def test_a02_counts_lists_and_states_agree_after_a_kill_in_the_midst_of_work(
    env: dict[str, str], tmp_path: Path
) -> None:
    """What was acknowledged before the kill is completed after it, with its result."""
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        pushed: list[str] = []
        acknowledged: list[str] = []
        failed: list[str] = []
        is_over = threading.Event()

        def work(seed: int) -> None:
            chance = random.Random(seed)
            try:
                with Peer(broker) as peer:
                    while True:
                        pushed.append(peer.push("busy", priority=chance.randrange(3)))
                        answer = peer.call("PULL", queue="busy", owner="w", lockTtl=HOUR_MS)
                        if answer["job"] is None:  # another one has paused the queue
                            peer.call("Resume", queue="busy")
                            continue
                        job_id, token = answer["job"]["id"], answer["token"]
                        if chance.random() < 0.2:
                            fields = {"id": job_id, "token": token, "unrecoverable": True}
                            peer.call("FAIL", error="e", **fields)
                            failed.append(job_id)
                        elif chance.random() < 0.9:
                            peer.call("ACK", id=job_id, token=token, result=job_id)
                            acknowledged.append(job_id)
                        if chance.random() < 0.1:
                            peer.call("Pause", queue="busy")
                        if len(acknowledged) >= 300:
                            is_over.set()
            except BunqueueError:  # the broker is gone
                return

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        is_over.wait(10)
        broker.kill()
        for worker in workers:
            worker.join()
        broker.start()

        assert acknowledged
        with Peer(broker) as peer:
            told = check_agreement(peer, "busy", pushed)
            assert "active" not in told
            assert {"completed"} == {peer.state(job_id) for job_id in acknowledged}
            assert {"failed"} >= {peer.state(job_id) for job_id in failed}
            results = [peer.call("GetResult", id=job_id)["result"] for job_id in acknowledged]
            assert acknowledged == results
