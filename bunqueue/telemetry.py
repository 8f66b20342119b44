"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.telemetry import Telemetry, TelemetryEvent, TelemetryHandler

__all__ = ["Telemetry", "TelemetryEvent", "TelemetryHandler"]
