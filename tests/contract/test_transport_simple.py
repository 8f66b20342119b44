"""What a Bunqueue does, over TCP and embedded alike."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue import (
    Bunqueue,
    ConnectionClosedError,
    DelayedError,
    Job,
    Queue,
    UnrecoverableError,
    WaitingChildrenError,
)
from tests.support.heard import Heard
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0
Make = Callable[..., Bunqueue]


@pytest.fixture
def make(transport: Transport) -> Iterator[Make]:
    """Make a Bunqueue of this test's queue; it is closed at the end."""
    made: list[Bunqueue] = []

    def make(kind: Any = Bunqueue, **options: Any) -> Bunqueue:
        defaults = {"poll_timeout_ms": 1000, **transport.options}
        made.append(kind(transport.queue_name, **{**defaults, **options}))
        return made[-1]

    yield make
    for app in made:
        app.close(force=True)


def test_a_processor_runs_every_job(make: Make) -> None:
    app = make(processor=lambda job: {"sum": sum(job.data)})

    job = app.add("add", [1, 2, 3])

    assert {"sum": 6} == app.queue.wait_for_job(job.id)
    assert ("completed", 0) == (job.get_state(), app.count())
    assert (True, False, False) == (app.is_running(), app.is_paused(), app.is_closed())
    app.close()
    assert (False, True) == (app.is_running(), app.is_closed())


def test_routes_go_by_the_name_of_the_job(make: Make) -> None:
    app = make(routes={"double": lambda job: job.data * 2, "negate": lambda job: -job.data})
    ids = app.add_bulk(
        [{"name": "double", "data": 4}, {"name": "negate", "data": 4, "opts": {"priority": 3}}]
    )
    lost = app.add("nowhere", attempts=1)

    assert [8, -4] == [app.queue.wait_for_job(job_id) for job_id in ids]
    with pytest.raises(Exception, match=f'No route for job "nowhere" in queue "{app.name}"'):
        app.queue.wait_for_job(lost.id)


def test_decorators_take_the_place_of_options(make: Make) -> None:
    app = make(Bunqueue.deferred)
    with pytest.raises(ValueError, match="needs a handler"):
        app.start()
    done = threading.Event()

    @app.route("greet")
    def greet(job: Job[str]) -> str:
        return f"hello {job.data}"

    @app.on("completed")
    def note(_job: Job[Any], _result: Any) -> None:
        done.set()

    app.start()
    job = app.add("greet", "you")

    assert done.wait(WAIT_S)
    assert "hello you" == app.queue.get_result(job.id)
    assert "hello me" == greet(Job({"data": "me"}))
    with pytest.raises(ValueError, match="one processor, or routes"):
        app.processor(greet)


def test_the_decorator_of_a_batch_gets_jobs_together(make: Make) -> None:
    app = make(Bunqueue.deferred, concurrency=3)

    @app.batch(size=3, timeout=5000)
    def together(jobs: list[Job[int]]) -> list[int]:
        return [job.data * len(jobs) for job in jobs]

    ids = app.add_bulk([{"name": "x", "data": n} for n in (1, 2, 3)])
    app.start()

    assert [3, 6, 9] == [app.queue.wait_for_job(job_id) for job_id in ids]


def test_one_way_to_run_jobs_is_needed_and_no_more(transport: Transport) -> None:
    for options in ({}, {"processor": print, "routes": {"x": print}}):
        with pytest.raises(ValueError, match='"processor", "routes", or "batch"'):
            Bunqueue(transport.queue_name, **transport.options, **options)


def test_what_cannot_work_is_refused_before_anything_is_opened(transport: Transport) -> None:
    for options in (
        {"retry": {"max_attempts": -1}},
        {"circuit_breaker": {"threshold": "x"}},
        {"default_job_options": {"prioritty": 1}},
        {"concurrency": 0},
    ):
        with pytest.raises((TypeError, ValueError)):
            Bunqueue(transport.queue_name, processor=print, **transport.options, **options)


