"""Metrics, StorageStatus and the dashboard where they depend on the process or on time."""

from __future__ import annotations

import pytest

from bunqueue import compiled
from tests.support.engine import World
from tests.unit.test_traps import calls_of


@pytest.fixture
def world() -> World:
    return World()


def test_totals_tell_of_the_process_too(world: World) -> None:
    job_id = world.push()
    world.pull()
    world.leap(250)
    world.ok("ACK", id=job_id)
    world.peer.host.latencies.note((0.004, 1, 0, 0))

    assert {
        "totalPushed": 1,
        "totalPulled": 1,
        "totalCompleted": 1,
        "totalFailed": 0,
        "avgLatencyMs": 4.0,
        "avgProcessingMs": 250.0,
        "memoryUsageMb": 10.0,
        "sqliteSizeMb": 5.0,
        "activeConnections": 3,
    } == world.ok("Metrics")["metrics"]


def test_the_overview_has_the_shape_that_dashboards_read(world: World) -> None:
    world.ok("RegisterWorker", name="w", queues=["q"])
    world.peer.host.latencies.note((0.004, 3, 0, 0))
    data = world.ok("DashboardOverview")["data"]

    assert {
        "waiting", "active", "delayed", "completed", "dlq", "totalPushed", "totalPulled",
        "totalCompleted", "totalFailed", "uptime",
    } == set(data["stats"])  # fmt: skip
    assert {"pushPerSec", "pullPerSec", "completePerSec", "failPerSec"} == set(data["throughput"])
    assert {"pushMs": 4.0, "pullMs": 0, "ackMs": 0} == data["latency"]["averages"]
    assert {"p50": 5, "p95": 5, "p99": 5} == data["latency"]["percentiles"]["push"]
    assert {"heapUsed": 10, "heapTotal": 20, "rss": 30} == data["memory"]
    assert 15 == len(data["collections"])
    assert (1, 1, "w") == (
        data["workers"]["total"], data["workers"]["active"], data["workers"]["list"][0]["name"],
    )  # fmt: skip
    assert [] == data["crons"]
    assert {"diskFull": False, "error": None, "since": None} == data["storage"]


def test_rates_follow_what_happens(world: World) -> None:
    for _ in range(100):
        world.forward(1_000)
        for _ in range(2):
            job_id = world.push()
            world.pull()
            world.ok("ACK", id=job_id)
    throughput = world.ok("DashboardOverview")["data"]["throughput"]

    assert [2, 2, 2, 0] == [round(throughput[name], 3) for name in throughput]


def test_the_storages_trouble_is_told(world: World) -> None:
    world.peer.host.status = {"diskFull": True, "error": "full", "since": 7}

    assert world.peer.host.status == world.ok("StorageStatus")["data"]


def test_compacting_is_the_hosts_business_and_changes_nothing(world: World) -> None:
    world.push()
    before = world.ok("GetJobs", queue="q")
    world.ok("CompactMemory")

    assert 1 == world.peer.host.compactions
    assert before == world.ok("GetJobs", queue="q")


def test_prometheus_is_the_hosts_text(world: World) -> None:
    assert "bunqueue_jobs_waiting 0\n" == world.ok("Prometheus")["data"]["metrics"]


def test_a_dashboard_never_shows_more_than_fifty_jobs(world: World) -> None:
    world.ok("PUSHB", queue="q", jobs=[{}] * 60)
    jobs = world.ok("DashboardQueue", queue="q", includeJobs=True, jobsLimit=1_000)["data"]["jobs"]

    assert 50 == len(jobs["waiting"])


def test_an_embedded_broker_has_no_figures_for_prometheus() -> None:
    from bunqueue.broker import LocalHost, LocalPeer
    from bunqueue.commands import dispatch
    from tests.support.wire import make_broker

    broker = make_broker()
    broker.host = LocalHost(broker.storage, broker.engine.latencies, broker.clock)

    reply = dispatch(LocalPeer(broker), {"cmd": "Prometheus"})

    assert {"ok": False, "error": "Prometheus figures come from a server"} == reply


@pytest.mark.skipif(not compiled.IS_COMPILED, reason="pure Python decodes what may be too wide")
def test_a_preview_of_dead_letters_decodes_no_payload(world: World) -> None:
    data = [2**40, *(number / 7 for number in range(20_000))]
    job_id = world.push(data=data, maxAttempts=1)
    world.pull()
    world.ok("FAIL", id=job_id)
    previews = []

    calls = calls_of(
        lambda: previews.extend(world.ok("DashboardQueue", queue="q")["data"]["dlqPreview"])
    )

    (preview,) = previews
    assert float is type(preview["data"][0])
    assert (job_id, data, 1, float(world.now)) == tuple(
        preview[name] for name in ("id", "data", "attempts", "createdAt")
    )
    assert calls < 1_000
