"""Run scenarios in the official client's environment; one JSON line per outcome.

Arguments: a JSON object with "address" (what `Queue` and `Worker` take, but "tls" names the file
of the authority), "kind", and "at_once", how many scenarios may run side by side. A scenario that
needs the broker killed and started again writes {"ask": "restart"} and waits for a line on
standard input.
"""

from __future__ import annotations

import importlib
import json
import ssl
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scenario import SCENARIOS, Scenario, World

MODULES = (
    "adding", "working", "failing", "reading", "control", "leases", "flows", "schedulers", "groups",
    "hooks", "simple_mode", "watching", "completeness", "access", "restarting",
)  # fmt: skip

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


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Make the context that scenarios connect with.

    Not TLS 1.3: a server's session tickets then meet the first command, and client 0.1.5 reads and
    writes a connection in two threads at once, which its TLS library does not allow. One first
    command in ten or twenty was lost so, by our server and by the reference alike.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def main() -> None:
    """Run all scenarios of a kind."""
    given = json.loads(sys.argv[1])
    for module in MODULES:
        importlib.import_module(module)
    address = given["address"]
    if "tls" in address:
        address["tls"] = tls_context(address["tls"])
    chosen = [entry for entry in SCENARIOS.values() if entry.kind == given["kind"]]
    with ThreadPoolExecutor(given["at_once"]) as pool:
        for entry in chosen:
            pool.submit(run, entry, address)


if __name__ == "__main__":
    main()
