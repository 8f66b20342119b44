"""Run a broker whose clock a test can move, and which can be told to write late.

The clock's two lines are moved by a file of two numbers, mapped into both processes: how far the
wall clock was set, and how long everything has slept. Only this program knows the file; the
package has no such switch, and nothing of it is on the wire.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from functools import partial
from typing import Final

from bunqueue.broker import clock, core, ticker
from bunqueue.cli.main import main
from bunqueue.storage import log

FLUSH_MS: Final = "MODEL_FLUSH_MS"  # in place of the broker's own time; for tests of the model
CLOCK_FILE: Final = "MODEL_CLOCK_FILE"
CLOCK: Final = struct.Struct("<qq")  # ms the wall clock was set by, ms slept
TICK_MS: Final = 20  # the ticker looks so often, so that moved time is noticed at once


def run() -> int:
    with open(os.environ[CLOCK_FILE], "rb") as file:
        moved = mmap.mmap(file.fileno(), CLOCK.size, prot=mmap.PROT_READ)

    def wall_ns() -> int:
        set_ms, slept_ms = CLOCK.unpack_from(moved)
        return time.time_ns() + (set_ms + slept_ms) * 1_000_000

    def steady() -> float:
        return time.monotonic() + CLOCK.unpack_from(moved)[1] / 1000

    core.Clock = partial(clock.Clock, wall_ns, steady)  # type: ignore[misc, assignment]
    ticker.TICK_MS_MAX = TICK_MS  # type: ignore[misc]
    log.FLUSH_MS = int(os.environ.get(FLUSH_MS, log.FLUSH_MS))  # type: ignore[misc]
    return main()


if __name__ == "__main__":
    sys.exit(run())
