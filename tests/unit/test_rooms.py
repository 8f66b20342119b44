"""Which room may import which: the table of the architecture, held over every module.

Change the table here first, with a reason. Imports inside functions and under ``TYPE_CHECKING``
count: a room does not know what it must not know, not even as a type. Only the standard library's
``Random`` may be named as a type in a pure room, since chance is handed in there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "bunqueue"

# room -> the rooms it may import besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    # Compiled twins: a leaf that says whether they run; they are handed what they work on.
    "compiled": set(),
    "logs": set(),  # how our programs log: a leaf, shared by the server and `bunqueue worker`
    "protocol": {"errors", "compiled"},
    "engine": {"errors", "protocol", "compiled"},
    "commands": {"errors", "protocol", "engine", "compiled"},
    "storage": {"errors", "protocol", "engine", "compiled"},
    "broker": {"errors", "protocol", "engine", "storage", "commands", "config", "compiled"},
    "server": {"errors", "protocol", "commands", "broker", "config", "logs", "compiled"},
    "client": {"errors", "protocol"},
    "cli": {"errors", "client", "config", "logs", "face", "compiled"},  # the face for the version
    # What users import: names of the client under their public and their older addresses.
    "face": {"errors", "client", "protocol"},
    "main": {"cli"},  # python -m bunqueue
}
# The doors, each for the named files only. An import writes a file that no broker has open, and the
# doctor reads one.
DOORS: dict[str, set[str]] = {
    "client/embedded.py": {"broker", "commands"},
    "cli/start.py": {"server"},
    "cli/import_db.py": {"storage"},
    "cli/doctor.py": {"storage", "protocol"},
}
PURE = ("protocol", "engine", "commands")
IMPURE = {"gevent", "sqlite3", "apsw", "socket", "threading", "time", "random", "os", "asyncio"}
# Knows a clock and chance, but not if it is always given a start, as that file does.
CALENDAR, CALENDAR_FILE = "croniter", "engine/cron_times.py"
LEAVES = {"errors", "config", "logs"}

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def room_of(file: str) -> str:
    """Return the room a file of the package stands in."""
    parts = file.removesuffix(".py").split("/")
    if len(parts) > 1:
        return parts[0]
    if parts[0] in LEAVES:
        return parts[0]
    return "main" if parts[0] == "__main__" else "face"


def imports(file: str, *, is_typing_included: bool = True) -> Iterator[str]:
    """Yield the dotted names of all modules that a file imports."""
    for node in _walk(_tree(file), is_typing_included):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            module = node.module or ""
            if module == "bunqueue":
                yield from (f"bunqueue.{alias.name}" for alias in node.names)
            else:
                yield module


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text("utf-8"))


def _walk(tree: ast.AST, is_typing_included: bool) -> Iterator[ast.AST]:
    left = [tree]
    while left:
        node = left.pop()
        is_typing = (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        )
        if is_typing_included or not is_typing:
            yield node
            left.extend(ast.iter_child_nodes(node))


def rooms_imported(file: str) -> set[str]:
    """Return the rooms of ours that a file imports."""
    found = set()
    for name in imports(file):
        parts = name.split(".")
        if parts[0] != "bunqueue" or name == "bunqueue.__version__":
            continue
        if len(parts) > 1 and parts[1] in MAY_IMPORT:
            found.add(parts[1])
        else:
            found.add("face")  # the package itself, or one of its public modules
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_room_may(file: str) -> None:
    room = room_of(file)
    allowed = MAY_IMPORT[room] | {room} | DOORS.get(file, set())

    assert set() == rooms_imported(file) - allowed


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in PURE])
def test_a_pure_room_knows_no_world(file: str) -> None:
    modules = {name.split(".")[0] for name in imports(file, is_typing_included=False)}

    assert set() == modules & IMPURE


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in PURE])
def test_a_pure_room_takes_chance_and_time_from_outside(file: str) -> None:
    called = {
        node.func.id
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert set() == called & {"open", "print", "input", "Random", "__import__"}


def test_only_one_file_meets_the_calendar() -> None:
    found = [file for file in FILES if CALENDAR in {name.split(".")[0] for name in imports(file)}]

    assert [CALENDAR_FILE] == found


def test_every_room_is_in_the_table() -> None:
    assert set(MAY_IMPORT) == {room_of(file) for file in FILES}


def test_the_doors_lead_somewhere() -> None:
    for file, rooms in DOORS.items():
        assert file in FILES
        assert rooms & rooms_imported(file), f"{file} needs no door"
