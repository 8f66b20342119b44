"""Run scenarios of a client in another language or environment, one process per kind of broker.

The process gets one JSON argument: "address" ("host", "port", with TLS also "tls", the file of the
authority), "kind", "reference", whether it drives the reference server instead of ours, and
"at_once", how many scenarios may run side by side. It writes one JSON line per scenario:
"scenario", "error" (None if it passed) and "seconds". A scenario that needs the broker killed and
started again writes {"ask": "restart"} and waits for a line on standard input.

| kind | broker |
| --- | --- |
| plain | open to all |
| auth | knows the tokens "first" and "second" |
| tls | speaks TLS, with a certificate of a private authority |
| names | leaves a job's name in its data too |
| webhook | posts to webhooks on this machine too |
| restart | may be killed and started again |
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.broker_process import HOST, BrokerProcess
from tests.support.reference import ReferenceProcess, broker_under_test

RUN_S_MAX = 240
TOKENS = "first,second"

Outcomes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Client:
    """How scenarios are run.

    Attributes:
        command: Arguments of the process, without the last one.
        environment: All that it has in its environment.
        at_once: How many scenarios of a kind may run side by side.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    at_once: Mapping[str, int]


class Scenarios:
    """Runs the scenarios of a kind when an outcome of theirs is first asked for."""

    def __init__(self, client: Client, directory: Callable[[str], Path]) -> None:
        """Remember how to run them.

        Args:
            client: How.
            directory: Makes a new directory whose name begins so.
        """
        self._client = client
        self._directory = directory
        self._known: dict[str, Outcomes | AssertionError] = {}

    def outcomes(self, kind: str) -> Outcomes:
        """Return the outcomes of a kind, by scenario.

        Raises:
            AssertionError: Their process or the broker failed as a whole.
        """
        if kind not in self._known:
            try:
                self._known[kind] = run_kind(self._client, kind, self._directory(kind))
            except AssertionError as error:
                self._known[kind] = error
        known = self._known[kind]
        if isinstance(known, AssertionError):
            raise known
        return known

    def check(self, kind: str, name: str) -> None:
        """Fail the test if the scenario failed."""
        outcome = self.outcomes(kind)[name]
        if outcome["error"] is not None:
            pytest.fail(f"{name} after {outcome['seconds']} s:\n{outcome['error']}", pytrace=False)


def run_kind(client: Client, kind: str, directory: Path) -> Outcomes:
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
        given = {
            "address": address,
            "kind": kind,
            "reference": isinstance(broker, ReferenceProcess),
            "at_once": client.at_once[kind],
        }
        return converse(client, given, broker)


def converse(client: Client, given: dict[str, Any], broker: BrokerProcess) -> Outcomes:
    """Run the scenarios' process, restarting the broker whenever it asks."""
    outcomes: Outcomes = {}
    errors = broker.directory / "scenarios.err"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*client.command, json.dumps(given)],
            env=dict(client.environment),
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
