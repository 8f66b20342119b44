"""A Worker against a broker under the test's hand: what it sends, and what it makes of answers."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import AuthError, CommandError, Job, Worker, WorkerGroup
from bunqueue.client import lease, pull_loop
from bunqueue.client.delivery import Delivery
from bunqueue.errors import ConnectionClosedError, LockLostError
from tests.support.fake_server import FakeConnection, FakeServer, Message

WAIT_S = 10.0


class FakeBroker:
    """Answers a worker: hands out the jobs it was given, parks polls, keeps outcomes.

    Attributes:
        jobs: Waiting to be pulled.
        answers: Overrides by command name, called with the message; returns reply fields.
    """

    def __init__(self) -> None:
        self.jobs: list[Message] = []
        self.answers: dict[str, Any] = {}
        self.server = FakeServer(self._answer)

    def add(self, *ids: str, **fields: Any) -> None:
        self.jobs += [{"id": job_id, "queue": "q", "name": "n", **fields} for job_id in ids]

    def _answer(self, connection: FakeConnection, message: Message) -> None:
        override = self.answers.get(message["cmd"])
        fields = override(message) if override is not None else None
        if fields == "silence":
            return
        if fields is None and message["cmd"] == "PULLB":
            taken, self.jobs = self.jobs[: message["count"]], self.jobs[message["count"] :]
            if not taken:
                # A short park stands for the long poll.
                timer = threading.Timer(0.02, self._empty, (connection, message))
                timer.daemon = True
                timer.start()
                return
            fields = {"jobs": taken, "tokens": [f"token-{job['id']}" for job in taken]}
        connection.reply(message, **(fields or {}))

    def _empty(self, connection: FakeConnection, message: Message) -> None:
        try:
            connection.reply(message, jobs=[], tokens=[])
        except OSError:
            return

    def of(self, cmd: str) -> list[Message]:
        return [message for message in self.server.received if message["cmd"] == cmd]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.setattr(pull_loop, "RETRY_S", (0.01, 0.02))
    broker = FakeBroker()
    yield broker
    broker.server.close()


class Workers:
    """Makes workers and closes them."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._made: list[Worker] = []

    def __call__(self, processor: Any, **options: Any) -> Worker:
        options = {"autorun": False, "poll_timeout_ms": 50, **options}
        worker = Worker("q", processor, host="127.0.0.1", port=self._broker.server.port, **options)
        self._made.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._made:
            worker.close(WAIT_S, force=True)


@pytest.fixture
def make(broker: FakeBroker) -> Iterator[Workers]:
    workers = Workers(broker)
    yield workers
    workers.close()


