"""Towards a peer without exact integers, every frame is that of the official client.

Its frames stand in ``tests/support/official/integers.json``, recorded in its own environment by
the script beside them (client.md 11, check 7).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bunqueue.transport import encode_command

RECORDED: list[tuple[str, str]] = json.loads(
    (Path(__file__).parents[2] / "support" / "official" / "integers.json").read_text("utf-8")
)


@pytest.mark.parametrize(("digits", "frame"), RECORDED)
def test_an_integer_is_sent_as_the_official_client_sends_it(digits: str, frame: str) -> None:
    number = int(digits)
    command = {"cmd": "PUSH", "queue": "q", "data": {"n": number, "list": [number, True]}}

    assert frame == encode_command(command, "7").hex()
