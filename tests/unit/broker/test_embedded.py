"""The broker inside a program: called from anywhere, answered from anywhere."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bunqueue.broker import EmbeddedBroker, LocalPeer, open_embedded
from bunqueue.errors import EmbeddedError, StorageFailed
from bunqueue.storage.native import original

WAIT_S_MAX = 5.0


class Name(str):
    """A name that can be watched."""


class Client:
    """Calls a broker and waits natively for the answer."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.peer: LocalPeer = broker.new_peer()

    def start(self, **command: Any) -> Callable[[], Any]:
        """Begin a call; what is returned waits for its reply."""
        lock = original("_thread", "allocate_lock")()
        lock.acquire()
        replies: list[bytes] = []

        def deliver(reply: bytes) -> None:
            replies.append(reply)
            lock.release()

        self.broker.call(self.peer, msgpack.packb(command), deliver)

        def wait() -> Any:
            assert lock.acquire(True, WAIT_S_MAX), f"no answer to {command}"
            return msgpack.unpackb(replies[0])

        return wait

    def call(self, **command: Any) -> Any:
        return self.start(**command)()

    def push(self, **fields: Any) -> Any:
        return self.call(**{"cmd": "PUSH", "queue": "emails", "name": "n", "data": {}} | fields)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "q.db") if request.param == "file" else None


@pytest.fixture
def client(path: str | None) -> Iterator[Client]:
    broker = open_embedded(path)
    yield Client(broker)
    broker.close()


def test_a_job_goes_in_and_out(client: Client) -> None:
    job = client.push(reqId=1)
    assert {"ok": True, "id": job["id"], "reqId": 1} == job

    pulled = client.call(cmd="PULL", queue="emails", owner="w")

    assert job["id"] == pulled["job"]["id"]
    assert {"ok": True} == client.call(cmd="ACK", id=job["id"], token=pulled["token"])


def test_wide_integers_stay_exact(client: Client) -> None:
    client.push(data={"big": 2**63 - 1})

    job = client.call(cmd="PULL", queue="emails")["job"]

    assert 2**63 - 1 == job["data"]["big"]


def test_what_is_no_message_is_refused(client: Client) -> None:
    replies: list[bytes] = []
    client.broker.call(client.peer, b"\xc1", replies.append)

    assert {"ok": False, "error": "Invalid command format"} == msgpack.unpackb(replies[0])


def test_a_poll_is_answered_by_a_push(client: Client) -> None:
    wait = client.start(cmd="PULL", queue="emails", timeout=5_000)

    job = client.push()

    assert job["id"] == wait()["job"]["id"]


def test_a_poll_ends_by_itself(client: Client) -> None:
    assert {"ok": True, "job": None} == client.call(cmd="PULL", queue="emails", timeout=20)


def test_a_closed_peer_lets_go(client: Client) -> None:
    job = client.push()
    client.call(cmd="PULL", queue="emails")

    client.broker.close_peer(client.peer)

    other = Client(client.broker)
    assert job["id"] == other.call(cmd="PULL", queue="emails")["job"]["id"]


def test_flush_tells_when_all_is_written(client: Client) -> None:
    client.push()
    lock = original("_thread", "allocate_lock")()
    lock.acquire()
    told: list[bool] = []

    def deliver(is_written: bool) -> None:
        told.append(is_written)
        lock.release()

    client.broker.flush(deliver)

    assert lock.acquire(True, WAIT_S_MAX)
    assert [True] == told


def test_close_ends_polls_and_hands_jobs_back(tmp_path: Path) -> None:
    path = str(tmp_path / "q.db")
    first = Client(open_embedded(path))
    job = first.push()
    first.call(cmd="PULL", queue="emails", owner="w")
    wait = first.start(cmd="PULL", queue="emails", timeout=60_000)

    first.broker.close()

    assert None is wait()["job"]
    second = Client(open_embedded(path))
    again = second.call(cmd="PULL", queue="emails")["job"]
    assert (job["id"], 0) == (again["id"], again["attempts"])
    second.broker.close()


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    broker = open_embedded(str(tmp_path / "q.db"))

    with pytest.raises(StorageFailed, match="in use"):
        open_embedded(str(tmp_path / "q.db"))
    broker.close()


def test_a_signal_handler_inside_a_call_is_refused_instead_of_waiting_for_ever(
    client: Client,
) -> None:
    """It runs in the thread that holds the gate: ``deliver`` stands in for it here."""
    errors: list[str] = []

    def deliver(_reply: bytes) -> None:
        with pytest.raises(EmbeddedError) as caught:
            client.broker.call(client.peer, msgpack.packb({"cmd": "Ping"}), lambda _reply: None)
        errors.append(str(caught.value))

    client.broker.call(client.peer, msgpack.packb({"cmd": "Ping"}), deliver)

    assert ["called by a signal handler in the middle of another call"] == errors


def test_many_threads_may_call_at_once(client: Client) -> None:
    threads, each = 4, 50
    done = [original("_thread", "allocate_lock")() for _ in range(threads)]

    def produce(number: int) -> None:
        mine = Client(client.broker)
        for _ in range(each):
            mine.push(durable=True)
        done[number].release()

    for number, lock in enumerate(done):
        lock.acquire()
        original("_thread", "start_new_thread")(produce, (number,))

    assert all(lock.acquire(True, WAIT_S_MAX) for lock in done)
    assert threads * each == client.call(cmd="Count", queue="emails")["count"]


def test_a_closed_broker_leaves_memory_with_its_jobs(path: str | None) -> None:
    broker = open_embedded(path)
    client = Client(broker)
    for options in ({}, {"delay": 60_000}, {"ttl": 60_000}, {"priority": 1}):
        client.push(**options)
    client.call(cmd="PULL", queue="emails", owner="w")
    engine = weakref.ref(broker._broker.engine)
    queue = broker._broker.engine.queues["emails"]
    job = next(iter(queue.active.values()))
    job.name = name = Name("watched")
    watched = weakref.ref(name)

    broker.close()
    del broker, client, queue, job, name
    end_s = time.monotonic() + WAIT_S_MAX
    gc.collect()
    while (watched() or engine()) and time.monotonic() < end_s:
        time.sleep(0.01)  # a thread that has said its last word still leaves its frames
        gc.collect()

    assert (None, None) == (watched(), engine())
