"""Schedulers, held to I45: runs up to the limit, each planned once and later than the last.

What a scheduler has made is counted by the jobs that appear, which bear its name; how many it says
it has made was written before. So a crash may cost a run, and never makes two of one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.simulation.picture import Picture
from tests.simulation.world import Broken

PREFIX = "made by "  # of the names of a scheduler's jobs
KEY = "cron:"
LIVE = ("queued", "parked", "active", "admitted")
Control = Mapping[str, Any]


class Crons:
    """Watches the schedulers."""

    def __init__(self) -> None:
        # Name -> numbers and ids of the jobs that came since one of that name was last deleted.
        self._made: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self._seen: set[tuple[int, str]] = set()  # all that were ever made
        self._owed: Counter[str] = Counter()  # runs that were written before it was deleted

    def appeared(self, new: Picture) -> None:
        """A job is there that was not before."""
        job = new.seq, new.id
        if new.name.startswith(PREFIX) and job not in self._seen:  # else a removal was undone
            self._seen.add(job)
            self._made[new.name.removeprefix(PREFIX)].add(job)

    def overlap(self, pictures: Mapping[int, Picture]) -> None:
        """Of the jobs that one scheduler keeps apart, one lives at most."""
        living = Counter(
            (job.queue, job.key[1])
            for job in pictures.values()
            if job.place in LIVE and job.key[2] is None and (job.key[1] or "").startswith(KEY)
        )
        for (queue, key), count in living.items():
            if count > 1:
                raise Broken(f"{count} live jobs of {key} in {queue}")

    def looked(self, old: Control, new: Control, is_undone: bool, is_set: bool) -> None:
        """Compare two looks at what is defined.

        Args:
            is_undone: A commit has failed in between, or the broker was started again.
            is_set: The clock has been set in this history, forward or back.
        """
        for key, (definition, executions, _) in old.items():
            if key not in new:
                # One that ends by itself has run as often as it may, seen or not.
                runs = max(executions, definition.max_limit or 0)
                name = definition.name
                self._owed[name] = max(0, self._owed[name] + runs - len(self._made[name]))
                self._made[name].clear()
        for key, (definition, executions, next_run) in new.items():
            name = definition.name
            if key not in old:
                continue
            before, executions_before, next_before = old[key]
            if executions > executions_before:
                limit = definition.max_limit
                # An undo brings back a definition that was given when more runs had been made.
                is_back = is_undone and before != definition
                if limit is not None and 0 < limit < executions and not is_back:
                    raise Broken(f"run {executions} of {name}, the limit is {limit}")
                if next_run <= next_before and before == definition and not is_set:
                    raise Broken(f"{name} ran, next {next_before} -> {next_run}")
            elif executions < executions_before and not is_undone:
                raise Broken(f"{name} takes back {executions_before} -> {executions} runs")
            elif next_run < next_before and before == definition and not (is_undone or is_set):
                raise Broken(f"{name} did not run, next {next_before} -> {next_run}")
            every = definition.repeat_every
            is_same = before == definition and not (is_undone or is_set)
            if is_same and (next_run - next_before) % every:
                raise Broken(f"{name} left its grid, next {next_before} -> {next_run}")

    def counted(self, control: Control) -> None:
        """No more jobs have come than runs were written down."""
        for definition, executions, _ in control.values():
            made = len(self._made[definition.name])
            if made > executions + self._owed[definition.name]:
                raise Broken(f"{made} jobs of {definition.name}, which has run {executions} times")
