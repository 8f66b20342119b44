"""Commands about one job, shared by ``Queue`` (by id) and ``Job`` (by itself)."""

import json
import traceback
from datetime import datetime
from typing import Any

from bunqueue.client.options import compact, epoch_ms, milliseconds
from bunqueue.errors import UnrecoverableError

STACK_LINES_MAX = 10  # what the server keeps by default, wire.md 4.2 stackTraceLimit

Request = dict[str, Any]


def of_job(cmd: str, job_id: str, **fields: Any) -> Request:
    """Return a command about a job, without the fields that are None."""
    return compact({"cmd": cmd, "id": job_id, **fields})


def progress(job_id: str, value: Any, message: str | None) -> Request:
    """Return the Progress command; an object travels as 0 with its JSON as the message."""
    if isinstance(value, (dict, list)):
        return of_job("Progress", job_id, progress=0, message=json.dumps(value))
    return of_job("Progress", job_id, progress=value, message=message)


def move_to_delayed(
    job_id: str, delay_ms: Any, token: str | None, until: float | datetime | None, now_ms: float
) -> Request:
    """Return the MoveToDelayed command for a span, or for a moment."""
    delay = milliseconds(delay_ms) if until is None else max(0.0, epoch_ms(until) - now_ms)
    return of_job("MoveToDelayed", job_id, delay=delay, token=token)


def completed(job_id: str, result: Any, token: str | None) -> Request:
    """Return the ACK of a job; a result of None is not sent."""
    return of_job("ACK", job_id, result=result, token=token)


def failed(
    job_id: str,
    error: BaseException | str,
    token: str | None,
    stack_lines_max: Any = STACK_LINES_MAX,
) -> Request:
    """Return the FAIL of a job.

    A Python traceback ends with its cause and the server keeps the first lines it gets, so the
    last lines are sent.
    """
    if isinstance(error, str):
        return of_job("FAIL", job_id, error=_carried(error), token=token)
    return of_job(
        "FAIL",
        job_id,
        error=text_of(error),
        token=token,
        stack=stack_of(error, stack_lines_max),
        unrecoverable=True if isinstance(error, UnrecoverableError) else None,
    )


def text_of(error: BaseException) -> str:
    """Return an exception's text, the name of its class where it has none."""
    try:
        text = str(error)
    except Exception:  # the text is the user's code, and a failure must be told whatever it does
        text = ""
    return _carried(text) or type(error).__name__


def _carried(text: str) -> str:
    """Return a text as UTF-8 carries it: names of files may hold bytes that are none."""
    return text.encode("utf-8", "backslashreplace").decode()


def stack_of(error: BaseException, lines_max: Any) -> list[str]:
    """Return the last lines of an exception's traceback."""
    if not isinstance(lines_max, (int, float)) or lines_max <= 0:
        lines_max = STACK_LINES_MAX
    told: list[str] | None = getattr(error, "stack_lines", None)
    if told is not None:  # by a child process, which cut them the same way
        return told
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [_carried(line) for line in lines if line.strip()][-int(lines_max) :]


def is_late(reply: dict[str, Any] | None) -> bool:
    """Tell whether the broker answered an outcome that somebody else had ended the job."""
    data = None if reply is None else reply.get("data")
    return isinstance(data, dict) and data.get("applied") is False
