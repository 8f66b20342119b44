"""Scenarios: Simple Mode, a queue and its worker in one object.

Most of it happens in the client; each scenario is about something that a server must bear. A
server takes a job's name out of `data`, where this client looks for it (see scenario.py), so what
goes by names works for jobs whose producer speaks version 3 and leaves a name in `data` as well, or
where the server was told to leave it there.
"""

from __future__ import annotations

import threading
import time

from scenario import World, raises, scenario, until

from bunqueue import Bunqueue, CommandError


def _add_named(app: Bunqueue, name: str, **data: object) -> str:
    """Add a job whose name this client can see."""
    request = {"cmd": "PUSH", "queue": app.name, "name": name, "data": {"name": name, **data}}
    return str(app.queue.connection.call(request)["id"])


@scenario()
def adds_and_works_in_one_object(world: World) -> None:
    app = world.simple(processor=lambda job: job.data["n"] * 2)

    job = app.add("double", {"n": 4})

    assert 8 == app.queue.wait_for_job(job.id, 10_000)
    assert job.id == app.get_job(job.id).id
    assert 1 == app.get_job_counts()["completed"]
    assert 0 == app.count()


@scenario()
def adds_in_bulk_with_default_options(world: World) -> None:
    app = world.simple(processor=lambda job: job.max_attempts, default_job_options={"attempts": 7})

    ids = app.add_bulk([{"name": "a"}, {"name": "b", "attempts": 2}])

    assert [7, 2] == [app.queue.wait_for_job(job_id, 10_000) for job_id in ids]


@scenario()
def routes_by_name(world: World) -> None:
    app = world.simple(routes={"a": lambda _job: "route a", "b": lambda _job: "route b"})

    ids = [_add_named(app, "a"), _add_named(app, "b")]

    assert ["route a", "route b"] == [app.queue.wait_for_job(job_id, 10_000) for job_id in ids]


@scenario("names")
def routes_by_name_where_names_are_left_in_data(world: World) -> None:
    """2.9.5 cannot leave them there, so no route matches; both are accepted."""
    app = world.simple(routes={"a": lambda _job: "route a"})

    job = app.add("a", attempts=1)

    until(lambda: app.queue.get_state(job.id) in ("completed", "failed"))
    read = app.get_job(job.id)
    if read.state == "completed":
        assert ("route a", "a") == (app.queue.get_result(job.id), read.name)
    else:
        assert "No route for job" in read.raw["failedReason"]


@scenario()
def a_job_without_a_route_fails(world: World) -> None:
    app = world.simple(routes={"a": lambda _job: "route a"})

    job_id = app.add("c", attempts=1).id

    until(lambda: app.queue.get_state(job_id) == "failed")
    assert "No route for job" in app.queue.get_job(job_id).raw["failedReason"]


@scenario()
def middleware_wraps_the_processor(world: World) -> None:
    app = world.simple(processor=lambda _job: ["processor"])
    app.use(lambda _job, go_on: ["outer", *go_on()])
    app.use(lambda _job, go_on: ["inner", *go_on()])

    job = app.add("x")

    assert ["outer", "inner", "processor"] == app.queue.wait_for_job(job.id, 10_000)


@scenario()
def tries_again_in_the_process_without_a_charge(world: World) -> None:
    runs: list[int] = []

    def processor(job) -> int:  # type: ignore[no-untyped-def]
        runs.append(job.attempts)
        if len(runs) < 3:
            raise RuntimeError("not yet")
        return len(runs)

    app = world.simple(
        processor=processor, retry={"max_attempts": 5, "strategy": "fixed", "delay": 20}
    )

    job = app.add("flaky")

    assert 3 == app.queue.wait_for_job(job.id, 10_000)
    assert [0, 0, 0] == runs
    assert 0 == app.get_job(job.id).attempts


