"""What a process holds: threads, greenlets, sockets, commands in flight, objects, memory.

Read while nothing is under way, so each figure should come back to what it was, round after round.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.processes import tree

ME = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure, and how much of a rise is no growth.

    ``slack`` and ``share`` add up: so many more, and so much of the figure at the start.
    """

    name: str
    unit: str
    slack: float
    share: float = 0.0


GAUGES = (
    Gauge("threads", "", 0),
    Gauge("greenlets", "", 0),
    Gauge("children", "", 0),
    Gauge("sockets", "", 0),
    Gauge("files", "", 0),
    Gauge("pending", "", 0),
    Gauge("parts", "", 0),
    # Caches of the library and of the interpreter fill up by and by; a leak of one object a round
    # shows against this within ten minutes.
    Gauge("objects", "", 200, 0.002),
    # The allocator keeps what a peak has needed, and peaks differ.
    Gauge("memory", "MiB", 2.0, 0.03),
)

# Objects of the client that live as long as something is open or under way.
PARTS = frozenset(
    {
        "Connection", "Delivery", "Entry", "Job", "Link", "LinkPool", "QueueEvents", "Queue",
        "Subscription", "Waiter", "Worker",
    }
)  # fmt: skip


def read() -> tuple[list[float], Counter[str]]:
    """Read all gauges of this process, and count the objects of each class; garbage goes first."""
    gc.collect()
    found = gc.get_objects()
    classes = Counter(_name_of(type(thing)) for thing in found)
    files = [_target(entry) for entry in os.listdir(ME / "fd")]
    parts = (
        count
        for name, count in classes.items()
        if name.startswith("bunqueue.client.") and name.rpartition(".")[2] in PARTS
    )
    figures = {
        "threads": _status("Threads:"),
        "greenlets": _greenlets(found),
        "children": len(tree([os.getpid()])) - 1,
        "sockets": sum(target.startswith("socket:") for target in files),
        "files": len(files),
        "pending": _pending(found),
        "parts": sum(parts),
        "objects": len(found),
        "memory": _status("VmRSS:") / 1024,
    }
    return [figures[gauge.name] for gauge in GAUGES], classes


def growth(series: Sequence[Sequence[float]], gauges: Sequence[Gauge] = GAUGES) -> list[str]:
    """Say which figures have grown: the least of the end is more than the most of the beginning.

    What is being closed may be counted for a moment longer, so figures go up and down by a few; one
    that grows leaves its beginning behind for good. The first fifth is left out: caches fill, pools
    of threads reach their size.

    Args:
        series: For each gauge, what was read in each round.
        gauges: Their rows.
    """
    said = []
    for gauge, figures in zip(gauges, series, strict=True):
        warm = figures[len(figures) // 5 :]
        part = max(1, len(warm) // 4)
        before, after = max(warm[:part]), min(warm[-part:])
        if after > before + gauge.slack + before * gauge.share:
            said.append(f"{gauge.name}: at most {before:,.1f} before, at least {after:,.1f} after")
    return said


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _target(entry: str) -> str:
    try:
        return os.readlink(ME / "fd" / entry)
    except FileNotFoundError:
        return ""  # the one that listed them


def _status(field: str) -> int:
    """Return a number of the kernel's status page; sizes are in KiB."""
    for line in (ME / "status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise LookupError(field)


def _greenlets(found: list[Any]) -> int:
    """Count greenlets that have not ended."""
    module = sys.modules.get("greenlet")
    if module is None:
        return 0
    return sum(isinstance(thing, module.greenlet) and not thing.dead for thing in found)


def _pending(found: list[Any]) -> int:
    """Count the entries in every link's map of commands in flight, and the callers parked there."""
    module = sys.modules.get("bunqueue.client.link")
    if module is None:
        return 0
    return sum(
        len(thing.pending) + (thing._slots.waiting if thing._slots is not None else 0)
        for thing in found
        if isinstance(thing, module.Link)
    )
