"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import TlsOption
from bunqueue.client.job import Job
from bunqueue.client.options import compact as _compact
from bunqueue.client.options import job_options, job_payload
from bunqueue.client.queue import Queue
from bunqueue.client.requests import STACK_LINES_MAX as MAX_STACK_LINES
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.errors import UnrecoverableError

__all__ = [
    "Connection",
    "Job",
    "MAX_STACK_LINES",
    "Queue",
    "TelemetryHandler",
    "TlsOption",
    "UnrecoverableError",
    "_compact",
    "job_options",
    "job_payload",
]
