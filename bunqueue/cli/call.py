"""Send one wire command to a broker and tell its reply."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bunqueue.cli.readers import ABSENT
from bunqueue.cli.restart import shown_token
from bunqueue.cli.show import as_json, printable
from bunqueue.cli.table import Action
from bunqueue.cli.usage import Args, UsageError
from bunqueue.errors import ConnectionClosedError

if TYPE_CHECKING:
    from bunqueue.client.connection import Connection

HOST_NAMES = ("HOST", "BUNQUEUE_HOST", "BQ_HOST")
PORT_NAMES = ("TCP_PORT", "BUNQUEUE_TCP_PORT", "BQ_TCP_PORT")
TOKEN_NAMES = ("BQ_TOKEN", "BUNQUEUE_TOKEN")
PORT_DEFAULT = 6789
PORT_MAX = 65_535
REPLY_S = 10.0  # what we grant a broker on top of the time it was asked to hold a command


def send(action: Action, args: Args) -> int:
    """Run one action against the broker that the options name. Waits for its reply.

    Returns:
        The exit status.

    Raises:
        UsageError: An argument is of the wrong kind.
        BunqueueError: No connection, no reply, or a refusal.
    """
    command = action.command(args)
    hold_ms = action.hold(args) if action.hold else 0
    timeout_s = REPLY_S + (0 if hold_ms is ABSENT else max(0, hold_ms) / 1000)
    if action.confirm and not agreed(action.confirm, args):
        print("Nothing done.", file=sys.stderr)
        return 1
    place = address(args, os.environ)
    prefix = place.get("prefix_key", "")
    if prefix and "queue" in command:
        command["queue"] = prefix + command["queue"]
    with connect(place) as connection:
        reply = connection.call(command, timeout=timeout_s)
    if args["--json"]:
        print(as_json(without_id(reply)))
    else:
        for line in action.show(reply):
            print(printable(line))
    return action.status(reply)


@contextmanager
def connect(place: Mapping[str, Any]) -> "Iterator[Connection]":
    """Yield a connection to the broker at an ``address``; it dials when used."""
    from bunqueue.client.connection import Connection

    options = {name: value for name, value in place.items() if name != "prefix_key"}
    with Connection(**options) as connection:
        try:
            yield connection
        except ConnectionClosedError as error:
            text = f"{place['host']}:{place['port']}: {error}"
            raise ConnectionClosedError(text) from error


def address(args: Args, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what a connection is made of: from the options, else the URL, else the environment."""
    url = _from_url(args["--url"])
    given = url | {
        "host": args["--host"] or url.get("host") or _first(environ, HOST_NAMES) or "localhost",
        "port": _port(args["--port"] or url.get("port") or _first(environ, PORT_NAMES)),
        "token": shown_token(args["--token"]) or url.get("token") or _first(environ, TOKEN_NAMES),
        "tls": _tls(args) or url.get("tls"),
    }
    return {name: value for name, value in given.items() if value is not None}


def named_address(args: Args, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the options alone say of the address.

    A URL says all of it, so that no token meant for one broker goes to another; without one the
    options say what they name, and the environment nothing.
    """
    if args["--url"]:
        tokens = {name: environ[name] for name in TOKEN_NAMES if name in environ}
        return {"port": PORT_DEFAULT, "token": None, "tls": None} | address(args, tokens)
    named = {
        "host": args["--host"],
        "port": args["--port"] and _port(args["--port"]),
        "token": shown_token(args["--token"]),
        "tls": _tls(args),
    }
    return {name: value for name, value in named.items() if value is not None}


def agreed(question: str, args: Args) -> bool:
    """Ask on a terminal; scripts, which have none, and ``--yes`` mean yes."""
    if args.get("--yes") or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def without_id(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply without the number that matched it to our request."""
    return {name: value for name, value in reply.items() if name != "reqId"}


def _from_url(url: str | None) -> dict[str, Any]:
    if url is None:
        return {}
    from bunqueue.client.endpoint import parse_url

    try:
        return parse_url(url)
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _port(value: str | int | None) -> int:
    if value is None:
        return PORT_DEFAULT
    try:
        port = int(value)
    except ValueError:
        raise UsageError(f"the port must be a number, not {value!r}") from None
    if not 1 <= port <= PORT_MAX:
        raise UsageError(f"the port must be between 1 and {PORT_MAX}, not {port}")
    return port


def _certificates(path: str) -> str:
    import ssl

    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # what OpenSSL says of its content is one, too
        raise UsageError(f"--tls-ca {path} holds no certificates to trust: {error}") from None
    return path


def _tls(args: Args) -> Any:
    """Return what the client takes as ``tls``: None, True, or a map."""
    wishes: dict[str, Any] = {}
    if args["--tls-ca"]:
        wishes["ca_file"] = _certificates(args["--tls-ca"])
    if args["--tls-no-verify"]:
        wishes["verify"] = False
    return wishes or (True if args["--tls"] else None)
