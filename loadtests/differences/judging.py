"""Judging a sequence: every difference is explained by a rule, or it is a fault.

Where a rule says that both servers go on from different states, there is nothing left to compare:
the sequence ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtests.differences.likeness import Difference
from loadtests.differences.playing import Play, Step, Told
from loadtests.differences.rules import RULES
from loadtests.differences.story import Rule, Spot, Story


@dataclass(slots=True)
class Verdict:
    """What one run of a sequence showed.

    Attributes:
        faults: Differences that no rule explains, all of one reply; empty if there are none.
        told: The reply that shows them.
        used: Rule -> how many differences it explained.
        parted: The rule that ended the sequence before its end, or None.
        asked: How many steps were compared.
        compared: How many replies were compared, reads included.
    """

    faults: list[Difference] = field(default_factory=list)
    told: Told | None = None
    used: Counter[Rule] = field(default_factory=Counter)
    parted: Rule | None = None
    asked: int = 0
    compared: int = 0


def judge(steps: Sequence[Step], ports: tuple[int, int]) -> Verdict:
    """Play a sequence until a fault, a parting, or its end. Waits."""
    verdict = Verdict()
    story = Story(steps)
    play = Play(steps, ports)
    try:
        for told in play:
            verdict.compared += 1
            verdict.asked += told.is_asked
            story.add(told)
            _weigh(verdict, told, story)
            if verdict.faults or verdict.parted:
                break
    finally:
        play.end()
    return verdict


def _weigh(verdict: Verdict, told: Told, story: Story) -> None:
    for difference in told.differences:
        spot = Spot(told, difference, story)
        rule = next((rule for rule in RULES if rule.explains(spot)), None)
        if rule is None:
            verdict.faults.append(difference)
            verdict.told = told
            continue
        verdict.used[rule] += 1
        if rule.parts and verdict.parted is None:
            verdict.parted = rule
