"""The README's code blocks by the heading they stand under."""

from __future__ import annotations

import re

from tests.support.markdown import ROOT, fenced

README = (ROOT / "README.md").read_text("utf-8")


def blocks() -> dict[str, list[tuple[str, str]]]:
    """Return heading -> its blocks as (language, text)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^## ", README, flags=re.MULTILINE)[1:]:
        found[section.partition("\n")[0].strip()] = fenced(section)
    return found


def block(heading: str) -> str:
    """Return the text of a heading's only block."""
    ((_, text),) = blocks()[heading]
    return text
