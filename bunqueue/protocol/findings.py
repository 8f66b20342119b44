"""Findings: what ``bunqueue doctor`` tells, one for each check, whoever made it.

A finding is a map as it goes over the wire: ``{"check": str, "level": "ok" | "warning" |
"problem", "text": str, "cure": str}``; what is fine needs no cure. A warning says that something
may be meant and may not; a problem, that something does not work or will soon be lost.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
LEVELS: Final = (OK, WARNING, PROBLEM)  # the worse, the later

NAMED_MAX: Final = 5  # places that one finding names; of the others it tells how many there are

Finding = dict[str, Any]
Note = tuple[str, str]  # level, text

_SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SPANS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def finding(check: str, level: str, text: str, cure: str | None = None) -> Finding:
    """Make one."""
    told: Finding = {"check": check, "level": level, "text": text}
    if cure is not None and level != OK:
        told["cure"] = cure
    return told


def summed_up(check: str, notes: Iterable[Note], fine: str, cure: str) -> Finding:
    """Make one of what was found in many places, the worst first.

    Args:
        check: Its name.
        notes: What was found, and how bad it is.
        fine: The text where there is none.
        cure: What to do otherwise.
    """
    notes = sorted(notes, key=lambda note: -LEVELS.index(note[0]))
    if not notes:
        return finding(check, OK, fine)
    text = "; ".join(text for _, text in notes[:NAMED_MAX])
    if len(notes) > NAMED_MAX:
        text += f"; and {len(notes) - NAMED_MAX} more"
    return finding(check, notes[0][0], text, cure)


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst level there is."""
    return max((each["level"] for each in findings), key=LEVELS.index, default=OK)


def span_text(span_ms: float) -> str:
    """Return a span in its largest whole unit, as in ``3 h``."""
    for (unit_ms, name), (smaller_ms, _) in pairwise(_SPANS):
        if span_ms >= unit_ms - smaller_ms / 2:  # 59.9 min are 1 h, not 60 min
            return f"{span_ms / unit_ms:.0f} {name}"
    return f"{span_ms:.0f} ms"


def size_text(size_bytes: float) -> str:
    """Return a size in its largest unit, as in ``1.5 GiB``."""
    for name in _SIZES[:-1]:
        if size_bytes < 1024:
            return f"{size_bytes:.3g} {name}" if size_bytes < 1000 else f"{size_bytes:.0f} {name}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} {_SIZES[-1]}"


def counted(number: int, what: str) -> str:
    """Return a number of things, as in ``1 job`` and ``2 jobs``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
