"""What the broker's code can refuse with, read off its text.

Each text is a pattern in which what the code fills in matches anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.readme import ROOT

FOLDERS = ("commands", "engine", "protocol", "server", "broker")
REFUSING = {"Refused", "InvalidField", "NotFound", "WrongPlace", "LeaseLost", "error_reply"}
FILLED_IN = ".*"
LETTERS_MIN = 4  # with fewer of its own, a pattern matches nearly anything


@cache
def _modules() -> tuple[ast.Module, ...]:
    paths = [
        path for folder in FOLDERS for path in sorted((ROOT / "bunqueue" / folder).glob("*.py"))
    ]
    return tuple(ast.parse(Path(path).read_text("utf-8")) for path in paths)


def _pattern(node: ast.expr) -> str | None:
    """Return the pattern of a text or an f-string, None for anything else."""
    if isinstance(node, ast.Constant):
        return re.escape(node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else FILLED_IN
            for part in node.values
        )
    return None


@cache
def all_texts() -> frozenset[str]:
    """Return the patterns of all texts in the broker's code."""
    found = (_pattern(node) for tree in _modules() for node in ast.walk(tree) if _is_text(node))
    return frozenset(each for each in found if each is not None and _says_something(each))


def _says_something(pattern: str) -> bool:
    return sum(map(str.isalpha, pattern.replace(FILLED_IN, ""))) >= LETTERS_MIN


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, (ast.Constant, ast.JoinedStr))


@cache
def refusals() -> frozenset[str]:
    """Return the patterns of what is certainly a refusal.

    Those are texts that are raised, made into an error reply, or returned by a function that
    returns what is wrong or None; by name too, where the name is that of a constant.
    """
    constants = {
        target.id: node.value
        for tree in _modules()
        for node in ast.walk(tree)
        for target in _targets(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
    }
    found = set()
    for tree in _modules():
        for node in _refused(tree):
            value = constants.get(node.id) if isinstance(node, ast.Name) else node
            pattern = None if value is None else _pattern(value)
            if pattern is not None and re.search(r"\\? ", pattern):
                found.add(pattern)
    return frozenset(found)


def _targets(node: ast.AST) -> Iterator[ast.Name]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return (target for target in targets if isinstance(target, ast.Name))


def _refused(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in REFUSING and node.args:
            yield node.args[0]
        elif _returns_a_problem(node):
            yield from (
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Return) and each.value is not None
            )


def _returns_a_problem(node: ast.AST) -> bool:
    is_typed = isinstance(node, ast.FunctionDef) and node.returns is not None
    return is_typed and ast.unparse(node.returns) == "str | None"
