"""The lines of the log."""

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from bunqueue.logs import JsonFormat, TextFormat, configure


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "bunqueue.server", "levelname": "WARNING", "msg": "gone peer=%s", "args": ("x",)}
    )
    vars(made).update(extra)
    return made


def test_text_is_time_level_logger_message() -> None:
    line = TextFormat().format(record())

    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d WARNING bunqueue.server gone peer=x"
    )
    assert re.fullmatch(pattern, line)


def test_text_shows_what_was_handed_in() -> None:
    assert TextFormat().format(record(queue="emails")).endswith(" gone peer=x queue=emails")


@pytest.mark.parametrize("odd", ["\n", "\r", "\x00", "\x1b[2J", "\x7f", "\x9b", "\u2028"])
def test_text_is_one_line_of_what_can_be_printed(odd: str) -> None:
    line = TextFormat().format(record(args=(f"x{odd}2026 INFO forged",), queue=f"q{odd}"))

    assert line.isprintable()
    assert "\\" in line


def test_json_is_one_object_a_line() -> None:
    line = JsonFormat().format(record(queue="emails", odd={1}))
    found = json.loads(line)

    assert "\n" not in line
    assert ["ts", "level", "logger", "msg", "queue", "odd"] == list(found)
    assert ("warning", "gone peer=x", "emails") == (found["level"], found["msg"], found["queue"])


def test_a_traceback_stays_on_the_json_line() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        made = record(exc_info=sys.exc_info())
    line = JsonFormat().format(made)

    assert "\n" not in line
    assert "ValueError" == json.loads(line)["error_type"]
    assert "boom" in json.loads(line)["traceback"]
    assert "Traceback" in TextFormat().format(made)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("level", "expected"),
    [("warn", logging.WARNING), ("debug", logging.DEBUG), ("error", logging.ERROR)],
)
def test_configuring_replaces_what_was_there(
    root: logging.Logger, level: str, expected: int
) -> None:
    configure(level, "json")

    assert expected == root.level
    assert [JsonFormat] == [type(handler.formatter) for handler in root.handlers]
