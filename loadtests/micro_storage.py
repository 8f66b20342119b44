"""What one row costs: notes, images, frames, SQLite, checkpoints, and reading a file again.

    python loadtests/micro_storage.py rows|native|checkpoint|load

``rows`` prints microseconds of CPU per row, the broker's side and the writer's apart;
``checkpoint`` how long batches wait for one, by the length of the log; ``load`` how long a million
jobs take to read. The figures belong to one machine: compare two runs of the same one.
"""

import gc
import marshal
import os
import sys
import tempfile
import time
from typing import Any

from bunqueue.engine.job import Job
from bunqueue.engine.states import ACTIVE, COMPLETED, QUEUED
from bunqueue.protocol.options import DEFAULT_OPTIONS
from bunqueue.storage import batch, log, writer
from bunqueue.storage.loop import PollLoop
from bunqueue.storage.rows import images
from bunqueue.storage.sqlite import _SETUP, SqliteStorage, open_checked

NOW = 1_700_000_000_000
JOBS = 100_000
BATCH = 500
PAYLOAD_BYTES = 64


class NamedQueue:
    """As much of the engine's queue as the storage reads."""

    def __init__(self, name: str) -> None:
        self.name = name


class NoWriter:
    """Keeps the newest batch; the caller answers it."""

    batch: Any = None
    images = staticmethod(images)

    def start(self, listener: Any) -> None:
        """Begin."""

    def submit(self, batch: Any) -> None:
        """Keep the batch."""
        self.batch = batch

    def wait(self, timeout_ms: float) -> None:
        """Nothing to wait for."""

    def close(self, timeout_ms: float) -> None:
        """Nothing to close."""


def make_jobs(count: int) -> list[Job]:
    """Return ordinary jobs with distinct payloads."""
    queue: Any = NamedQueue("emails")
    return [
        Job(
            f"0190a0a0-0000-7000-8000-{seq:012}", seq, queue, "welcome",
            b"%0*d" % (PAYLOAD_BYTES, seq), DEFAULT_OPTIONS, 0, NOW, NOW, QUEUED,
        )
        for seq in range(1, count + 1)
    ]  # fmt: skip


def claim(job: Job) -> None:
    """Change the job as a pull does."""
    job.place, job.started_at, job.token = ACTIVE, NOW, job.id


def complete(job: Job) -> None:
    """Change the job as an ack does."""
    job.place, job.finished_at, job.result = COMPLETED, NOW, b"\xc0"


def rows(directory: str) -> None:
    """Measure each step of a row's way into the file."""
    path = os.path.join(directory, "rows.db")
    open_checked(path).close()
    database = writer.Database(path, _SETUP)
    keeper = NoWriter()
    mutations = log.MutationLog(keeper, PollLoop())
    jobs = make_jobs(JOBS)
    clock = time.process_time
    for name, change, note in (
        ("insert", None, mutations.added),
        ("claim", claim, mutations.changed),
        ("complete", complete, mutations.changed),
        ("remove", None, mutations.removed),
    ):
        if change is not None:
            for job in jobs:
                change(job)
        spent = dict.fromkeys(("note", "image", "cut", "pack", "unpack", "write", "settle"), 0.0)
        for at in range(0, JOBS, BATCH):
            batch_jobs = jobs[at : at + BATCH]
            marks = [clock()]
            for job in batch_jobs:
                note(job)
            marks.append(clock())
            images(batch_jobs)  # part of the cut, shown apart
            marks.append(clock())
            mutations._flush()
            marks.append(clock())
            packed = marshal.dumps(keeper.batch)
            marks.append(clock())
            received = marshal.loads(packed)
            marks.append(clock())
            outcome = database.write(received)
            database.checkpoint_if_due(is_idle=False)
            marks.append(clock())
            mutations.on_outcome(outcome)
            marks.append(clock())
            for step, start, end in zip(spent, marks, marks[1:], strict=False):
                spent[step] += end - start
        us = {step: value * 1e6 / JOBS for step, value in spent.items()}
        broker = us["note"] + us["cut"] + us["pack"] + us["settle"]
        other = us["unpack"] + us["write"]
        steps = "  ".join(f"{step} {value:.2f}" for step, value in us.items())
        print(f"{name:9} broker {broker:.2f} + writer {other:.2f} = {broker + other:.2f}   {steps}")
    database.close()


