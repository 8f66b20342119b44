"""Scenarios: jobs go in."""

from __future__ import annotations

import threading
import time

from scenario import World, raises, scenario

from bunqueue import CommandError


@scenario()
def adds_a_job_and_reads_it_back(world: World) -> None:
    queue = world.queue()
    before = time.time() * 1000 - 1000

    job = queue.add("send", {"to": "a@example.org"}, priority=5, attempts=7, tags=["x", "y"])

    read = queue.get_job(job.id)
    assert (job.id, queue.name) == (read.id, read.queue)
    assert {"to": "a@example.org"} == read.data
    assert (5, 7, 0) == (read.priority, read.max_attempts, read.attempts)
    assert ["x", "y"] == read.tags
    assert before < read.created_at < time.time() * 1000 + 1000
    assert "send" == read.raw["name"]


@scenario()
def adds_in_bulk_in_the_given_order(world: World) -> None:
    queue = world.queue()

    ids = queue.add_bulk([{"name": "n", "data": {"i": i}} for i in range(250)])

    assert 250 == len(set(ids))
    assert [{"i": i} for i in range(250)] == [job.data for job in queue.get_waiting()]
    assert ids == [job.id for job in queue.get_waiting()]


@scenario()
def adds_nothing_in_an_empty_bulk(world: World) -> None:
    assert [] == world.queue().add_bulk([])


@scenario()
def refuses_a_bulk_with_one_bad_job_as_a_whole(world: World) -> None:
    queue = world.queue()
    jobs = [{"name": "good"}, {"name": "bad", "priority": 10_000_000}]

    raises(CommandError, "jobs[1]: priority must be at most 1000000", lambda: queue.add_bulk(jobs))

    assert 0 == queue.count()


@scenario()
def keeps_values_of_all_kinds(world: World) -> None:
    queue = world.queue()
    data = {
        "text": "Zażółć gęślą jaźń \U0001f41d\u0000",
        "numbers": [0, -1, 2**31, 1.5, -0.25],
        "nothing": None,
        "truth": [True, False],
        "bytes": b"\x00\xff",
        "deep": {"a": [{"b": [[], {}]}]},
        "__proto__": "plain key",
    }

    job = queue.add("kinds", data)

    assert data == queue.get_job(job.id).data


@scenario()
def keeps_a_payload_of_a_megabyte(world: World) -> None:
    queue = world.queue()
    job = queue.add("big", {"body": "x" * 1_000_000})

    assert 1_000_000 == len(queue.get_job(job.id).data["body"])


@scenario()
def adds_data_that_is_no_map_as_payload(world: World) -> None:
    queue = world.queue()
    job = queue.add("list", [1, 2, 3])

    assert {"payload": [1, 2, 3]} == queue.get_job(job.id).data


@scenario()
def adds_durably(world: World) -> None:
    queue = world.queue()
    job = queue.add("safe", {"n": 1}, durable=True)

    assert queue.get_job(job.id).raw["durable"] is True


@scenario()
def a_custom_id_is_added_once(world: World) -> None:
    queue = world.queue()
    first = queue.add("pay", {"n": 1}, job_id="order-77")
    second = queue.add("pay", {"n": 2}, job_id="order-77")

    assert ("order-77", "order-77") == (first.id, second.id)
    assert 1 == queue.count()
    assert {"n": 1} == queue.get_job_by_custom_id("order-77").data
    assert queue.get_job_by_custom_id("order-78") is None


@scenario()
def a_custom_id_works_in_bulk(world: World) -> None:
    queue = world.queue()
    ids = queue.add_bulk([{"name": "a", "job_id": "bulk-a"}, {"name": "b"}])

    assert "bulk-a" == ids[0]
    assert "bulk-a" == queue.get_job_by_custom_id("bulk-a").id


@scenario()
def a_custom_id_is_free_again_after_completion(world: World) -> None:
    queue = world.queue()
    queue.add("once", {"n": 1}, job_id="again")
    job, _ = world.pull(queue)
    queue.move_job_to_completed(job["id"], {"done": 1})

    queue.add("once", {"n": 2}, job_id="again")

    assert "waiting" == queue.get_state("again")
    assert {"n": 2} == queue.get_job("again").data


@scenario()
def a_unique_key_refuses_a_twin_while_the_first_lives(world: World) -> None:
    queue = world.queue()
    first = queue.add("sync", {"n": 1}, unique_key="user-1")
    twin = queue.add("sync", {"n": 2}, unique_key="user-1")
    other = queue.add("sync", {"n": 3}, unique_key="user-2")

    assert first.id == twin.id
    assert first.id != other.id
    assert 2 == queue.count()


@scenario()
def a_unique_key_is_free_after_completion(world: World) -> None:
    queue = world.queue()
    first = queue.add("sync", unique_key="k")
    job, token = world.pull(queue, owner="me")
    queue.move_job_to_completed(job["id"], token=token)

    assert first.id != queue.add("sync", unique_key="k").id


@scenario()
def keeps_a_key_while_the_job_waits_for_its_retry(world: World) -> None:
    """2.9.5 lets go of the key at every failure; both are accepted here."""
    queue = world.queue()
    first = queue.add("sync", {"n": 1}, unique_key="k", backoff=60_000)
    job, token = world.pull(queue, owner="me")
    queue.move_job_to_failed(job["id"], "no", token)
    twin = queue.add("sync", {"n": 2}, unique_key="k")

    assert "delayed" == queue.get_state(first.id)
    assert twin.id == first.id or queue.get_state(twin.id) == "waiting"


@scenario()
def a_replacing_twin_takes_the_place_of_the_first(world: World) -> None:
    queue = world.queue()
    first = queue.add("index", {"n": 1}, deduplication={"id": "page"})
    second = queue.add("index", {"n": 2}, deduplication={"id": "page", "replace": True})

    assert first.id != second.id
    assert "unknown" == queue.get_state(first.id)
    assert [{"n": 2}] == [job.data for job in queue.get_waiting()]


@scenario()
def a_key_with_a_time_to_live_ends_by_itself(world: World) -> None:
    queue = world.queue()
    first = queue.add("tick", deduplication={"id": "slot", "ttl": 300})
    assert first.id == queue.add("tick", deduplication={"id": "slot", "ttl": 300}).id

    time.sleep(0.4)

    assert first.id != queue.add("tick", deduplication={"id": "slot", "ttl": 300}).id


@scenario()
def serves_many_threads_on_one_connection(world: World) -> None:
    queue = world.queue()
    ids: list[str] = []

    def produce(number: int) -> None:
        ids.extend(queue.add("n", {"thread": number, "i": i}).id for i in range(50))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 400 == len(set(ids))
    assert 400 == queue.count()


@scenario()
def refuses_bad_names_and_numbers_in_words(world: World) -> None:
    bad = world.queue("no spaces allowed")
    raises(CommandError, "Queue name contains invalid characters", lambda: bad.add("x"))

    queue = world.queue()
    for text, options in (
        ("priority must be at most 1000000", {"priority": 1_000_001}),
        ("delay must be at least 0", {"delay": -1}),
        ("maxAttempts must be at least 1", {"attempts": 0}),
        ("timeout must be at most 86400000", {"timeout": 86_400_001}),
        ("backoff.type must be 'fixed' or 'exponential'", {"backoff": {"type": "x", "delay": 1}}),
    ):
        raises(CommandError, text, lambda options=options: queue.add("x", **options))
    assert 0 == queue.count()
