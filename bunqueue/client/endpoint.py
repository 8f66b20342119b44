"""Where a broker is and how to get in: address, token, TLS, and the settings of a link."""

import logging
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bunqueue.client.values import INTEGER_POLICIES

TlsOption = bool | ssl.SSLContext | dict[str, Any] | None

HOST_DEFAULT = "localhost"
PORT_DEFAULT = 6789
CONNECT_TIMEOUT_S_DEFAULT = 5.0
COMMAND_TIMEOUT_S_DEFAULT = 10.0
log = logging.getLogger("bunqueue.connection")

TLS_KEYS = frozenset({"ca_file", "verify", "cert_file", "key_file", "server_hostname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Everything a new link needs to know.

    Attributes:
        connect_timeout: Seconds for TCP, TLS and the greeting together; None means no bound.
        command_timeout: Seconds a command may take; None means no bound.
        in_flight_max: Commands in flight per link; 0 means no bound.
        timeouts_max: Consecutive timeouts after which a link counts as dead; 0 means never.
        int64: What becomes of wide integers (client.md 5.3).
        negotiate: Send ``Hello`` on every new link.
    """

    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    token: str | None = field(default=None, repr=False)
    tls: TlsOption = None
    connect_timeout: float | None = CONNECT_TIMEOUT_S_DEFAULT
    command_timeout: float | None = COMMAND_TIMEOUT_S_DEFAULT
    in_flight_max: int = 0
    timeouts_max: int = 3
    int64: str = "auto"
    negotiate: bool = True

    def checked(self) -> "Endpoint":
        """Return this endpoint with its timeouts in one form.

        Raises:
            ValueError, TypeError: A value cannot work.
        """
        if self.int64 not in INTEGER_POLICIES:
            raise ValueError(f"int64 must be one of {', '.join(INTEGER_POLICIES)}")
        if isinstance(self.tls, dict):
            unknown = self.tls.keys() - TLS_KEYS
            if unknown:
                raise TypeError(f"unknown tls option: {', '.join(sorted(unknown))}")
            verify = self.tls.get("verify")
            if verify is not None and not isinstance(verify, bool):
                raise TypeError(f"tls option verify must be True or False, not {verify!r}")
            if self.tls.get("key_file") and not self.tls.get("cert_file"):
                raise ValueError("tls option key_file is given without cert_file")
            if verify is False:
                _tell_unverified(self.host, self.port)
        return replace(
            self,
            connect_timeout=timeout_s("connect_timeout", self.connect_timeout),
            command_timeout=timeout_s("command_timeout", self.command_timeout),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for new links, or None for plain TCP."""
        tls = self.tls
        if tls is None or tls is False:
            return None
        if isinstance(tls, ssl.SSLContext):
            return tls
        options: Mapping[str, Any] = tls if isinstance(tls, dict) else {}
        context = ssl.create_default_context(cafile=options.get("ca_file"))
        if options.get("verify") is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.get("cert_file"):
            context.load_cert_chain(options["cert_file"], options.get("key_file"))
        return context

    @property
    def server_hostname(self) -> str:
        """The name the server's certificate must carry."""
        if isinstance(self.tls, dict) and self.tls.get("server_hostname"):
            return str(self.tls["server_hostname"])
        return self.host


@lru_cache(maxsize=256)
def _tell_unverified(host: str, port: int) -> None:
    """Warn of an address, once per process."""
    log.warning("the broker's TLS certificate is not checked host=%s port=%d", host, port)


def timeout_s(name: str, value: float | None) -> float | None:
    """Return seconds, or None for no bound; refuse what cannot be a timeout."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None")
    if math.isnan(value) or value <= 0:
        raise ValueError(f"{name} must be above 0")
    return None if math.isinf(value) else float(value)


def parse_url(url: str) -> dict[str, Any]:
    """Read ``bunqueue://[:token@]host[:port][?prefix_key=&pool_size=]`` into keyword arguments.

    Raises:
        ValueError: Another scheme, no host, or an unknown query key. The text shows no part of the
            URL that could be one of the token: one that is not escaped cuts the URL anywhere.
    """
    if not url.startswith(("bunqueue://", "bunqueues://")):
        raise ValueError("url must start with bunqueue:// or bunqueues://")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(
            "url has no host and port that can be read; in the token, write %2F for a slash"
        ) from None
    if not parts.hostname:
        raise ValueError("url has no host")
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError(
            "url must end after host, port and query; in the token, write %2F for / and %23 for #"
        )
    found: dict[str, Any] = {"host": parts.hostname}
    if port is not None:
        found["port"] = port
    token = parts.password or parts.username
    if token:
        found["token"] = unquote(token)
    if parts.scheme == "bunqueues":
        found["tls"] = True
    for key, text in parse_qsl(parts.query, keep_blank_values=True):
        if key not in _QUERY:
            shown = key if key.isidentifier() else "one that is no name"
            raise ValueError(f"unknown key in url: {shown}")
        try:
            found[key] = _QUERY[key](text)
        except ValueError:
            raise ValueError(f"{key} in url must be a number") from None
    return found


_QUERY: dict[str, Any] = {
    "prefix_key": str,
    "pool_size": int,
    "max_in_flight": int,
    "max_command_timeouts": int,
    "command_timeout": float,
    "connect_timeout": float,
}
