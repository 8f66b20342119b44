"""When free memory is handed back to the system."""

from __future__ import annotations

import pytest

from bunqueue.server import memory


@pytest.fixture
def trims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    done: list[int] = []
    monkeypatch.setattr(memory, "_trim", done.append)
    monkeypatch.setattr(memory, "_freed_bytes", 0)
    return done


def test_it_is_handed_back_when_much_is_free(trims: list[int]) -> None:
    memory.has_freed(memory.FREED_BYTES_MAX - 1)
    assert [] == trims
    memory.has_freed(1)
    assert [0] == trims
    memory.has_freed(1)
    assert [0] == trims


def test_what_is_left_is_handed_back_when_the_broker_tidies(trims: list[int]) -> None:
    memory.has_freed(memory.FREED_BYTES_MIN)
    memory.tidy(False)
    memory.tidy(False)

    assert [0] == trims


def test_little_is_kept_for_what_comes_next(trims: list[int]) -> None:
    memory.has_freed(memory.FREED_BYTES_MIN - 1)
    memory.tidy(False)
    assert [] == trims
    memory.tidy(True)
    assert [0] == trims


def test_another_c_library_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", None)
    memory.has_freed(memory.FREED_BYTES_MAX)
    memory.give_back()

    assert 0 == memory._freed_bytes
