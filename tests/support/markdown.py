"""The fenced blocks of a Markdown page, with where they stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_NAME = re.compile(r"# (\w+\.\w+)\n")
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        language: What stands behind the fence.
        text: What stands between the fences.
        line: Number of the text's first line on the page.
        output: Text of the ``text`` block that follows without another one between, or None.
    """

    language: str
    text: str
    line: int
    output: str | None = None

    @property
    def file(self) -> str | None:
        """Name of the file that it is to be saved as: its first line is ``# name.ending``."""
        match = FILE_NAME.match(self.text)
        return match[1] if match else None


def fenced(page: str) -> list[tuple[str, str]]:
    """Return a page's blocks as (language, text)."""
    return _FENCED.findall(page)


def blocks_of(page: str) -> list[Block]:
    """Return a page's blocks in order; what a block prints is part of it.

    Raises:
        ValueError: There is output that no block prints.
    """
    found: list[Block] = []
    is_open = False  # the last block may still have an output
    for match in _FENCED.finditer(page):
        language, text = match.groups()
        line = page.count("\n", 0, match.start()) + 2
        if language != "text":
            found.append(Block(language, text, line))
            is_open = True
        elif is_open:
            last = found.pop()
            found.append(Block(last.language, last.text, last.line, text))
            is_open = False
        else:
            raise ValueError(f"line {line}: output of no block")
    return found


def is_told(expected: str, found: str) -> bool:
    """Tell whether ``found`` is what a page shows; ``...`` stands for anything, also for lines."""
    parts = (re.escape(part) for part in expected.rstrip().split("..."))
    return re.fullmatch(".*".join(parts), found.rstrip(), re.DOTALL) is not None
