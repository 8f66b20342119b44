"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import TlsOption
from bunqueue.client.options import compact as _compact
from bunqueue.client.pool import PROTOCOL_VERSION
from bunqueue.protocol.frames import FRAME_BYTES_MAX as MAX_FRAME_SIZE

__all__ = ["MAX_FRAME_SIZE", "PROTOCOL_VERSION", "Connection", "TlsOption", "_compact"]
