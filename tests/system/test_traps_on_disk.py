"""The traps of engine.md 15 that need a file and a broker that dies, each under its number."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.system.kill.wire import Link

pytestmark = pytest.mark.slow

SOON_S = 10.0
POLL_S = 0.02
PLAIN_IS_SAFE_S = 0.1  # twice the loss window of a plain push, engine.md 14


class Client:
    """Commands over one connection, opened again after a restart."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._link = Link(broker.port)

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Return the reply, whatever it says."""
        reply = self._link.call({"cmd": cmd, **fields})
        del reply["reqId"]
        return reply

    def ok(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Return the reply of a command that must succeed."""
        reply = self.ask(cmd, **fields)
        assert reply["ok"], f"{cmd}: {reply}"
        return reply

    def push(self, queue: str = "q", **fields: Any) -> str:
        """Push a job; return its id."""
        job_id: str = self.ok("PUSH", queue=queue, **fields)["id"]
        return job_id

    def lease(self, queue: str = "q", **fields: Any) -> tuple[str, str]:
        """Pull a job as a worker does."""
        reply = self.ok("PULL", queue=queue, owner="w", **fields)
        return reply["job"]["id"], reply["token"]

    def complete(self, queue: str = "q", **fields: Any) -> str:
        """Pull a job and acknowledge it."""
        job_id, token = self.lease(queue)
        self.ok("ACK", id=job_id, token=token, **fields)
        return job_id

    def state(self, job_id: str) -> str:
        """Return the job's state."""
        state: str = self.ok("GetState", id=job_id)["state"]
        return state

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job view."""
        job: dict[str, Any] = self.ok("GetJob", id=job_id)["job"]
        return job

    def counts(self, queue: str = "q") -> dict[str, int]:
        """Return the counts that are not 0."""
        counts = self.ok("GetJobCounts", queue=queue)["counts"]
        return {state: count for state, count in counts.items() if count}

    def crash(self) -> None:
        """Kill the broker with SIGKILL and start it again on the same file.

        The connection outlives it: a broker that saw it close would hand its jobs back uncharged.
        """
        self.broker.kill()
        self.close()
        self.broker.start()
        self._link = Link(self.broker.port)

    def crash_safely(self) -> None:
        """Crash, but after what plain pushes are promised."""
        time.sleep(PLAIN_IS_SAFE_S)
        self.crash()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    made = Client(broker)
    yield made
    made.close()


def until(is_so: Callable[[], object]) -> None:
    """Waits until something has become so."""
    end = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < end, "it never became so"
        time.sleep(POLL_S)


def test_trap_01_a_recycled_id_is_there_after_a_kill_at_once(client: Client) -> None:
    client.push(jobId="a", durable=True, data=1)
    client.complete(result="old")

    client.push(jobId="a", data=2)
    client.crash()

    assert ("waiting", 2) == (client.state("a"), client.job("a")["data"])
    assert {"ok": True, "id": "a"} == client.ok("GetResult", id="a")


def test_trap_02_a_replacement_is_there_after_a_kill_at_once(client: Client) -> None:
    old = client.push(uniqueKey="k", durable=True)
    new = client.push(uniqueKey="k", dedup={"replace": True})
    client.crash()

    assert ["unknown", "waiting"] == [client.state(old), client.state(new)]
    assert new == client.push(uniqueKey="k")


def test_trap_03_an_uncharged_release_is_persisted(client: Client) -> None:
    job_id = client.push(durable=True)
    worker = Client(client.broker)
    worker.lease()
    worker.close()
    until(lambda: client.state(job_id) == "waiting")
    client.crash_safely()

    job = client.job(job_id)
    assert ("waiting", 0, 0) == (job["state"], job["attempts"], job["stallCount"])


def test_trap_06_a_key_survives_backoff_and_restart(client: Client) -> None:
    job_id = client.push(uniqueKey="k", backoff={"type": "fixed", "delay": 60_000})
    _, token = client.lease()
    client.ok("FAIL", id=job_id, token=token)
    client.crash()

    assert "delayed" == client.state(job_id)
    assert job_id == client.push(uniqueKey="k")


def writer_of(broker: BrokerProcess) -> int:
    """Return the process that writes the broker's file: compiled, that is the broker."""
    path = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
    if not path.exists():
        pytest.skip("this system does not list a process's children")
    children = [int(pid) for pid in path.read_text().split()]
    assert len(children) <= 1
    return children[0] if children else broker.pid


