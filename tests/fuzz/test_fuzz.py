"""The short form: what was found once, and some inputs that chance makes."""

from __future__ import annotations

from itertools import islice

import pytest

from bunqueue import compiled
from tests.fuzz.__main__ import KEPT, kept_inputs
from tests.fuzz.answers import judge
from tests.fuzz.blind import inputs
from tests.fuzz.targets import TARGETS, frames

INPUTS = {"frames": 150, "codec": 1_000, "dispatch": 60, "runner": 60}
FOUND = [(name, number) for name in TARGETS for number in range(len(kept_inputs(name)))]


def needs_core(name: str) -> None:
    if name == "runner" and not compiled.IS_COMPILED:
        pytest.skip("the compiled core is not built")


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_among_a_few_inputs(name: str) -> None:
    needs_core(name)
    for data in islice(inputs(7, kept_inputs(name)), INPUTS[name]):
        TARGETS[name](data)


@pytest.mark.parametrize(("name", "number"), FOUND)
def test_what_was_found_once_is_well(name: str, number: int) -> None:
    needs_core(name)
    TARGETS[name](kept_inputs(name)[number])


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {path.name for path in KEPT.iterdir()} <= {*TARGETS, "http"}


def test_a_wrong_answer_is_noticed() -> None:
    ping = b"\x82\xa3cmd\xa4Ping\xa5reqId\x07"
    with pytest.raises(AssertionError):
        judge(ping, {"ok": True}, b"\x81\xa2ok\xc3")  # no reqId
    with pytest.raises(AssertionError):
        judge(ping, {"ok": False, "reqId": 7}, b"\x07")  # no text
    with pytest.raises(AssertionError):
        judge(b"\xc1", {"ok": True}, b"")  # no message at all
    with pytest.raises(AssertionError):
        judge(ping, {"ok": False, "error": "Internal server error", "reqId": 7}, b"\x07")
    judge(ping, {"ok": True, "reqId": 7}, b"\x07")


def test_a_failure_behind_a_command_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("bunqueue.engine.engine.Engine.count", broken)
    body = b"\x82\xa3cmd\xa5Count\xa5queue\xa1q"
    with pytest.raises(AssertionError, match="command failed"):
        frames(b"\x00\x00\x00" + len(body).to_bytes(4, "big") + body)
