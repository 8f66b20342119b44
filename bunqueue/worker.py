"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.pull_loop import RETRY_S as RECONNECT_BACKOFF_S
from bunqueue.client.worker import Worker
from bunqueue.client.worker_options import POLL_TIMEOUT_MS_MAX as MAX_POLL_TIMEOUT_MS

__all__ = ["MAX_POLL_TIMEOUT_MS", "RECONNECT_BACKOFF_S", "Worker"]