def test_trap_10_a_failed_commit_of_an_ack_leaves_the_job_active(client: Client) -> None:
    job_id = client.push(durable=True)
    _, token = client.lease()
    writer = writer_of(client.broker)
    unlimited = resource.prlimit(writer, resource.RLIMIT_FSIZE)
    # A file may not grow any more: the nearest thing to a full disk that needs no privilege.
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (4_096, unlimited[1]))
    large = "x" * 1_000_000

    reply = client.ask("ACK", id=job_id, token=token, result=large)

    assert {"ok": False, "error": "Internal server error"} == reply
    assert "active" == client.state(job_id)
    assert {"ok": True, "id": job_id} == client.ok("GetResult", id=job_id)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, unlimited)
    client.ok("ACK", id=job_id, token=token, result=large)
    client.crash()
    assert "completed" == client.state(job_id)
    assert large == client.ok("GetResult", id=job_id)["result"]


def test_trap_10_a_durable_push_that_finds_no_room_leaves_no_trace(client: Client) -> None:
    client.push(jobId="a", durable=True, data="old")
    client.complete(result="old")
    writer = writer_of(client.broker)
    unlimited = resource.prlimit(writer, resource.RLIMIT_FSIZE)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (4_096, unlimited[1]))

    large = "x" * 1_000_000
    reply = client.ask("PUSH", queue="q", jobId="a", durable=True, data=large)
    plain = client.push("other", data="served from memory")

    assert {"ok": False, "error": "Internal server error"} == reply
    assert ("completed", "old") == (client.state("a"), client.job("a")["data"])
    assert "waiting" == client.state(plain)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, unlimited)
    client.push("last", durable=True)
    client.crash()
    assert {"waiting": 1} == client.counts("other")
    assert "old" == client.ok("GetResult", id="a")["result"]


def test_trap_14_a_graceful_stop_lets_a_worker_finish(client: Client) -> None:
    job_id = client.push(durable=True)
    _, token = client.lease()
    client.ok("JobHeartbeat", id=job_id, token=token)
    process = client.broker.process
    assert process is not None
    process.terminate()
    assert client.ok("PULL", queue="empty", timeout=20_000)["job"] is None  # answered by the stop
    late = client.push(durable=True)

    assert client.ok("PULL", queue="q", owner="w")["job"] is None
    time.sleep(0.3)
    assert process.poll() is None
    client.ok("ACK", id=job_id, token=token)

    assert 0 == process.wait(SOON_S)
    client.crash()
    assert ["completed", "waiting"] == [client.state(job_id), client.state(late)]


def test_trap_21_a_lease_that_ends_for_good_reaches_the_disk(client: Client) -> None:
    client.ok("SetStallConfig", queue="q", config={"maxStalls": 1})
    job_id = client.push(maxAttempts=9)
    client.lease(lockTtl=50)
    until(lambda: client.state(job_id) == "failed")
    client.crash_safely()

    (entry,) = client.ok("Dlq", queue="q")["entries"]
    assert ("stalled", "Lock expired after 0 renewals") == (entry["reason"], entry["error"])
    assert 1 == client.ok("RetryDlq", queue="q")["count"]
    client.complete()
    client.crash()
    assert "completed" == client.state(job_id)


def test_trap_22_jobs_of_two_queues_in_one_flush_all_reach_the_disk(client: Client) -> None:
    first = client.push("q", jobId="same")
    second = client.push("other", jobId="same", data="loses")
    third = client.push("other")
    client.crash_safely()

    assert first == second
    assert ["waiting", "waiting"] == [client.state("same"), client.state(third)]
    assert "q" == client.job("same")["queue"]


