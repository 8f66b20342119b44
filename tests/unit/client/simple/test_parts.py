"""The parts of Simple Mode, each by itself."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue import (
    CancelSignal,
    CommandError,
    ConnectionClosedError,
    DelayedError,
    Job,
    JobCancelledError,
    UnrecoverableError,
)
from bunqueue.client.simple import start_gate as start_gate_module
from bunqueue.client.simple import ttl as ttl_module
from bunqueue.client.simple.aging import PriorityAging
from bunqueue.client.simple.gathering import Gathering
from bunqueue.client.simple.keys import Keys
from bunqueue.client.simple.retry import Retry, calculate_backoff, execute_with_retry
from bunqueue.client.simple.settings import Settings
from bunqueue.client.simple.start_gate import StartGate
from bunqueue.client.simple.triggers import Triggers
from bunqueue.client.simple.ttl import TimeToLive
from bunqueue.simple import WorkerCircuitBreaker

WAIT_S = 10.0


# -- settings -------------------------------------------------------------------------------------


def test_settings_are_read_in_either_spelling_and_falsy_is_the_default() -> None:
    settings = Settings("x", {"maxAge": 5, "min_age": 0, "text": "7"}, ("max_age", "min_age"))

    assert (5, 9, 7.0) == (
        settings.whole("max_age", 1),
        settings.whole("min_age", 9),
        settings.number("text", 1),
    )


def test_unknown_settings_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bunqueue"):
        Settings("retry", {"strategy": "fixed", "tries": 1, "wait": 2}, ("strategy",))

    assert ["keys of retry are not known and not used: tries wait"] == caplog.messages


@pytest.mark.parametrize(
    ("build", "kind", "named"),
    [
        (lambda: Retry({"delay": "soon"}), ValueError, "retry delay"),
        (lambda: Retry({"delay": float("nan")}), ValueError, "retry delay"),
        (lambda: Retry({"max_attempts": -1}), ValueError, "retry max_attempts"),
        (lambda: Retry({"retry_if": "no"}), TypeError, "retry retry_if"),
        (lambda: Retry({"customBackoff": 5}), TypeError, "retry custom_backoff"),
        (lambda: WorkerCircuitBreaker({"threshold": -2}, None), ValueError, "threshold"),
        (lambda: WorkerCircuitBreaker({"on_open": 1}, None), TypeError, "on_open"),
        (lambda: StartGate({}), ValueError, "rate_limit max"),
        (lambda: StartGate({"max": [1]}), TypeError, "rate_limit max"),
        (lambda: TimeToLive({"per_name": {"x": -1}}), ValueError, "ttl of x"),
        (lambda: TimeToLive({"per_name": 5}), TypeError, "per_name"),
        (lambda: Gathering({"processor": print}), ValueError, "batch size"),
        (lambda: Gathering({"size": 2}), TypeError, "batch processor"),
        (lambda: PriorityAging({"interval": -1}), ValueError, "priority_aging interval"),
        (lambda: Keys({"ttl": "x"}, None), ValueError, "deduplication ttl"),
        (lambda: Keys(None, {"id": "x"}), ValueError, "debounce ttl"),
        (lambda: Keys(5, None), TypeError, "deduplication must be a dict"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    build: Callable[[], object], kind: type[Exception], named: str
) -> None:
    with pytest.raises(kind, match=named):
        build()


# -- retry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [
        ("fixed", [100, 100, 100, 100]),
        ("exponential", [100, 200, 400, 800]),
        ("fibonacci", [100, 200, 300, 500]),
        ("nothing known", [100, 100, 100, 100]),
        ("custom", [1, 2, 3, 4]),
    ],
)
def test_each_strategy_has_its_waits(strategy: str, waits: list[float]) -> None:
    config = {"custom_backoff": lambda attempt, _error: attempt}
    error = ValueError()

    assert waits == [
        calculate_backoff(strategy, attempt, 100, error, config) for attempt in (1, 2, 3, 4)
    ]


def test_jitter_stays_around_the_exponential() -> None:
    for _ in range(200):
        assert 200 <= calculate_backoff("jitter", 3, 100, ValueError(), {}) <= 600


def test_a_failure_is_tried_again_until_it_succeeds_or_has_had_its_attempts() -> None:
    calls: list[int] = []

    def fails(times: int) -> Callable[[], str]:
        calls.clear()

        def call() -> str:
            calls.append(1)
            if len(calls) <= times:
                raise ValueError(f"failure {len(calls)}")
            return "done"

        return call

    config = {"max_attempts": 3, "delay": 0.001, "strategy": "fixed"}
    assert "done" == execute_with_retry(fails(2), config)
    with pytest.raises(ValueError, match="failure 3"):
        execute_with_retry(fails(3), config)
    with pytest.raises(ValueError, match="failure 1"):
        execute_with_retry(fails(3), {**config, "retry_if": lambda _error, attempt: attempt > 1})


@pytest.mark.parametrize("error", [UnrecoverableError("no"), DelayedError(5), KeyboardInterrupt()])
def test_what_decides_the_jobs_fate_is_not_tried_again(error: BaseException) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        execute_with_retry(call, {"delay": 0.001})
    assert 1 == len(calls)


def test_a_job_that_is_called_off_is_not_tried_again() -> None:
    signal = CancelSignal()

    def call() -> None:
        raise ValueError("broken")

    def call_off_soon(_error: BaseException, _attempt: int) -> bool:
        threading.Timer(0.01, signal.abort, ("enough",)).start()
        return True

    with pytest.raises(JobCancelledError, match="enough"):
        Retry({"delay": 1_000_000, "retry_if": call_off_soon}).run(call, signal)


# -- circuit breaker ------------------------------------------------------------------------------


class FakeWorker:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.resumed = threading.Event()
        self.errors: list[BaseException] = []
        self.listeners: dict[str, Callable[..., None]] = {}

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")
        self.resumed.set()

    def is_paused(self) -> bool:
        return self.calls[-1:] == ["pause"]

    def on(self, event: str, listener: Callable[..., None]) -> None:
        self.listeners[event] = listener

    def emit(self, _event: str, error: BaseException) -> None:
        self.errors.append(error)


def test_the_circuit_opens_rests_and_closes_with_a_success() -> None:
    worker = FakeWorker()
    told: list[Any] = []
    half_open = threading.Event()
    breaker = WorkerCircuitBreaker(
        {
            "threshold": 2,
            "resetTimeout": 5,
            "onOpen": told.append,
            "on_close": lambda: told.append("closed"),
            "on_half_open": half_open.set,
        },
        worker,
    )
    breaker.on_failure()
    assert ("closed", []) == (breaker.current_state, worker.calls)
    breaker.on_success()
    breaker.on_failure()
    breaker.on_failure()
    assert (["pause"], [2]) == (worker.calls[:1], told)

    assert worker.resumed.wait(WAIT_S)
    assert half_open.wait(WAIT_S)
    assert ("half-open", False) == (breaker.current_state, breaker.is_open())
    breaker.on_success()
    assert ("closed", [2, "closed"]) == (breaker.current_state, told)


def test_a_failure_in_the_half_open_circuit_opens_it_again() -> None:
    worker = FakeWorker()
    breaker = WorkerCircuitBreaker({"threshold": 3, "reset_timeout": 1}, worker)
    for _ in range(3):
        breaker.on_failure()
    assert worker.resumed.wait(WAIT_S)

    breaker.on_failure()

    assert ["pause", "resume", "pause"] == worker.calls[:3]
    breaker.destroy()


def test_a_reset_circuit_is_closed_and_its_timer_stopped() -> None:
    worker = FakeWorker()
    breaker = WorkerCircuitBreaker({"threshold": 1, "reset_timeout": 1_000_000}, worker)
    breaker.on_failure()
    assert breaker.is_open()

    breaker.reset()

    assert ("closed", ["pause", "resume"]) == (breaker.current_state, worker.calls)


def test_a_callback_that_raises_does_not_hold_the_circuit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_failures: int) -> None:
        raise ValueError("mine")

    worker = FakeWorker()
    breaker = WorkerCircuitBreaker({"threshold": 1, "reset_timeout": 1, "on_open": broken}, worker)
    breaker.on_failure()

    assert worker.resumed.wait(WAIT_S)
    assert ["circuit breaker callback raised name=on_open"] == caplog.messages


# -- start gate -----------------------------------------------------------------------------------


def test_starts_are_counted_in_a_rolling_window_per_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = [1000.0]
    monkeypatch.setattr(start_gate_module, "now", lambda: moment[0])
    gate = StartGate({"max": 2, "duration": 1000, "groupKey": "tenant"})
    a, b = gate.group_for({"tenant": "a"}), gate.group_for({"tenant": 5})

    assert ("a", "5", "", "") == (a, b, gate.group_for({}), gate.group_for("text"))
    assert [0, 0] == [gate._take(a), gate._take(a)]
    assert (1.0, 0.0) == (gate._take(a), gate._take(b))
    moment[0] += 0.75
    assert 0.25 == gate._take(a)
    moment[0] += 0.25
    assert [0, 0, 1.0] == [gate._take(a), gate._take(a), gate._take(a)]


def test_groups_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [1000.0]
    monkeypatch.setattr(start_gate_module, "now", lambda: moment[0])
    monkeypatch.setattr(start_gate_module, "GROUPS_BETWEEN_SWEEPS", 10)
    gate = StartGate({"max": 1, "duration": 1000})
    gate._sweep_at = 10

    for number in range(100):
        gate._take(str(number))
        moment[0] += 1

    assert len(gate._starts) <= 12


def test_a_job_that_is_called_off_waits_no_longer() -> None:
    gate = StartGate({"max": 1, "duration": 1_000_000})
    signal = CancelSignal()
    gate.wait({}, signal)
    threading.Timer(0.01, signal.abort, ("enough",)).start()

    with pytest.raises(JobCancelledError, match="enough"):
        gate.wait({}, signal)


# -- time to live ---------------------------------------------------------------------------------


def test_a_job_is_too_old_by_its_name_or_by_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl_module.time, "time", lambda: 10.0)
    ttl = TimeToLive({"defaultTtl": 500, "per_name": {"slow": 5000, "ever": 0}})

    ttl.check("any", 9500)
    ttl.check("slow", 5000)
    ttl.check("ever", 0)
    with pytest.raises(RuntimeError, match=r"Job expired \(age: 501ms\)"):
        ttl.check("any", 9499)
    ttl.set_for("any", 600)
    ttl.check("any", 9499)
    ttl.set_default(0)
    ttl.check("others", 0)


# -- keys -----------------------------------------------------------------------------------------


def test_twins_have_one_name_and_one_payload() -> None:
    keys = Keys({"extend": True}, {"ttl": 50})

    assert {
        "priority": 1,
        "deduplication": {"id": 'mail:{"to":"x","n":1}', "ttl": 3_600_000, "extend": True},
        "debounce": {"id": "mail", "ttl": 50},
    } == keys.add("mail", {"to": "x", "n": 1}, {"priority": 1})
    assert "mail:" == keys.add("mail", None, {})["deduplication"]["id"]
    assert {"id": "own"} == keys.add("mail", None, {"deduplication": {"id": "own"}})[
        "deduplication"
    ]
    assert {"priority": 1} == Keys(None, None).add("mail", None, {"priority": 1})


# -- batches --------------------------------------------------------------------------------------


class Handlers:
    """Runs jobs through a gathering, each in a thread."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.outcomes: dict[str, Any] = {}
        self.jobs: dict[str, Job[Any]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, *ids: str) -> None:
        for job_id in ids:
            self.jobs[job_id] = Job({"id": job_id})
            thread = threading.Thread(target=self._run, args=(job_id,))
            thread.start()
            self._threads.append(thread)

    def _run(self, job_id: str) -> None:
        try:
            self.outcomes[job_id] = self.gathering.run(self.jobs[job_id], None)
        except Exception as error:
            self.outcomes[job_id] = error

    def join(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        return self.outcomes

    def wait_until_waiting(self, count: int) -> None:
        while len(self.gathering._waiting) < count:
            threading.Event().wait(0.001)


def numbered(jobs: list[Job[Any]]) -> list[str]:
    return [f"{job.id} of {len(jobs)}" for job in jobs]


def test_a_full_batch_runs_at_once_and_each_gets_its_part() -> None:
    handlers = Handlers(Gathering({"size": 3, "timeout": 1_000_000, "processor": numbered}))
    handlers.start("a", "b", "c")

    assert {name: f"{name} of 3" for name in "abc"} == handlers.join()


def test_an_incomplete_batch_runs_when_its_first_has_waited() -> None:
    handlers = Handlers(Gathering({"size": 9, "timeout": 30, "processor": numbered}))
    handlers.start("a", "b")

    assert {"a", "b"} == set(handlers.join())


def test_a_failing_batch_fails_all_its_jobs() -> None:
    def broken(_jobs: list[Job[Any]]) -> list[Any]:
        raise ValueError("all")

    handlers = Handlers(Gathering({"size": 2, "processor": broken}))
    handlers.start("a", "b")

    assert ["all", "all"] == [str(error) for error in handlers.join().values()]


def test_missing_results_are_none() -> None:
    handlers = Handlers(Gathering({"size": 2, "processor": lambda _jobs: None}))
    handlers.start("a", "b")

    assert {"a": None, "b": None} == handlers.join()


def test_a_job_called_off_leaves_its_batch() -> None:
    handlers = Handlers(Gathering({"size": 2, "timeout": 1_000_000, "processor": numbered}))
    handlers.start("a")
    handlers.wait_until_waiting(1)
    handlers.jobs["a"].signal.abort("enough")
    while "a" not in handlers.outcomes:
        threading.Event().wait(0.001)
    handlers.start("b", "c")

    outcomes = handlers.join()
    assert "enough" == str(outcomes.pop("a"))
    assert {"b": "b of 2", "c": "c of 2"} == outcomes


def test_a_job_whose_handler_is_interrupted_leaves_its_batch() -> None:
    """Its batch ran with it all the same, once it was complete: the job was run twice."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("interrupted")

    handlers = Handlers(Gathering({"size": 2, "timeout": 4_000, "processor": numbered}))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError, match="interrupted"):
            handlers.gathering.run(Job({"id": "a"}), None)
    finally:
        signal.signal(signal.SIGALRM, before)
    handlers.start("b", "c")

    assert {"b": "b of 2", "c": "c of 2"} == handlers.join()


def test_at_the_end_nobody_waits_for_others() -> None:
    handlers = Handlers(Gathering({"size": 9, "timeout": 1_000_000, "processor": numbered}))
    handlers.start("a")
    handlers.wait_until_waiting(1)
    handlers.gathering.hurry()
    while "a" not in handlers.outcomes:
        threading.Event().wait(0.001)
    handlers.start("b")

    assert {"a": "a of 1", "b": "b of 1"} == handlers.join()


# -- aging ----------------------------------------------------------------------------------------


class FakeQueue:
    """Has old jobs and notes who is raised and what is added."""

    def __init__(self, *jobs: Job[Any]) -> None:
        self.jobs = list(jobs)
        self.raised: list[tuple[str, int]] = []
        self.added: list[tuple[Any, ...]] = []

    def get_waiting(self, _start: int, _end: int) -> list[Job[Any]]:
        return [job for job in self.jobs if not job.priority]

    def get_prioritized(self, _start: int, _end: int) -> list[Job[Any]]:
        return [job for job in self.jobs if job.priority]

    def change_job_priority(self, job_id: str, priority: int) -> None:
        if job_id == "gone":
            raise CommandError("Job not found")
        self.raised.append((job_id, priority))

    def add(self, name: str, data: Any, **options: Any) -> None:
        if name == "refused":
            raise CommandError("no")
        self.added.append((name, data, options))


def test_old_jobs_rise_up_to_the_bound() -> None:
    queue = FakeQueue(
        Job({"id": "gone", "createdAt": 1}),
        Job({"id": "old", "createdAt": 1}),
        Job({"id": "high", "createdAt": 1, "priority": 9}),
        Job({"id": "top", "createdAt": 1, "priority": 10}),
        Job({"id": "new", "createdAt": 2**52}),
    )

    PriorityAging({"boost": 5, "maxPriority": 10}, queue).tick()

    assert [("old", 5), ("high", 10)] == queue.raised


# -- triggers -------------------------------------------------------------------------------------


def test_a_trigger_makes_a_job_of_what_came_of_another() -> None:
    queue, worker = FakeQueue(), FakeWorker()
    triggers = Triggers(queue, worker)
    triggers.add(
        {
            "on": "charge",
            "create": "receipt",
            "data": lambda result, job: {"paid": result, "job": job.id},
            "condition": lambda result, _job: result > 10,
            "opts": {"priority": 5},
        }
    )
    triggers.add({"on": "charge", "create": "alarm", "event": "failed"})
    job = Job[Any]({"id": "1", "name": "charge"})

    for amount in (5, 50):
        worker.listeners["completed"](job, amount)
    worker.listeners["failed"](job, ValueError())
    worker.listeners["completed"](Job({"id": "2", "name": "other"}), 50)

    assert [
        ("receipt", {"paid": 50, "job": "1"}, {"priority": 5}),
        ("alarm", None, {}),
    ] == queue.added


def test_a_trigger_that_fails_is_an_error_of_the_worker() -> None:
    queue, worker = FakeQueue(), FakeWorker()
    triggers = Triggers(queue, worker)
    triggers.add({"on": "x", "create": "refused"})
    triggers.add({"on": "x", "create": "fine"})

    worker.listeners["completed"](Job({"id": "1", "name": "x"}), None)

    assert ["no"] == [str(error) for error in worker.errors]
    assert ["fine"] == [added[0] for added in queue.added]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"create": "x"}, ValueError),
        ({"on": "x"}, ValueError),
        ({"on": "x", "create": "y", "event": "stalled"}, ValueError),
        ({"on": "x", "create": "y", "data": {"a": 1}}, TypeError),
        ({"on": "x", "create": "y", "when": 1}, TypeError),
    ],
)
def test_a_trigger_that_cannot_work_is_refused(rule: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Triggers(FakeQueue(), FakeWorker()).add(rule)


def test_a_failing_tick_is_logged_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    second = threading.Event()

    class Unreachable(FakeQueue):
        ticks = 0

        def get_waiting(self, _start: int, _end: int) -> list[Job[Any]]:
            self.ticks += 1
            if self.ticks == 2:
                second.set()
            raise ConnectionClosedError("connection lost")

    aging = PriorityAging({"interval": 1}, Unreachable())
    aging.start()
    aging.start()
    assert second.wait(WAIT_S)
    aging.stop()
    aging.stop()

    assert "priority aging failed error=connection lost" in caplog.messages
