"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.queue import Queue
from bunqueue.client.requests import STACK_LINES_MAX as MAX_STACK_LINES

__all__ = ["MAX_STACK_LINES", "Queue"]
