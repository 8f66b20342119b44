"""Every name of the official client is here, and takes every call that it takes there.

What it offers stands in ``tests/support/official/names.json``, recorded in its own environment by
the script beside it (client.md 11, check 2).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Parameter = inspect.Parameter

NAMES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "support" / "official" / "names.json").read_text("utf-8")
)


def importable() -> Iterator[tuple[str, str]]:
    """Yield module and name."""
    for module, names in NAMES.items():
        yield from ((module, name) for name in names)


def functions() -> Iterator[tuple[str, str]]:
    """Yield dotted names and their recorded parameters."""
    for module, names in NAMES.items():
        for name, described in names.items():
            if isinstance(described, str):
                yield f"{module}:{name}", described
            elif described:
                for method, parameters in described.items():
                    if parameters is not None:
                        yield f"{module}:{name}.{method}", parameters


def attributes() -> Iterator[tuple[str, str, str]]:
    """Yield module, class and property."""
    for module, names in NAMES.items():
        for name, described in names.items():
            if isinstance(described, dict):
                for member, parameters in described.items():
                    if parameters is None:
                        yield module, name, member


def recorded(parameters: str) -> list[Parameter]:
    """Read recorded parameters back."""
    arguments = ast.parse(f"def f{parameters}: ...").body[0].args  # type: ignore[attr-defined]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    found = [
        Parameter(each.arg, Parameter.POSITIONAL_OR_KEYWORD, default=_default(default))
        for each, default in zip(arguments.args, defaults, strict=True)
    ]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    found += [
        Parameter(each.arg, Parameter.KEYWORD_ONLY, default=_default(default))
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return found


def _default(node: Any) -> Any:
    return Parameter.empty if node is None else ast.literal_eval(node)


def ours(dotted: str) -> inspect.Signature:
    """Return the signature of our name."""
    module, _, path = dotted.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return inspect.signature(found)


def refusals(theirs: list[Parameter], signature: inspect.Signature) -> Iterator[str]:
    """Yield each call that they take and we do not."""
    mine = list(signature.parameters.values())
    kinds = {each.kind for each in mine}
    by_name = signature.parameters
    positional = [
        each
        for each in mine
        if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    for index, each in enumerate(theirs):
        if each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            if each.kind not in kinds:
                yield f"no {each.kind.description}"
            continue
        if each.kind is Parameter.POSITIONAL_OR_KEYWORD and Parameter.VAR_POSITIONAL not in kinds:
            at_place = positional[index].name if index < len(positional) else None
            if at_place != each.name:
                yield f"{each.name} is not parameter {index}, {at_place} is"
                continue
        own = by_name.get(each.name)
        if own is None:
            if Parameter.VAR_KEYWORD not in kinds:
                yield f"no {each.name}"
        elif each.default is not Parameter.empty and own.default is Parameter.empty:
            yield f"{each.name} has no default"
        elif each.default is not Parameter.empty and own.default != each.default:
            yield f"{each.name} defaults to {own.default!r}, not {each.default!r}"
    known = {each.name for each in theirs}
    for each in mine:
        takes_nothing = each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if each.name not in known and each.default is Parameter.empty and not takes_nothing:
            yield f"{each.name} is required"


@pytest.mark.parametrize(("module", "name"), list(importable()))
def test_a_name_is_imported_from_where_it_always_was(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("dotted", "parameters"), list(functions()))
def test_every_call_they_take_we_take(dotted: str, parameters: str) -> None:
    assert [] == list(refusals(recorded(parameters), ours(dotted)))


@pytest.mark.parametrize(("module", "kind", "member"), list(attributes()))
def test_every_property_they_have_we_have(module: str, kind: str, member: str) -> None:
    assert hasattr(getattr(importlib.import_module(module), kind), member)
