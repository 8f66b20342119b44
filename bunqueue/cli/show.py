"""How replies are told to people: lines and tables of plain text, the data on standard output."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Reply = Mapping[str, Any]

FLOAT_INT_MAX = 2**53  # above this a float no longer says which integer was meant


def as_json(value: Any) -> str:
    """Return indented JSON; integral floats, which the wire uses for big integers, as integers."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)


def compact(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(plain(value), ensure_ascii=False, default=str)


def plain(value: Any) -> Any:
    """Return the value with integral floats as integers and bytes as text."""
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer() and abs(value) <= FLOAT_INT_MAX
        return int(value) if whole else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


def printable(text: str) -> str:
    """Escape what could move a terminal's cursor: names, errors and log lines come from anyone."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(epoch_ms: float | None) -> str:
    """Return a wire moment in ISO form, UTC."""
    if epoch_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError):  # beyond the years that Python knows
        return f"{plain(epoch_ms)} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield aligned lines: the head, then the rows."""
    cells = [list(head), *([str(plain(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()


def block(rows: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield ``Name:  value`` lines with the values aligned."""
    pairs = [(f"{name}:", value) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        yield f"{name.ljust(width)}  {plain(value)}"


def job_block(job: Reply) -> Iterator[str]:
    """Tell one job."""
    rows: list[tuple[str, Any]] = [
        ("Job", job["id"]),
        ("Queue", job.get("queue")),
        ("Name", job.get("name")),
        ("State", job.get("state", "active")),
        ("Priority", job.get("priority", 0)),
        ("Attempts", f"{plain(job.get('attempts', 0))}/{plain(job.get('maxAttempts', 0))}"),
        ("Data", compact(job.get("data"))),
        ("Progress", f"{plain(job.get('progress', 0))}%"),
        ("Created", moment(job.get("createdAt"))),
        ("Started", moment(job.get("startedAt"))),
    ]
    if job.get("failedReason"):
        rows.append(("Error", job["failedReason"]))
    yield from block(rows)


def job_table(jobs: Iterable[Reply]) -> Iterator[str]:
    """Tell many jobs, a line each."""
    head = ("ID", "Queue", "State", "Priority", "Attempts")
    yield from table(
        head,
        (
            (
                job["id"],
                job.get("queue", ""),
                job.get("state", "-"),
                job.get("priority", 0),
                f"{plain(job.get('attempts', 0))}/{plain(job.get('maxAttempts', 0))}",
            )
            for job in jobs
        ),
    )


def dlq_table(reply: Reply) -> Iterator[str]:
    """Tell the dead letters of a queue: why each gave up, and when."""
    entries = reply.get("entries") or []
    if not entries:
        yield "DLQ is empty"
        return
    yield from table(
        ("ID", "Name", "Reason", "Attempts", "Entered", "Error"),
        (
            (
                entry["job"]["id"],
                entry["job"].get("name", ""),
                entry["reason"],
                entry["job"].get("attempts", 0),
                moment(entry["enteredAt"]),
                entry["error"] or "-",
            )
            for entry in entries
        ),
    )


def explanation_lines(told: Reply) -> Iterator[str]:
    """Tell why a job is not running."""
    yield f"Job: {told['id']}"
    if "queue" in told:
        yield f"Queue: {told['queue']}"
    yield f"State: {told['state']}"
    for reason in told["reasons"]:
        until = f" (until {moment(reason['until'])})" if "until" in reason else ""
        yield f"  - {reason['text']}{until}"
        for job_id in reason.get("ids", ()):
            yield f"      {job_id}"
    if not told["reasons"]:
        yield f"Nothing stands in its way; jobs before it: {told.get('ahead', 0)}"


def log_lines(reply: Reply) -> Iterator[str]:
    """Tell a job's log."""
    logs = reply["data"]["logs"]
    if not logs:
        yield "No logs found"
    for line in logs:
        yield f"[{moment(line['timestamp'])}] {str(line['level']).upper()}: {line['message']}"


def worker_lines(reply: Reply) -> Iterator[str]:
    """Tell the registered workers."""
    workers = reply["data"]["workers"]
    if not workers:
        yield "No workers registered"
        return
    yield from table(
        ("ID", "Name", "Status", "Queues", "Active", "Processed", "Failed", "Last seen"),
        (
            (
                worker["id"],
                worker["name"],
                worker["status"],
                ",".join(worker["queues"]),
                worker["activeJobs"],
                worker["processedJobs"],
                worker["failedJobs"],
                moment(worker["lastSeen"]),
            )
            for worker in workers
        ),
    )


def stats_block(stats: Reply) -> Iterator[str]:
    """Tell the figures of the broker."""
    return block(stats_rows(stats))


def stats_rows(stats: Reply) -> list[tuple[str, Any]]:
    """Return the figures of the broker with their names."""
    return [
        ("Waiting", stats["waiting"]),
        ("Active", stats["active"]),
        ("Delayed", stats["delayed"]),
        ("Completed", stats["completed"]),
        ("Failed", stats["failed"]),
        ("Dead letters", stats["dlq"]),
        ("Pushed per second", round(stats["pushPerSec"], 2)),
        ("Pulled per second", round(stats["pullPerSec"], 2)),
        ("Uptime", f"{stats['uptime'] / 1000:.0f} s"),
    ]
