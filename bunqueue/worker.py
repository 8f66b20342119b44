"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.ack_batch import AckBatcher
from bunqueue.client.connection import Connection
from bunqueue.client.emitter import EventEmitter
from bunqueue.client.endpoint import TlsOption
from bunqueue.client.job import Job
from bunqueue.client.pull_loop import RETRY_S as RECONNECT_BACKOFF_S
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.client.worker import Worker
from bunqueue.client.worker_options import POLL_TIMEOUT_MS_MAX as MAX_POLL_TIMEOUT_MS
from bunqueue.errors import CommandTimeoutError, ConnectionClosedError

__all__ = [
    "AckBatcher",
    "CommandTimeoutError",
    "Connection",
    "ConnectionClosedError",
    "EventEmitter",
    "Job",
    "MAX_POLL_TIMEOUT_MS",
    "RECONNECT_BACKOFF_S",
    "TelemetryHandler",
    "TlsOption",
    "Worker",
]
