"""The official client's scenarios, run by our package in its place (client.md 11, check 1).

They pass against the reference server as well: ``tests/support/reference.py`` tells how to run them
there. What differs is a row of client.md 10, and is listed here with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.broker_process import clean_environment
from tests.support.scenarios import Client, Scenarios
from tests.system.test_official_client import AT_ONCE, FOLDER, scenarios

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# The other kinds are about the broker, and cost a broker each.
KINDS = ("plain", "auth", "tls")
DIFFERENT = {
    "adds_data_that_is_no_map_as_payload": "row 1: data travels as it is given",
    "wait_for_job_tells_a_failure": "row 8: the error is the job's own",
    "finds_the_holder_of_a_deduplication_id": "row 5: a custom id is no deduplication key",
    "a_chain_that_cannot_be_added_leaves_nothing": "row 3: PUSHF refuses in its own words",
    "every_public_method_is_used_somewhere": "counts the names of whichever client it runs with",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    """All scenarios; those of a kind run when the first outcome is asked for."""
    command = [sys.executable, str(FOLDER / "run.py")]
    environment = clean_environment() | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return Scenarios(Client(command, environment, AT_ONCE), tmp_path_factory.mktemp)


@pytest.mark.parametrize(("kind", "name"), [one for one in scenarios() if one[0] in KINDS])
def test_our_client_in_place_of_the_official_one(kind: str, name: str, running: Scenarios) -> None:
    if name not in DIFFERENT:
        running.check(kind, name)
        return
    assert None is not running.outcomes(kind)[name]["error"], f"no longer {DIFFERENT[name]}"
