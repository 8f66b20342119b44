"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.ack_batch import AckBatcher, AckItem

__all__ = ["AckBatcher", "AckItem"]
