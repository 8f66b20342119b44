"""Every trap of engine.md 15 has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TRAPS = set(range(1, 51))
# Traps of what is not built yet, and why.
NOT_YET = {49: "backup and restore"}
NAMED = re.compile(r"^ *(?:async )?def test_trap_(\d\d)_", re.MULTILINE)


def test_every_trap_has_a_test_named_after_it() -> None:
    found = {
        int(number)
        for file in TESTS.rglob("test_*.py")
        for number in NAMED.findall(file.read_text("utf-8"))
    }

    assert TRAPS - set(NOT_YET) == found
