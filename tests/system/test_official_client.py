"""The official Python client, unchanged, against our broker.

The scenarios in ``official_client/`` run in the client's own environment: all of one kind in one
process against one broker, side by side. Each is a test here that reads its outcome.

Client 0.1.5 offers no events (it drops every frame without a ``reqId``), no ``forward()``, no
workflow engine, no batching of adds (only of acknowledgements), no pool of connections, no
``PUSHF`` (it makes flows from ``PUSH`` and ``UpdateParent``), and nothing embedded; of groups it
knows the label of a job, and the scenarios call the rest by command. One scenario checks that
every public method is used by some other.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.scenarios import Client, Scenarios
from tests.system.official_client.environment import IndexUnreachable, official_python

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "official_client"

# Restarting the broker under one scenario would disturb the others.
AT_ONCE = {"plain": 12, "auth": 4, "tls": 4, "webhook": 2, "names": 1, "restart": 1}


def scenarios() -> list[tuple[str, str]]:
    """List (kind, name) of every scenario without importing them: they import the other client."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "scenario":
                        kind = ast.literal_eval(mark.args[0]) if mark.args else "plain"
                        found.append((kind, node.name))
    return found


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The official client in its environment, kept in the runner's cache if there is one."""
    cache = getattr(request.config, "cache", None)
    home = cache.mkdir("official-client") if cache else tmp_path_factory.mktemp("official-client")
    try:
        python = official_python(home)
    except IndexUnreachable as error:
        pytest.skip(str(error))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return Client([str(python), str(FOLDER / "run.py")], environment, AT_ONCE)


@pytest.fixture(scope="module")
def running(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Scenarios:
    """All scenarios; those of a kind run when the first outcome is asked for."""
    return Scenarios(client, tmp_path_factory.mktemp)


@pytest.mark.parametrize(("kind", "name"), scenarios())
def test_the_official_client(kind: str, name: str, running: Scenarios) -> None:
    running.check(kind, name)


def test_there_are_enough_scenarios() -> None:
    names = [name for _, name in scenarios()]

    assert len(names) >= 40
    assert len(set(names)) == len(names)
