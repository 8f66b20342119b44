"""Histories in which every work on several jobs is done one job a slice.

Between two slices anything may happen: other commands, time, a commit that fails, a crash. What a
command does is spread over steps then, so that only those rules are held that need not know which
step did what: everything is whole after each, the file is what was cut, a restart changes nothing,
nobody waits for what has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

from bunqueue.commands import core, lease_commands
from bunqueue.engine import (
    control,
    deadletters,
    dependencies,
    entries,
    flow_admission,
    flows,
    large_batches,
    moves,
    reads,
    slices,
    sweeps,
    visibility,
)
from tests.simulation import world
from tests.simulation.history import Figures, Run
from tests.simulation.rough import rough_history
from tests.simulation.steps import COMMANDS, Step
from tests.simulation.world import Asked

# How much is done between two looks at what was spent, and what a slice may cost.
SMALLEST = (
    (world, "ROUNDS_MAX", 100_000),  # a batch looks each time whether another one is through
    (slices, "SLICE_US", 1),
    (large_batches, "ADMITTED_AT_ONCE", 0),
    (large_batches, "ADMITTED_PER_STEP", 1),
    (flow_admission, "STEP_US", 1),
    (flow_admission, "JOBS_PER_STEP", 1),
    (flow_admission, "SHOWN_AT_ONCE", 0),
    (visibility, "SHOWN_PER_STEP", 1),
    (dependencies, "SETTLED_PER_SLICE", 1),
    (entries, "NAMED_PER_STEP", 1),
    (flows, "REMOVED_PER_STEP", 1),
    (flows, "READ_PER_STEP", 1),
    (control, "REMOVED_PER_STEP", 1),
    (control, "MOVED_PER_STEP", 1),
    (control, "LOOKED_AT_PER_STEP", 1),
    (deadletters, "LOOKED_AT_PER_STEP", 1),
    (deadletters, "MOVED_PER_STEP", 1),
    (moves, "PROMOTED_PER_STEP", 1),
    (reads, "LOOKED_AT_PER_STEP", 1),
    (sweeps, "LOOKED_AT_PER_STEP", 1),
    (core, "OPTIONED_AT_ONCE_MAX", 0),
    (core, "PLAIN_AT_ONCE_MAX", 0),
    (core, "ENTRIES_PER_STEP", 1),
    (core, "ACKED_AT_ONCE_MAX", 0),
    (core, "IDS_PER_STEP", 1),
    (lease_commands, "RENEWED_AT_ONCE_MAX", 0),
    (lease_commands, "RENEWED_PER_STEP", 1),
)

WITH_BATCH = 0.2  # of the steps
WITH_TICK = 0.2  # of the steps
TICKS_MS = (0, 0, 1, 2)


@contextmanager
def in_slices() -> Iterator[None]:
    """Have each work do as little as it can in a slice."""
    with ExitStack() as stack:
        for module, name, smallest in SMALLEST:
            stack.enter_context(mock.patch.object(module, name, smallest))
        yield


class SlicedRun(Run):
    """A history that is held to what is true at any moment.

    The broker may die after any commit: the file is looked at after each.
    """

    def __init__(self, seed: int, figures: Figures) -> None:
        super().__init__(seed, figures)
        self._failures = 0
        self.world.file_changed = self.rules.file_is_right

    def _ask(self, peer: int, request: dict[str, Any]) -> Asked:
        request = self._filled(request)
        self.rules.asking(request)
        asked = self.world.ask(peer, request)
        self.told.append(f"peer {peer}: {request} -> {asked.reply}")
        self.rules.deliveries.leaving = None
        self._after()
        return asked

    def _whole(self) -> None:
        if not self._is_under_way():
            super()._whole()

    def _settled(self) -> None:
        if not self._is_under_way():
            super()._settled()

    def _is_noted(self) -> None:
        if not self._is_under_way():
            super()._is_noted()

    def _is_under_way(self) -> bool:
        """Say whether a work is not through: what it has begun need not be whole."""
        return self.world.engine.works.unfinished > 0

    def _try(self, request: dict[str, Any]) -> None:
        self._ask(0, request)

    def _after(self, *_: Any) -> None:
        self.rules.moved("slice", None)
        failures = self.world.writer.failures
        if failures != self._failures:
            self._failures = failures
            self.rules.families.undone()
        self.rules.look_at_control(is_undone=True)
        self._remember()


def sliced_history(seed: int) -> list[Step]:
    """Draw a rough history in which time passes a tick or two at a time."""
    rng = Random(seed)
    steps: list[Step] = []
    for step in rough_history(seed):
        if rng.random() < WITH_BATCH:
            batch = {"cmd": "PUSHB", **COMMANDS["PUSHB"][1](rng)}
            steps.append(("command", rng.randrange(3), batch, rng.random() < 0.5))
        steps.append(step)
        if step[0] == "command" and step[2]["cmd"] == "PUSHF":
            rng.shuffle(step[2]["jobs"])  # the first is shown first
        if rng.random() < WITH_TICK:
            steps.append(("pass", rng.choice(TICKS_MS)))
    return steps
