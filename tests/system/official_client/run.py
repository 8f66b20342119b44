"""Run scenarios in the official client's environment; one JSON line per outcome.

Arguments: a JSON object with "address" (what `Queue` and `Worker` take), "kind", and
"at_once", how many scenarios may run side by side. A scenario that needs the broker killed and
started again writes {"ask": "restart"} and waits for a line on standard input.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scenario import SCENARIOS, Scenario, World

MODULES = ("adding", "working", "failing", "reading", "control", "leases", "access", "restarting")

_output = threading.Lock()
_asking = threading.Lock()


def say(line: dict[str, Any]) -> None:
    """Write one line."""
    with _output:
        print(json.dumps(line), flush=True)


def ask(what: str) -> None:
    """Ask the process that started us for something and wait until it is done."""
    with _asking:
        say({"ask": what})
        if not sys.stdin.readline():
            raise EOFError("nobody answers")


def run(entry: Scenario, address: dict[str, Any]) -> None:
    """Run one scenario and tell how it went."""
    begin = time.monotonic()
    error = None
    world = World(entry.name.replace("_", "-")[:80], address, ask)
    try:
        with world.stack:
            entry.run(world)
    except BaseException:  # every end of a scenario is an outcome
        error = traceback.format_exc()
    say({"scenario": entry.name, "error": error, "seconds": round(time.monotonic() - begin, 2)})


def main() -> None:
    """Run all scenarios of a kind."""
    given = json.loads(sys.argv[1])
    for module in MODULES:
        importlib.import_module(module)
    chosen = [entry for entry in SCENARIOS.values() if entry.kind == given["kind"]]
    if given.get("names"):
        chosen = [entry for entry in chosen if entry.name in given["names"]]
    with ThreadPoolExecutor(given["at_once"]) as pool:
        for entry in chosen:
            pool.submit(run, entry, given["address"])


if __name__ == "__main__":
    main()
