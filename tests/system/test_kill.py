"""Nothing is lost and nothing is done twice, however often broker and workers are killed.

Two producers push 20,000 jobs, a tenth of them durable; three workers work them. Ten times the
broker is killed with SIGKILL at a random moment, and each time a worker too; both come back at
once. Producers and workers write down what they were told (``kill/journal.py``), and in the end
that is held against the broker's record, read after one more kill:

- A job is owed if it was durable, or acknowledged more than 50 ms before any kill: all owed jobs
  are completed. (A plain push may be lost if the broker dies within that time of its answer.)
- Every job the broker has is completed. None waits, is at work, or is a dead letter.
- No job was completed twice, by its timeline, nor confirmed twice to the workers; what was
  confirmed is completed.

``BUNQUEUE_TEST_SEED`` repeats a run, as far as the scheduling of processes can be repeated.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.reference import broker_under_test
from tests.system.kill import journal
from tests.system.kill.wire import Link, Message

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "kill"
QUEUE = "kill"
SEED = os.environ.get("BUNQUEUE_TEST_SEED", "2")
PRODUCERS, WORKERS, KILLS = 2, 3, 10
JOBS = 20_000
PUSH_S = 25  # the pushes are spread over about so long, and the kills with them
PAUSE_S = (0.8, 2.4)  # between the return of the broker and its next kill
LOSS_WINDOW_S = 0.05
# A quiet machine takes 35 s; these are for one that is busy with other things, and below what
# pytest lets any test take (faulthandler_timeout).
RUN_S_MAX = 200
START_S_MAX = 60
PAGE = 1_000
UNFINISHED = ("waiting", "prioritized", "delayed", "active", "waiting-children", "failed", "paused")


@dataclass
class Stage:
    """The processes of a run, their journals, and when the broker was dead."""

    directory: Path
    broker: BrokerProcess
    rng: random.Random
    producers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    def start_producer(self, number: int) -> None:
        jobs, pace = JOBS // PRODUCERS, JOBS / PRODUCERS / PUSH_S
        path = self.directory / f"producer-{number}.journal"
        self.producers.append(self._run("producer", str(path), str(jobs), str(pace)))

    def start_worker(self, number: int) -> subprocess.Popen[bytes]:
        path, seed = self.directory / f"worker-{number}.journal", str(self.rng.random())
        return self._run("worker", str(path), f"worker-{number}", seed)

    def kill_broker(self) -> None:
        """Kill the broker and start it again; remember when it was gone."""
        begin = time.monotonic()
        self.broker.kill()
        self.broker.start()
        self.outages.append((begin, time.monotonic()))

    def kill_worker(self) -> None:
        """Kill one worker and start its successor."""
        number = self.rng.randrange(WORKERS)
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self.start_worker(number)

    def end(self) -> None:
        for process in (*self.producers, *self.workers):
            process.kill()
            process.wait()

    def entries(self, role: str) -> list[journal.Entry]:
        paths = self.directory.glob(f"{role}-*.journal")
        return list(itertools.chain.from_iterable(map(journal.read, paths)))

    def _run(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(FOLDER / f"{script}.py"), str(self.broker.port), QUEUE]
        with (self.directory / f"{script}.err").open("ab") as errors:
            return subprocess.Popen([*command, *arguments], stderr=errors)


def completed_jobs(link: Link) -> list[Message]:
    """Read the broker's record of completed jobs, page by page."""
    jobs: list[Message] = []
    while True:
        request = {"cmd": "GetJobs", "queue": QUEUE, "state": "completed"}
        page = link.call(request | {"limit": PAGE, "offset": len(jobs)})["jobs"]
        jobs += page
        if not page:
            return jobs


def wait_until_done(stage: Stage, deadline: float) -> None:
    """Wait until all is pushed and worked; the producers must have ended well."""
    for producer in stage.producers:
        assert 0 == producer.wait(max(1.0, deadline - time.monotonic()))
    with Link(stage.broker.port) as link:
        while True:
            counts = link.call({"cmd": "GetJobCounts", "queue": QUEUE})["counts"]
            if not any(counts[state] for state in UNFINISHED):
                return
            assert time.monotonic() < deadline, f"unfinished after {RUN_S_MAX} s: {counts}"
            assert 0 == counts["failed"], f"gave up on jobs that only met kills: {counts}"
            assert [None] * WORKERS == [worker.poll() for worker in stage.workers]
            time.sleep(0.1)


