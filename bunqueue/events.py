"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.emitter import EventEmitter

__all__ = ["EventEmitter"]
