"""Draw the bench's figures: server CPU per job of all servers, a picture in SVG.

Usage:
  plot [--json=FILE] [--svg=FILE]

Called as python -m loadtests.plot. The scale is logarithmic: an equal distance is an equal ratio.
A bar is a median, the thin line in it goes from the least to the most of the repeats.

Options:
  --json=FILE  What loadtests.bench wrote. [default: loadtests/bench.json]
  --svg=FILE   The picture. [default: loadtests/bench.svg]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from docopt import docopt

from loadtests import report
from loadtests.figures import Results, from_json, ratios, values
from loadtests.targets import COMPILED, ENGINES, FILE, MEMORY, PURE, REFERENCE, Target

WIDTH, LEFT, RIGHT, TOP = 900, 130, 100, 92
BAR, BAR_GAP, ROW_GAP, TITLE = 9, 1, 9, 40
COLOURS = {COMPILED: "#0b6e4f", PURE: "#3d8fd1", REFERENCE: "#b9b2a6"}
NAMES = {COMPILED: "ours, compiled", PURE: "ours, pure Python", REFERENCE: "reference 2.9.5"}
TITLES = {FILE: "on a SQLite file", MEMORY: "in memory"}
FONT = 'font-family="system-ui, sans-serif"'


def draw(results: Results, caption: str) -> str:
    """Return the picture of all workloads that have a cost."""
    panels = {
        place: [name for name, row in results.items() if _engines(row, place)] for place in TITLES
    }
    panels = {place: names for place, names in panels.items() if names}
    everything = [
        value
        for place, names in panels.items()
        for name in names
        for engine in _engines(results[name], place)
        for value in _costs(results, name, engine, place)
    ]
    low, high = _bounds(everything)
    parts: list[str] = []
    y = float(TOP)
    for place, names in panels.items():
        parts.append(_text(LEFT, y - 10, f"{TITLES[place]}", size=14, weight="bold"))
        top = y
        rows: list[str] = []
        for name in names:
            y, drawn = _row(results, name, place, y, low, high)
            rows += drawn
        parts += _grid(low, high, top, y) + rows
        y += TITLE
    return _page(parts, y, caption)


def _engines(row: dict[str, list[object]] | object, place: str) -> list[str]:
    return [e for e in ENGINES if values(row, Target(e, place).name, "server_us")]  # type: ignore[arg-type]


def _costs(results: Results, workload: str, engine: str, place: str) -> list[float]:
    return values(results[workload], Target(engine, place).name, "server_us")


def _bounds(found: Sequence[float]) -> tuple[float, float]:
    """Return whole powers of ten around all values."""
    positive = [value for value in found if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _x(value: float, low: float, high: float) -> float:
    share = math.log10(max(value, low) / low) / math.log10(high / low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _row(
    results: Results, name: str, place: str, y: float, low: float, high: float
) -> tuple[float, list[str]]:
    """Draw the bars of one workload; return where the next begins."""
    engines = _engines(results[name], place)
    height = len(engines) * (BAR + BAR_GAP)
    parts = [_text(LEFT - 8, y + height / 2 + 3, name, anchor="end")]
    for engine in engines:
        found = _costs(results, name, engine, place)
        end = _x(median(found), low, high)
        parts.append(
            f'<rect x="{LEFT}" y="{y:.1f}" width="{max(end - LEFT, 1):.1f}" height="{BAR}" '
            f'fill="{COLOURS[engine]}"/>'
        )
        least, most = _x(min(found), low, high), _x(max(found), low, high)
        middle = y + BAR / 2
        parts.append(
            f'<line x1="{least:.1f}" y1="{middle:.1f}" x2="{most:.1f}" y2="{middle:.1f}" '
            'stroke="#222" stroke-width="1"/>'
        )
        label = f"{median(found):,.1f}"
        theirs = Target(REFERENCE, place).name
        times = ratios(results[name], Target(engine, place).name, theirs, "server_us")
        if engine != REFERENCE and times:
            label += f"  (x{median(times):.1f})"
        parts.append(_text(max(end, most) + 5, y + BAR - 1, label, size=9))
        y += BAR + BAR_GAP
    return y + ROW_GAP, parts


def _grid(low: float, high: float, top: float, bottom: float) -> list[str]:
    parts = []
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = _x(10.0**power, low, high)
        parts.append(
            f'<line x1="{x:.1f}" y1="{top - 4:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" '
            'stroke="#ddd" stroke-width="1"/>'
        )
        parts.append(_text(x, bottom + 10, f"{10.0**power:g} us", size=9, anchor="middle"))
    return parts


def _text(
    x: float, y: float, text: str, size: int = 11, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="#222" {FONT}>{escape(text)}</text>'
    )


def _page(parts: Sequence[str], height: float, caption: str) -> str:
    title = "Server CPU per job: less is better, logarithmic scale"
    legend, x = [], LEFT
    for engine in ENGINES:
        legend.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{COLOURS[engine]}"/>')
        legend.append(_text(x + 16, 44, NAMES[engine]))
        x += 150
    words, lines = caption.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 150:
            lines.append("")
        lines[-1] += f"{word} "
    foot = [_text(10, height + 14 * n, line.strip(), size=9) for n, line in enumerate(lines)]
    total = round(height + 14 * len(lines) + 4)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" '
            f'viewBox="0 0 {WIDTH} {total}" role="img">',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>',
            _text(LEFT, 22, title, size=15, weight="bold"),
            *legend,
            *parts,
            *foot,
            "</svg>\n",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = docopt(__doc__ or "", argv=None if argv is None else list(argv))
    told = json.loads(Path(given["--json"]).read_text())
    Path(given["--svg"]).write_text(draw(from_json(told["workloads"]), report.heading(told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