@scenario()
def a_circuit_breaker_pauses_the_worker(world: World) -> None:
    healthy = threading.Event()

    def processor(_job) -> str:  # type: ignore[no-untyped-def]
        if not healthy.is_set():
            raise RuntimeError("down")
        return "up"

    app = world.simple(
        processor=processor, circuit_breaker={"threshold": 2, "reset_timeout": 60_000}
    )
    ids = app.add_bulk([{"name": "n", "attempts": 1} for _ in range(4)])
    until(lambda: app.get_circuit_state() == "open")
    assert app.is_paused() is True
    healthy.set()
    time.sleep(0.3)
    states = [app.queue.get_state(job_id) for job_id in ids]
    assert "completed" not in states
    assert "waiting" in states

    app.reset_circuit()

    assert "up" == app.queue.wait_for_job(ids[3], 10_000)
    assert "closed" == app.get_circuit_state()


@scenario()
def works_on_batches(world: World) -> None:
    sizes: list[int] = []

    def processor(jobs) -> list[int]:  # type: ignore[no-untyped-def]
        sizes.append(len(jobs))
        return [job.data["i"] * 10 for job in jobs]

    app = world.simple(batch={"size": 4, "timeout": 5_000, "processor": processor}, concurrency=8)

    ids = app.add_bulk([{"name": "n", "data": {"i": i}} for i in range(8)])

    assert [i * 10 for i in range(8)] == [app.queue.wait_for_job(i, 10_000) for i in ids]
    assert [4, 4] == sizes


@scenario()
def a_trigger_makes_the_next_job(world: World) -> None:
    app = world.simple(processor=lambda job: {"page": job.data["page"] + 1})
    seen = threading.Event()
    app.trigger(
        {
            "on": "fetch",
            "create": "follow",
            "condition": lambda result, _job: result["page"] < 3,
            "data": lambda result, _job: result,
            "opts": {"attempts": 9},
        }
    )
    app.on("completed", lambda job, _result: seen.set() if job.max_attempts == 9 else None)

    _add_named(app, "fetch", page=1)

    assert seen.wait(10)
    (followed,) = (job for job in app.queue.get_completed() if job.max_attempts == 9)
    assert ("follow", {"page": 2}) == (followed.raw["name"], followed.data)


@scenario()
def a_job_that_waited_too_long_is_not_worked(world: World) -> None:
    worked: list[str] = []
    app = world.simple(processor=lambda job: worked.append(job.id), ttl={"default_ttl": 100})
    app.pause()
    job = app.add("stale", attempts=1)
    time.sleep(0.2)
    app.resume()

    until(lambda: app.queue.get_state(job.id) == "failed")

    assert "Job expired" in app.get_job(job.id).raw["failedReason"]
    assert [] == worked
    app.set_default_ttl(60_000)
    fresh = app.add("fresh")
    app.queue.wait_for_job(fresh.id, 10_000)
    assert worked == [fresh.id]
    app.set_name_ttl("named", 1)
    request = {"cmd": "PUSH", "queue": app.name, "name": "named", "data": {"name": "named"}}
    named = str(app.queue.connection.call({**request, "delay": 30})["id"])  # it ages meanwhile
    until(lambda: app.get_job(named).attempts > 0)  # it is tried again


@scenario()
def old_jobs_gain_priority(world: World) -> None:
    aging = {"interval": 100, "min_age": 50, "boost": 3, "max_priority": 6}
    app = world.simple(processor=lambda _job: None, priority_aging=aging, autorun=False)
    job = app.add("old")

    until(lambda: app.get_job(job.id).priority == 6)

    assert "prioritized" == app.queue.get_state(job.id)


@scenario()
def cancels_a_job_that_asks_for_its_signal(world: World) -> None:
    begun = threading.Event()

    def processor(job) -> None:  # type: ignore[no-untyped-def]
        signal = app.get_signal(job.id)
        begun.set()
        until(lambda: signal.aborted, 10)
        raise RuntimeError(f"cancelled: {app.is_cancelled(job.id)}")

    app = world.simple(processor=processor)
    job = app.add("long", attempts=1)
    assert begun.wait(10)
    assert app.is_cancelled(job.id) is False

    app.cancel(job.id, grace_period_ms=50)

    until(lambda: app.queue.get_state(job.id) == "failed")
    assert "cancelled: True" == app.get_job(job.id).raw["failedReason"]


