"""Completion proofs: which jobs have completed although nothing of them is kept (engine.md 5.2).

A job that is removed on completion leaves its id, queue and time, so that a later ``dependsOn`` on
it is satisfied, also after a restart. A proof that a live job refers to is pinned, with the result
that its consumer may still ask for; the others are kept newest first, without a result.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bunqueue.engine.engine import Engine

TABLE: Final = "proofs"
TRIMMED_PART: Final = 10  # one in so many of the limit goes when it is passed, as completed jobs

Proof = tuple[str, int, bytes | None]  # queue, completed at (epoch ms), packed result


class Proofs:
    """All proofs of a broker.

    Attributes:
        free: id -> proof that no live job refers to, oldest first.
        pinned: id -> proof that some live job refers to.
    """

    __slots__ = ("free", "pinned")

    def __init__(self) -> None:
        self.free: dict[str, Proof] = {}
        self.pinned: dict[str, Proof] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.free or job_id in self.pinned

    def has_any(self, job_ids: Mapping[str, None]) -> bool:
        """Say whether there is a proof of one of the jobs."""
        ids = job_ids.keys()
        return not (ids.isdisjoint(self.free) and ids.isdisjoint(self.pinned))

    def __len__(self) -> int:
        return len(self.free) + len(self.pinned)

    def get(self, job_id: str) -> Proof | None:
        """Return the proof that the job completed, or None."""
        return self.pinned.get(job_id) or self.free.get(job_id)


def add(engine: "Engine", job_id: str, proof: Proof, is_pinned: bool) -> None:
    """Keep a proof, in memory and in the file; without its result unless it is pinned."""
    proofs = engine.graph.proofs
    if not is_pinned:
        proof = (proof[0], proof[1], None)
    proofs.free.pop(job_id, None)
    proofs.pinned.pop(job_id, None)
    (proofs.pinned if is_pinned else proofs.free)[job_id] = proof
    engine.storage.put(TABLE, job_id, proof)
    if not is_pinned:
        trim(engine)


def drop(engine: "Engine", job_id: str) -> Proof | None:
    """Forget a proof; return it, or None if there was none."""
    proofs = engine.graph.proofs
    proof = proofs.pinned.pop(job_id, None) or proofs.free.pop(job_id, None)
    if proof is not None:
        engine.storage.delete(TABLE, job_id)
    return proof


def pin(engine: "Engine", job_id: str) -> None:
    """Keep the proof for as long as somebody refers to it."""
    proofs = engine.graph.proofs
    proof = proofs.free.pop(job_id, None)
    if proof is not None:
        proofs.pinned[job_id] = proof


def unpin(engine: "Engine", job_id: str) -> Proof | None:
    """Let the proof age, without its result; return what it was, or None."""
    proofs = engine.graph.proofs
    proof = proofs.pinned.pop(job_id, None)
    if proof is not None:
        proofs.free[job_id] = (proof[0], proof[1], None)
        if proof[2] is not None:
            engine.storage.put(TABLE, job_id, proofs.free[job_id])
        trim(engine)
    return proof


def trim(engine: "Engine") -> None:
    """Drop the oldest proofs beyond the limit, and a part of it more, so that this is rare."""
    free = engine.graph.proofs.free
    most = engine.settings.max_completed_jobs
    if len(free) <= most:
        return
    for job_id in list(islice(free, len(free) - most + most // TRIMMED_PART)):
        del free[job_id]
        engine.storage.delete(TABLE, job_id)
