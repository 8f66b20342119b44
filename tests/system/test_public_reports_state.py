"""Reports of other queues about what is told and kept: A2, A8, A12 to A16 of the table.

Each test is named after its row; ``tests/unit/test_public_reports.py`` has all of them.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bunqueue import Connection
from bunqueue.client.subscription import Subscription
from bunqueue.errors import BunqueueError, CommandError
from tests.support.broker_process import BrokerProcess
from tests.support.reference import broker_under_test
from tests.support.wire import Reader, frame

pytestmark = pytest.mark.slow

WAIT_S = 20.0  # for what takes a moment, on a busy machine
LATE_S_MAX = 2.0  # what such a machine may add to a wait
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


def until(claim: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline, f"did not come true in {WAIT_S} s"
        time.sleep(0.02)


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
                        # What was running at the kill waits its backoff: not while we look.
                        fields = {"priority": chance.randrange(3), "backoff": HOUR_MS}
                        pushed.append(peer.push("busy", **fields))
                        answer = peer.call("PULL", queue="busy", owner="w", lockTtl=HOUR_MS)
                        if answer["job"] is None:  # another one has paused the queue
                            peer.call("Resume", queue="busy")
                            continue
                        job_id, token = answer["job"]["id"], answer["token"]
                        if chance.random() < 0.2:
                            ended = {"id": job_id, "token": token, "unrecoverable": True}
                            peer.call("FAIL", error="e", **ended)
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker, ours or the reference: ``BUNQUEUE_TEST_REFERENCE``."""
    directory = tmp_path_factory.mktemp("shared")
    with broker_under_test(directory, data_path=directory / "q.db") as broker:
        yield broker


@pytest.fixture
def peer(shared: BrokerProcess) -> Iterator[Peer]:
    with Peer(shared) as peer:
        yield peer


