"""The table of workloads: what is sent, over how many connections, for how many jobs.

A row is measured alone, in queues of its own. "Jobs" is what a run of usual length takes; the
shorter figures of the slow rows keep one repeat of the whole table near two minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.driver import Script, frame, run
from loadtests.scripts import Repeat, WorkMany, WorkOne

POLL_MS = 1_000  # consumers beside producers wait this long for a job
PARKED_MS = 30_000  # consumers that are parked before the first job comes
FILL_BATCH = 500
FRAMES_MAX = 4_096  # distinct prepared requests
PREPARED_BYTES_MAX = 32 << 20
PAYLOAD_FIXED_BYTES = 24  # of the payload map, besides its padding
GROUPS = 100
PRIORITIES = 10
LATER_MS = 3_600_000  # of jobs that only have to be kept in order
SOON_MS = 20  # of jobs that are waited for

Phases = list[list[Script]]
"""What connections do at the same time, one list after the other."""

Options = dict[str, object]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: how to make the scripts, and their sizes."""

    name: str
    make: Callable[[Workload, str, int], Phases]
    connections: int
    jobs: int
    window: int = 1
    batch: int = 1
    payload_bytes: int = 64
    options: Callable[[int], Options] | None = None
    queues: int = 1
    is_filled_first: bool = False
    doc: str = ""

    def fitting(self, jobs: int) -> int:
        """Round a number of jobs up to whole requests."""
        return -(-jobs // self.batch) * self.batch

    def queue_names(self, stem: str, jobs: int) -> list[str]:
        """List the queues that so many jobs are spread over."""
        if self.queues == 1:
            return [stem]
        return [f"{stem}-{number}" for number in range(min(self.queues, jobs))]


def payload(index: int, size_bytes: int) -> dict[str, object]:
    """Make user data of about the given encoded size."""
    padding = max(0, size_bytes - PAYLOAD_FIXED_BYTES)
    return {"i": index % 128, "user": f"{index % 10_000:04d}", "body": "x" * padding}


def push_frames(row: Workload, queue: str, jobs: int) -> list[bytes]:
    """Encode PUSH requests, or PUSHB requests for a row with a batch."""
    names = row.queue_names(queue, jobs)
    options = row.options or _no_options
    room = PREPARED_BYTES_MAX // ((row.payload_bytes + 80) * row.batch)
    most = max(FRAMES_MAX, len(names))
    frames = []
    for index in range(max(1, min(most, jobs // row.batch, room))):
        request: dict[str, object] = {"reqId": f"{index:08d}", "queue": names[index % len(names)]}
        entries = [
            {"name": "job", "data": payload(number, row.payload_bytes)} | options(number)
            for number in range(index * row.batch, (index + 1) * row.batch)
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
    for scripts in push(row, queue, jobs):
        run(host, port, scripts)


# -- options of jobs, by their number -------------------------------------------------------------


def _no_options(_index: int) -> Options:
    return {}


def _five(_index: int) -> Options:
    five = {"priority": 5, "maxAttempts": 5, "backoff": 500, "timeout": 30_000}
    return {**five, "removeOnComplete": True}


def _durable(_index: int) -> Options:
    return {"durable": True}


def _half_later(index: int) -> Options:
    return {"delay": LATER_MS + index % 1_000} if index % 2 else {}


def _quarter_soon(index: int) -> Options:
    return {} if index % 4 else {"delay": SOON_MS}


def _priorities(index: int) -> Options:
    return {"priority": index * 7 % PRIORITIES}


def _groups(index: int) -> Options:
    return {"groupId": f"g{index % GROUPS}"}


# -- scripts --------------------------------------------------------------------------------------


def push(row: Workload, queue: str, jobs: int) -> Phases:
    """Make producers that share one list of requests."""
    script = Repeat(push_frames(row, queue, jobs), jobs // row.batch, row.window)
    return [[script] * row.connections]


def work_one(row: Workload, queue: str, jobs: int) -> Phases:
    """Make consumers that take and acknowledge job by job."""
    names = row.queue_names(queue, jobs)
    return [[WorkOne(names, jobs, row.window)] * row.connections]


def work_many(row: Workload, queue: str, jobs: int) -> Phases:
    """Make consumers that take and acknowledge in batches."""
    return [[WorkMany(queue, jobs, row.batch)] * row.connections]


def push_then_work(row: Workload, queue: str, jobs: int) -> Phases:
    """Make producers, and consumers that begin when all jobs are there."""
    return push(row, queue, jobs) + work_one(row, queue, jobs)


def cycle(row: Workload, queue: str, jobs: int) -> Phases:
    """Make as many producers as consumers, at work together."""
    half = row.connections // 2
    producer = Repeat(push_frames(row, queue, jobs), jobs // row.batch, row.window)
    consumer: Script
    if row.batch == 1:
        consumer = WorkOne([queue], jobs, row.window, POLL_MS)
    else:
        consumer = WorkMany(queue, jobs, row.batch, POLL_MS)
    return [[producer] * half + [consumer] * half]


def parked(row: Workload, queue: str, jobs: int) -> Phases:
    """Make consumers that are parked, all but one connection, before a producer begins."""
    producer = Repeat(push_frames(row, queue, jobs), jobs, row.window)
    consumer = WorkOne([queue], jobs, 1, PARKED_MS)
    return [[consumer] * (row.connections - 1) + [producer]]


def ping(row: Workload, _queue: str, jobs: int) -> Phases:
    """Make connections that only say Ping."""
    request = frame({"cmd": "Ping", "reqId": "00000001"})
    return [[Repeat([request] * FRAMES_MAX, jobs, row.window)] * row.connections]


WORKLOADS: dict[str, Workload] = {
    row.name: row
    for row in (
        Workload("push-64x1", push, 1, 30_000, 64, doc="PUSH, 64 in flight"),
        Workload("push-512x4", push, 4, 40_000, 512, doc="PUSH, 512 in flight on 4 connections"),
        Workload("push-1x1", push, 1, 3_000, doc="PUSH, one after the other"),
        Workload("push-1x16", push, 16, 8_000, doc="PUSH, one after the other on 16 connections"),
        Workload(
            "push-options", push, 4, 30_000, 64, options=_five,
            doc="PUSH with five options, 64 in flight on 4 connections",
        ),
        Workload("pushb-50", push, 1, 60_000, 4, 50, doc="PUSHB of 50 jobs, 4 in flight"),
        Workload("pushb-1000", push, 1, 60_000, 4, 1000, doc="PUSHB of 1000 jobs, 4 in flight"),
        Workload(
            "drain-100", work_many, 4, 30_000, 1, 100, is_filled_first=True,
            doc="PULLB 100 then ACKB 100 on 4 connections, from a full queue",
        ),
        Workload(
            "pull-ack-16", work_one, 16, 8_000, 16, is_filled_first=True,
            doc="PULL then ACK, 16 chains on 16 connections, from a full queue",
        ),
        Workload("cycle-64", cycle, 16, 5_000, 32, doc="8 connections PUSH, 8 PULL and ACK"),
        Workload(
            "cycle-1k", cycle, 16, 4_000, 32, payload_bytes=1_024, doc="the same with 1 KiB of data"
        ),
        Workload(
            "cycle-10k", cycle, 16, 2_000, 32, payload_bytes=10_240,
            doc="the same with 10 KiB of data",
        ),
        Workload("cycleb-100", cycle, 4, 20_000, 2, 100, doc="PUSHB beside PULLB and ACKB of 100"),
        Workload(
            "durable-1x1", push, 1, 1_500, options=_durable, doc="durable PUSH, one by one"
        ),
        Workload(
            "durable-1x64", push, 64, 10_000, options=_durable,
            doc="durable PUSH, one by one on 64 connections",
        ),
        Workload(
            "durable-64x4", push, 4, 15_000, 64, options=_durable,
            doc="durable PUSH, 64 in flight on 4 connections",
        ),
        Workload(
            "push-delayed", push, 4, 20_000, 64, options=_half_later,
            doc="PUSH, every second job for later, 64 in flight on 4 connections",
        ),
        Workload(
            "cycle-delayed", cycle, 16, 4_000, 32, options=_quarter_soon,
            doc="cycle-64 with every fourth job delayed by 20 ms",
        ),
        Workload(
            "cycle-priorities", cycle, 16, 4_000, 32, options=_priorities,
            doc="cycle-64 with ten priorities",
        ),
        Workload(
            "cycle-groups", cycle, 16, 4_000, 32, options=_groups,
            doc="cycle-64 with jobs of 100 groups",
        ),
        Workload(
            "parked-1000", parked, 1_001, 5_000, 64,
            doc="1,000 connections park a PULL, get a job, ACK it, park again",
        ),
        Workload(
            "queues-10000", push_then_work, 4, 10_000, 64, queues=10_000,
            doc="PUSH, then PULL and ACK, over 10,000 queues",
        ),
        Workload("ping-64x1", ping, 1, 30_000, 64, doc="Ping: the bare protocol"),
    )
}  # fmt: skip
