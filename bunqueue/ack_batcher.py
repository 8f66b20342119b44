"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.ack_batch import AckBatcher, AckItem
from bunqueue.client.options import compact as _compact

__all__ = [
    "AckBatcher",
    "AckItem",
    "_compact",
]
