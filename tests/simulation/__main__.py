"""Run histories until the time is over or one fails; a seed always makes the same history.

After a failure the history is run again, shortened and printed step by step. Sets of texts have
another order in every process unless their hashes are fixed, so the program starts itself again
with ``PYTHONHASHSEED=0``.

Usage:
  tests.simulation [--seed N] [--minutes M] [--once] [--keep-on] [--sliced]

Options:
  --seed N     Of the first history [default: 1].
  --minutes M  How long [default: 1].
  --once       Only the history of that seed.
  --keep-on    Do not stop at a failure; count them and name their seeds at the end.
  --sliced     Other histories, in which all that is done in slices is done one job a slice.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any

from docopt import docopt

from tests.simulation.history import Failed, Figures, Run, run, shrunk, steps_of
from tests.simulation.sliced import SlicedRun, in_slices, sliced_history
from tests.simulation.world import silence

SAID_EVERY_S = 60


def main() -> int:
    """Return the exit status: 1 if a rule was broken."""
    given = docopt(__doc__ or "")
    with in_slices() if given["--sliced"] else nullcontext():
        return go(given)


def go(given: dict[str, Any]) -> int:
    """Do what the arguments say."""
    seed, seconds = int(given["--seed"]), 60 * float(given["--minutes"])
    draw, of = (sliced_history, SlicedRun) if given["--sliced"] else (steps_of, Run)
    silence()
    figures = Figures()
    begin, cpu = time.monotonic(), time.process_time()
    said = begin
    gc.freeze()
    kinds: dict[str, list[int]] = {}
    while True:
        try:
            run(draw(seed), seed, figures, of)
        except Failed as failure:
            kinds.setdefault(failure.kind, []).append(seed)
            if not given["--keep-on"]:
                tell(shrunk(failure))
                return 1
        seed += 1
        now = time.monotonic()
        if given["--once"] or now - begin >= seconds:
            break
        if now - said >= SAID_EVERY_S:
            said = now
            report(figures, seed, time.process_time() - cpu)
    report(figures, seed, time.process_time() - cpu)
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):6} {kind}: {seeds[:8]}")
    return bool(kinds)


def report(figures: Figures, seed: int, cpu_s: float) -> None:
    """Print what has been done so far."""
    faults = ", ".join(f"{count} {name}" for name, count in sorted(figures.faults.items()))
    print(
        f"to seed {seed}: {figures.histories} histories, {figures.steps} steps,"
        f" {figures.histories / cpu_s:.0f} histories and {figures.steps / cpu_s:.0f} steps per"
        f" CPU second, {figures.commits} commits; {faults}",
        flush=True,
    )


def tell(failure: Failed) -> None:
    """Print a failure and the history that leads to it."""
    for line in failure.made.told:
        print(line)
    print("\nsteps:")
    for step in failure.steps:
        print(f"    {step!r},")
    frames = traceback.extract_tb(failure.error.__traceback__)
    print("\nraised at:")
    for frame in frames[-6:]:
        print(f"    {frame.filename}:{frame.lineno} {frame.name}: {frame.line}")
    print(f"\n{failure}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