def test_trap_23_a_claim_wins_over_a_buffered_insert(client: Client) -> None:
    job_id = client.push(backoff={"type": "fixed", "delay": 60_000})
    client.lease()
    client.crash()

    job = client.job(job_id)
    assert ("delayed", 1, 1) == (job["state"], job["attempts"], job["stallCount"])


def test_trap_24_a_delete_cancels_a_buffered_insert(client: Client) -> None:
    job_id = client.push(removeOnComplete=True)
    client.complete()
    client.crash()

    assert "unknown" == client.state(job_id)
    assert {} == client.counts()


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("Drain", {}),
        ("Obliterate", {}),
        ("PurgeDlq", {}),
        ("Clean", {"state": "waiting"}),
        ("Clean", {"state": "failed"}),
    ],
)
def test_trap_25_what_was_removed_stays_away(
    client: Client, command: str, fields: dict[str, Any]
) -> None:
    job_id = client.push(durable=True)
    if command == "PurgeDlq" or fields.get("state") == "failed":
        client.ok("Discard", id=job_id)
    client.ok(command, queue="q", **fields)
    client.crash()

    assert "unknown" == client.state(job_id)
    assert {} == client.counts()


def test_trap_25_an_expired_job_stays_away(client: Client) -> None:
    job_id = client.push(durable=True, ttl=1)
    until(lambda: client.state(job_id) == "unknown")
    client.crash_safely()

    assert {} == client.counts()
    assert [] == client.ok("GetJobs", queue="q")["jobs"]


def test_trap_26_obliterate_beats_a_late_ack_over_a_restart(client: Client) -> None:
    job_id = client.push(durable=True)
    _, token = client.lease()
    client.ok("Obliterate", queue="q")
    late = client.ask("ACK", id=job_id, token=token)
    client.crash()

    assert f"Job not found or not in processing state: {job_id}" == late["error"]
    assert "unknown" == client.state(job_id)


def test_trap_27_edits_are_durable(client: Client) -> None:
    for name in ("update", "priority", "lifo", "delay", "promote"):
        client.push(jobId=name, durable=True, delay=60_000, data="old")
    client.push("other", jobId="progress", durable=True)
    client.lease("other")
    client.ok("Update", id="update", data="new")
    client.ok("ChangePriority", id="priority", priority=7)
    client.ok("ChangePriority", id="lifo", priority=0, lifo=True)
    client.ok("ChangeDelay", id="delay", delay=600_000)
    client.ok("Promote", id="promote")
    client.ok("Progress", id="progress", progress=40, message="m")
    due = client.job("delay")["runAt"]
    client.crash()

    assert "new" == client.job("update")["data"]
    assert 7 == client.job("priority")["priority"]
    assert client.job("lifo")["lifo"]
    assert due == client.job("delay")["runAt"]
    assert "waiting" == client.state("promote")
    progress = client.job("progress")
    assert (40, "m") == (progress["progress"], progress["progressMessage"])


@pytest.mark.parametrize("command", ["MoveToWait", "MoveToDelayed"])
def test_trap_28_a_move_is_durable_and_not_charged(client: Client, command: str) -> None:
    job_id = client.push(durable=True)
    _, token = client.lease()
    fields = {"delay": 60_000} if command == "MoveToDelayed" else {}
    client.ok(command, id=job_id, token=token, **fields)
    client.crash()

    job = client.job(job_id)
    assert ("delayed" if fields else "waiting", 0, 0) == (
        job["state"],
        job["attempts"],
        job["stallCount"],
    )


def test_trap_29_crash_loops_are_bounded(client: Client) -> None:
    job_id = client.push(durable=True, maxAttempts=10, backoff=0)
    for number in range(1, 4):
        assert job_id == client.lease()[0]
        client.crash()
        assert number == client.job(job_id)["attempts"]
        client.crash()  # nothing was delivered: nothing is charged

    (entry,) = client.ok("Dlq", queue="q")["entries"]
    assert ("stalled", 3) == (entry["reason"], entry["job"]["stallCount"])


