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
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.broker_process import HOST, BrokerProcess
from tests.support.reference import broker_under_test
from tests.system.official_client.environment import IndexUnreachable, official_python

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "official_client"
RUN_S_MAX = 240
TOKENS = "first,second"

# Restarting the broker under one scenario would disturb the others.
AT_ONCE = {"plain": 12, "auth": 4, "tls": 4, "webhook": 2, "names": 1, "restart": 1}

Outcomes = dict[str, dict[str, Any]]


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
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official client's interpreter, kept in the runner's cache if there is one."""
    cache = getattr(request.config, "cache", None)
    home = cache.mkdir("official-client") if cache else tmp_path_factory.mktemp("official-client")
    try:
        return official_python(home)
    except IndexUnreachable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def outcomes_of(
    python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcomes]:
    """Outcomes by scenario name, for a kind; a kind is run when it is first asked for."""
    known: dict[str, Outcomes] = {}

    def outcomes(kind: str) -> Outcomes:
        if kind not in known:
            known[kind] = run_kind(kind, python, tmp_path_factory.mktemp(kind))
        return known[kind]

    return outcomes


def run_kind(kind: str, python: Path, directory: Path) -> Outcomes:
    """Start a broker as the kind needs it, and run all its scenarios against it."""
    settings: dict[str, str] = {}
    address: dict[str, Any] = {"host": HOST}
    if kind == "auth":
        settings["AUTH_TOKENS"] = TOKENS
    if kind == "tls":
        authority = trustme.CA()
        certificate = authority.issue_cert(HOST, "localhost")
        certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        certificate.private_key_pem.write_to_path(directory / "key.pem")
        authority.cert_pem.write_to_path(directory / "ca.pem")
        settings["TLS_CERT_FILE"] = str(directory / "cert.pem")
        settings["TLS_KEY_FILE"] = str(directory / "key.pem")
        address["tls"] = str(directory / "ca.pem")
    if kind == "names":
        settings["BUNQUEUE_KEEP_NAME_IN_DATA"] = "true"
    if kind == "webhook":
        settings["WEBHOOK_ALLOWED_TARGETS"] = HOST
    broker = broker_under_test(directory, data_path=directory / "broker.db", env=settings)
    with broker:
        address["port"] = broker.port
        return converse(
            python, {"address": address, "kind": kind, "at_once": AT_ONCE[kind]}, broker
        )


def converse(python: Path, given: dict[str, Any], broker: BrokerProcess) -> Outcomes:
    """Run the scenarios' process, restarting the broker whenever it asks."""
    outcomes: Outcomes = {}
    errors = broker.directory / "scenarios.err"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [str(python), str(FOLDER / "run.py"), json.dumps(given)],
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        watchdog = threading.Timer(RUN_S_MAX, process.kill)
        watchdog.start()
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                said = json.loads(line)
                if said.get("ask") == "restart":
                    broker.restart()
                    process.stdin.write("done\n")
                    process.stdin.flush()
                else:
                    outcomes[said.pop("scenario")] = said
            status = process.wait()
        watchdog.cancel()
    assert 0 == status, errors.read_text()
    return outcomes


@pytest.mark.parametrize(("kind", "name"), scenarios())
def test_the_official_client(kind: str, name: str, outcomes_of: Callable[[str], Outcomes]) -> None:
    outcome = outcomes_of(kind)[name]

    if outcome["error"] is not None:
        pytest.fail(f"{name} after {outcome['seconds']} s:\n{outcome['error']}", pytrace=False)


def test_there_are_enough_scenarios() -> None:
    names = [name for _, name in scenarios()]

    assert len(names) >= 30
    assert len(set(names)) == len(names)
