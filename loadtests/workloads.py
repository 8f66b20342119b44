"""The table of workloads: what is sent, over how many connections, for how many jobs.

A row is measured alone, in a queue of its own. "Jobs" is what a run of usual length takes; the
shorter figures of the slow rows keep one round of the whole table near half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.driver import Repeat, Script, WorkMany, WorkOne, frame, run

POLL_MS = 1_000  # consumers beside producers wait this long for a job
FILL_BATCH = 500
FRAMES_MAX = 4_096  # distinct prepared requests
PREPARED_BYTES_MAX = 32 << 20
PAYLOAD_FIXED_BYTES = 24  # of the payload map, besides its padding


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: how to make the scripts, and their sizes."""

    name: str
    make: Callable[[Workload, str, int], list[Script]]
    connections: int
    jobs: int
    window: int = 1
    batch: int = 1
    payload_bytes: int = 64
    durable: bool = False
    is_filled_first: bool = False
    doc: str = ""

    def fitting(self, jobs: int) -> int:
        """Round a number of jobs up to whole requests."""
        return -(-jobs // self.batch) * self.batch


def payload(index: int, size_bytes: int) -> dict[str, object]:
    """Make user data of about the given encoded size."""
    padding = max(0, size_bytes - PAYLOAD_FIXED_BYTES)
    return {"i": index % 128, "user": f"{index % 10_000:04d}", "body": "x" * padding}


def push_frames(row: Workload, queue: str, jobs: int) -> list[bytes]:
    """Encode PUSH requests, or PUSHB requests for a row with a batch."""
    options: dict[str, object] = {"durable": True} if row.durable else {}
    room = PREPARED_BYTES_MAX // ((row.payload_bytes + 80) * row.batch)
    frames = []
    for index in range(max(1, min(FRAMES_MAX, jobs // row.batch, room))):
        request: dict[str, object] = {"reqId": f"{index:08d}", "queue": queue}
        entries = [
            {"name": "job", "data": payload(index * row.batch + entry, row.payload_bytes)} | options
            for entry in range(row.batch)
        ]
        if row.batch == 1:
            request |= {"cmd": "PUSH", **entries[0]}
        else:
            request |= {"cmd": "PUSHB", "jobs": entries}
        frames.append(frame(request))
    return frames


def fill(host: str, port: int, queue: str, jobs: int, payload_bytes: int) -> None:
    """Push jobs and leave them; ``jobs`` is a multiple of `FILL_BATCH`."""
    batch = FILL_BATCH if payload_bytes < 4_096 else FILL_BATCH // 10
    row = Workload("fill", push, 1, jobs, 2, batch, payload_bytes)
    run(host, port, push(row, queue, jobs))


def push(row: Workload, queue: str, jobs: int) -> list[Script]:
    """Make producers that share one list of requests."""
    script = Repeat(push_frames(row, queue, jobs), jobs // row.batch, row.window)
    return [script] * row.connections


def work_one(row: Workload, queue: str, jobs: int) -> list[Script]:
    """Make consumers that take and acknowledge job by job."""
    return [WorkOne(queue, jobs, row.window)] * row.connections


def work_many(row: Workload, queue: str, jobs: int) -> list[Script]:
    """Make consumers that take and acknowledge in batches."""
    return [WorkMany(queue, jobs, row.batch)] * row.connections


def cycle(row: Workload, queue: str, jobs: int) -> list[Script]:
    """Make as many producers as consumers, at work together."""
    half = row.connections // 2
    producer = Repeat(push_frames(row, queue, jobs), jobs // row.batch, row.window)
    consumer: Script
    if row.batch == 1:
        consumer = WorkOne(queue, jobs, row.window, POLL_MS)
    else:
        consumer = WorkMany(queue, jobs, row.batch, POLL_MS)
    return [producer] * half + [consumer] * half


def ping(row: Workload, _queue: str, jobs: int) -> list[Script]:
    """Make connections that only say Ping."""
    request = frame({"cmd": "Ping", "reqId": "00000001"})
    return [Repeat([request] * FRAMES_MAX, jobs, row.window)] * row.connections


WORKLOADS: dict[str, Workload] = {
    row.name: row
    for row in (
        Workload("push-64x1", push, 1, 30_000, 64, doc="PUSH, 64 in flight"),
        Workload("push-512x4", push, 4, 40_000, 512, doc="PUSH, 512 in flight on 4 connections"),
        Workload("push-1x1", push, 1, 5_000, 1, doc="PUSH, one after the other"),
        Workload("pushb-50", push, 1, 60_000, 4, 50, doc="PUSHB of 50 jobs, 4 in flight"),
        Workload("pushb-1000", push, 1, 100_000, 4, 1000, doc="PUSHB of 1000 jobs, 4 in flight"),
        Workload(
            "drain-100", work_many, 4, 30_000, 1, 100, is_filled_first=True,
            doc="PULLB 100 then ACKB 100 on 4 connections, from a full queue",
        ),
        Workload(
            "pull-ack-16", work_one, 16, 10_000, 16, is_filled_first=True,
            doc="PULL then ACK, 16 chains on 16 connections, from a full queue",
        ),
        Workload("cycle-64", cycle, 16, 6_000, 32, doc="8 connections PUSH, 8 PULL and ACK"),
        Workload(
            "cycle-10k", cycle, 16, 3_000, 32, payload_bytes=10_000,
            doc="the same with 10,000 bytes of data",
        ),
        Workload("cycleb-100", cycle, 4, 20_000, 2, 100, doc="PUSHB beside PULLB and ACKB"),
        Workload("durable-1x1", push, 1, 3_000, 1, durable=True, doc="durable PUSH, one by one"),
        Workload("durable-64x4", push, 4, 20_000, 64, durable=True, doc="durable PUSH, pipelined"),
        Workload("ping-64x1", ping, 1, 50_000, 64, doc="Ping: the bare protocol"),
    )
}  # fmt: skip

# What the project's speed claims are about; the rest is there to look closer.
HEADLINE: Sequence[str] = (
    "push-64x1",
    "push-512x4",
    "pushb-50",
    "drain-100",
    "pull-ack-16",
    "cycle-64",
    "durable-64x4",
)
