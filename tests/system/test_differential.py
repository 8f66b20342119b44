"""The same random commands to our server and to the reference: the short form.

The long form is ``python -m loadtests.differential``; what may differ, and why, is the table in
``loadtests/differences/rules.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bunqueue.commands import COMMANDS
from loadtests.differences.likeness import ABSENT, Normaliser, differences
from loadtests.differences.sequences import LEFT_OUT, STEPS_MAX, STEPS_MIN, WEIGHTS, sequence
from loadtests.differential import both_servers, run
from tests.wire.record import MOMENT_MIN

SEED = "suite"
SEQUENCES = 8  # some seconds; on a busy machine three times as long
ID, OTHER_ID = "01a22a1d-54ed-7659-952b-990039dc1064", "01a22a1d-54f7-753d-8ca3-78879f447211"


def test_every_command_has_a_weight_or_a_reason() -> None:
    assert COMMANDS.keys() == WEIGHTS.keys() | LEFT_OUT.keys()
    assert not WEIGHTS.keys() & LEFT_OUT.keys()


def test_a_seed_makes_one_sequence() -> None:
    steps = sequence("a seed")

    assert steps == sequence("a seed")
    assert steps != sequence("another seed")
    assert STEPS_MIN <= len(steps) <= STEPS_MAX


@pytest.mark.parametrize(
    ("theirs", "ours", "where"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": True}, {"a": 1}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ([1, 2], [1], [""]),
        ({"at": MOMENT_MIN + 5}, {"at": MOMENT_MIN + 700_005.0}, []),
        ({"at": MOMENT_MIN + 5}, {"at": MOMENT_MIN + 720_005.0}, ["at"]),
        ({"ttl": 9_000}, {"ttl": 8_000}, []),
        ({"delay": 9_000}, {"delay": 8_000}, ["delay"]),
    ],
)
def test_what_is_alike(theirs: Any, ours: Any, where: list[str]) -> None:
    starts = MOMENT_MIN, MOMENT_MIN + 700_000

    assert where == [each.where for each in differences(theirs, ours, starts)]


def test_an_absent_key_is_no_null() -> None:
    [difference] = differences({}, {"a": None}, (0, 0))

    assert (ABSENT, None) == (difference.theirs, difference.ours)


def test_generated_ids_have_names_in_the_order_in_which_they_turn_up() -> None:
    normalise = Normaliser()

    assert {"id": "<id1>"} == normalise({"id": ID})
    assert {"error": "no <id2>", "values": {"q:<id1>": 1}} == normalise(
        {"error": f"no {OTHER_ID}", "values": {f"q:{ID}": 1}}
    )


@pytest.mark.slow
def test_random_commands_get_the_answers_of_the_reference(reference_home: Path) -> None:
    said: list[str] = []
    with both_servers(reference_home) as ports:
        tally = run(SEED, range(SEQUENCES), ports, say=said.append)

    assert [] == tally.faulty, "\n".join(said)
    assert SEQUENCES * STEPS_MIN / 2 < tally.asked
