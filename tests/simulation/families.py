"""Jobs that come, go or wait together: I28, I30, I32, I33.

A flow is in the file whole or not at all; of a job and the one whose place it takes, exactly one
is. That is asked of the file after every commit, since the broker may die after any. And when the
disk is well and some time has passed, nobody waits for what has happened.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from bunqueue.storage import schema
from tests.simulation.picture import Picture, ties_of
from tests.simulation.world import Asked, Broken, World

Pictures = Mapping[int, Picture]
POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)
OF_CHILD = re.compile(r"Child job (\S+) failed: ")
CHANCES = {("active", "parked"), ("failed", "queued"), ("failed", "active")}
FAILS = ("FAIL", "tick", "close")
LIVE = ("queued", "parked", "active", "admitted")


class Families:
    """Watches who belongs together."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._flows: list[frozenset[int]] = []
        self._coming: list[
            tuple[frozenset[str], Asked]
        ] = []  # ids of flows that were not refused yet
        self._heirs: list[tuple[int, int]] = []  # who went, who came in its place
        self._written: set[int] = set()  # of those who went: who has been in the file
        self._gone: set[int] = set()  # seen to go
        self._again: set[int] = set()  # have had a chance since a child of theirs has failed
        self._failures: defaultdict[int, set[int]] = defaultdict(set)  # when a job has failed
        # Who came when one it waits for had failed, whom, and when that had failed. A chance that
        # it was given before may be undone after.
        self._late: set[tuple[int, int, int]] = set()
        self._done: set[str] = set()  # completed and not kept: ids
        self._fallen: set[tuple[str, str]] = set()  # failed and not kept: child, parent
        world.file_changed = self.file_changed

    # -- all or none -------------------------------------------------------------------------------

    def commanded(self, asked: Asked, before: Pictures, after: Pictures) -> None:
        """A command that was not refused has been done."""
        request = asked.request
        name = request["cmd"]
        fresh = [job for seq, job in after.items() if seq not in before]
        if name == "PUSHF":
            self._coming.append((frozenset(job["id"] for job in request["jobs"]), asked))
            self.arrived(fresh)
        if name not in ("PUSH", "PUSHB"):
            return
        for old in before.values():
            if old.seq in after:
                continue
            # Whom the batch names with the same id may have been replaced within it.
            keys = {job["uniqueKey"] for job in request.get("jobs", ())
                    if job.get("customId") == old.id and job.get("uniqueKey")}  # fmt: skip
            heir = next((job for job in fresh if _follows(old, job) or job.key[1] in keys), None)
            if heir is None:
                raise Broken(f"{name} took {old} away, and nobody came in its place")
            self._heirs.append((old.seq, heir.seq))
            if old.seq in self.world.file.tables[schema.JOBS.name]:
                self._written.add(old.seq)

    def arrived(self, fresh: Iterable[Picture]) -> None:
        """Jobs have appeared: a flow that is on its way in does so as a whole."""
        self._coming = [(ids, asked) for ids, asked in self._coming if not _is_refused(asked)]
        for ids, asked in list(self._coming):
            of_flow = [job for job in fresh if job.id in ids and job.place == "admitted"]
            if of_flow and len(of_flow) < len(ids):
                raise Broken(f"{len(of_flow)} of the {len(ids)} jobs of a flow have come: {ids}")
            if of_flow:
                self._flows.append(frozenset(job.seq for job in of_flow))
                self._coming.remove((ids, asked))

    def file_changed(self) -> None:
        """A batch has been committed: the broker may die now."""
        found = self.world.file.tables[schema.JOBS.name]
        for flow in self._flows:
            lacking = [seq for seq in flow if seq not in found and seq not in self._gone]
            if lacking and len(lacking) < len(flow - self._gone):
                raise Broken(f"of the flow {sorted(flow)} the file lacks {lacking}")
        for old, new in self._heirs:
            if old in found and new in found:
                raise Broken(f"{new} has taken the place of {old}, and the file has both")
            if old in found:
                self._written.add(old)
            elif old in self._written and new not in found and new not in self._gone:
                raise Broken(f"{new} is to take the place of {old}, and the file has neither")
        # What is whole in the file has come; what has gone from it needs no more looks.
        self._flows = [f for f in self._flows if not all(seq in found for seq in f)]
        self._heirs = [(old, new) for old, new in self._heirs if new not in found]

    def restarted(self, proofs: Callable[[str], bool]) -> None:
        """The broker begins with what the file has."""
        self._flows.clear()
        self._coming.clear()
        self._heirs.clear()
        self._written.clear()
        self._gone.clear()
        self._done = {job_id for job_id in self._done if proofs(job_id)}
        self._fallen.clear()

    # -- who waits for whom ------------------------------------------------------------------------

    def looked(
        self, kind: str, old: Picture, new: Picture | None, has_expired: bool = False
    ) -> None:
        """A job has changed in a step; ``has_expired``: if it has gone, its time was over."""
        if new is not None and (old.place, new.place) in CHANCES:
            self._again.add(new.seq)
        if new is not None and new.place == "failed":
            self._failures[new.seq].add(new.finished_at)
        if new is None:
            self._gone.add(old.seq)
            parent_id = old.edges[0]
            has_failed = kind in FAILS and old.place == "active" and not has_expired
            if old.place == "completed" or kind in ("ACK", "ACKB"):
                self._done.add(old.id)
            elif parent_id is not None and has_failed and _policy(old):
                self._fallen.add((old.id, parent_id))

    def undone(self) -> None:
        """A commit has failed: who had completed and gone may have come back, and gone again."""
        self._done.clear()

    def appeared(self, new: Picture, after: Pictures) -> None:
        """A job was not there before the step: it is new, or what took it away was undone."""
        if new.place == "failed":
            self._failures[new.seq].add(new.finished_at)
        if self._failures and new.seq not in self._gone:
            missing = ties_of(self.world.engine).get(new.seq, ())
            self._late |= {
                (new.seq, job.seq, failed_at)
                for job in after.values()
                if job.id in missing
                for failed_at in self._failures.get(job.seq, ())
            }
        self._gone.discard(new.seq)
        self._done.discard(new.id)
        self._fallen = {pair for pair in self._fallen if pair[0] != new.id}

    def gave_up(self, old: Picture, new: Picture | None, before: Pictures, after: Pictures) -> None:
        """A parked job has failed through no command of its own: a child of it must have."""
        said = None if new is None else OF_CHILD.match(new.texts[0] or "")
        if new is not None and said is None:
            raise Broken(f"parked {old.id} failed by itself: {new}")
        child_ids = {
            job.id
            for job in (*before.values(), *after.values())
            if job.edges[0] == old.id and (POLICIES[0], "True") in job.options
        }
        child_ids |= {child for child, parent in self._fallen if parent == old.id}
        child_ids -= {job.id for job in after.values() if job.place in LIVE}
        if not child_ids or (said is not None and said[1] not in child_ids):
            raise Broken(f"parked {old.id} failed, and no child of it has: {new}")

    def settled(self, pictures: Pictures) -> None:
        """The disk is well and some time has passed: whoever waits has a reason."""
        by_id = {job.id: job for job in pictures.values()}
        for seq, missing in ties_of(self.world.engine).items():
            job = pictures[seq]
            if job.place != "parked":
                continue
            if not missing:
                raise Broken(f"{job.id} waits for nobody: {job}")
            for job_id in missing:
                other = by_id.get(job_id)
                if other is None and job_id in self._done:
                    raise Broken(f"{job.id} waits for {job_id}, which has completed")
                if other is None and (job_id, job.id) in self._fallen:
                    raise Broken(f"{job.id} waits for {job_id}, which has failed and says not to")
                if other is None:
                    continue
                if other.place == "completed":
                    raise Broken(f"{job.id} waits for {job_id}, which has completed: {other}")
                policy = _policy(other) if other.edges[0] == job.id else None
                if policy == POLICIES[0] and seq in self._again:
                    continue  # it waits for another chance of the child's
                if (seq, other.seq, other.finished_at) in self._late:
                    continue  # the failure was no child's of its own
                if other.place == "failed" and policy is not None:
                    raise Broken(f"{job.id} waits for {job_id}, which has failed: {other}")


def _is_refused(asked: Asked) -> bool:
    return asked.reply is not None and asked.reply["ok"] is False


def _follows(old: Picture, new: Picture) -> bool:
    """Say whether a new job has the id or the key of one that went."""
    has_key = old.key[1] is not None and (old.queue, old.key[1]) == (new.queue, new.key[1])
    return old.id == new.id or has_key


def _policy(job: Picture) -> str | None:
    return next((name for name in POLICIES if (name, "True") in job.options), None)