def native(directory: str) -> None:
    """Measure the same with the compiled core's writer: the loop's thread and the writer's."""
    loop = PollLoop()
    storage = SqliteStorage.open(os.path.join(directory, "native.db"), loop, "native")
    list(storage.load().jobs(lambda name: NamedQueue(name)))
    jobs = make_jobs(JOBS)
    for name, change, note in (
        ("insert", None, storage.added),
        ("claim", claim, storage.changed),
        ("complete", complete, storage.changed),
        ("remove", None, storage.removed),
    ):
        if change is not None:
            for job in jobs:
                change(job)
        noting, cutting, settling, all_of_it = 0.0, 0.0, 0.0, time.process_time()
        for at in range(0, JOBS, BATCH):
            marks = [time.thread_time()]
            for job in jobs[at : at + BATCH]:
                note(job)
            marks.append(time.thread_time())
            storage._flush()
            marks.append(time.thread_time())
            storage.flush()
            marks.append(time.thread_time())
            noting += marks[1] - marks[0]
            cutting += marks[2] - marks[1]
            settling += marks[3] - marks[2]
        total = (time.process_time() - all_of_it) * 1e6 / JOBS
        note_us, cut_us, settle_us = (value * 1e6 / JOBS for value in (noting, cutting, settling))
        broker = note_us + cut_us + settle_us
        print(
            f"{name:9} broker {broker:.2f} + writer {total - broker:.2f} = {total:.2f}"
            f"   note {note_us:.2f}  cut {cut_us:.2f}  settle {settle_us:.2f}"
        )
    storage.close()


def checkpoint(directory: str) -> None:
    """Measure how long a batch waits for a checkpoint, by the length of the log."""
    for pages in (8192, 4096, 2048, 1024, 512):
        path = os.path.join(directory, f"checkpoint-{pages}.db")
        open_checked(path).close()
        writer.WAL_PAGES_MAX = pages  # type: ignore[misc]  # what is measured here
        database = writer.Database(path, _SETUP)
        stalls = []
        spent = time.process_time()
        for number in range(200):
            values: list[Any] = []
            for seq in range(number * 5000, (number + 1) * 5000):
                values += (seq, f"0190a0a0-0000-7000-8000-{seq:012}", "emails", "welcome")
                values += (0, NOW, NOW, None, b"x" * PAYLOAD_BYTES)
            database.write((number, False, [(batch._UPSERT_PLAIN, 9, values)], [], []))
            start = time.perf_counter()
            database.checkpoint_if_due(is_idle=False)
            stalls.append((time.perf_counter() - start) * 1000)
        us = (time.process_time() - spent) * 1e6 / 1_000_000
        stalls = sorted(stall for stall in stalls if stall > 1)
        print(f"{pages} pages: {us:.2f} us/row, {len(stalls)} stalls, worst {stalls[-1]:.0f} ms")
        database.close()


def load(directory: str, count: int = 1_000_000) -> None:
    """Measure how long the jobs of a file take to come back, every third completed."""
    path = os.path.join(directory, "load.db")
    loop = PollLoop()
    storage = SqliteStorage.open(path, loop)
    for job in make_jobs(count):
        storage.added(job)
        if job.seq % 3 == 0:
            complete(job)
            storage.changed(job)
        if job.seq % 1000 == 0:
            loop.run_once(0)
            loop.run_until(lambda: not storage.is_congested, 60_000)
    storage.close()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    marks = [time.process_time()]
    storage = SqliteStorage.open(path, loop)
    marks.append(time.process_time())
    jobs = list(storage.load().jobs(NamedQueue))
    marks.append(time.process_time())
    opening, loading = (end - start for start, end in zip(marks, marks[1:], strict=False))
    print(f"CPU: open {opening:.2f} s, load {len(jobs)} jobs {loading:.2f} s")
    storage.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        {"rows": rows, "native": native, "checkpoint": checkpoint, "load": load}[sys.argv[1]](
            scratch
        )
