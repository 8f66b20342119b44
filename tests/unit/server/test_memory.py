"""When free memory is handed back to the system."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from bunqueue.server import memory

MUCH = memory.FREED_BYTES_MIN


class LibC:
    """Counts what the C library is asked for."""

    def __init__(self) -> None:
        self.trims = 0

    def malloc_trim(self, _pad: int) -> None:
        self.trims += 1


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> LibC:
    fake = LibC()
    monkeypatch.setattr(memory, "_c", fake)
    monkeypatch.setattr(memory, "_freed_bytes", 0)
    monkeypatch.setattr(memory, "_moves", -1)
    return fake


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Holds how far back the collector has looked, each time."""
    looks: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: looks.append(generation))
    return looks


def test_it_is_handed_back_once_no_job_moves(libc: LibC) -> None:
    memory.has_freed(100 * MUCH)
    told = []
    for moves in (1, 2, 2, 2):
        memory.tidy(False, 0, moves, 0)
        told.append(libc.trims)

    assert [0, 0, 1, 1] == told


def test_it_is_never_handed_back_under_those_who_wait(libc: LibC) -> None:
    """A million jobs that were freed took the hub 0.6 s, in the middle of the work."""
    for moves in range(5):
        memory.has_freed(100 * MUCH)
        memory.tidy(True, 0, moves, 0)

    assert 0 == libc.trims


def test_little_is_kept_for_what_comes_next(libc: LibC) -> None:
    memory.has_freed(MUCH - 1)
    memory.tidy(False, 0, 0, 0)
    memory.tidy(False, 0, 0, 0)
    assert 0 == libc.trims
    memory.tidy(True, 0, 0, 0)
    assert 1 == libc.trims


@pytest.mark.usefixtures("libc")
def test_all_of_memory_is_looked_at_only_where_that_is_quick(collected: list[int]) -> None:
    memory.give_back(memory.LOOKED_AT_MAX)
    memory.give_back(memory.LOOKED_AT_MAX + 1)

    assert [2, 1] == collected


@pytest.mark.usefixtures("libc")
@pytest.mark.parametrize(
    ("looks", "jobs", "expected"),
    [
        (memory.YOUNG_LOOKS_MIN, memory.LOOKED_AT_MAX, [2]),
        (memory.YOUNG_LOOKS_MIN, memory.LOOKED_AT_MAX + 1, []),
        (memory.YOUNG_LOOKS_MIN - 1, 0, []),
    ],
)
def test_old_cycles_are_collected_beside_few_jobs(
    collected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    looks: int,
    jobs: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, looks))
    memory.tidy(False, jobs, 0, 0)

    assert expected == collected


@pytest.mark.usefixtures("libc")
def test_nothing_is_collected_beside_a_frame_that_is_not_freed_yet(
    collected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million lists of a frame took the collector 0.14 s, and everybody waited."""
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, memory.YOUNG_LOOKS_MIN))
    memory.has_freed(MUCH)
    memory.tidy(False, 0, 0, 1)
    memory.tidy(False, 0, 0, 1)
    assert [] == collected

    memory.tidy(False, 0, 0, 0)
    assert [2] == collected


def test_another_c_library_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_c", None)
    memory.has_freed(MUCH)
    memory.map_long_pieces()
    memory.give_back(0)

    assert 0 == memory._freed_bytes


def test_long_pieces_are_mapped_by_themselves_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library would raise its limit to the length of the first one, and keep the others."""
    options: list[Any] = []

    class Options:
        mallopt = staticmethod(lambda *option: options.append(option))

    monkeypatch.setattr(memory, "_c", Options())
    memory.map_long_pieces()

    assert [(-3, memory.MAPPED_BYTES_MIN), (-1, 2 * memory.MAPPED_BYTES_MIN)] == options
