"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.job import Job

__all__ = ["Job"]