@pytest.fixture
def lost_ack(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's link breaks before it answers the first ACK; the worker soon tries again."""
    monkeypatch.setattr("bunqueue.client.late.RETRY_S", (0.01,))

    def cut(_message: Message) -> Any:
        if len(broker.of("ACK")) == 1:
            broker.server.connections[-1].close()
            return "silence"
        return None

    broker.answers["ACK"] = cut


class Once:
    """Waits for events of a worker."""

    def __init__(self, worker: Worker, *events: str) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._flags = {event: threading.Event() for event in events}
        for event in events:
            worker.on(event, lambda *args, event=event: self._note(event, args))

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        self.told.append((event, *args))
        self._flags[event].set()

    def wait(self, event: str) -> tuple[Any, ...]:
        assert self._flags[event].wait(WAIT_S), self.told
        return next(one for one in self.told if one[0] == event)


def until(claim: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# -- what is sent ----------------------------------------------------------------------------------


def test_each_listener_hears_once_that_a_worker_is_ready(make: Workers) -> None:
    """Also one that comes between the moment itself and the call of the others."""
    worker = make(lambda _job: None)
    told: list[str] = []
    worker.on("ready", lambda: told.append("early"))
    worker.note_registered(is_first=True)
    worker.on("ready", lambda: told.append("between"))

    worker.mailbox.open()
    worker.wait_until_ready()
    worker.mailbox.post(lambda: worker.on("ready", lambda: told.append("late")))
    until(lambda: "late" in told)
    worker.mailbox.close(WAIT_S)

    assert ["early", "between", "late"] == told


def test_a_worker_registers_before_it_pulls(broker: FakeBroker, make: Workers) -> None:
    worker = make(lambda _job: None, concurrency=3, batch_size=2, lock_ttl_ms=9000)
    worker.start()
    pull = broker.server.wait_for("PULLB")

    assert ["Hello", "RegisterWorker", "PULLB"] == broker.server.commands[:3]
    assert ("q", 2, 50, worker.worker_id, 9000) == tuple(
        pull[key] for key in ("queue", "count", "timeout", "owner", "lockTtl")
    )
    (registered,) = broker.of("RegisterWorker")
    assert (["q"], 3, worker.worker_id) == tuple(
        registered[key] for key in ("queues", "concurrency", "workerId")
    )


def test_a_result_is_acknowledged_with_the_token(broker: FakeBroker, make: Workers) -> None:
    broker.add("a", "b")
    make(lambda job: {"r": 1} if job.id == "a" else None).start()
    broker.server.wait_for("ACK", 2)

    by_id = {message["id"]: message for message in broker.of("ACK")}
    assert ("token-a", {"r": 1}) == (by_id["a"]["token"], by_id["a"]["result"])
    assert "result" not in by_id["b"]


def test_a_failure_carries_the_last_lines_of_its_traceback(
    broker: FakeBroker, make: Workers
) -> None:
    broker.add("a", stackTraceLimit=3)

    def fail(_job: Job) -> None:
        raise ValueError

    make(fail).start()
    failed = broker.server.wait_for("FAIL")

    assert ("a", "token-a", "ValueError") == (failed["id"], failed["token"], failed["error"])
    assert 3 == len(failed["stack"])
    assert "ValueError" == failed["stack"][-1]
    assert "unrecoverable" not in failed


def test_without_locks_there_is_neither_owner_nor_token(broker: FakeBroker, make: Workers) -> None:
    broker.answers["PULLB"] = lambda _message: (
        {"jobs": [broker.jobs.pop()]} if broker.jobs else None
    )
    broker.add("a")
    make(lambda _job: None, use_locks=False).start()
    ack = broker.server.wait_for("ACK")

    assert "owner" not in broker.of("PULLB")[0]
    assert "token" not in ack


def test_a_beat_renews_every_lease(broker: FakeBroker, make: Workers) -> None:
    broker.answers["JobHeartbeatB"] = lambda message: {"data": {"count": len(message["ids"])}}
    broker.add("a", "b")
    go_on = threading.Event()
    worker = make(lambda _job: go_on.wait(WAIT_S), heartbeat_interval_s=0.03)
    worker.start()
    broker.server.wait_for("JobHeartbeatB")
    go_on.set()

    beat = broker.of("JobHeartbeatB")[0]
    assert (["a", "b"], ["token-a", "token-b"]) == (sorted(beat["ids"]), sorted(beat["tokens"]))
    assert worker.worker_id == broker.of("Heartbeat")[0]["id"]


# -- what answers mean -----------------------------------------------------------------------------


def test_a_late_answer_frees_the_slot_and_says_nothing(broker: FakeBroker, make: Workers) -> None:
    too_late = {"data": {"applied": False, "reason": "already-finalized"}}
    broker.answers["ACK"] = lambda message: too_late if message["id"] == "a" else None
    broker.add("a", "b")
    worker = make(lambda _job: None, concurrency=1)
    heard = Once(worker, "completed", "failed", "error")
    worker.start()
    heard.wait("completed")

    assert ["b"] == [told[1].id for told in heard.told]
    assert 1 == worker.stats()["processed"]


def test_a_refused_answer_is_an_error_and_nothing_else(broker: FakeBroker, make: Workers) -> None:
    text = "Invalid or expired lock token for job a"
    broker.answers["ACK"] = lambda _message: {"ok": False, "error": text}
    broker.add("a")
    worker = make(lambda _job: None)
    heard = Once(worker, "completed", "failed", "error")
    worker.start()
    _event, error = heard.wait("error")

    assert (LockLostError, text) == (type(error), str(error))
    assert ["error"] == [told[0] for told in heard.told]
    assert (0, 0) == (worker.stats()["processed"], worker.stats()["active"])


def test_in_a_batch_only_positions_are_ignored(broker: FakeBroker, make: Workers) -> None:
    broker.answers["ACKB"] = lambda _message: {"data": {"ignoredIndices": [1], "ignoredIds": ["b"]}}
    broker.add("a", "b", "c")
    worker = make(
        lambda job: job.id, concurrency=1, ack_batch={"max_size": 3, "max_delay_ms": 5000}
    )
    heard = Once(worker, "completed", "error")
    worker.start()
    until(lambda: worker.stats()["processed"] == 2)

    assert ["a", "c"] == [told[1].id for told in heard.told]
    (batch,) = broker.of("ACKB")
    assert (["a", "b", "c"], ["token-a", "token-b", "token-c"]) == (batch["ids"], batch["tokens"])


def test_a_lost_lease_tells_the_handler(broker: FakeBroker, make: Workers) -> None:
    broker.answers["JobHeartbeatB"] = lambda _message: {"data": {"count": 0}}
    broker.answers["JobHeartbeat"] = lambda _message: {"ok": False, "error": "Job not found"}
    broker.add("a")
    seen: list[Any] = []

    def handle(job: Job) -> None:
        seen.append(job.signal.wait(WAIT_S))
        seen.extend((job.lease_lost, job.signal.reason))

    worker = make(handle, heartbeat_interval_s=0.02)
    worker.start()
    broker.server.wait_for("ACK")

    assert [True, True, "lease-lost"] == seen


@pytest.mark.usefixtures("lost_ack")
def test_an_outcome_lost_on_the_way_is_sent_again(broker: FakeBroker, make: Workers) -> None:
    broker.add("a")
    worker = make(lambda _job: "result", heartbeat_interval_s=0)
    heard = Once(worker, "completed", "error")
    worker.start()
    heard.wait("completed")

    assert ConnectionClosedError is type(heard.wait("error")[1])
    assert ["a", "a"] == [message["id"] for message in broker.of("ACK")]
    assert 1 == worker.stats()["processed"]


def test_a_failure_is_told_whatever_its_text(broker: FakeBroker, make: Workers) -> None:
    """A file's name may have bytes that are no UTF-8; an exception's text may be a bug itself."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(job: Job) -> None:
        raise FileNotFoundError("no file \udcff") if job.id == "a" else Mute

    broker.add("a", "b")
    make(fail).start()
    broker.server.wait_for("FAIL", 2)

    by_id = {message["id"]: message for message in broker.of("FAIL")}
    assert ("no file \\udcff", "Mute") == (by_id["a"]["error"], by_id["b"]["error"])
    assert "FileNotFoundError: no file \\udcff" == by_id["a"]["stack"][-1]


@pytest.mark.parametrize("use_locks", [True, False])
def test_a_handler_that_has_moved_its_job_reports_nothing(
    use_locks: bool, broker: FakeBroker, make: Workers
) -> None:
    if not use_locks:
        broker.answers["PULLB"] = lambda _message: (
            {"jobs": [broker.jobs.pop(0)]} if broker.jobs else None
        )
    broker.add("a", "b")
    make(
        lambda job: job.move_to_wait() if job.id == "a" else None,
        concurrency=1,
        use_locks=use_locks,
    ).start()
    broker.server.wait_for("ACK")

    assert ["a"] == [message["id"] for message in broker.of("MoveToWait")]
    assert ["b"] == [message["id"] for message in broker.of("ACK")]


def test_a_run_that_has_lost_its_lease_leaves_the_next_runs_lease_alone(
    broker: FakeBroker, make: Workers
) -> None:
    """The job comes to the same worker again while the handler of its first run goes on."""
    tokens, runs = ["first", "second"], []
    go_on = threading.Event()
    stale = {"ok": False, "error": "Invalid or expired lock token for job a"}
    broker.answers["PULLB"] = lambda _message: (
        {"jobs": [{"id": "a", "queue": "q", "name": "n"}], "tokens": [tokens.pop(0)]}
        if tokens
        else None
    )
    broker.answers["ACK"] = lambda message: stale if message["token"] == "first" else None

    def handle(job: Job) -> None:
        runs.append(job.token)
        if job.token == "second":
            go_on.wait(WAIT_S)
        else:
            until(lambda: len(runs) == 2)

    worker = make(handle, concurrency=2)
    heard = Once(worker, "error", "completed")
    worker.start()
    heard.wait("error")

    assert {"a": "second"} == worker.leases.held
    go_on.set()
    heard.wait("completed")
    until(lambda: worker.leases.held == {})


def test_jobs_that_have_ended_are_not_kept_for_their_timeout(
    broker: FakeBroker, make: Workers
) -> None:
    seen: list[Any] = []
    broker.add(*map(str, range(20)), timeout=3_600_000)
    worker = make(lambda job: seen.append(weakref.ref(job)))
    worker.start()
    until(lambda: worker.stats()["processed"] == 20)

    def are_gone() -> bool:
        gc.collect()
        return all(job() is None for job in seen)

    until(are_gone)


# -- when pulls fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Internal server error", "Rate limit exceeded"])
def test_a_transient_refusal_is_tried_again(text: str, broker: FakeBroker, make: Workers) -> None:
    broker.answers["PULLB"] = lambda _message: (
        {"ok": False, "error": text} if len(broker.of("PULLB")) < 3 else None
    )
    broker.add("a")
    worker = make(lambda _job: None)
    heard = Once(worker, "completed")
    worker.start()
    heard.wait("completed")

    assert worker.is_running()


def test_a_permanent_refusal_ends_a_worker_nobody_listens_to(
    broker: FakeBroker, make: Workers
) -> None:
    text = "Queue name contains invalid characters"
    broker.answers["PULLB"] = lambda _message: {"ok": False, "error": text}

    with pytest.raises(CommandError, match=text):
        make(lambda _job: None).run(signals=False)


def test_a_permanent_refusal_with_a_listener_is_tried_again(
    broker: FakeBroker, make: Workers
) -> None:
    broker.answers["PULLB"] = lambda _message: (
        {"ok": False, "error": "no such thing"} if len(broker.of("PULLB")) < 3 else None
    )
    broker.add("a")
    worker = make(lambda _job: None)
    heard = Once(worker, "completed", "error")
    worker.start()
    heard.wait("completed")

    assert "no such thing" == str(heard.wait("error")[1])


def test_a_refused_token_is_raised_by_run(broker: FakeBroker, make: Workers) -> None:
    broker.answers["Auth"] = lambda _message: {"ok": False, "error": "Invalid token"}

    with pytest.raises(AuthError, match="Invalid token"):
        make(lambda _job: None, token="wrong").run(signals=False)


def test_a_new_link_registers_again(broker: FakeBroker, make: Workers) -> None:
    worker = make(lambda _job: None, heartbeat_interval_s=0)
    worker.start()
    broker.server.wait_for("PULLB")

    broker.server.connections[0].close()

    broker.server.wait_for("RegisterWorker", 2)
    broker.server.wait_for("PULLB", 3)
    until(lambda: worker.stats()["reconnects"] == 1)


def test_a_worker_that_the_broker_forgot_registers_again(broker: FakeBroker, make: Workers) -> None:
    broker.answers["Heartbeat"] = lambda _message: {"ok": False, "error": "Worker not found"}
    make(lambda _job: None, heartbeat_interval_s=0.02).start()

    broker.server.wait_for("RegisterWorker", 2)


def test_a_silent_link_is_pinged_and_replaced(
    broker: FakeBroker, make: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_TIMEOUT_S_MIN", 0.05)
    broker.answers["PULLB"] = lambda _message: "silence" if len(broker.of("PULLB")) == 1 else None
    broker.answers["Ping"] = lambda _message: "silence"
    broker.add("a")
    worker = make(lambda _job: None, heartbeat_interval_s=0.05, poll_timeout_ms=30_000)
    heard = Once(worker, "completed", "error")
    worker.start()
    heard.wait("completed")

    assert 1 <= len(broker.of("Ping"))
    assert "connection lost" in str(heard.wait("error")[1])


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": "4"}, TypeError),
        ({"lock_ttl_ms": float("nan")}, ValueError),
        ({"lock_ttl_ms": 0}, ValueError),
        ({"lock_ttl_ms": "x"}, TypeError),
        ({"poll_timeout_ms": True}, TypeError),
        ({"poll_timeout_ms": "x"}, TypeError),
        ({"executor": "fork"}, ValueError),
        ({"executor": "process"}, ValueError),
        ({"on_timeout": "shout"}, ValueError),
        ({"ack_batch": {"size": 3}}, TypeError),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], kind: Any) -> None:
    with pytest.raises(kind):
        Worker("q", lambda _job: None, autorun=False, **options)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        (0, "batch_size", 1),
        (5000, "batch_size", 1000),
        (None, "batch_size", 10),
        (-5, "poll_timeout_ms", 0),
        (60_000, "poll_timeout_ms", 30_000),
        (None, "poll_timeout_ms", 5000),
        (float("nan"), "poll_timeout_ms", 5000),
        (None, "lock_ttl_ms", None),
    ],
)
def test_options_are_brought_into_range(given: Any, name: str, expected: Any) -> None:
    worker = Worker("q", lambda _job: None, autorun=False, **{name: given})

    assert expected == getattr(worker, name)


def test_a_processor_must_be_callable_and_no_coroutine() -> None:
    async def coroutine(_job: Job) -> None:
        return None

    for processor in (coroutine, 7):
        with pytest.raises(TypeError, match="processor must"):
            Worker("q", processor, autorun=False)


def test_a_processor_of_two_parameters_gets_a_context(broker: FakeBroker, make: Workers) -> None:
    broker.add("a")
    make(lambda job, context: context.signal is job.signal).start()

    assert broker.server.wait_for("ACK")["result"] is True


def test_a_worker_that_never_started_closes_at_once() -> None:
    worker = Worker("q", lambda _job: None, autorun=False)

    assert worker.close(WAIT_S)
    assert (True, False) == (worker.is_closed(), worker.is_running())


def test_a_listener_may_close_a_worker_that_never_started() -> None:
    worker = Worker("q", lambda _job: None, autorun=False)
    told: list[bool] = []
    worker.on("closed", lambda: told.append(worker.close()))

    assert worker.close(WAIT_S)
    assert [False] == told


# -- closing ---------------------------------------------------------------------------------------


def test_closing_waits_for_acks_under_way(broker: FakeBroker, make: Workers) -> None:
    held: list[Message] = []
    broker.answers["ACKB"] = lambda message: held.append(message) or "silence"
    broker.add("a")
    worker = make(lambda _job: None, ack_batch={"max_size": 50, "max_delay_ms": 1})
    heard = Once(worker, "completed")
    worker.start()
    broker.server.wait_for("ACKB")

    assert not worker.close(0.05)
    assert [] == broker.of("UnregisterWorker")
    broker.server.connections[0].reply(held[0])

    assert worker.close(WAIT_S)
    heard.wait("completed")
    broker.server.wait_for("UnregisterWorker")


def test_jobs_that_come_while_closing_go_back(broker: FakeBroker, make: Workers) -> None:
    held: list[Message] = []
    broker.answers["PULLB"] = lambda message: (
        None if broker.jobs else held.append(message) or "silence"
    )
    broker.add("a")
    go_on = threading.Event()
    worker = make(lambda _job: go_on.wait(WAIT_S), poll_timeout_ms=30_000)
    worker.start()
    until(lambda: held)
    worker.close(0)  # the running job keeps it from cutting the long poll

    broker.server.connections[0].reply(
        held[0], jobs=[{"id": "b", "queue": "q", "name": "n"}], tokens=["token-b"]
    )

    moved = broker.server.wait_for("MoveToWait")
    assert ("b", "token-b") == (moved["id"], moved["token"])
    go_on.set()
    assert worker.close(WAIT_S)


def test_heartbeats_that_have_ended_do_not_start_again(make: Workers) -> None:
    """A close that overtakes its start says stop before start."""
    leases = make(lambda _job: None).leases

    leases.stop()
    leases.start()

    assert not leases.are_kept


def test_a_handler_may_close_its_own_worker(broker: FakeBroker, make: Workers) -> None:
    broker.add("a")
    results: list[bool] = []
    worker = make(lambda _job: results.append(worker.close()))
    worker.start()

    assert worker.closed.wait(WAIT_S)
    assert [False] == results
    assert ["a"] == [message["id"] for message in broker.of("ACK")]


def test_a_job_pulled_by_hand_does_not_hold_up_the_close(broker: FakeBroker, make: Workers) -> None:
    broker.add("a")
    worker = make(lambda _job: None)
    assert worker.get_next_job() is not None

    assert worker.close(WAIT_S)


def test_a_listener_may_close_the_worker(broker: FakeBroker, make: Workers) -> None:
    results: list[bool] = []
    broker.answers["PULLB"] = lambda _message: {"ok": False, "error": "no such thing"}
    worker = make(lambda _job: None)
    worker.on("error", lambda _error: results.append(worker.close()))
    worker.start()

    assert worker.closed.wait(WAIT_S)
    until(lambda: results)  # the worker may be closed before its listener is back
    assert results[0] is False


@pytest.mark.parametrize("event", ["completed", "error"])
def test_a_listener_may_close_the_worker_though_acks_are_lined_up(
    event: str, broker: FakeBroker, make: Workers
) -> None:
    held: list[Message] = []
    broker.answers["ACK"] = lambda message: None if held else held.append(message) or "silence"
    broker.add("a", "b")
    worker = make(lambda job: until(lambda: held) if job.id == "b" else None, concurrency=2)
    worker.on(event, lambda *_args: worker.close())
    worker.start()
    until(lambda: worker.ack_flow.waiting == 2)
    fields = {} if event == "completed" else {"ok": False, "error": "no such job"}

    broker.server.connections[0].reply(held[0], **fields)

    assert worker.closed.wait(WAIT_S)
    assert {"a", "b"} == {message["id"] for message in broker.of("ACK")}


def test_a_forced_close_sends_all_jobs_back_whatever_a_handler_does_about_it(
    broker: FakeBroker, make: Workers
) -> None:
    def refuse() -> None:
        raise RuntimeError("not now")

    def handle(job: Job) -> None:
        job.signal.on_abort(refuse)
        job.signal.wait(WAIT_S)

    broker.add("a", "b")
    worker = make(handle, concurrency=2)
    worker.start()
    until(lambda: len(worker.active) == 2)

    assert worker.close(WAIT_S, force=True)
    assert {"a", "b"} == {message["id"] for message in broker.of("MoveToWait")}


def test_a_listener_may_close_a_worker_of_batches_though_acks_are_lined_up(
    broker: FakeBroker, make: Workers
) -> None:
    held: list[Message] = []
    broker.answers["ACK"] = lambda message: None if held else held.append(message) or "silence"
    broker.add("a", "b")
    worker = make(
        lambda job: until(lambda: held) if job.id == "b" else None,
        concurrency=2,
        batch={"size": 1},
    )
    worker.on("completed", lambda *_args: worker.close())
    worker.start()
    until(lambda: worker.ack_flow.waiting == 2)

    broker.server.connections[0].reply(held[0])

    assert worker.closed.wait(WAIT_S)


def test_nothing_is_started_once_a_close_has_begun(make: Workers) -> None:
    """A pull that came back in the same moment hands its jobs back instead."""
    worker = make(lambda _job: None)
    delivery = Delivery(Job({"id": "a"}), "token")
    worker.close(0)

    assert not worker.start_delivery(delivery)
    assert ({}, {}) == (worker.active, worker.leases.held)


def test_a_success_that_came_too_late_is_not_told(broker: FakeBroker, make: Workers) -> None:
    too_late = {"data": {"applied": False, "reason": "already-finalized"}}
    broker.answers["ACK"] = lambda message: too_late if message["id"] == "a" else None
    broker.add("a", "b")
    worker = make(lambda job: job.move_to_completed(1), concurrency=1)
    heard = Once(worker, "completed", "failed", "error")
    worker.start()
    heard.wait("completed")

    assert ["b"] == [told[1].id for told in heard.told]


@pytest.mark.parametrize("event", ["completed", "error"])
def test_a_listener_may_close_a_worker_that_holds_acks_back(
    event: str, broker: FakeBroker, make: Workers
) -> None:
    if event == "error":
        broker.answers["ACKB"] = lambda _message: {"ok": False, "error": "no such job"}
    broker.add("a", "b")
    worker = make(lambda _job: None, ack_batch={"max_size": 2, "max_delay_ms": 5000})
    worker.on(event, lambda *_args: worker.close())
    worker.start()

    assert worker.closed.wait(WAIT_S)


def test_who_comes_after_the_end_is_not_taken_for_a_listener(make: Workers) -> None:
    worker = make(lambda _job: None)
    runners: list[int | None] = []
    worker.on("closed", lambda: runners.append(worker.mailbox.runner))
    worker.start()
    assert worker.close(WAIT_S)

    assert runners[0] is not None
    assert worker.mailbox.runner is None  # its thread is over, and its identity free for others


def test_handlers_of_two_workers_may_close_their_group(broker: FakeBroker, make: Workers) -> None:
    both_run = threading.Barrier(2, timeout=WAIT_S)
    closed: list[bool] = []

    def handle(_job: Job) -> None:
        both_run.wait()
        closed.append(group.close())

    broker.add("a", "b")
    group = WorkerGroup([make(handle, concurrency=1) for _ in range(2)])
    group.start()

    assert all(worker.closed.wait(WAIT_S) for worker in group.workers)
    assert [False, False] == closed


def test_who_listens_once_and_late_hears_that_it_is_ready(make: Workers) -> None:
    heard = threading.Event()
    worker = make(lambda _job: None)
    worker.start()
    worker.wait_until_ready()
    until(lambda: not worker.mailbox._calls)

    worker.once("ready", heard.set)

    assert heard.wait(WAIT_S)


@pytest.mark.parametrize("how", ["on", "once"])
def test_a_late_listener_of_stalls_has_the_broker_asked(
    how: str, broker: FakeBroker, make: Workers
) -> None:
    worker = make(lambda _job: None)
    worker.start()

    getattr(worker, how)("stalled", lambda *_args: None)

    assert "q" == broker.server.wait_for("SubscribeEvents")["queue"]


@pytest.mark.usefixtures("lost_ack")
def test_a_listener_may_close_the_worker_when_an_outcome_came_through_late(
    broker: FakeBroker, make: Workers
) -> None:
    broker.add("a")
    worker = make(lambda _job: None, heartbeat_interval_s=0)
    worker.on("completed", lambda *_args: worker.close())
    worker.start()

    assert worker.closed.wait(WAIT_S)
