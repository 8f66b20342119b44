"""The text for Prometheus: every name of wire.md 6.4, and figures that are true."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bunqueue.broker import LocalPeer
from bunqueue.commands import dispatch
from bunqueue.commands.targets import AllowedTargets
from bunqueue.config import Settings
from bunqueue.server import memory
from bunqueue.server.host import ServerHost
from bunqueue.server.prometheus import Prometheus
from tests.support.wire import make_broker

NAMES = """
jobs_waiting jobs_prioritized jobs_delayed jobs_active jobs_dlq jobs_completed jobs_pushed_total
jobs_pulled_total jobs_completed_total jobs_failed_total queue_jobs_waiting queue_jobs_prioritized
queue_jobs_delayed queue_jobs_active queue_jobs_dlq queue_metrics_exported queue_metrics_omitted
push_duration_seconds pull_duration_seconds ack_duration_seconds uptime_seconds
cron_jobs_registered workers_registered workers_active worker_active_jobs worker_concurrency_slots
webhooks_registered webhooks_enabled workers_processed_total workers_failed_total connections
storage_degraded storage_disk_full process_heap_used_bytes
process_heap_total_bytes process_resident_memory_bytes build_info backup_enabled
backup_scheduler_running backup_in_progress backup_interval_seconds backup_retention
backup_consecutive_failures backup_last_success_timestamp_seconds
backup_last_failure_timestamp_seconds backup_last_duration_seconds backup_last_size_bytes
collection_entries buffer_bytes
backup_attempts_total backup_successes_total backup_failures_total backup_overlap_rejections_total
"""
STARRED = """
process_start_time_seconds process_resident_memory_bytes process_heap_bytes
process_cpu_seconds_total
"""


class Site:
    """A broker with the figures of a server."""

    def __init__(self, queues_max: int = 100) -> None:
        self.broker = make_broker()
        self.broker.host = ServerHost(
            self.broker,
            lambda: {"tcp": 2, "ws": 1, "sse": 0},
            Settings(metrics_queues_max=queues_max),
            AllowedTargets(),
        )
        self.peer = LocalPeer(self.broker)

    def go(self, cmd: str, **fields: Any) -> Any:
        return dispatch(self.peer, {"cmd": cmd, **fields})

    def text(self) -> str:
        text: str = self.go("Prometheus")["data"]["metrics"]
        return text

    def value(self, name: str, **labels: str) -> float:
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        raise AssertionError(f"no {name} {labels}")


@pytest.fixture
def site() -> Site:
    return Site()


def test_every_name_is_there_and_no_other(site: Site) -> None:
    site.go("PUSH", queue="q", name="n")
    told = {line.split()[2] for line in site.text().splitlines() if line.startswith("# TYPE")}

    assert {f"bunqueue_{name}" for name in NAMES.split()} | set(STARRED.split()) == told


def test_the_figures_are_those_of_the_broker(site: Site) -> None:
    for fields in ({}, {}, {"priority": 3}, {"delay": 60_000}):
        site.go("PUSH", queue="q", name="n", **fields)
    site.go("PULL", queue="q")

    assert 4 == site.value("bunqueue_jobs_pushed_total")
    assert 1 == site.value("bunqueue_jobs_active")
    assert 1 == site.value("bunqueue_jobs_delayed")
    assert 2 == site.value("bunqueue_queue_jobs_waiting", queue="q")
    assert 0 == site.value("bunqueue_queue_jobs_prioritized", queue="q")
    assert 1 == site.value("bunqueue_connections", transport="websocket")
    assert 0 == site.value("bunqueue_push_duration_seconds_bucket", le="0.0001")
    assert site.value("process_start_time_seconds") > 1_000_000_000


def test_histograms_have_the_bounds_of_the_reference(site: Site) -> None:
    site.broker.host.latencies.ack.observe(0.3, 5)

    assert 0 == site.value("bunqueue_ack_duration_seconds_bucket", le="0.25")
    assert 5 == site.value("bunqueue_ack_duration_seconds_bucket", le="0.5")
    assert 5 == site.value("bunqueue_ack_duration_seconds_bucket", le="+Inf")
    assert 1.5 == site.value("bunqueue_ack_duration_seconds_sum")


def test_only_so_many_queues_get_series_of_their_own() -> None:
    site = Site(queues_max=2)
    for name in ("a", "b", "c"):
        site.go("PUSH", queue=name, name="n")

    assert 2 == site.value("bunqueue_queue_metrics_exported")
    assert 1 == site.value("bunqueue_queue_metrics_omitted")
    assert 'queue="c"' not in site.text()


def test_a_text_serves_for_a_second(site: Site) -> None:
    moments = [10.0, 10.5, 11.1]
    prometheus = Prometheus(site.broker, 100, lambda: ({}, {}), lambda: moments.pop(0))
    first = prometheus.text()
    site.go("PUSH", queue="q", name="n")

    assert first == prometheus.text()
    assert first != prometheus.text()


def test_compaction_looks_at_all_of_memory_only_where_that_is_quick(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(memory, "give_back", looks.append)

    for _ in range(2):
        site.go("PUSH", queue="q", name="n")
        site.go("CompactMemory")

    assert [1, 2] == looks
