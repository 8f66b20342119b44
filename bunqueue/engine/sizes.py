"""How many entries the engine's collections hold: one row for each, told to Prometheus.

Each collection has a bound, or follows what it is about (jobs, queues, waiting commands); which of
the two, tests/unit/server/test_collections.py says of every one. Those of queues are counted by the
cleanup, which passes each queue anyway: ten thousand of them would take too long at once. So they
are as old as its last round, some ten seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.queue import Queue


@dataclass(frozen=True, slots=True)
class Size:
    """One row.

    Attributes:
        name: For Prometheus.
        told: What is counted.
        count: Counts it in an engine, at once.
    """

    name: str
    told: str
    count: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class QueueSize:
    """One row of what each queue holds; ``count`` counts it in one."""

    name: str
    told: str
    count: Callable[[Any], int]


SIZES: Final = (
    Size("jobs", "Jobs in all places.", lambda engine: len(engine.index)),
    Size("queues", "Queue names.", lambda engine: len(engine.queues)),
    Size("completed", "Completed jobs that are kept.", lambda engine: len(engine.retained)),
    Size(
        "timers",
        "Deadlines, called off ones among them.",
        lambda engine: engine.timers.size + engine.moments.size,
    ),
    Size("works", "Operations in slices, not through.", lambda engine: engine.works.unfinished),
    Size("arrivals", "Batches and flows on their way in.", lambda engine: len(engine.arriving)),
    Size("retired_tokens", "Tokens of ended runs.", lambda engine: len(engine.retired)),
    Size("job_waits", "Jobs whose end somebody awaits.", lambda engine: len(engine.waits)),
    Size("dependencies", "Jobs that others refer to.", lambda engine: len(engine.graph.consumers)),
    Size("consequences", "Steps of flows to be taken.", lambda engine: len(engine.graph.due)),
    Size("proofs", "Proofs of completed jobs.", lambda engine: len(engine.graph.proofs.free)),
    Size("pinned_proofs", "Those somebody needs.", lambda engine: len(engine.graph.proofs.pinned)),
    Size("repeat_links", "Who follows whom, of repeats.", lambda engine: len(engine.successors)),
    Size("logged_jobs", "Jobs with a log.", lambda engine: len(engine.logged)),
    Size("schedules", "Schedulers.", lambda engine: len(engine.schedules.by_name)),
    Size("schedule_entries", "Their timetable.", lambda engine: engine.schedules.entries),
    Size("workers", "Registered workers.", lambda engine: len(engine.workers)),
    Size("listeners", "Who hears of events.", lambda engine: len(engine.listeners)),
    Size("subscriptions", "Subscribed connections.", lambda engine: len(engine.subscriptions)),
    Size("late_events", "Events passed on late.", lambda engine: engine.subscriptions.behind),
    Size("untold_events", "Jobs whose events await a commit.", lambda engine: len(engine.untold)),
    Size("webhooks", "Webhooks.", lambda engine: len(engine.webhooks.by_id)),
    Size("metrics", "Queues with figures.", lambda engine: len(engine.metrics)),
    Size("metric_minutes", "Minutes in these figures.", lambda engine: engine.metric_minutes),
    Size("metrics_log", "Figures in the log of them.", lambda engine: engine.metrics_log.entries),
    Size("latency_notes", "Reads to be sorted in.", lambda engine: engine.latencies.noted),
)

QUEUE_SIZES: Final = (
    QueueSize("queued", "Queued jobs.", lambda queue: len(queue.run_set)),
    QueueSize("stale", "Entries of jobs that left early.", lambda queue: queue.run_set.stale),
    QueueSize("lanes", "Priorities with a line.", lambda queue: len(queue.run_set.order)),
    QueueSize("groups", "Groups.", lambda queue: queue.run_set.groups_size),
    QueueSize("admitted", "Jobs that await a commit.", lambda queue: len(queue.admitted)),
    QueueSize("parked", "Jobs that wait for others.", lambda queue: len(queue.parked)),
    QueueSize("active", "Active jobs.", lambda queue: len(queue.active)),
    QueueSize("dead_letters", "Dead letters.", lambda queue: len(queue.failed)),
    QueueSize("long_polls", "Pulls that wait for a job.", lambda queue: len(queue.waiters)),
    QueueSize("keys", "Dedup keys.", lambda queue: len(queue.keys)),
)


class Census:
    """Counts what queues hold, one after the other.

    Attributes:
        counts: name -> entries in all queues.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = dict.fromkeys((row.name for row in QUEUE_SIZES), 0)

    def add(self, queue: "Queue") -> None:
        """Count one queue in."""
        counts = self.counts
        for row in QUEUE_SIZES:
            counts[row.name] += row.count(queue)


def collection_sizes(engine: "Engine") -> dict[str, int]:
    """Return name -> entries of every collection; those of queues as the last cleanup saw them."""
    return {row.name: row.count(engine) for row in SIZES} | engine.census.counts
