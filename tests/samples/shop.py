"""A small application that uses the whole client, for the type checker and to be run.

What it must not write is written too, with the error a checker finds there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypedDict

from bunqueue import (
    Bunqueue,
    CommandError,
    Connection,
    DlqFilter,
    EventData,
    FlowProducer,
    FlowSpec,
    Forwarder,
    Job,
    JobFailedError,
    JobIdFilter,
    JobOptions,
    LoggerLike,
    Queue,
    QueueEvents,
    QueueGroup,
    RepeatOptions,
    Worker,
    WorkerGroup,
    current_job,
)

log: LoggerLike = logging.getLogger("shop")


class Order(TypedDict):
    """The payload of an order."""

    number: int
    lines: list[str]


def charge(job: Job[Order]) -> dict[str, int]:
    """Charge an order."""
    total = len(job.data["lines"]) * 10
    job.update_progress(50)
    job.log(f"order {job.data['number']}")
    assert current_job() is job
    return {"total": total}


def produce(queue: Queue) -> tuple[str, list[str]]:
    """Add orders in several ways."""
    defaults: JobOptions = {"attempts": 3, "backoff": {"type": "fixed", "delay": 10}}
    order: Order = {"number": 1, "lines": ["a", "b"]}
    job = queue.add("charge", order, **defaults)
    queue.add("charge", order, priority=5, delay=timedelta(milliseconds=1))
    queue.add("later", None, timestamp=datetime.now(), tags=["x"], group_id=7, delay=60_000)
    ids = queue.add_bulk([{"name": "charge", "data": {"number": 2, "lines": []}, "priority": 1}])
    return job.id, ids


def control(queue: Queue) -> None:
    """Set limits and schedules, and read them back."""
    queue.set_dlq_config(max_entries=100, max_age=timedelta(days=1))
    repeat: RepeatOptions = {"every": timedelta(hours=1), "limit": 5}
    scheduler: dict[str, Any] = queue.upsert_job_scheduler("hourly", repeat)
    log.info("scheduler %s", scheduler["id"])
    queue.remove_job_scheduler("hourly")
    wanted: DlqFilter = {"reason": "stalled", "limit": 10}
    entries = queue.get_dlq_entries(wanted)
    log.debug("%d dead letters, the first by %s", len(entries), [one.error for one in entries[:1]])
    limit: int | None = queue.get_global_concurrency()
    assert limit is None


def listen(events: QueueEvents, seen: list[str | None]) -> None:
    """Listen in both ways."""

    @events.on("completed")
    def note(event: EventData) -> None:
        seen.append(event.job_id)

    events.wait_until_ready()


def flow(queue_name: str, **options: Any) -> list[str]:
    """Create a tree."""
    child: FlowSpec = {"name": "charge", "queue_name": queue_name, "data": {"lines": []}}
    root: FlowSpec = {"name": "sum", "queue_name": queue_name, "children": [child]}
    with FlowProducer(**options) as producer:
        node = producer.add(root)
        return [node.job.id, *(below.job.id for below in node.children)]


@contextmanager
def marked_log() -> Iterator[logging.Handler]:
    """Have lines carry the job they are about."""
    handler = logging.StreamHandler()
    handler.addFilter(JobIdFilter())
    handler.setFormatter(logging.Formatter("%(job_id)s %(message)s"))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def main(name: str, connection: Connection) -> dict[str, int]:
    """Run it all once and return the result of the first order."""
    seen: list[str | None] = []
    with (
        Queue(name, connection=connection, logger=log) as queue,
        QueueEvents(name, connection=connection) as events,
        marked_log(),
    ):
        listen(events, seen)
        control(queue)
        first, _others = produce(queue)
        worker = Worker(name, charge, connection=connection, autorun=False, concurrency=2)
        with WorkerGroup([worker]) as group:
            group.start()
            try:
                result: dict[str, int] = queue.wait_for_job(first, 10_000, queue_events=events)
            except (JobFailedError, CommandError) as error:
                log.error("failed: %s", error)
                raise
        assert first in seen
        return result


def simple(name: str, **options: Any) -> int:
    """Run the same as one object."""
    with Bunqueue.deferred(name, **options) as app:

        @app.route("charge")
        def handle(job: Job[Order]) -> int:
            return len(job.data["lines"])

        app.start()
        job: Job[Any] = app.add("charge", {"number": 1, "lines": ["a"]}, attempts=1)
        found: int = app.queue.wait_for_job(job.id)
        return found


def group_and_forward(group: QueueGroup, to: str) -> Forwarder:
    """Forward one queue of a group."""
    return group.get_queue("edge").forward(to, durable=True, preserve=("priority", "tags"))


def mistakes(queue: Queue) -> None:
    """What the checker must find."""
    queue.add("charge", {}, prioritty=5)  # type: ignore[call-arg]
    queue.add("charge", {}, priority="high")  # type: ignore[arg-type]
    queue.add(5)  # type: ignore[arg-type]
    queue.set_dlq_config(max_entries="many")  # type: ignore[arg-type]
    Queue("q", int64="exactly")  # type: ignore[arg-type]
    _wrong: JobOptions = {"attempts": "three"}  # type: ignore[typeddict-item]
