"""What large batches and flows under way owe the file.

Such a batch takes those whose id or key its jobs get out of memory one by one, and writes all of it
in one go. Until then the file has nothing of what it brings and all of whom it ends, as these were,
with the key that it has taken from one that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.simulation.picture import Picture, picture_of

Ties = dict[int, frozenset[str]]
Pictures = Mapping[int, Picture]


class Ended(NamedTuple):
    """One that a batch has taken out of memory.

    Attributes:
        batch: Who did.
        job: As the file is to have it until the batch is written.
        ties: For whom it waited.
        was_coming: Its own commit was still to come.
    """

    batch: Any
    job: Picture
    ties: frozenset[str]
    was_coming: bool


class Batches:
    """Watches what is on its way into one engine.

    ``looked`` sees each slice of a batch by itself: nobody else does anything to those it ends.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._brought: dict[int, Any] = {}  # the batch that brings each job
        self._ended: dict[int, Ended] = {}
        self._robbed: dict[int, tuple[Any, Any]] = {}  # the batch that has taken a key, the key

    def looked(self, before: Pictures, after: Pictures, gone: Mapping[int, Any], now: int) -> None:
        """Compare two looks at the jobs; ``gone``: those that have left memory in between."""
        if not (self._engine.arriving or self._brought):
            return
        brought = {job.seq: (batch, job) for batch in self._engine.arriving for job in batch.jobs()}
        fresh = [entry for seq, entry in brought.items() if seq not in self._brought]
        self._brought = {seq: batch for seq, (batch, _) in brought.items()}
        for batch, new in fresh:
            for seq, old in before.items():
                has_key = _has_key_of(old, new, now)
                if seq in gone and (has_key or old.id == new.id):
                    self._ended[seq] = _ended(batch, gone[seq], old.place)
                elif has_key and old.place == "active" and seq in after:
                    self._robbed[seq] = batch, old.key

    def stored(self, pictures: Pictures) -> dict[int, Picture]:
        """Return what the file is to have when memory has these jobs."""
        self._forget(pictures)
        found = {seq: job for seq, job in pictures.items() if seq not in self._brought}
        found |= {seq: ended.job for seq, ended in self._ended.items()}
        for seq, (_, key) in self._robbed.items():
            if seq in found:
                found[seq] = found[seq]._replace(key=key)
        return found

    def ties(self, pictures: Pictures) -> Ties:
        """Return for whom those that were ended would wait if they came back."""
        completed = {job.id for job in pictures.values() if job.place == "completed"}
        proofs = self._engine.graph.proofs
        return {
            seq: frozenset(i for i in ended.ties if i not in completed and i not in proofs)
            for seq, ended in self._ended.items()
        }

    def failed(self, pictures: Pictures, file: Callable[[], Pictures]) -> None:
        """A commit has failed: whom a batch has ended is owed as the file has it.

        One that was never written is undone if its push was to be answered with that commit.
        """
        self._forget(pictures)
        if not self._ended:
            return
        found = file()
        self._ended = {
            seq: ended._replace(job=found.get(seq, ended.job))
            for seq, ended in self._ended.items()
            if seq in found or not ended.was_coming
        }

    def _forget(self, pictures: Pictures) -> None:
        """Leave out what has been written by now, or has come back."""
        under_way = self._engine.arriving
        self._brought = {s: batch for s, batch in self._brought.items() if batch in under_way}
        self._robbed = {s: entry for s, entry in self._robbed.items() if entry[0] in under_way}
        self._ended = {
            seq: entry
            for seq, entry in self._ended.items()
            if entry.batch in under_way and seq not in pictures
        }


def _has_key_of(old: Picture, new: Any, now: int) -> bool:
    """Say whether a new job has got the key that another one had until then."""
    _, key, until = old.key
    is_same = key is not None and (old.queue, key) == (new.queue.name, new.extra.unique_key)
    return is_same and (until is None or until > now)


def _ended(batch: Any, job: Any, place: str) -> Ended:
    """Take down a job that was in ``place`` until a batch ended it."""
    flow, is_at = job.extra.flow, job.place
    job.place = place
    picture = picture_of(job, is_stored=True)
    job.place = is_at
    return Ended(batch, picture, frozenset(flow.missing if flow else ()), place == "admitted")
