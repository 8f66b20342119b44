"""The log of our programs: one line an event on stderr, as text or as JSON.

Only programs set this up; the library itself logs to named loggers and leaves output alone.
"""

import json
import logging
import sys
from datetime import datetime

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str, form: str = "text") -> None:
    """Send the log of the process to stderr.

    Args:
        level: Least severe level shown, a key of ``LEVELS``.
        form: ``text`` or ``json``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])


class TextFormatter(logging.Formatter):
    """Time, level, logger, message; a traceback follows on its own lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        return timestamp(record)


class JsonFormatter(logging.Formatter):
    """One object a line: ts, level, logger, msg, and error for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def timestamp(record: logging.LogRecord) -> str:
    """Return the record's moment in ISO form with milliseconds and the local offset."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
