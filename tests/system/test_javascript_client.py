"""The original's own JavaScript client, unchanged, against our broker.

The scenarios in ``javascript_client/`` run under Bun: all of one kind in one process against one
broker, side by side. Each is a test here that reads its outcome.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from loadtests.servers import bun_of
from tests.support.scenarios import Client, Scenarios

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "javascript_client"
AT_ONCE = {"plain": 16, "auth": 4, "tls": 4, "restart": 16}
SCENARIO = re.compile(r'^(plain|auth|tls|restart)\("(\w+)"', re.MULTILINE)


def scenarios() -> list[tuple[str, str]]:
    """List (kind, name) of every scenario without running any."""
    files = sorted(FOLDER.glob("*.js"))
    return [found for path in files for found in SCENARIO.findall(path.read_text("utf-8"))]


@pytest.fixture(scope="module")
def client(reference_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The JavaScript client under Bun."""
    # Bun looks for packages only in folders above the one that imports them.
    place = tmp_path_factory.mktemp("javascript-client")
    shutil.copytree(FOLDER, place / "scenarios")
    (place / "node_modules").symlink_to(reference_home / "node_modules")
    command = [
        str(bun_of(reference_home)),
        "--no-install",
        str(place / "scenarios" / "run.js"),
    ]
    return Client(command, {"TMPDIR": str(place), "HOME": str(place)}, AT_ONCE)


@pytest.fixture(scope="module")
def running(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    """All scenarios; those of a kind run when the first outcome is asked for."""
    return Scenarios(client, tmp_path_factory.mktemp)


@pytest.mark.parametrize(("kind", "name"), scenarios())
def test_the_javascript_client(kind: str, name: str, running: Scenarios) -> None:
    running.check(kind, name)


def test_there_are_enough_scenarios() -> None:
    names = [name for _, name in scenarios()]

    assert len(names) >= 40
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", AT_ONCE)
def test_every_scenario_that_runs_is_on_the_list(kind: str, running: Scenarios) -> None:
    assert {name for its_kind, name in scenarios() if its_kind == kind} == set(
        running.outcomes(kind)
    )
