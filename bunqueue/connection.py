"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import TlsOption
from bunqueue.client.options import compact as _compact
from bunqueue.client.pool import PROTOCOL_VERSION
from bunqueue.client.telemetry import Telemetry, TelemetryHandler
from bunqueue.errors import CommandError, CommandTimeoutError, ConnectionClosedError
from bunqueue.protocol.frames import FRAME_BYTES_MAX as MAX_FRAME_SIZE
from bunqueue.transport import encode_command

__all__ = [
    "CommandError",
    "CommandTimeoutError",
    "Connection",
    "ConnectionClosedError",
    "MAX_FRAME_SIZE",
    "PROTOCOL_VERSION",
    "Telemetry",
    "TelemetryHandler",
    "TlsOption",
    "_compact",
    "encode_command",
]