class Polls:
    """A link on which many pulls wait at once."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._sock = socket.create_connection((broker.host, broker.port), WAIT_S)
        self._reader = Reader(self._sock)

    def begin(self, queue: str, req_id: str, timeout_ms: int = 30_000, **fields: Any) -> None:
        request = {"cmd": "PULL", "queue": queue, "timeout": timeout_ms, "reqId": req_id}
        self._sock.sendall(frame(request | fields))

    def answer(self, wait_s: float = WAIT_S) -> dict[str, Any] | None:
        """Return the next answer, None if none comes in time."""
        self._sock.settimeout(wait_s)
        try:
            value: dict[str, Any] = self._reader.value()
        except TimeoutError:
            return None
        return value

    def __enter__(self) -> Polls:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


# -- A8: outcomes in the instant of a sweep --------------------------------------------------------


@pytest.mark.parametrize("env", WRITERS, ids=("compiled", "pure"))
def test_a08_outcomes_that_race_the_sweeps_end_each_job_once(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Leases run out while their outcomes come in, and another worker takes what was swept."""
    count, queue = 600, "race"
    known = re.compile(
        "Job not found or not in processing state: |Invalid or expired lock token for job "
    )
    with BrokerProcess(tmp_path, data_path=tmp_path / "q.db", env=env) as broker:
        with Peer(broker) as peer:
            peer.call("SetStallConfig", queue=queue, config={"maxStalls": 0})
            job = {"name": "n", "data": {}, "maxAttempts": 100, "backoff": 0}
            ids = peer.call("PUSHB", queue=queue, jobs=[job] * count)["ids"]
            completed: list[str] = []
            refusals: list[str] = []
            events: list[tuple[str, str]] = []
            is_ready = threading.Event()
            listener = Subscription(
                peer.connection,
                queue,
                lambda event: events.append(kind_of(event)),
                on_ready=lambda _is_again: is_ready.set(),
            )
            assert is_ready.wait(WAIT_S)
            pulled = []
            for step in range(6):  # leases that end over a second
                fields = {"count": count // 6, "owner": "slow", "lockTtl": 400 + 200 * step}
                answer = peer.call("PULLB", queue=queue, **fields)
                pulled += zip([job["id"] for job in answer["jobs"]], answer["tokens"], strict=True)

        def settle(some: Sequence[tuple[str, str]], patience_s: float) -> None:
            with Peer(broker) as peer:
                for job_id, token in some:
                    time.sleep(patience_s)
                    try:
                        reply = peer.call("ACK", id=job_id, token=token)
                    except CommandError as refusal:
                        refusals.append(str(refusal))
                    else:
                        if (reply.get("data") or {}).get("applied", True):
                            completed.append(job_id)

        def rescue() -> None:
            fields = {"count": 50, "owner": "next", "lockTtl": HOUR_MS, "timeout": 100}
            with Peer(broker) as peer:
                while len(completed) < count and time.monotonic() < deadline:
                    answer = peer.call("PULLB", queue=queue, **fields)
                    got = zip([job["id"] for job in answer["jobs"]], answer["tokens"], strict=True)
                    settle(list(got), 0)

        deadline = time.monotonic() + WAIT_S
        tasks = [threading.Thread(target=settle, args=(pulled[n::3], 0.008)) for n in range(3)]
        tasks.append(threading.Thread(target=rescue))
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()

        # Each job ended once, whoever came too late was told so, and counters are events.
        assert sorted(ids) == sorted(completed)
        assert all(known.match(text) for text in refusals), refusals
        with Peer(broker) as peer:
            assert {"completed": count} == check_agreement(peer, queue, ids[:20])
            metrics = peer.call("Metrics")["metrics"]
        assert (count, 0) == (metrics["totalCompleted"], metrics["totalFailed"])
        until(lambda: sum(kind == "completed" for kind, _ in events) == count)
        listener.close()
        assert sorted(ids) == sorted(job_id for kind, job_id in events if kind == "completed")
        assert metrics["totalPulled"] == sum(kind == "pulled" for kind, _ in events)


def kind_of(event: dict[str, Any]) -> tuple[str, str]:
    return event["eventType"], event["jobId"]


# -- A12: pause, and pulls that wait already -------------------------------------------------------


def test_a12_what_waits_when_the_pause_is_answered_gets_nothing(
    shared: BrokerProcess, peer: Peer
) -> None:
    count, queue = 100, "paused"
    with Polls(shared) as first, Polls(shared) as second:
        for number in range(count):  # half of what a link may have under way
            (first, second)[number % 2].begin(queue, str(number))
        peer.call("Pause", queue=queue)
        jobs = peer.call("PUSHB", queue=queue, jobs=[{"name": "n", "data": {}}] * count)["ids"]
        assert None is first.answer(0.3)
        assert None is second.answer(0.01)

        peer.call("Resume", queue=queue)

        got = [polls.answer() for polls in (first, second) for _ in range(count // 2)]
    assert sorted(jobs) == sorted(answer["job"]["id"] for answer in got if answer is not None)


def test_a12_nothing_is_delivered_between_a_pause_and_a_resume(
    shared: BrokerProcess, peer: Peer
) -> None:
    """Toggled quickly under load: the broker's own count of deliveries stands still."""
    count, queue = 600, "toggled"
    taken: list[str] = []
    is_over = threading.Event()

    def work() -> None:
        with Peer(shared) as worker:
            while not is_over.is_set():
                answer = worker.call("PULL", queue=queue, timeout=100)
                if answer["job"] is not None:
                    taken.append(answer["job"]["id"])
                    worker.call("ACK", id=answer["job"]["id"])

    workers = [threading.Thread(target=work) for _ in range(4)]
    jobs: list[str] = []
    for worker in workers:
        worker.start()
    try:
        while len(jobs) < count:
            jobs += peer.call("PUSHB", queue=queue, jobs=[{"name": "n", "data": {}}] * 20)["ids"]
            peer.call("Pause", queue=queue)
            before = peer.call("Metrics")["metrics"]["totalPulled"]
            for _ in range(3):
                assert before == peer.call("Metrics")["metrics"]["totalPulled"]
            peer.call("Resume", queue=queue)
        until(lambda: len(taken) >= count)
    finally:
        is_over.set()
        for worker in workers:
            worker.join()
    assert sorted(jobs) == sorted(taken)


# -- A13: pulls that wait for what only time brings ------------------------------------------------


def test_a13_a_waiting_pull_gets_a_delayed_job_when_it_is_due(
    shared: BrokerProcess, peer: Peer
) -> None:
    """Nothing else happens on the queues; what a thousand wait for comes to all of them."""
    count, delay_ms = 1_000, 1_500
    links = [Polls(shared) for _ in range(25)]
    try:
        for number in range(count):
            links[number % len(links)].begin(f"idle-{number}", str(number))
        for number in range(count):
            peer.call("PUSH", queue=f"idle-{number}", name="n", data={}, delay=delay_ms)
        late_ms = []
        for number in range(count):
            answer = links[number % len(links)].answer()
            assert answer is not None
            late_ms.append(answer["job"]["startedAt"] - answer["job"]["runAt"])
    finally:
        for link in links:
            link.__exit__()
    assert 0 <= min(late_ms)
    assert sorted(late_ms)[count // 2] < 100


def test_a13_waits_end_on_time_and_are_served_in_order_of_arrival(
    shared: BrokerProcess, peer: Peer
) -> None:
    queue = "in-line"
    links = [Polls(shared) for _ in range(5)]
    try:
        for link in links:
            link.begin(queue, "one")
            peer.call("Ping")  # the broker reads one link after the other
        time.sleep(0.1)
        for link in links:
            job_id = peer.push(queue)
            answer = link.answer()
            assert answer is not None
            assert job_id == answer["job"]["id"]
        began = time.monotonic()
        links[0].begin(queue, "two", timeout_ms=500)
        assert {"ok": True, "job": None, "reqId": "two"} == links[0].answer()
        assert 0.4 < time.monotonic() - began < 0.5 + LATE_S_MAX
    finally:
        for link in links:
            link.__exit__()


# -- A14: an id that was used before ---------------------------------------------------------------


def _active(peer: Peer, queue: str, job_id: str) -> str:
    peer.push(queue, jobId=job_id)
    return peer.pull(queue)[1]


def _completed(peer: Peer, queue: str, job_id: str) -> None:
    token = _active(peer, queue, job_id)
    peer.call("ACK", id=job_id, token=token, result="old")


def _failed(peer: Peer, queue: str, job_id: str) -> None:
    token = _active(peer, queue, job_id)
    peer.call("FAIL", id=job_id, token=token, error="old", unrecoverable=True)


def _removed(peer: Peer, queue: str, job_id: str) -> None:
    peer.push(queue, jobId=job_id)
    peer.call("Cancel", id=job_id)


LIVE = {
    "waiting": lambda peer, queue, job_id: peer.push(queue, jobId=job_id),
    "delayed": lambda peer, queue, job_id: peer.push(queue, jobId=job_id, delay=HOUR_MS),
    "active": _active,
}
ENDED = {"completed": _completed, "failed": _failed, "unknown": _removed}


@pytest.mark.parametrize("other_queue", [False, True], ids=["same queue", "other queue"])
@pytest.mark.parametrize("state", [*LIVE, *ENDED])
def test_a14_an_id_used_before_is_told_and_never_silent(
    state: str, other_queue: bool, peer: Peer
) -> None:
    """While it lives, its owner stays as it was; once it has ended, a new job has the id."""
    queue = f"twin-{state}-{other_queue}"
    second = f"{queue}-2" if other_queue else queue
    job_id = f"id-{queue}"
    (LIVE | ENDED)[state](peer, queue, job_id)
    assert state == peer.state(job_id)

    told = peer.call("PUSH", queue=second, name="new", data={"new": 1}, jobId=job_id)

    assert job_id == told["id"]
    if state in LIVE:
        assert (state, "n", queue) == tuple(
            peer.job(job_id)[key] for key in ("state", "name", "queue")
        )
        assert 1 == sum(jobs_of(peer, name) for name in {queue, second})
    else:
        assert ("waiting", "new", second, 0) == tuple(
            peer.job(job_id)[key] for key in ("state", "name", "queue", "attempts")
        )
        assert None is peer.call("GetResult", id=job_id).get("result")
        assert 1 == sum(jobs_of(peer, name) for name in {queue, second})


def jobs_of(peer: Peer, queue: str) -> int:
    return sum(peer.call("GetJobCounts", queue=queue)["counts"].values())


def test_a14_one_id_from_fifty_clients_and_twice_in_a_batch_is_one_job(
    shared: BrokerProcess, peer: Peer
) -> None:
    answers: list[str] = []

    def push() -> None:
        with Peer(shared) as client:
            answers.append(client.call("PUSH", queue="crowd", name="n", data={}, jobId="x")["id"])

    clients = [threading.Thread(target=push) for _ in range(50)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    jobs = [{"name": "n", "data": number, "customId": "y"} for number in range(2)]
    batch = peer.call("PUSHB", queue="crowd", jobs=jobs)["ids"]

    assert ["x"] * 50 == answers
    assert ["y", "y"] == batch
    assert 2 == jobs_of(peer, "crowd")
    assert 0 == peer.job("y")["data"]
