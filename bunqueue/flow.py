"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.connection import Connection
from bunqueue.client.endpoint import TlsOption
from bunqueue.client.flow import FlowNode, FlowProducer
from bunqueue.client.job import Job
from bunqueue.client.options import compact as _compact
from bunqueue.client.options import job_options, job_payload
from bunqueue.client.telemetry import TelemetryHandler
from bunqueue.errors import CommandError

__all__ = [
    "CommandError",
    "Connection",
    "FlowNode",
    "FlowProducer",
    "Job",
    "TelemetryHandler",
    "TlsOption",
    "_compact",
    "job_options",
    "job_payload",
]
