"""From the parameters of Queue and Worker to a name and a connection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import (
    COMMAND_TIMEOUT_S_DEFAULT,
    CONNECT_TIMEOUT_S_DEFAULT,
    HOST_DEFAULT,
    PORT_DEFAULT,
    parse_url,
)
from bunqueue.client.values import QueueName

DEFAULTS: dict[str, Any] = {
    "host": HOST_DEFAULT,
    "port": PORT_DEFAULT,
    "token": None,
    "tls": None,
    "command_timeout": COMMAND_TIMEOUT_S_DEFAULT,
    "connect_timeout": CONNECT_TIMEOUT_S_DEFAULT,
    "on_telemetry": None,
    "embedded": None,
    "data_path": None,
    "pool_size": 1,
    "max_in_flight": 0,
    "max_command_timeouts": 3,
    "logger": None,
    "extended_telemetry": False,
    "int64": "auto",
    "restore_ints": False,
    "negotiate": True,
}
MS_KEYS = {"commandTimeout": "command_timeout", "connectTimeout": "connect_timeout"}


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue's name and the way to its broker.

    Attributes:
        owns_connection: Whoever asked made it, and closes it.
    """

    name: QueueName
    connection: Connection
    owns_connection: bool


def address_of(
    name: str,
    *,
    prefix_key: str,
    connection: Connection | Mapping[str, Any] | None,
    url: str | None,
    given: Mapping[str, Any],
) -> QueueAddress:
    """Return where a queue is.

    Args:
        name: Logical name, or another queue's ``name``.
        prefix_key: Namespace; must agree with that of a ``QueueName``.
        connection: To share, or parameters, which win over the url and lose to ``given``.
        url: Parameters in one text.
        given: Explicit parameters; those at their default count as not given.

    Raises:
        ValueError: Parameters that exclude each other, or an empty name.
    """
    found = parse_url(url) if url else {}
    prefix = prefix_key or found.pop("prefix_key", "")
    found.pop("prefix_key", None)
    full_name = full_queue_name(name, prefix)
    if isinstance(connection, Connection):
        if given.get("embedded") and not connection.embedded:
            raise ValueError("a TCP connection cannot serve an embedded queue")
        return QueueAddress(full_name, connection, False)
    found.update(_snake(connection or {}))
    found.update({key: value for key, value in given.items() if value != DEFAULTS[key]})
    found["embedded"] = embedded_wanted(found.get("embedded"), found)
    return QueueAddress(full_name, Connection(**found), True)


def full_queue_name(name: str, prefix: str) -> QueueName:
    """Return ``name`` with its prefix; the name of another queue brings its own."""
    if isinstance(name, QueueName):
        if prefix and prefix != name.prefix:
            raise ValueError(f"queue {name!r} has the prefix {name.prefix!r}, not {prefix!r}")
        return name
    if not isinstance(name, str) or not name:
        raise ValueError("queue name must be a non-empty string")
    return QueueName(name, prefix)


def embedded_wanted(embedded: bool | None, others: Mapping[str, Any]) -> bool:
    """Tell whether to use the engine in this process; None asks the environment."""
    if embedded is not None:
        return bool(embedded)
    if others.keys() & {"host", "port", "token", "tls"}:
        return False  # an explicit address is an answer, too
    return os.environ.get("BUNQUEUE_EMBEDDED", "").lower() in ("1", "true")


def _snake(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return connection parameters by their Python names; camelCase timeouts are in ms."""
    found = {}
    for key, value in options.items():
        if key in MS_KEYS:
            found[MS_KEYS[key]] = None if value is None else value / 1000
            continue
        name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()
        if name not in DEFAULTS:
            raise TypeError(f"unknown connection option: {key!r}")
        found[name] = value
    return found