def owed_jobs(pushed: list[journal.Entry], outages: list[tuple[float, float]]) -> set[str]:
    """Return the jobs that no kill excuses.

    An answer may be read late, even after the death of the broker that sent it; so everything
    read until the broker was back counts as answered within the window.
    """
    return {
        entry.job_id
        for entry in pushed
        if entry.what == "durable"
        or not any(begin - LOSS_WINDOW_S <= entry.at_s <= end for begin, end in outages)
    }


def lateness_s(
    pushed: list[journal.Entry], lost: set[str], outages: list[tuple[float, float]]
) -> dict[str, float]:
    """Return how long before the next death of the broker each lost job was acknowledged."""
    deaths = [begin for begin, _ in outages]
    return {
        entry.job_id: min(death for death in deaths if death >= entry.at_s) - entry.at_s
        for entry in pushed
        if entry.job_id in lost
    }


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A broker on a file, for a queue in which nothing gives up for being killed often."""
    broker = broker_under_test(tmp_path, data_path=tmp_path / "broker.db")
    broker.start_s_max = START_S_MAX
    return Stage(tmp_path, broker, random.Random(SEED))


def test_killed_at_random_it_loses_nothing_and_repeats_nothing(stage: Stage) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    with stage.broker:
        try:
            play(stage, deadline)
        finally:
            stage.end()
        stage.kill_broker()
        with Link(stage.broker.port) as link:
            counts = link.call({"cmd": "GetJobCounts", "queue": QUEUE})["counts"]
            record = completed_jobs(link)

    completed = Counter(job["id"] for job in record)
    pushed, worked = stage.entries("producer"), stage.entries("worker")
    owed = owed_jobs(pushed, stage.outages)
    confirmed = Counter(entry.job_id for entry in worked if entry.what == "completed")
    print(
        f"seed {SEED}: {len(pushed)} pushes acknowledged, {len(owed)} of them owed, "
        f"{len(completed)} jobs completed, {sum(confirmed.values())} confirmed to workers, "
        f"{len({entry.job_id for entry in pushed} - set(completed))} excused losses"
    )
    assert JOBS == len(pushed)
    assert set() == {entry.job_id for entry in pushed if entry.what == "durable"} - set(completed)
    assert {} == lateness_s(pushed, owed - set(completed), stage.outages)
    assert dict.fromkeys(UNFINISHED, 0) == {state: counts[state] for state in UNFINISHED}
    assert counts["completed"] == len(record)
    assert [] == [job_id for job_id, times in completed.items() if times > 1]
    assert [] == [job["id"] for job in record if 1 < times_completed(job)]
    assert [] == [job_id for job_id, times in confirmed.items() if times > 1]
    assert set() == set(confirmed) - set(completed)


def play(stage: Stage, deadline: float) -> None:
    """Run producers and workers through all the kills, and on until all is done."""
    patient = {"cmd": "SetStallConfig", "queue": QUEUE, "config": {"maxStalls": 1_000}}
    with Link(stage.broker.port) as link:
        assert link.call(patient)["ok"]
    for number in range(PRODUCERS):
        stage.start_producer(number)
    stage.workers = [stage.start_worker(number) for number in range(WORKERS)]
    for _ in range(KILLS):
        blows = [stage.kill_broker, stage.kill_worker]
        stage.rng.shuffle(blows)
        time.sleep(stage.rng.uniform(*PAUSE_S))
        blows[0]()
        time.sleep(stage.rng.uniform(0, 0.3))
        blows[1]()
    wait_until_done(stage, deadline)


def times_completed(job: Message) -> int:
    """Count how often a job was completed, by its timeline."""
    return sum(moment["state"] == "completed" for moment in job["timeline"] or ())
