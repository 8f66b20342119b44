"""What one part of the package has logged, whatever else the process had to say meanwhile."""

from __future__ import annotations

import logging

import pytest


def said(caplog: pytest.LogCaptureFixture, logger: str, level: int = logging.DEBUG) -> list[str]:
    """Return the messages of a logger and those below it, from ``level`` up."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and f"{record.name}.".startswith(f"{logger}.")
    ]
