"""docs/protocol.md as data: its sections, its examples, the errors it tells of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.readme import ROOT

PAGE = ROOT / "docs" / "protocol.md"
COMMANDS_CHAPTER = "Commands"
LEFT_OUT = "..."  # the key that stands for members that are not shown
ANY = {"ms": "float", "number": "number", "text": "str"}

_HEADING = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```wire(?: tokens=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ERROR_TABLE = re.compile(r"^\| error[^\n]*\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", re.MULTILINE)
_FIRST_CELL = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, up to the next one.

    Attributes:
        level: 2 for a chapter, 3 for a section of one.
    """

    level: int
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation: lines of (mark, value), the mark being ``>``, ``<`` or ``+``."""

    section: str
    number: int
    tokens: tuple[str, ...]
    lines: tuple[tuple[str, Any], ...]


def page() -> str:
    """Return the page's text."""
    return PAGE.read_text("utf-8")


def sections(text: str) -> list[Section]:
    """Cut the page at its headings."""
    marks = list(_HEADING.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        Section(len(mark[1]), mark[2], text[mark.end() : end])
        for mark, end in zip(marks, ends, strict=True)
    ]


def commands(text: str) -> list[Section]:
    """Return the sections about commands: those of the chapters behind "Commands"."""
    every = sections(text)
    begin = next(i for i, each in enumerate(every) if each.title == COMMANDS_CHAPTER)
    return [each for each in every[begin:] if each.level == 3]


def examples(text: str) -> list[Example]:
    """Return all conversations of the page."""
    return [
        Example(each.title, number, (tokens,) if tokens else (), tuple(_lines(body)))
        for each in sections(text)
        for number, (tokens, body) in enumerate(_FENCE.findall(each.text), 1)
    ]


def _lines(body: str) -> Iterator[tuple[str, Any]]:
    for line in re.sub(r"\n(?=  )", " ", body).splitlines():  # a line may go on, indented
        mark, value = line.split(" ", 1)
        assert mark in "><+", f"no mark: {line}"
        yield mark, json.loads(value)


def says(example: Example) -> tuple[dict[str, Any], ...]:
    """Return the conversation as `tests.wire.conversation` has it."""
    seen: set[str] = set()
    steps: list[dict[str, Any]] = []
    for mark, value in example.lines:
        if mark == "<":
            steps.append({"get": _expected(value, seen)})
        else:
            steps.append({"send": _sent(value)})
        if mark == "+":
            steps.append({"get_some": {"ok": True}})
    return tuple(steps)


def _sent(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return {"$kept": value[1:]}
    if isinstance(value, dict):
        return {key: _sent(item) for key, item in value.items()}
    return [_sent(item) for item in value] if isinstance(value, list) else value


def _expected(value: Any, seen: set[str]) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        name = value[1:]
        if name in ANY:
            return {"$any": ANY[name]}
        mark = "$kept" if name in seen else "$keep"
        seen.add(name)
        return {mark: name}
    if isinstance(value, dict):
        shown = {key: _expected(item, seen) for key, item in value.items() if key != LEFT_OUT}
        return {"$some": shown} if LEFT_OUT in value else shown
    return [_expected(item, seen) for item in value] if isinstance(value, list) else value


def errors(text: str) -> list[str]:
    """Return the texts of all tables of errors, placeholders as ``<name>``."""
    return [
        cell.replace("\\|", "|")
        for table in _ERROR_TABLE.findall(text)
        for cell in _FIRST_CELL.findall(table)
    ]