@scenario()
def equal_jobs_are_deduplicated(world: World) -> None:
    app = world.simple(processor=lambda _job: None, deduplication={"ttl": 60_000})
    app.pause()

    first, twin = app.add("sync", {"user": 1}), app.add("sync", {"user": 1})
    other = app.add("sync", {"user": 2})

    assert first.id == twin.id
    assert first.id != other.id
    assert 2 == app.get_job_counts()["paused"]


@scenario()
def a_debounce_is_kept_with_the_job(world: World) -> None:
    app = world.simple(processor=lambda _job: None, debounce={"ttl": 5_000})
    app.pause()  # the reference knows no job for a moment while it completes it

    job = app.add("typing")

    raw = app.get_job(job.id).raw
    assert ("typing", 5_000) == (raw["debounceId"], raw["debounceTtl"])


@scenario()
def schedules_in_one_line(world: World) -> None:
    ran = threading.Event()
    app = world.simple(processor=lambda job: ran.set() if job.data == {"n": 1} else None)
    app.cron(f"{app.name}-night", "0 3 * * *", {"n": 2}, timezone="Europe/Rome")
    app.every(f"{app.name}-tick", 200, {"n": 1}, limit=5, job_opts={"attempts": 2})

    assert ran.wait(10)

    assert {f"{app.name}-night", f"{app.name}-tick"} >= {each["name"] for each in app.list_crons()}
    app.remove_cron(f"{app.name}-night")
    assert f"{app.name}-night" not in [each["name"] for each in app.list_crons()]


@scenario()
def pauses_queue_and_worker(world: World) -> None:
    app = world.simple(processor=lambda _job: "worked")
    app.pause()
    job = app.add("held")
    assert (True, True) == (app.is_paused(), app.queue.is_paused())
    time.sleep(0.3)
    assert "waiting" == app.queue.get_state(job.id)

    app.resume()

    assert "worked" == app.queue.wait_for_job(job.id, 10_000)
    assert (False, True, False) == (app.is_paused(), app.is_running(), app.is_closed())


@scenario()
def starts_only_so_many_per_window(world: World) -> None:
    starts: list[float] = []
    app = world.simple(
        processor=lambda _job: starts.append(time.monotonic()),
        rate_limit={"max": 2, "duration": 400, "group_key": "user"},
        concurrency=6,
    )

    app.add_bulk([{"name": "n", "data": {"user": "ann"}} for _ in range(4)])

    until(lambda: len(starts) == 4)
    assert sorted(starts)[2] - sorted(starts)[0] > 0.35


@scenario()
def sets_what_becomes_of_dead_letters(world: World) -> None:
    app = world.simple(processor=lambda _job: None, dlq={"maxEntries": 5})

    assert 5 == app.queue.get_dlq_config()["maxEntries"]


@scenario()
def tells_its_listeners(world: World) -> None:
    app = world.simple(processor=lambda _job: "r")
    heard: list[object] = []
    app.on("completed", lambda _job, result: heard.append(result))
    app.once("completed", lambda _job, result: heard.append(f"once {result}"))
    app.off("completed", print)

    for job in (app.add("a"), app.add("b")):
        app.queue.wait_for_job(job.id, 10_000)

    until(lambda: len(heard) == 3)
    assert ["r", "once r", "r"] == heard


@scenario()
def closes_and_takes_nothing_more(world: World) -> None:
    app = world.simple(processor=lambda _job: None)
    name = app.name

    app.close()

    assert app.is_closed() is True
    queue = world.queue(name)
    job = queue.add("late")
    time.sleep(0.3)
    assert "waiting" == queue.get_state(job.id)


@scenario("auth")
def simple_mode_shows_its_token(world: World) -> None:
    app = world.simple(processor=lambda _job: "let in", token="first")

    assert "let in" == app.queue.wait_for_job(app.add("x").id, 10_000)


@scenario("tls")
def simple_mode_works_over_tls(world: World) -> None:
    app = world.simple(processor=lambda _job: "sealed")

    assert "sealed" == app.queue.wait_for_job(app.add("x").id, 10_000)


@scenario()
def simple_mode_refuses_what_the_server_refuses(world: World) -> None:
    app = world.simple(processor=lambda _job: None)

    raises(CommandError, "priority must be at most", lambda: app.add("x", priority=10_000_000))
