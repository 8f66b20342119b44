"""Places and the moves between them: the only table of its kind.

A place is where the engine keeps a job; the state that a reader is told is derived from it: a
queued job is waiting, prioritized or delayed, depending on the clock and its priority (engine.md
1.1).
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bunqueue.engine.job import Job

ADMITTED: Final = "admitted"  # accepted, invisible until its commit
QUEUED: Final = "queued"
PARKED: Final = "parked"
ACTIVE: Final = "active"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
GONE: Final = "gone"

# place -> move -> place. The numbers are the transitions of engine.md 1.2.
MOVES: Final[dict[str, dict[str, str]]] = {
    ADMITTED: {"publish": QUEUED, "park": PARKED, "remove": GONE},  # T1
    QUEUED: {
        "pull": ACTIVE,  # T2
        "park": PARKED,
        "ack": COMPLETED,  # T24
        "discard": FAILED,  # T19
        "expire": FAILED,  # TTL after a failed attempt
        "remove": GONE,  # T18
    },
    PARKED: {"promote": QUEUED, "fail": FAILED, "discard": FAILED, "remove": GONE},
    ACTIVE: {
        "ack": COMPLETED,  # T3
        "retry": QUEUED,  # T5, T8, T9, T10
        "give-up": FAILED,  # T6, T8, T11
        "release": QUEUED,  # T13, T14
        "discard": FAILED,  # T19
        "park": PARKED,  # T13
        "remove": GONE,  # T4, T7, T12
    },
    COMPLETED: {"rerun": QUEUED, "undo": ACTIVE, "remove": GONE},  # T22, T23
    FAILED: {"rerun": QUEUED, "undo": ACTIVE, "remove": GONE},  # T20, T21
    GONE: {"undo": ACTIVE},
}


def move(job: "Job", event: str) -> None:
    """Move the job along one edge of ``MOVES``.

    Raises:
        KeyError: There is no such edge; that is our bug, never a peer's.
    """
    job.place = MOVES[job.place][event]


def state_of(job: "Job", now: int) -> str:
    """Return the state that readers are told, at the moment ``now`` (epoch ms)."""
    place = job.place
    if place == QUEUED:
        if not job.is_ripe and job.run_at > now:
            return "delayed"
        return "prioritized" if job.priority > 0 else "waiting"
    return STATE_BY_PLACE[place]


STATE_BY_PLACE: Final = {
    ADMITTED: "unknown",
    PARKED: "waiting-children",
    ACTIVE: "active",
    COMPLETED: "completed",
    FAILED: "failed",
    GONE: "unknown",
}
STATES: Final = (
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    "waiting-children",
)
