"""Subcommands that ask the broker how it is: stats, metrics, health, ping, version."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import bunqueue
from bunqueue.cli.call import PORT_MAX, address, connect, without_id
from bunqueue.cli.show import as_json, block, stats_block
from bunqueue.cli.table import Action, declare
from bunqueue.cli.usage import Args
from bunqueue.errors import BunqueueError

HTTP_S = 3.0  # how long ``version`` waits for a server that may not be there


def health(args: Args) -> int:
    """Waits for a greeting, a ping and the figures, and tells them as one block."""
    with connect(address(args, os.environ)) as connection:
        greeting = connection.call({"cmd": "Hello"})
        began = time.monotonic()
        connection.call({"cmd": "Ping"})
        round_trip_ms = (time.monotonic() - began) * 1000
        stats = connection.call({"cmd": "Stats"})["stats"]
    told: dict[str, Any] = {
        "ok": True,
        "status": "healthy",
        "version": greeting["version"],
        "roundTripMs": round(round_trip_ms, 3),
        "stats": stats,
    }
    if args["--json"]:
        print(as_json(told))
        return 0
    for line in block((("Status", "healthy"), ("Server", greeting["version"]))):
        print(line)
    print(f"Round trip:  {round_trip_ms:.2f} ms")
    for line in stats_block(stats):
        print(line)
    return 0


def ping(args: Args) -> int:
    """Waits for one round trip; the dial is not counted."""
    with connect(address(args, os.environ)) as connection:
        connection.connect()
        began = time.monotonic()
        reply = connection.call({"cmd": "Ping"})
        round_trip_ms = (time.monotonic() - began) * 1000
    print(as_json(without_id(reply)) if args["--json"] else f"PONG in {round_trip_ms:.2f} ms")
    return 0


def version(args: Args) -> int:
    """Waits briefly for the server; one that does not answer is no error."""
    server = server_version(args)
    if args["--json"]:
        print(as_json({"client": bunqueue.__version__, "server": server}))
    else:
        print(f"client {bunqueue.__version__}")
        print(f"server {server or 'not reached'}")
    return 0


def server_version(args: Args) -> str | None:
    """Ask HTTP one port above TCP, which needs no token; else greet over TCP."""
    place = address(args, os.environ)
    found = _http_version(place["host"], place["port"] + 1)
    if found is not None:
        return found
    try:
        with connect(place) as connection:
            return str(connection.call({"cmd": "Hello"})["version"])
    except BunqueueError:
        return None


def _http_version(host: str, port: int) -> str | None:
    if port > PORT_MAX:
        return None
    import urllib.request

    # No proxy: the broker is meant, not whoever the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}:{port}/health", timeout=HTTP_S) as answer:
            body = json.load(answer)
    except (OSError, ValueError):
        return None
    return body.get("version") if isinstance(body, Mapping) else None


declare(
    "stats",
    """
Tell how many jobs are where, and how many come and go.

Usage:
  bunqueue stats [options]
""",
    {"": Action("Stats", {}, lambda reply: stats_block(reply["stats"]))},
    examples="bunqueue stats --json",
)

declare(
    "metrics",
    """
Print all figures of the broker as Prometheus reads them.

Usage:
  bunqueue metrics [options]
""",
    {"": Action("Prometheus", {}, lambda reply: reply["data"]["metrics"].splitlines())},
    examples="bunqueue metrics | grep bunqueue_jobs",
)

declare(
    "health",
    """
Tell whether the broker answers, how fast, and its figures.

Usage:
  bunqueue health [options]
""",
    health,
    examples="bunqueue health --host queue.example.org",
)

declare(
    "ping",
    """
Measure one round trip to the broker.

Usage:
  bunqueue ping [options]
""",
    ping,
    examples="bunqueue ping",
)

declare(
    "version",
    """
Tell the versions of this program and of the broker.

Usage:
  bunqueue version [options]
""",
    version,
    examples="bunqueue version",
)
