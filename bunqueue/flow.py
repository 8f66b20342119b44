"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.flow import FlowNode, FlowProducer

__all__ = ["FlowNode", "FlowProducer"]
