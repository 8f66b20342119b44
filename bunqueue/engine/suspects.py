"""Jobs that may be what kills their workers (T14, and engine.md 4.2 on free returns).

When a connection closes, jobs whose lease it never renewed go back uncharged and first in line. One
that kills its worker would go round for ever, and take along each time what runs beside it. So:

- As many such losses in a row as the queue allows stalls, and the job is given up as stalled.
- From the second on it waits for its backoff, which draws apart what was lost together.
- Nobody is given up for a neighbour: jobs on their last chance are handed to a connection one at a
  time, each once the one before has ended or has outlived ``ALONE_MS``. What kills its worker later
  than that has had its lease renewed as a rule, and is charged when that runs out.

``sweeps.worker_lost`` counts, in memory: a restart of the broker charges what was running anyway.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine
    from bunqueue.engine.job import Job
    from bunqueue.engine.ports import Peer

ALONE_MS: Final = 10_000  # the usual time of a first heartbeat
AGAIN_MS: Final = 250  # how long one that must wait for another is put off
PUT_OFF_MAX: Final = 1000  # by one pull: some ms; the next one goes on behind them


def is_on_last_chance(job: "Job") -> bool:
    """Say whether the next loss of its worker is the job's end. Jobs of groups keep their turn."""
    losses, stall = job.extra.losses, job.queue.stall
    is_near = losses > 0 and stall.enabled and 0 < stall.max_stalls <= losses + 1
    return is_near and job.extra.group_id is None


def has_one(peer: "Peer", now: int) -> bool:
    """Say whether a connection runs a job on its last chance that may yet kill the worker."""
    return any(
        job.extra.losses and now - delivery.started_at < ALONE_MS and is_on_last_chance(job)
        for job, delivery in peer.held.items()
    )


def put_off(engine: "Engine", job: "Job", now: int) -> None:
    """Let a job that was taken from the run set come back a little later."""
    job.run_at = now + AGAIN_MS
    job.stamp += 1
    job.queue.run_set.enter(job, now)
    engine.storage.changed(job)


def acquit(job: "Job") -> None:
    """Begin the count anew: a run has ended otherwise than with its worker."""
    if job.extra.losses:
        job.extra.losses = 0
