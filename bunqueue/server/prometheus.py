"""All figures as text for Prometheus (wire.md 6.4).

One custom collector reads them when it is asked: nothing is counted twice for it. The library is
imported with the first scrape, since it takes a fifth of a second. A text serves for a second, so
that several scrapers cost no more than one.
"""

import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bunqueue.broker import BOUNDS_S, Broker, Histogram
from bunqueue.commands.greeting import COMPATIBILITY_VERSION

CACHED_S: Final = 1.0

PREFIX: Final = "bunqueue_"
QUEUE_STATES: Final = {
    "waiting": "Jobs that wait, by queue.",
    "prioritized": "Jobs that wait with a priority, by queue.",
    "delayed": "Jobs that are not due yet, by queue.",
    "active": "Jobs that are being worked on, by queue.",
    "dlq": "Dead letters, by queue.",
}
JOB_STATES: Final = {
    "waiting": "Jobs that wait.",
    "prioritized": "Jobs that wait with a priority.",
    "delayed": "Jobs that are not due yet.",
    "active": "Jobs that are being worked on.",
    "dlq": "Dead letters.",
    "completed": "Completed jobs that are kept.",
}
TOTALS: Final = {
    "pushed": "Jobs pushed since the start.",
    "pulled": "Jobs handed out since the start.",
    "completed": "Jobs completed since the start.",
    "failed": "Jobs failed for good since the start.",
}
LATENCIES: Final = {
    "push": "Time from the arrival of a push to its answer.",
    "pull": "Time from the arrival of a pull that finds a job to its answer.",
    "ack": "Time from the arrival of an acknowledgement to its answer.",
}
# What ``sizes`` returns: name -> what is counted.
SERVER_ENTRIES: Final = {
    "http_connections": "Open HTTP connections.",
    "connections": "Open TCP connections.",
    "waiting_commands": "Commands of connections that wait.",
    "held_jobs": "Jobs that connections have in work.",
    "webhook_queues": "Webhooks with deliveries.",
    "webhook_deliveries": "Deliveries that wait.",
    "backlog_jobs": "Jobs to be written.",
    "backlog_rows": "Rows of other tables to be written.",
    "backlog_operations": "Operations that await their commit.",
    "backlog_answers": "Answers and events that await a commit.",
    "backlog_readers": "Connections that are not read from while the disk is behind.",
}
SERVER_BUFFERS: Final = {
    "backlog": "Payload to be written.",
    "unsent": "Answers that peers have not read.",
    "unread": "Parts of frames, and what is read ahead.",
    "webhooks": "Payload of deliveries that wait.",
}
ENTRIES: Final = "Entries of each collection in memory; those of queues ten seconds old."
BUFFERS: Final = "Payload that is kept for the disk, for peers and for webhooks."
TRANSPORTS: Final = {"tcp": "tcp", "ws": "websocket", "sse": "sse"}
# Families about backups, all at rest: (name, help), and those that count.
BACKUP_GAUGES: Final = {
    "enabled": ("Whether scheduled backups are on.", 0),
    "scheduler_running": ("Whether the timer of backups runs.", 0),
    "in_progress": ("Whether a backup is being made.", 0),
    "interval_seconds": ("Time between two backups.", 21_600),
    "retention": ("Backups that are kept.", 7),
    "consecutive_failures": ("Backups that failed in a row.", 0),
    "last_success_timestamp_seconds": ("When a backup last succeeded, 0 for never.", 0),
    "last_failure_timestamp_seconds": ("When a backup last failed, 0 for never.", 0),
    "last_duration_seconds": ("How long the last backup took.", 0),
    "last_size_bytes": ("Size of the last backup that succeeded.", 0),
}
BACKUP_COUNTERS: Final = {
    "attempts": "Backups begun.",
    "successes": "Backups made.",
    "failures": "Backups that failed.",
    "overlap_rejections": "Backups refused because another one was being made.",
}


