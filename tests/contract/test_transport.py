"""What a Queue does, over TCP and embedded: the same sentences, the same code."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from bunqueue import (
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    JobFailedError,
    Queue,
    SerializationError,
)
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]


def test_a_job_added_is_read_back_as_it_was(transport: Transport) -> None:
    queue = transport.queue()
    data = {"text": "héllo", "list": [1, 2.5, None, True], "nested": {"bytes": b"\x00\xff"}}

    added = queue.add("greet", data, priority=7, tags=["a", "b"])

    found = queue.get_job(added.id)
    assert found is not None
    assert ("greet", data, 7, ["a", "b"]) == (found.name, found.data, found.priority, found.tags)
    assert "prioritized" == found.state


@pytest.mark.parametrize("number", [2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_wide_integers_survive_between_python_peers(transport: Transport, number: int) -> None:
    queue = transport.queue()

    job = queue.add("count", {"n": number})

    found = queue.get_job(job.id)
    assert found is not None
    assert number == found.data["n"]
    assert int is type(found.data["n"])


@pytest.mark.parametrize("number", [2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_results_and_progress_are_as_exact_as_data(transport: Transport, number: int) -> None:
    queue = transport.queue()
    queue.add("x", [number])
    job = transport.worker(lambda _job: None, autorun=False).get_next_job()
    assert job is not None
    assert [number] == job.data

    job.move_to_completed({"n": number})

    assert {"n": number} == queue.get_result(job.id)
    found = queue.get_job(job.id)
    assert found is not None
    assert {"n": number} == found.returnvalue


def test_a_peer_that_does_not_ask_for_exact_integers_never_sees_one(
    transport: Transport, request: pytest.FixtureRequest
) -> None:
    if transport.options.get("embedded"):
        pytest.skip("an embedded peer always takes them")
    queue, broker = transport.queue(), request.getfixturevalue("tcp_broker")
    job = queue.add("x", {"wide": 2**53, "small": 7, "list": [-(2**40)]})

    with Queue(queue.name, connection={"port": broker.port, "negotiate": False}) as old:
        found = old.get_job(job.id)
    assert found is not None
    assert {"wide": 2.0**53, "small": 7, "list": [-(2.0**40)]} == found.data
    assert [float, int, float] == [
        type(found.data["wide"]),
        type(found.data["small"]),
        type(found.data["list"][0]),
    ]
    assert int is type(found.created_at)


@pytest.mark.parametrize(
    ("policy", "sent", "read"),
    [
        ("float", 2**53 + 1, float(2**53 + 1)),
        ("string", 2**70, str(2**70)),
        ("tag", 2**70, 2**70),
        ("auto", 2**70, float(2**70)),
    ],
)
def test_the_policy_decides_over_what_no_link_carries(
    transport: Transport, policy: str, sent: int, read: object
) -> None:
    queue = transport.queue(int64=policy)
    job = queue.add("x", {"n": sent})

    found = transport.queue().get_job(job.id)
    assert found is not None
    assert (read, type(read)) == (found.data["n"], type(found.data["n"]))


def test_who_wants_floats_reads_floats(transport: Transport) -> None:
    job = transport.queue().add("x", {"n": 2**40})

    found = transport.queue(int64="float").get_job(job.id)
    assert found is not None
    assert (2.0**40, float) == (found.data["n"], type(found.data["n"]))


def test_wide_floats_of_payloads_are_restored_where_asked(transport: Transport) -> None:
    job = transport.queue().add("x", {"n": 2.0**40, "half": 0.5, "beyond": 2.0**60, "small": 5.0})

    found = transport.queue(restore_ints=True).get_job(job.id)
    assert found is not None
    assert {"n": int, "half": float, "beyond": float} == {
        key: type(found.data[key]) for key in ("n", "half", "beyond")
    }


def test_data_is_not_shared_with_the_broker(transport: Transport) -> None:
    queue = transport.queue()
    data = {"list": [1]}

    job = queue.add("copy", data)
    data["list"].append(2)

    found = queue.get_job(job.id)
    assert found is not None
    assert {"list": [1]} == found.data


def test_a_bulk_returns_ids_in_order(transport: Transport) -> None:
    queue = transport.queue()

    wanted = [f"{queue.name}-{n}" for n in range(5)]

    assert wanted == queue.add_bulk([{"name": "n", "job_id": job_id} for job_id in wanted])
    assert [] == queue.add_bulk([])


def test_bulk_options_may_sit_beside_the_data_or_under_opts(transport: Transport) -> None:
    queue = transport.queue()

    jobs = queue.add_bulk_jobs(
        [{"name": "a", "delay": timedelta(hours=1)}, {"name": "b", "opts": {"priority": 2}}]
    )

    assert ["delayed", "prioritized"] == [job.get_state() for job in jobs]


def test_a_refused_option_raises_with_the_brokers_text(transport: Transport) -> None:
    queue = transport.queue()

    with pytest.raises(CommandError, match="maxAttempts must be at most 1000") as refused:
        queue.add("x", attempts=5000)

    assert "PUSH" == refused.value.command
    assert 0 == queue.count()


def test_what_has_no_form_on_the_wire_is_refused_before_anything_is_sent(
    transport: Transport,
) -> None:
    queue = transport.queue()
    cycle: list[object] = []
    cycle.append(cycle)

    for data in (object(), {1: "key"}, cycle):
        with pytest.raises(SerializationError):
            queue.add("x", data)

    assert 0 == queue.count()


def test_an_unknown_option_raises_before_anything_is_sent(transport: Transport) -> None:
    queue = transport.queue()

    with pytest.raises(TypeError, match="prioritty"):
        queue.add("x", prioritty=1)

    assert 0 == queue.count()


def test_concurrent_adds_each_get_their_own_id_or_their_own_error(transport: Transport) -> None:
    queue = transport.queue()
    ids: list[str] = []
    errors: list[BaseException] = []

    def add(number: int) -> None:
        try:
            ids.append(queue.add("x", number, priority=10**9 if number == 25 else None).id)
        except CommandError as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 49 == len(set(ids))
    assert ["priority must be at most 1000000"] == [str(error) for error in errors]
    assert 49 == queue.count()


def test_the_same_custom_id_is_one_job(transport: Transport) -> None:
    queue = transport.queue()
    custom_id = f"{queue.name}-once"

    first, second = queue.add("x", 1, job_id=custom_id), queue.add("x", 2, job_id=custom_id)

    assert first.id == second.id
    found = queue.get_job_by_custom_id(custom_id)
    assert found is not None
    assert 1 == found.data


def test_what_does_not_exist_is_none_for_reads_and_an_error_for_writes(
    transport: Transport,
) -> None:
    queue = transport.queue()

    assert queue.get_job("nobody") is None
    assert queue.get_job_by_custom_id("nobody") is None
    assert "unknown" == queue.get_state("nobody")
    assert "nothing" == queue.get_result("nobody", "nothing")
    assert [] == queue.get_job_logs("nobody")
    with pytest.raises(CommandError, match="Job not found"):
        queue.promote_job("nobody")


def test_states_lists_and_counts_agree(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("w")
    queue.add("p", priority=1)
    queue.add("d", delay=60_000)

    counts = queue.get_job_counts()

    assert (1, 1, 1) == (counts["waiting"], counts["prioritized"], counts["delayed"])
    assert (1, 1, 1) == (
        len(queue.get_waiting()),
        len(queue.get_prioritized()),
        len(queue.get_delayed()),
    )
    assert 3 == queue.count()
    assert {"0": 2, "1": 1} == queue.get_counts_per_priority()
    assert 3 == len(queue.get_jobs(end=-1))
    assert ["d", "p", "w"] == [job.name for job in queue.iter_jobs(page_size=2, asc=False)]


def test_a_delayed_job_can_be_promoted_and_a_queued_one_removed(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("later", delay=60_000)

    job.promote()
    assert job.is_waiting()

    job.remove()
    assert "unknown" == job.get_state()


def test_pause_and_resume(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x")

    queue.pause()
    assert queue.is_paused()
    assert 1 == queue.get_job_counts()["paused"]

    queue.resume()
    assert not queue.is_paused()


def test_limits_are_read_back(transport: Transport) -> None:
    queue = transport.queue()
    queue.set_global_rate_limit(5, 2000)
    queue.set_global_concurrency(3)

    assert {"max": 5, "duration": 2000} == queue.get_global_rate_limit()
    assert 3 == queue.get_global_concurrency()
    assert not queue.is_maxed()

    queue.remove_global_rate_limit()
    queue.remove_global_concurrency()
    assert queue.get_global_rate_limit() is None
    assert queue.get_global_concurrency() is None
    assert -2 == queue.get_rate_limit_ttl()


def test_dead_letters_are_listed_counted_and_retried(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("dead")
    job.discard()

    (entry,) = queue.get_dlq_entries()
    assert (job.id, "unknown") == (entry.job.id, entry.reason)
    assert 1 == queue.get_dlq_stats().total
    assert [job.id] == [one.id for one in queue.get_dlq_jobs()]

    assert 1 == queue.retry_jobs()
    assert "waiting" == job.get_state()


def test_settings_are_merged(transport: Transport) -> None:
    queue = transport.queue()
    queue.set_dlq_config(auto_retry=True, max_entries=7)
    queue.set_stall_config({"maxStalls": 9})

    assert (True, 7) == tuple(queue.get_dlq_config()[key] for key in ("autoRetry", "maxEntries"))
    assert 9 == queue.get_stall_config()["maxStalls"]
    with pytest.raises(TypeError, match="max_entrys"):
        queue.set_dlq_config(max_entrys=1)


def test_cleaning_returns_how_many_and_which(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")

    cleaned = queue.clean(0, state="waiting")

    assert 1 == cleaned
    assert [job.id] == cleaned.ids


def test_a_deduplication_key_refuses_a_twin_until_it_is_removed(transport: Transport) -> None:
    queue = transport.queue()
    first = queue.add("x", deduplication={"id": "key"})

    assert first.id == queue.add("x", deduplication={"id": "key"}).id
    assert first.id == queue.get_deduplication_job_id("key")

    assert 1 == queue.remove_deduplication_key("key")
    assert queue.get_deduplication_job_id("key") is None
    assert first.id != queue.add("x", deduplication={"id": "key"}).id


def test_logs_are_kept_in_order(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    job.log("one")
    queue.add_job_log(job.id, "two", "warn")

    logs = queue.get_job_logs(job.id)

    assert [("one", "info"), ("two", "warn")] == [(one["message"], one["level"]) for one in logs]
    assert 2 == logs.count
    job.clear_logs()
    assert 0 == queue.get_job_logs(job.id).count


def test_waiting_ends_with_the_result(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")
    transport.worker(lambda _job: {"sum": 3})

    assert {"sum": 3} == queue.wait_for_job(job.id, 10_000)


def test_waiting_for_a_job_that_fails_ends_early(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x", attempts=1)

    def fail(_job: object) -> None:
        raise ValueError("no good")

    transport.worker(fail)
    began = time.monotonic()

    with pytest.raises(JobFailedError, match="no good") as failed:
        job.wait_until_finished(ttl_ms=20_000)

    assert (job.id, "no good") == (failed.value.job_id, failed.value.failed_reason)
    assert time.monotonic() - began < 5


def test_waiting_for_a_job_that_is_gone_says_so(transport: Transport) -> None:
    with pytest.raises(CommandError, match="Job not found"):
        transport.queue().wait_for_job("nobody", 5000)


def test_waiting_has_an_end(transport: Transport) -> None:
    queue = transport.queue()
    job = queue.add("x")

    with pytest.raises(CommandTimeoutError, match="waitUntilFinished timed out after 50ms"):
        queue.wait_for_job(job.id, 50)


def test_a_closed_queue_stays_closed(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x")
    queue.close()
    queue.close()

    with pytest.raises(ConnectionClosedError, match="connection closed by client"):
        queue.add("y")


def test_a_shared_connection_is_left_open(transport: Transport) -> None:
    first = transport.queue()
    second = transport.queue("other", connection=first.connection)
    second.add("x")
    second.close()

    first.add("x")
    assert 1 == first.count()


def test_a_prefix_keeps_queues_apart(transport: Transport) -> None:
    plain = transport.queue()
    prefixed = transport.queue(prefix_key="ns:")
    prefixed.add("x")

    assert (0, 1) == (plain.count(), prefixed.count())
    assert (plain.name, f"ns:{plain.name}") == (str(prefixed.name), prefixed.queue_key)
    assert 1 == transport.queue(prefixed.name).count()


def test_the_broker_is_asked_for_figures(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x")

    assert queue.ping()
    assert queue.queue_key in queue.list_queues()
    assert 1 <= queue.get_stats()["waiting"]
    assert [] == queue.get_workers(scope="queue")
