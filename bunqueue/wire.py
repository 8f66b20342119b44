"""Names that programs written for the PyPI client import from here."""

import ssl

from bunqueue.client.endpoint import Endpoint, TlsOption
from bunqueue.client.options import compact as _compact
from bunqueue.client.pool import PROTOCOL_VERSION
from bunqueue.client.values import INT32_MAX as _INT32_MAX
from bunqueue.client.values import INT32_MIN as _INT32_MIN
from bunqueue.client.values import js_safe as _js_safe
from bunqueue.errors import SerializationError
from bunqueue.protocol.frames import FRAME_BYTES_MAX as MAX_FRAME_SIZE

__all__ = [
    "MAX_FRAME_SIZE",
    "PROTOCOL_VERSION",
    "SerializationError",
    "TlsOption",
    "_INT32_MAX",
    "_INT32_MIN",
    "_build_ssl_context",
    "_compact",
    "_js_safe",
]


def _build_ssl_context(tls: TlsOption, host: str) -> ssl.SSLContext | None:
    """Return the TLS context for an option, or None for plain TCP."""
    return Endpoint(host=host, tls=tls).tls_context()