class Prometheus:
    """Makes the text."""

    def __init__(
        self,
        broker: Broker,
        queues_max: int,
        sizes: Callable[[], tuple[dict[str, int], dict[str, int]]],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; reads nothing yet.

        Args:
            broker: Whose figures.
            queues_max: Queues that get series of their own.
            sizes: Returns what server and storage hold: name -> entries, and name -> bytes.
            steady: Seconds, for the cache.
        """
        self._broker = broker
        self._queues_max = queues_max
        self._sizes = sizes
        self._steady = steady
        self._text = ""
        self._made_s: float | None = None

    def text(self) -> str:
        """Return the figures as they are now, or were up to a second ago."""
        now_s = self._steady()
        if self._made_s is None or now_s - self._made_s >= CACHED_S:
            from prometheus_client import exposition  # late, see above

            self._text = exposition.generate_latest(self).decode()
            self._made_s = now_s
        return self._text

    def collect(self) -> Iterator[Any]:
        """Yield every family."""
        engine, host = self._broker.engine, self._broker.host
        now = self._broker.clock.now()
        overview = engine.overview(now)
        stats = overview["stats"]
        states = {**stats, "prioritized": overview["prioritized"]}
        for state, told in JOB_STATES.items():
            yield _gauge(f"jobs_{state}", told, states[state])
        for name, told in TOTALS.items():
            yield _counter(f"jobs_{name}", told, stats[f"total{name.capitalize()}"])
        yield _gauge("uptime_seconds", "Time since the start.", stats["uptime"] / 1000)
        yield _gauge("cron_jobs_registered", "Schedules.", len(engine.list_crons()))
        yield from _workers(engine.worker_stats(now))
        webhooks = engine.webhook_stats()
        yield _gauge("webhooks_registered", "Webhooks.", webhooks["total"])
        yield _gauge("webhooks_enabled", "Webhooks that are on.", webhooks["enabled"])
        yield from self._storage()
        yield from _process(host.memory_bytes())
        yield from self._queues(now)
        yield from _build()
        yield _labelled(
            "connections",
            "Open connections.",
            "transport",
            {TRANSPORTS[kind]: count for kind, count in host.connections().items()},
        )
        entries, buffers = self._sizes()
        entries = engine.collection_sizes() | entries
        yield _labelled("collection_entries", ENTRIES, "collection", entries)
        yield _labelled("buffer_bytes", BUFFERS, "buffer", buffers)
        for name, (told, value) in BACKUP_GAUGES.items():
            yield _gauge(f"backup_{name}", told, value)
        for name, told in BACKUP_COUNTERS.items():
            yield _counter(f"backup_{name}", told, 0)
        for name, told in LATENCIES.items():
            yield _histogram(f"{name}_duration_seconds", told, getattr(host.latencies, name))

    def _storage(self) -> Iterator[Any]:
        host = self._broker.host
        status = host.storage_status()
        yield _gauge(
            "storage_degraded", "Whether the storage cannot write.", int(bool(status["error"]))
        )
        yield _gauge("storage_disk_full", "Whether the disk is full.", int(status["diskFull"]))
        size = host.file_bytes()
        if size is not None:
            yield _gauge("sqlite_database_size_bytes", "Size of the data file.", size)

    def _queues(self, now: int) -> Iterator[Any]:
        engine = self._broker.engine
        shown = engine.first_queue_figures(self._queues_max, now)
        for state, told in QUEUE_STATES.items():
            values = {row["name"]: row[state] for row in shown}
            yield _labelled(f"queue_jobs_{state}", told, "queue", values)
        yield _gauge("queue_metrics_exported", "Queues with series of their own.", len(shown))
        yield _gauge("queue_metrics_omitted", "Queues without.", len(engine.queues) - len(shown))


def _workers(stats: dict[str, Any]) -> Iterator[Any]:
    yield _gauge("workers_registered", "Registered workers.", stats["total"])
    yield _gauge("workers_active", "Workers heard of lately.", stats["active"])
    yield _gauge("worker_active_jobs", "Jobs that workers are at.", stats["activeJobs"])
    yield _gauge("worker_concurrency_slots", "Jobs they can be at.", stats["concurrencySlots"])
    yield _counter("workers_processed", "Jobs workers have done.", stats["totalProcessed"])
    yield _counter("workers_failed", "Jobs workers have failed.", stats["totalFailed"])


def _process(memory: dict[str, int]) -> Iterator[Any]:
    resident, heap = memory["rss"], memory["heapTotal"]
    told = "Resident memory."
    yield _gauge("process_heap_used_bytes", "Memory of its own.", memory["heapUsed"])
    yield _gauge("process_heap_total_bytes", "Size of the data segment.", heap)
    yield _gauge("process_resident_memory_bytes", told, resident)
    yield _gauge("process_resident_memory_bytes", told, resident, prefix="")
    yield _gauge("process_heap_bytes", "Size of the data segment.", heap, prefix="")
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime
    yield _counter("process_cpu_seconds", "Time on the processor.", cpu_s, prefix="")
    started = "When the process was started, seconds of the epoch."
    yield _gauge("process_start_time_seconds", started, _started_at_s(), prefix="")


def _started_at_s() -> float:
    """Return when the process was started, in seconds of the epoch; 0 if the system cannot tell."""
    try:
        boot_s = next(
            float(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime ")
        )
        # Its name, in brackets, may hold spaces; the 20th field behind it is the start.
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, StopIteration, IndexError, ValueError):
        return 0.0
    return boot_s + ticks / os.sysconf("SC_CLK_TCK")


def _build() -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        f"{PREFIX}build_info", "What runs.", labels=["version", "python_version"]
    )
    family.add_metric([COMPATIBILITY_VERSION, platform.python_version()], 1)
    yield family


def _gauge(name: str, told: str, value: float, prefix: str = PREFIX) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(prefix + name, told, value=value)


def _counter(name: str, told: str, value: float, prefix: str = PREFIX) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(prefix + name, told, value=value)


def _labelled(name: str, told: str, label: str, values: Mapping[str, float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + name, told, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _histogram(name: str, told: str, histogram: Histogram) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    buckets = [(f"{bound:g}", count) for bound, count in histogram.cumulative()]
    assert len(BOUNDS_S) == len(buckets)
    buckets.append(("+Inf", histogram.count))
    return HistogramMetricFamily(PREFIX + name, told, buckets=buckets, sum_value=histogram.sum_s)