def test_trap_41_recovery_reads_every_row_of_a_large_active_set(client: Client) -> None:
    count = 10_001
    for start in range(0, count, 1000):
        jobs = [{"backoff": 0}] * min(1000, count - start)
        client.ok("PUSHB", queue="q", jobs=jobs)
    pulled = 0
    while batch := client.ok("PULLB", queue="q", count=1000, owner="w")["jobs"]:
        pulled += len(batch)
    assert count == pulled
    client.crash()

    assert {"waiting": count} == client.counts()


def test_trap_43_max_entries_holds_over_a_restart_and_history_rides_along(client: Client) -> None:
    client.ok("SetDlqConfig", queue="q", config={"maxEntries": 2})
    for name in "abcde":
        client.push(jobId=name, maxAttempts=2, backoff=0)
        for error in ("first", "second"):
            job_id, token = client.lease()
            client.ok("FAIL", id=job_id, token=token, error=error)
    client.crash()

    reply = client.ok("Dlq", queue="q")
    assert ["d", "e"] == [job["id"] for job in reply["jobs"]]
    assert [["first", "second"]] * 2 == [
        [attempt["error"] for attempt in entry["attempts"]] for entry in reply["entries"]
    ]
    assert "unknown" == client.state("a")


def test_trap_45_pause_is_persisted_and_counts_do_not_double(client: Client) -> None:
    client.push(durable=True)
    client.ok("Pause", queue="q")
    client.crash()

    assert client.ok("IsPaused", queue="q")["paused"]
    assert {"paused": 1} == client.counts()
    client.ok("Resume", queue="q")
    client.crash()
    assert {"waiting": 1} == client.counts()


def test_trap_46_nothing_of_an_old_generation_comes_back_with_a_restart(client: Client) -> None:
    client.push(jobId="a", durable=True)
    client.complete(result="old")
    client.push(jobId="a", data="new")
    client.crash()

    assert {"ok": True, "id": "a"} == client.ok("GetResult", id="a")
    assert "returnvalue" not in client.job("a")
    client.complete()
    client.crash()
    assert {"ok": True, "id": "a"} == client.ok("GetResult", id="a")


def test_acknowledged_work_never_runs_again(client: Client) -> None:
    ids = [client.push(durable=True) for _ in range(3)]
    client.complete(result=None)
    client.lease()
    client.crash()

    assert ["completed", "delayed", "waiting"] == [client.state(job_id) for job_id in ids]
    assert {"ok": True, "id": ids[0], "result": None} == client.ok("GetResult", id=ids[0])


def test_a_late_ack_after_a_crash_saves_the_second_run(client: Client) -> None:
    job_id = client.push(durable=True)
    _, token = client.lease()
    client.crash()

    wrong = client.ask("ACK", id=job_id, token="made-up")
    assert f"Job not found or not in processing state: {job_id}" == wrong["error"]
    client.ok("ACK", id=job_id, token=token, result=1)
    client.crash()
    assert "completed" == client.state(job_id)


def test_a_graceful_stop_loses_not_even_buffered_pushes(client: Client) -> None:
    ids = client.ok("PUSHB", queue="q", jobs=[{}] * 500)["ids"]
    client.close()
    assert 0 == client.broker.terminate()
    client.crash()

    assert {"waiting": 500} == client.counts()
    assert ids[0] == client.lease()[0]


def test_order_and_limits_are_the_same_after_a_crash(client: Client) -> None:
    for name in ("z", "a", "m"):
        client.push(jobId=name)
    client.push(jobId="high", priority=3)
    client.push(jobId="lifo", lifo=True)
    client.ok("RateLimit", queue="other", limit=2, duration=500)
    client.ok("SetConcurrency", queue="other", limit=3)
    limits = client.ok("GetQueueLimits", queue="other")
    client.crash_safely()

    assert limits == client.ok("GetQueueLimits", queue="other")
    jobs = client.ok("PULLB", queue="q", count=9)["jobs"]
    assert ["high", "lifo", "z", "a", "m"] == [job["id"] for job in jobs]
