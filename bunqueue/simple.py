"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.cancel import CancellationManager, CancelSignal
from bunqueue.client.simple.app import Bunqueue
from bunqueue.client.simple.breaker import WorkerCircuitBreaker
from bunqueue.client.simple.retry import calculate_backoff, execute_with_retry

__all__ = [
    "Bunqueue",
    "CancelSignal",
    "CancellationManager",
    "WorkerCircuitBreaker",
    "calculate_backoff",
    "execute_with_retry",
]
