"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.connection import Connection
from bunqueue.client.job import Job
from bunqueue.client.options import compact as _compact

__all__ = [
    "Connection",
    "Job",
    "_compact",
]
