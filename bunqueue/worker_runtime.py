"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.ack_batch import AckItem
from bunqueue.client.job import Job
from bunqueue.client.options import compact as _compact
from bunqueue.client.pull_loop import RETRY_S as RECONNECT_BACKOFF_S
from bunqueue.client.requests import STACK_LINES_MAX as MAX_STACK_LINES
from bunqueue.client.worker_options import POLL_TIMEOUT_MS_MAX as MAX_POLL_TIMEOUT_MS
from bunqueue.errors import BunqueueError, UnrecoverableError

__all__ = [
    "AckItem",
    "BunqueueError",
    "Job",
    "MAX_POLL_TIMEOUT_MS",
    "MAX_STACK_LINES",
    "RECONNECT_BACKOFF_S",
    "UnrecoverableError",
    "_compact",
]
