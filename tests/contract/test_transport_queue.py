"""What a Queue and a Job do beside adding and reading, over TCP and embedded alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bunqueue import CommandError, FlowProducer, Job, QueueGroup
from bunqueue.client.worlds import is_patched
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

FAR_MS = 3_600_000


# -- groups --------------------------------------------------------------------------------------


def test_the_jobs_of_a_group_are_counted_and_listed(transport: Transport) -> None:
    queue = transport.queue()
    ids = [
        queue.add("x", priority=priority, delay=delay, group_id=7).id
        for priority, delay in ((2, None), (None, None), (2, FAR_MS))
    ]
    queue.add("x", group_id="other")

    assert (3, 1, 0) == (
        queue.get_group_jobs_count(7),
        queue.get_group_jobs_count("other"),
        queue.get_group_active_count("7"),
    )
    assert (4, 2) == (queue.get_groups_jobs_count(), queue.get_groups_jobs_count(2))
    assert sorted(ids) == sorted(job.id for job in queue.get_group_jobs("7"))
    assert 1 == len(queue.get_group_jobs(7, 1, 1))
    assert {"2": 2, "0": 1} == queue.get_counts_per_priority_for_group(7)


def test_a_paused_groups_jobs_are_not_handed_out(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("grouped", group_id="g")
    worker = transport.worker(lambda _job: None, autorun=False)

    assert (True, False, True) == (
        queue.pause_group("g"),
        queue.pause_group("g"),
        queue.is_group_paused("g"),
    )
    assert None is worker.get_next_job()
    assert (True, False, False) == (
        queue.resume_group("g"),
        queue.resume_group("g"),
        queue.is_group_paused("g"),
    )
    assert 1 == worker_takes(worker)
    assert 1 == queue.get_group_active_count("g")


def worker_takes(worker: Any) -> int:
    return 0 if worker.get_next_job() is None else 1


def test_a_groups_limits_are_read_back_and_removed(transport: Transport) -> None:
    queue = transport.queue()
    queue.set_group_rate_limit("g", 5, 60_000)
    queue.set_group_concurrency("g", 2)

    assert {"max": 5, "duration": 60_000} == queue.get_group_rate_limit("g")
    assert 2 == queue.get_group_concurrency("g")
    assert (1, 0) == (queue.remove_group_rate_limit("g"), queue.remove_group_rate_limit("g"))
    assert (1, 0) == (queue.remove_group_concurrency("g"), queue.remove_group_concurrency("g"))
    assert None is queue.get_group_rate_limit("g")
    assert None is queue.get_group_concurrency("g")


def test_a_resting_group_tells_for_how_long(transport: Transport) -> None:
    queue = transport.queue()

    assert -2 == queue.get_group_rate_limit_ttl("g")
    queue.rate_limit_group("g", FAR_MS)

    assert 0 < queue.get_group_rate_limit_ttl("g") <= FAR_MS


def test_a_group_without_an_id_is_refused(transport: Transport) -> None:
    with pytest.raises(CommandError, match="groupId must be a non-empty string"):
        transport.queue().get_group_jobs_count("")


# -- dependencies --------------------------------------------------------------------------------


def family(transport: Transport, count: int) -> tuple[str, list[str]]:
    """Return the ids of a parent and of its children, of which the first ``count`` are done."""
    name = transport.queue_name
    with FlowProducer(**transport.options) as producer:
        # By priority, so that they are taken in this order.
        children = [
            {"name": f"c{n}", "queueName": name, "opts": {"priority": 9 - n}} for n in range(3)
        ]
        node = producer.add({"name": "parent", "queueName": name, "children": children})
    worker = transport.worker(lambda _job: None, autorun=False)
    for _ in range(count):
        job = worker.get_next_job()
        assert job is not None
        job.move_to_completed({"did": job.name})
    return node.job.id, [child.job.id for child in node.children]


def test_a_parents_dependencies_are_told_by_what_became_of_them(transport: Transport) -> None:
    queue = transport.queue()
    parent_id, (first, *rest) = family(transport, 1)
    parent = queue.get_job(parent_id)
    assert parent is not None

    told = queue.get_job_dependencies(parent_id)

    assert {f"{queue.queue_key}:{first}": {"did": "c0"}} == told["processed"]
    assert sorted(rest) == told["unprocessed"]
    assert (0, 0) == (told["next_processed_cursor"], told["next_unprocessed_cursor"])
    assert told == parent.get_dependencies()
    assert {"processed": 1, "unprocessed": 2} == queue.get_job_dependencies_count(parent_id)
    assert {"processed": 1, "unprocessed": 2} == parent.get_dependencies_count()


def test_dependencies_come_in_pages_and_sides(transport: Transport) -> None:
    queue = transport.queue()
    parent_id, ids = family(transport, 0)
    ids.sort()

    first = queue.get_job_dependencies(parent_id, unprocessed={"count": 2})
    second = queue.get_job_dependencies(parent_id, unprocessed={"cursor": 2, "count": 2})

    assert (ids[:2], 2) == (first["unprocessed"], first["next_unprocessed_cursor"])
    assert (ids[2:], 0) == (second["unprocessed"], second["next_unprocessed_cursor"])
    assert {"processed": {}, "unprocessed": ids[1:]} == queue.get_dependencies(parent_id, start=1)
    assert [] == queue.get_dependencies(parent_id, "processed")["unprocessed"]
    assert ids[:2] == queue.get_dependencies(parent_id, "unprocessed", 0, 1)["unprocessed"]
    with pytest.raises(ValueError, match="processed"):
        queue.get_dependencies(parent_id, "others")


def test_a_parent_is_named_by_its_queue_whatever_the_prefix(transport: Transport) -> None:
    queue = transport.queue(prefix_key="p:")
    parent = queue.add("parent", delay=FAR_MS)

    child = queue.add("child", {"n": 1}, parent={"id": parent.id, "queue": queue.name})

    found = child.refresh()
    assert {"id": parent.id, "queue": queue.queue_key} == found.parent
    assert [child.id] == parent.refresh().children_ids
    assert f"{queue.queue_key}:{parent.id}" == found.parent_key


def test_a_missing_job_depends_on_nothing(transport: Transport) -> None:
    queue = transport.queue()

    told = queue.get_job_dependencies("nobody")

    assert ({}, []) == (told["processed"], told["unprocessed"])
    assert {"processed": 0, "unprocessed": 0} == queue.get_job_dependencies_count("nobody")


# -- the broker ----------------------------------------------------------------------------------


def test_webhooks_are_added_listed_switched_and_removed(transport: Transport) -> None:
    queue = transport.queue()

    webhook_id = queue.add_webhook(
        "https://hooks.example.com/x", ["job.completed"], queue=queue.name, secret="s3cret"
    )

    def mine() -> list[dict[str, Any]]:
        return [one for one in queue.list_webhooks() if one["id"] == webhook_id]

    (listed,) = mine()
    assert (queue.queue_key, ["job.completed"], True) == (
        listed["queue"],
        listed["events"],
        listed["enabled"],
    )
    assert "s3cret" not in str(listed)
    assert webhook_id is not None
    queue.set_webhook_enabled(webhook_id, False)
    assert [False] == [one["enabled"] for one in mine()]
    queue.remove_webhook(webhook_id)
    assert [] == mine()
    with pytest.raises(CommandError, match="Webhook not found"):
        queue.remove_webhook(webhook_id)


def test_metrics_are_told_of_the_broker_and_of_the_queue_by_minute(transport: Transport) -> None:
    queue = transport.queue()
    queue.add("x")
    job = transport.worker(lambda _job: None, autorun=False).get_next_job()
    assert job is not None
    job.move_to_completed(1)

    assert 1 <= queue.get_metrics()["totalCompleted"]
    minutes = queue.get_metrics("completed")
    assert (1, 1) == (sum(minutes["data"]), minutes["count"])
    assert 0 == queue.get_metrics("failed")["count"]
    with pytest.raises(ValueError, match="completed"):
        queue.get_metrics("waiting")


def test_events_are_trimmed_and_the_storage_asked(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": "x"}] * 3)

    assert (2, 0) == (queue.trim_events(1), queue.trim_events(1))
    assert False is queue.storage_status()["diskFull"]


def test_workers_of_this_queue_are_told_apart(transport: Transport) -> None:
    queue = transport.queue()
    worker = transport.worker(lambda _job: None)
    worker.wait_until_ready()

    names = [one["name"] for one in queue.get_workers(scope="queue")]
    assert [worker.name] == names
    assert 1 == queue.get_workers_count(scope="queue") <= queue.get_workers_count()
    with pytest.raises(ValueError, match="scope"):
        queue.get_workers(scope="planet")


# -- prefix, defaults, lifecycle ------------------------------------------------------------------


def test_queues_of_two_prefixes_share_nothing(transport: Transport) -> None:
    one, two = transport.queue(prefix_key="one:"), transport.queue(prefix_key="two:")
    one.add("x")
    one.upsert_job_scheduler("nightly", {"every": FAR_MS})
    two.upsert_job_scheduler("nightly", {"every": FAR_MS * 2})

    assert (1, 0) == (one.count(), two.count())
    assert [FAR_MS] == [one["every"] for one in one.get_job_schedulers()]
    assert FAR_MS * 2 == (two.get_job_scheduler("nightly") or {})["every"]
    assert one.name == two.name == transport.queue_name
    one.remove_job_scheduler("nightly")
    two.remove_job_scheduler("nightly")


def test_defaults_lie_under_the_options_of_each_job(transport: Transport) -> None:
    queue = transport.queue(default_job_options={"priority": 3, "attempts": 5})

    jobs = [queue.add("a"), queue.add("b", priority=7), *queue.add_bulk_jobs([{"name": "c"}])]

    found = [queue.get_job(job.id) for job in jobs]
    assert [(3, 5), (7, 5), (3, 5)] == [(job.priority, job.max_attempts) for job in found if job]
    with pytest.raises(TypeError, match="prioritty"):
        transport.queue(default_job_options={"prioritty": 3})


def test_all_jobs_are_read_page_by_page(transport: Transport) -> None:
    queue = transport.queue()
    queue.add_bulk([{"name": str(n)} for n in range(7)])

    names = [job.name for job in queue.iter_jobs(page_size=3)]

    assert [str(n) for n in range(7)] == names
    assert names[::-1] == [job.name for job in queue.get_jobs(end=-1, asc=False)]
    assert names[2:4] == [job.name for job in queue.get_jobs("waiting", 2, 4)]


def test_closing_lets_adds_of_other_threads_end(transport: Transport) -> None:
    queue = transport.queue()
    reader = transport.queue()
    errors: list[BaseException] = []
    ready = threading.Barrier(17)

    def add() -> None:
        ready.wait()
        try:
            queue.add("x")
        except Exception as error:  # every kind counts
            errors.append(error)

    threads = [threading.Thread(target=add) for _ in range(16)]
    for thread in threads:
        thread.start()
    ready.wait()
    while not reader.count():
        time.sleep(0.001)  # at least one is through: the rest is on its way or not begun
    queue.close()
    for thread in threads:
        thread.join()

    assert 16 == reader.count() + len(errors)
    assert {"connection closed by client"} >= {str(error) for error in errors}


# -- jobs ----------------------------------------------------------------------------------------


def test_a_job_tells_its_state(transport: Transport) -> None:
    queue = transport.queue()
    waiting, delayed = queue.add("x"), queue.add("x", delay=FAR_MS)

    assert (True, False) == (waiting.is_waiting(), waiting.is_delayed())
    assert (False, True) == (delayed.is_waiting(), delayed.is_delayed())
    worker = transport.worker(lambda _job: None, autorun=False)
    job = worker.get_next_job()
    assert job is not None
    assert (True, False) == (job.is_active(), job.is_completed())
    job.move_to_completed("result")
    assert (False, True) == (job.is_active(), job.is_completed())
    assert "result" == waiting.refresh().returnvalue
    assert ("completed", "result") == (waiting.state, waiting.wait_until_finished())


def test_a_job_is_failed_and_retried_by_hand(transport: Transport) -> None:
    queue = transport.queue()
    added = queue.add("x", attempts=1)
    worker = transport.worker(lambda _job: None, autorun=False)
    job = worker.get_next_job()
    assert job is not None

    job.move_to_failed(ValueError("broken"))

    assert (True, "broken") == (added.is_failed(), added.refresh().failed_reason)
    assert "ValueError: broken" in str(added.stacktrace)
    added.retry()
    assert added.is_waiting()


def test_a_jobs_key_is_released(transport: Transport) -> None:
    queue = transport.queue()
    first = queue.add("x", deduplication={"id": "key", "ttl": FAR_MS})

    assert first.id == queue.get_deduplication_job_id("key")
    assert (True, False) == (first.remove_deduplication_key(), first.remove_deduplication_key())
    assert first.id != queue.add("x", deduplication={"id": "key"}).id


def test_a_job_without_a_connection_says_so() -> None:
    job: Job[Any] = Job({"id": "1", "queue": "q"})

    for operation in (job.get_state, job.remove, job.get_dependencies, job.wait_until_finished):
        with pytest.raises(RuntimeError, match="not bound"):
            operation()
    assert [job] == job.get_batch()


def test_a_handler_may_close_its_own_group(transport: Transport) -> None:
    group = QueueGroup(f"{transport.queue_name}-group", **transport.options)
    queue = group.get_queue("a")
    job = queue.add("x")
    worker = group.get_worker("a", lambda _job: group.close())

    assert worker.closed.wait(10)
    assert "completed" == transport.queue().get_state(job.id)


# -- waiting -------------------------------------------------------------------------------------


def test_many_who_wait_for_jobs_hold_nobody_else_up(transport: Transport) -> None:
    """A broker runs 50 commands of a connection at once, and reads no further one meanwhile."""
    queue = transport.queue(command_timeout=3)
    jobs = [queue.add("x", delay=FAR_MS) for _ in range(60)]
    results: list[Any] = []
    waiting = [
        threading.Thread(target=lambda job=job: results.append(queue.wait_for_job(job.id, 60_000)))
        for job in jobs
    ]
    for thread in waiting:
        thread.start()

    pings = []
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        pings.append(queue.ping())
    assert all(pings)

    queue.promote_jobs()
    transport.worker(lambda _job: 7, concurrency=8)
    for thread in waiting:
        thread.join(30)
    assert [7] * 60 == results


@pytest.mark.skipif(not is_patched(), reason="threads cannot be killed")
def test_those_who_have_left_their_wait_hold_nobody_else_up(transport: Transport) -> None:
    """The broker goes on waiting for them, for as long as it was told to."""
    import gevent

    queue = transport.queue(command_timeout=3)
    job = queue.add("x", delay=FAR_MS)

    def leave() -> None:
        with gevent.Timeout(0.2, False):
            queue.wait_for_job(job.id)

    gevent.joinall([gevent.spawn(leave) for _ in range(60)])

    assert queue.ping()
