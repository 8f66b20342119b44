"""Attacks on both ports in a short form; the long one is ``python -m loadtests.abuse``.

Each scenario checks what it is about; beside it a bystander in a process of its own pushes, pulls
and acknowledges jobs, and must get every answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests import abuse
from loadtests.abuse import KINDS, SCENARIOS, attack, make_broker
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

HELD_UP_MS = 50  # what most answers to others must stay below; the long form judges the 99th of 100

Brokers = dict[str, BrokerProcess]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One broker for each kind of scenario, shared by all."""
    made: Brokers = {}
    try:
        for kind in ("plain", *set(KINDS.values())):
            made[kind] = make_broker(tmp_path_factory.mktemp(kind), kind)
            made[kind].start()
        yield made
    finally:
        for broker in made.values():
            broker.kill()


def test_a20_after_running_out_of_descriptors_it_accepts_within_a_second(brokers: Brokers) -> None:
    """Meanwhile it serves those that are in, uses no CPU, and leaves nothing in CLOSE_WAIT."""
    attack("descriptors_out", brokers["files"], 1)


def test_a20_half_closed_peers_leave_nothing_behind(brokers: Brokers) -> None:
    attack("half_closed", brokers["plain"], 1)


def test_a23_stalled_handshakes_and_plaintext_hold_nobody_up(brokers: Brokers) -> None:
    attack("tls", brokers["tls"], 1)


OTHERS = sorted(set(SCENARIOS) - {"descriptors_out", "half_closed", "tls"})


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_served_under(name: str, brokers: Brokers) -> None:
    figures = attack(name, brokers["plain"], 1)

    assert figures["p50_ms"] < HELD_UP_MS


def test_a_broker_that_was_attacked_has_logged_no_traceback(brokers: Brokers) -> None:
    """Runs last: the others have filled the logs."""
    assert [] == [kind for kind, broker in brokers.items() if "Traceback" in broker.log]


def test_the_list_of_scenarios_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == abuse.main(["--list"])
    assert len(SCENARIOS) == len(capsys.readouterr().out.splitlines())


def test_a_fault_fails_the_long_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def must_fail(_broker: BrokerProcess, _scale: int) -> abuse.Figures:
        raise abuse.Fault("as planned")

    monkeypatch.setitem(abuse.SCENARIOS, "tls", must_fail)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    assert 1 == abuse.main(["tls", "--scale=1"])
    assert "fault=Fault: as planned" in capsys.readouterr().out
