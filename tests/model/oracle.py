"""What jobs are and what becomes of them, as the specification says it: the model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

HOUR_MS: Final = 3_600_000
STALLS_MAX: Final = 3
PROGRESS_DONE: Final = 100  # what readers are told of a completed job
LOSS_WINDOW_S: Final = 0.05  # a plain push may be lost when the broker is killed so soon
JITTER: Final = (0.8, 1.2)  # of a fixed backoff


@dataclass
class Job:
    """One generation.

    Attributes:
        place: queued, active, completed or failed.
        run_at: When it may run, as the broker said; None until it is read.
        run_at_bounds: Where that has to lie when it is read.
        plain_at: When a plain push was answered, by the steady clock; None once it is safe.
        token: Of the delivery that runs.
        lost_token: Of a delivery that was charged because the broker died.
        unasked_at: When the broker last changed it unasked, by the steady clock: as a link or a
            lease ended, or at its own start. Nobody is told when that is written.
    """

    id: str
    queue: str
    seq: int
    priority: int
    lifo: bool
    max_attempts: int
    backoff: int
    data: Any
    remove_on_complete: bool
    remove_on_fail: bool
    run_at_bounds: tuple[int, int]
    plain_at: float | None
    run_at: int | None = None
    place: str = "queued"
    attempts: int = 0
    stalls: int = 0
    progress: int = 0
    token: str | None = None
    lost_token: str | None = None
    link: int = 0
    lease_ms: int = 0
    pulled_at_ms: int = 0
    is_renewed: bool = False
    result: Any = None
    deliveries: int = 0
    uncharged: int = 0
    unasked_at: float = 0.0

    def state(self, now: int) -> str:
        """Return what a reader is told."""
        if self.place != "queued":
            return self.place
        assert self.run_at is not None
        if self.run_at > now:
            return "delayed"
        return "prioritized" if self.priority > 0 else "waiting"

    def rank(self) -> tuple[int, int, int, int]:
        """Return the place in the order of the queue, the first the smallest."""
        assert self.run_at is not None
        if self.lifo:
            return (-self.priority, 0, -self.seq, 0)
        return (-self.priority, 1, self.run_at, self.seq)


@dataclass
class Oracle:
    """All jobs of a history, by id.

    Attributes:
        jobs: Who is kept.
        gone: Ids that were here once and are not any more.
        paused: Queues that hand nothing out.
        loss_window_s: A kill may undo what was done so long ago and not told to be written.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    seq: int = 0
    loss_window_s: float = LOSS_WINDOW_S

    def add(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.gone.discard(job.id)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def remove(self, job: Job) -> None:
        del self.jobs[job.id]
        self.gone.add(job.id)

    def of(self, queue: str, *places: str) -> list[Job]:
        """Return the jobs of a queue that are in one of these places."""
        return [job for job in self.jobs.values() if job.queue == queue and job.place in places]

    def next(self, queue: str, now: int) -> Job | None:
        """Return whom a pull is to get."""
        if queue in self.paused:
            return None
        ready = [j for j in self.of(queue, "queued") if j.run_at is not None and j.run_at <= now]
        return min(ready, key=Job.rank, default=None)

    def pulled(self, job: Job, token: str, link: int, lease_ms: int, now: int) -> None:
        job.place, job.token, job.link = "active", token, link
        job.lease_ms, job.pulled_at_ms, job.is_renewed = lease_ms, now, False
        job.lost_token = job.plain_at = None
        job.deliveries += 1

    def completed(self, job: Job, result: Any) -> None:
        job.place, job.token, job.lost_token, job.result = "completed", None, None, result
        job.progress = PROGRESS_DONE
        if job.remove_on_complete:
            self.remove(job)

    def charged(
        self, job: Job, now: tuple[int, int], *, is_final: bool = False, is_stall: bool = False,
        has_backoff: bool = True,
    ) -> None:  # fmt: skip
        """An attempt went wrong: again later, or never."""
        job.attempts += 1
        job.stalls += is_stall
        job.lost_token = job.token if is_stall else None
        job.token = None
        if is_final or job.attempts >= job.max_attempts or (is_stall and job.stalls >= STALLS_MAX):
            job.place, job.lost_token = "failed", None
            if job.remove_on_fail and not is_stall:  # what nobody reported stays to be looked at
                self.remove(job)
            return
        job.place = "queued"
        if has_backoff:
            self.backed_off(job, now)

    def backed_off(self, job: Job, now: tuple[int, int]) -> None:
        """Waits for its next attempt, from one of these moments on."""
        low, high = (round(job.backoff * factor) for factor in JITTER)
        self.moved(job, (now[0] + low - 1, now[1] + high + 1))

    def released(self, job: Job) -> None:
        """Came back uncharged, to where it was."""
        job.place, job.token = "queued", None
        job.uncharged += 1

    def moved(self, job: Job, bounds: tuple[int, int]) -> None:
        job.run_at, job.run_at_bounds = None, bounds

    def just_pushed(self) -> list[Job]:
        """Return whom a kill may lose: plain pushes of a moment ago, untouched since."""
        limit = time.monotonic() - self.loss_window_s
        return [j for j in self.jobs.values() if j.plain_at is not None and j.plain_at > limit]

    def just_back(self) -> list[Job]:
        """Return who may be at work still, for the file: what came back in line a moment ago."""
        limit = time.monotonic() - self.loss_window_s
        return [j for j in self.jobs.values() if j.place == "queued" and j.unasked_at > limit]
