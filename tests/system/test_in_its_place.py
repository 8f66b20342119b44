"""The official client's scenarios, run by our package in its place (client.md 11, check 1).

They pass against the reference server as well: ``tests/support/reference.py`` tells how to run them
there. What differs is a row of client.md 10, and is listed here with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bunqueue.client.worlds import is_patched
from tests.support.broker_process import clean_environment
from tests.support.scenarios import Client, Scenarios
from tests.system.test_official_client import AT_ONCE, FOLDER, scenarios

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# By scenario: what it says now, and why that is right.
DIFFERENT = {
    "adds_data_that_is_no_map_as_payload": (
        'assert {"payload": [1, 2, 3]} == queue.get_job(job.id).data',
        "row 1: data travels as it is given",
    ),
    "wait_for_job_tells_a_failure": (
        "expected 'failed before completion' in 'no'",
        "row 8: the failure is told when it happens, with the job's own reason",
    ),
    "finds_the_holder_of_a_deduplication_id": (
        'assert "holder-1" == queue.get_deduplication_job_id("holder-1")',
        "row 5: a custom id is no deduplication key",
    ),
    "a_chain_that_cannot_be_added_leaves_nothing": (
        "in 'priority must be between -1000000 and 1000000'",
        "row 3: one PUSHF, which refuses in its own words",
    ),
    "every_public_method_is_used_somewhere": (
        "'Connection.subscribe'",
        "no behaviour: it counts the methods of whichever client it runs with",
    ),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    """All scenarios, in threads or in greenlets as the tests are."""
    patched = ["-m", "gevent.monkey"] if is_patched() else []
    command = [sys.executable, *patched, str(FOLDER / "run.py")]
    environment = clean_environment() | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(FOLDER))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Scenarios(Client(command, environment, AT_ONCE), tmp_path_factory.mktemp)


@pytest.mark.parametrize(("kind", "name"), scenarios())
def test_our_client_in_place_of_the_official_one(kind: str, name: str, running: Scenarios) -> None:
    if name not in DIFFERENT:
        running.check(kind, name)
        return
    said, why = DIFFERENT[name]
    error = running.outcomes(kind)[name]["error"]
    assert error is not None, f"no longer {why}"
    assert said in error, why
