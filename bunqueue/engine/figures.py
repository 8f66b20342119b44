"""Figures over all queues and about one, for dashboards."""

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bunqueue.engine.queue import Queue
from bunqueue.engine.reads import matured, stats
from bunqueue.engine.slices import Work, parts

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

QUEUES_PER_STEP: Final = 100
QUEUE_US: Final = 4  # figures of one queue: loadtests/hub.py dashboard-queues
RUNS_LOOKED_AT: Final = 1000  # newest completed jobs that the mean run time is taken over


def overview(engine: "Engine", now: int) -> dict[str, Any]:
    """Return ``{stats, throughput, collections, prioritized, avgProcessingMs}``."""
    figures = stats(engine, now)
    totals, rates = engine.totals, engine.rates
    queues = engine.queues.values()
    queued = sum(len(queue.run_set) for queue in queues)
    active = sum(len(queue.active) for queue in queues)
    parked = sum(len(queue.parked) for queue in queues)
    figures |= {
        "totalPushed": totals.pushed,
        "totalPulled": totals.pulled,
        "totalCompleted": totals.completed,
        "totalFailed": totals.failed,
    }
    for name in ("failed", "pushPerSec", "pullPerSec"):
        del figures[name]
    return {
        "stats": figures,
        "throughput": {
            "pushPerSec": rates.push_per_s,
            "pullPerSec": rates.pull_per_s,
            "completePerSec": rates.complete_per_s,
            "failPerSec": rates.fail_per_s,
        },
        # Innards of the reference; what fits, or 0.
        "collections": {
            "jobIndex": len(engine.index),
            "completedJobs": figures["completed"],
            "jobResults": figures["completed"],
            "jobLogs": 0,
            "customIdMap": 0,
            "jobLocks": active,
            "clientJobs": 0,
            "clientJobsTotal": active,
            "pendingDepChecks": 0,
            "stalledCandidates": 0,
            "processingTotal": active,
            "queuedTotal": queued,
            "waitingDepsTotal": parked,
            "temporalIndexTotal": len(engine.index),
            "delayedHeapTotal": figures["delayed"],
        },
        "prioritized": sum(queue.run_set.ready_high for queue in queues),
        "avgProcessingMs": _mean_run_ms(engine),
    }


def _mean_run_ms(engine: "Engine") -> float:
    """Return how long the newest completed jobs ran, on average; 0 if there is none."""
    spans = [
        job.finished_at - job.started_at
        for job in islice(reversed(engine.retained), RUNS_LOOKED_AT)
        if job.started_at and job.finished_at >= job.started_at
    ]
    return sum(spans) / len(spans) if spans else 0.0


def queue_figures(engine: "Engine", now: int) -> Work[list[dict[str, Any]]]:
    """Return ``{name, waiting, prioritized, delayed, active, dlq, paused}`` of every queue."""
    rows: list[dict[str, Any]] = []
    for queues in parts(list(engine.queues.values()), QUEUES_PER_STEP):
        for queue in queues:
            yield from matured(queue, now)
            rows.append(_row(queue))
        yield len(queues) * QUEUE_US
    return rows


def first_queue_figures(engine: "Engine", most: int, now: int) -> list[dict[str, Any]]:
    """Return the figures of the first queues only."""
    rows = []
    for queue in islice(engine.queues.values(), most):
        queue.run_set.mature(now)
        rows.append(_row(queue))
    return rows


def _row(queue: Queue) -> dict[str, Any]:
    run_set = queue.run_set
    return {
        "name": queue.name,
        "waiting": run_set.ready - run_set.ready_high,
        "prioritized": run_set.ready_high,
        "delayed": run_set.not_due,
        "active": len(queue.active),
        "dlq": len(queue.failed),
        "paused": queue.gate.is_paused,
    }


def queue_totals(engine: "Engine", queue_name: str) -> tuple[int, int]:
    """Return how many jobs of the queue have completed and failed, ever."""
    queue = engine.queues.get(queue_name)
    if queue is not None:
        return queue.completed_total, queue.failed_total
    metrics = engine.metrics.get(queue_name)
    return (0, 0) if metrics is None else (metrics.completed, metrics.failed)
