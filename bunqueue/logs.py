"""The log of our programs: one line a record on stderr, as text or as JSON.

Libraries only name loggers; this is called by the program's entry point, once.
"""

import json
import logging
import sys
from datetime import datetime
from typing import Any, Final

LEVELS: Final = {"warn": "WARNING"}

# Attributes that every record has; what else it carries was handed in with ``extra=``.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# What others had a say in, such as an error of a foreign server, can neither begin a line nor move
# the cursor of whoever reads the log.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class TextFormat(logging.Formatter):
    """``2026-01-31T12:00:00.123+01:00 WARNING bunqueue.server.main no data path ...``"""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, and its traceback behind it."""
        line = f"{moment(record)} {record.levelname} {record.name} {record.getMessage()}"
        for key, value in extras(record).items():
            line += f" {key}={value}"
        line = line.translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormat(logging.Formatter):
    """One object a line: ``ts level logger msg``, then what the record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as an object on one line."""
        line: dict[str, Any] = {
            "ts": moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        } | extras(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["error_type"] = record.exc_info[0].__name__
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str, form: str) -> None:
    """Send the log to stderr, in place of what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if form == "json" else TextFormat())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS.get(level, level.upper()))


def moment(record: logging.LogRecord) -> str:
    """Return the record's time in ISO 8601, local, with milliseconds and offset."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was handed in with ``extra=``."""
    return {key: value for key, value in vars(record).items() if key not in _OWN}
