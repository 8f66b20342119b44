"""Subcommands that ask the broker how it is: stats, metrics, health, ping, version."""

import json
import os
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

import bunqueue
from bunqueue.cli.call import PORT_MAX, address, connect, without_id
from bunqueue.cli.cures import with_cure
from bunqueue.cli.show import as_json, block, stats_block, stats_rows
from bunqueue.cli.table import Action, declare
from bunqueue.cli.usage import Args
from bunqueue.compiled import CORE
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
    rows = [
        ("Status", "healthy"),
        ("Compatible with", greeting["version"]),
        ("Round trip", f"{round_trip_ms:.2f} ms"),
        *stats_rows(stats),
    ]
    for line in block(rows):
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
    place = address(args, os.environ)
    client, server = bunqueue.__version__, None
    compatible, trouble = None, None
    http = http_url(place, os.environ)
    if http is not None:
        server = _http_version(http, place)
    if server is None:
        try:
            with connect(place) as connection:
                compatible = str(connection.call({"cmd": "Hello"})["version"])
        except BunqueueError as error:
            trouble = with_cure(error)
    if args["--json"]:
        told = {"client": client, "core": CORE, "server": server, "compatibility": compatible}
        print(as_json(told))
        return 0
    print(f"client {client} ({CORE})")
    if server is not None:
        print(f"server {server}")
    elif compatible is not None:
        print(f"server compatible with {compatible}; its own version: no answer at {http}")
    else:
        print(f"server not reached: {trouble}")
    return 0


def http_url(place: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return where HTTP tells the version: at ``HTTP_PORT``, else one port above TCP."""
    port = environ.get("HTTP_PORT") or str(place["port"] + 1)
    if not port.isdecimal() or not 1 <= int(port) <= PORT_MAX:
        return None
    host = f"[{place['host']}]" if ":" in place["host"] else place["host"]
    return f"http{'s' if place.get('tls') else ''}://{host}:{port}/health"


def _http_version(url: str, place: Mapping[str, Any]) -> str | None:
    """Waits briefly for the server's version and which core it runs."""
    import urllib.request

    from bunqueue.client.endpoint import Endpoint

    context = Endpoint(host=place["host"], tls=place.get("tls")).tls_context()
    # No proxy: the broker is meant, not whoever the environment names.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=HTTP_S) as answer:
            body = json.load(answer)
    except (OSError, ValueError, HTTPException):
        return None
    if not isinstance(body, Mapping) or not isinstance(body.get("version"), str):
        return None
    return f"{body['version']} ({body['core']})" if "core" in body else body["version"]


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

The broker tells its own version over HTTP: at HTTP_PORT, or one port above TCP. Where HTTP does not
answer, it tells over TCP which server of the protocol it is compatible with.
""",
    version,
    examples="bunqueue version",
)
