"""The long form: ``python -m tests.model --minutes 60 --seed 1``.

Histories are run until the time is over, each batch with the next seed. What fails is shrunk to
the smallest history that fails, which is printed as a script of the machine's rules.

Usage:
  tests.model [--minutes N] [--seed N] [--steps N] [--patience N] [--raw]

Options:
  --minutes N   How long [default: 60].
  --seed N      Of the first batch [default: 1].
  --steps N     Steps of a history, at most [default: 40].
  --patience N  Multiplies all bounds on time, for a machine that is busy with other things
                [default: 1].
  --raw         Do not shrink.
"""

from __future__ import annotations

import sys
import time
import traceback
from typing import Final

from docopt import docopt

from tests.model.checks import unchecked
from tests.model.machine import Histories, forget_world, the_world
from tests.model.run import run

BATCH: Final = 12


def main() -> int:
    args = docopt(__doc__ or "")
    patience = Histories.patience = float(args["--patience"])
    seed, steps = int(args["--seed"]), int(args["--steps"])
    end = time.monotonic() + 60 * float(args["--minutes"])
    found = 0
    while time.monotonic() < end:
        try:
            run(Histories, seed, BATCH, steps, shrinks=not args["--raw"])
        except Exception:
            found += 1
            print(f"seed {seed} found something:\n{traceback.format_exc()}", flush=True)
            forget_world()
        counts = sorted(the_world(patience).counts.items())
        print(f"seed {seed}: " + ", ".join(f"{name} {count}" for name, count in counts), flush=True)
        seed += 1
    forget_world()
    print(f"{found} findings; not looked at in this run: {unchecked() or 'nothing'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