def test_unknown_keywords_are_named_in_one_warning(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bunqueue"):
        make(processor=print, autorun=False, colour="red", size=5, lock_ttl_ms=9000, pool_size=2)

    assert ["Bunqueue does not know these keywords: colour size"] == caplog.messages


def test_middleware_wraps_the_handler_from_the_outside_in(make: Make) -> None:
    app = make(processor=lambda job: [*job.data, "handler"], autorun=False)

    @app.use
    def outer(_job: Job[Any], go_on: Callable[[], Any]) -> Any:
        return ["outer", *go_on()]

    app.use(lambda _job, go_on: ["inner", *go_on()])
    app.start()

    assert outer is app
    assert ["outer", "inner", "data", "handler"] == app.queue.wait_for_job(
        app.add("x", ["data"]).id
    )


def test_a_failing_handler_is_tried_again_in_its_slot(make: Make) -> None:
    calls: list[int] = []

    def handle(_job: Job[Any]) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return "done"

    app = make(processor=handle, retry={"maxAttempts": 3, "delay": 1, "strategy": "fixed"})
    job = app.add("x", attempts=1)

    assert "done" == app.queue.wait_for_job(job.id)
    assert 0 == job.refresh().attempts


def test_an_open_circuit_pauses_the_worker_until_it_is_reset(make: Make) -> None:
    opened = threading.Event()
    broken = [True]

    def handle(_job: Job[Any]) -> str:
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    app = make(
        processor=handle,
        circuit_breaker={
            "threshold": 2, "reset_timeout": 1_000_000, "on_open": lambda _n: opened.set(),
        },
    )  # fmt: skip
    assert "closed" == app.get_circuit_state()
    app.add_bulk([{"name": "x", "attempts": 1}] * 2)
    assert opened.wait(WAIT_S)

    assert ("open", True) == (app.get_circuit_state(), app.is_paused())
    broken[0] = False
    app.reset_circuit()
    assert ("closed", False) == (app.get_circuit_state(), app.is_paused())
    assert "mended" == app.queue.wait_for_job(app.add("x").id)


@pytest.mark.parametrize("error", [DelayedError(10), WaitingChildrenError()])
def test_a_job_that_is_to_run_again_is_no_failure_to_the_circuit(
    error: Exception, make: Make
) -> None:
    raised = []

    def handle(_job: Job[Any]) -> str:
        if not raised:
            raised.append(error)
            raise error
        return "second time"

    app = make(processor=handle, circuit_breaker={"threshold": 1, "reset_timeout": 1_000_000})

    assert "second time" == app.queue.wait_for_job(app.add("x").id)
    assert "closed" == app.get_circuit_state()


@pytest.mark.parametrize("force", [False, True])
def test_a_handler_may_close_its_own_app(force: bool, make: Make, transport: Transport) -> None:
    has_returned = threading.Event()

    def handle(_job: Job[Any]) -> None:
        app.close(force)
        has_returned.set()

    app = make(processor=handle, autorun=False)
    job = app.add("x")
    app.start()

    assert app.worker.closed.wait(WAIT_S)
    assert has_returned.wait(WAIT_S)  # a forced close does not wait for the handler
    assert ("waiting" if force else "completed") == transport.queue().get_state(job.id)
    until_closed(app)


def until_closed(app: Bunqueue) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            app.count()
        except ConnectionClosedError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_is_picked_up_too_late_fails(make: Make) -> None:
    app = make(processor=lambda _job: "done", ttl={"per_name": {"short": 1000}}, autorun=False)
    late = app.add("short", attempts=1, timestamp=1_000_000)
    others = app.add("long", timestamp=1_000_000)
    app.start()

    with pytest.raises(Exception, match="Job expired"):
        app.queue.wait_for_job(late.id)
    assert "done" == app.queue.wait_for_job(others.id)


def test_a_running_job_is_called_off(make: Make) -> None:
    begun = threading.Event()

    def handle(job: Job[Any]) -> None:
        begun.set()
        assert job.signal.wait(WAIT_S)
        job.raise_if_cancelled()

    app = make(processor=handle)
    heard = Heard(app, "failed")
    job = app.add("x", attempts=1)
    assert begun.wait(WAIT_S)
    signal = app.get_signal(job.id)
    assert (False, False) == (app.is_cancelled(job.id), app.is_cancelled("other"))

    app.cancel(job.id, grace_period_ms=1)

    _, failed, error = heard.wait_for("failed")
    assert (job.id, "job cancelled") == (failed.id, str(error))
    assert signal is not None
    assert signal.aborted


def test_middleware_goes_no_further_once_the_job_is_called_off(make: Make) -> None:
    app = make(processor=lambda _job: "ran", autorun=False)

    def stop(job: Job[Any], go_on: Callable[[], Any]) -> Any:
        app.cancel(job.id)
        return go_on()

    app.use(stop)
    heard = Heard(app, "failed")
    app.start()
    app.add("x", attempts=1)

    assert "Job cancelled" == str(heard.wait_for("failed")[2])


def test_twins_are_one_job(make: Make) -> None:
    app = make(processor=print, autorun=False, deduplication={"ttl": 60_000})

    assert app.add("mail", {"to": "x"}).id == app.add("mail", {"to": "x"}).id
    assert 1 == app.count()
    app.add("mail", {"to": "y"})
    app.add("mail", {"to": "x"}, deduplication={"id": "another"})
    assert 3 == app.count()


def test_defaults_dead_letters_and_limits_are_applied(make: Make) -> None:
    app = make(
        processor=print,
        autorun=False,
        default_job_options={"priority": 4},
        dlq={"maxEntries": 7, "auto_retry": False},
    )

    assert 4 == app.add("x").refresh().priority
    assert 7 == app.get_dlq_config()["maxEntries"]
    app.set_dlq_config(max_entries=9)
    assert 9 == app.get_dlq_config()["maxEntries"]
    app.set_global_rate_limit(5, 60_000)
    assert {"max": 5, "duration": 60_000} == app.queue.get_global_rate_limit()
    app.remove_global_rate_limit()
    assert None is app.queue.get_global_rate_limit()


def test_dead_letters_are_read_and_retried(make: Make) -> None:
    def refuse(_job: Job[Any]) -> None:
        raise UnrecoverableError("never")

    app = make(processor=refuse)
    heard = Heard(app, "failed")
    job = app.add("x")
    heard.wait_for("failed")

    assert ([job.id], 1) == ([one["id"] for one in app.get_dlq()], app.get_dlq_stats().total)
    assert ["never"] == [entry.error for entry in app.get_dlq_entries()]
    app.pause()
    assert (1, 0) == (app.retry_dlq(job.id), app.purge_dlq())
    app.resume()
    heard.wait_for("failed", 2)


def test_schedulers_are_made_by_pattern_and_by_interval(make: Make) -> None:
    app = make(processor=print, autorun=False)

    nightly = app.cron("nightly", "0 3 * * *", {"n": 1}, timezone="Europe/Madrid", limit=5)
    often = app.every("often", 60_000, job_opts={"priority": 2}, prevent_overlap=True)

    assert ("0 3 * * *", "Europe/Madrid", 5) == (
        nightly["pattern"], nightly["tz"], nightly["limit"],
    )  # fmt: skip
    assert (60_000, 2) == (often["every"], often["priority"])
    assert {"nightly", "often"} == {one["id"] for one in app.list_crons()}
    app.remove_cron("nightly")
    app.remove_cron("often")
    assert [] == app.list_crons()


def test_a_trigger_makes_the_next_job(make: Make) -> None:
    done = threading.Event()
    results: list[Any] = []

    def second(job: Job[Any]) -> None:
        results.append(job.data)
        done.set()

    app = make(routes={"first": lambda job: job.data + 1, "second": second}, autorun=False)
    app.trigger({"on": "first", "create": "second", "data": lambda result, _job: {"got": result}})
    app.start()
    app.add("first", 41)

    assert done.wait(WAIT_S)
    assert [{"got": 42}] == results


def test_old_jobs_rise(make: Make) -> None:
    app = make(processor=print, autorun=False, priority_aging={"interval": 5, "min_age": 1000})
    job = app.add("x", timestamp=1_000_000)

    while job.refresh().priority == 0:
        threading.Event().wait(0.005)

    assert 1 <= job.priority


def test_the_prefix_and_the_connection_are_shared(make: Make, transport: Transport) -> None:
    app = make(processor=lambda _job: "mine", prefix_key="p:")
    job = app.add("x")

    assert "mine" == app.queue.wait_for_job(job.id)
    assert (f"p:{transport.queue_name}", transport.queue_name) == (job.queue, app.name)
    assert app.worker.connection is app.queue.connection


def test_pausing_is_for_all_workers_of_the_queue(make: Make, transport: Transport) -> None:
    app = make(processor=lambda _job: "ran")
    queue: Queue = transport.queue()

    app.pause()
    assert (True, True) == (app.is_paused(), queue.is_paused())
    job = app.add("x")
    app.resume()

    assert "ran" == queue.wait_for_job(job.id)
    assert (False, False) == (app.is_paused(), queue.is_paused())


def test_closing_lets_an_incomplete_batch_run(make: Make) -> None:
    ran: list[int] = []
    begun = threading.Event()

    def note(jobs: list[Job[Any]]) -> None:
        ran.append(len(jobs))

    app = make(batch={"size": 10, "timeout": 1_000_000, "processor": note})
    app.on("active", lambda _job: begun.set())
    app.add("x")
    assert begun.wait(WAIT_S)

    app.close()

    assert [1] == ran


def test_run_ends_with_the_worker(make: Make) -> None:
    app = make(Bunqueue.deferred)
    app.processor(lambda job: job.data)
    running = threading.Thread(target=app.run)
    running.start()

    assert 7 == app.queue.wait_for_job(app.add("x", 7).id)
    app.close()
    running.join(WAIT_S)

    assert not running.is_alive()
    assert app.is_closed()


def test_a_handler_may_take_a_context_or_yield(make: Make) -> None:
    def steps(job: Job[Any]) -> Any:
        yield from range(job.data)
        return "all"

    def with_context(job: Job[Any], context: Any) -> Any:
        return context.signal is job.signal

    app = make(routes={"steps": steps, "context": with_context})

    assert "all" == app.queue.wait_for_job(app.add("steps", 3).id)
    assert True is app.queue.wait_for_job(app.add("context").id)
