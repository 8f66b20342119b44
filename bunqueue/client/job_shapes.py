"""A job as a plain dict, in the two shapes that the Bun package gives it."""

from __future__ import annotations

import json
from typing import Any

from bunqueue.client.job_fields import JobFields
from bunqueue.client.options import camel

# Values that stay as they are where the others become text.
_KEPT = ("id", "name", "failedReason", "parentKey")
_NUMBERS = ("delay", "timestamp", "attemptsMade", "finishedOn", "processedOn")


def job_dict(job: JobFields[Any]) -> dict[str, Any]:
    """Return the job with plain values."""
    return {
        "id": job.id,
        "name": job.name,
        "data": job.data,
        "opts": {camel(key): value for key, value in job.opts.items()},
        "progress": job.progress,
        "delay": job.delay,
        "timestamp": job.timestamp,
        "attemptsMade": job.attempts,
        "stacktrace": job.stacktrace,
        "returnvalue": job.returnvalue,
        "failedReason": job.failed_reason,
        "finishedOn": job.finished_on,
        "processedOn": job.processed_on,
        "queueQualifiedName": job.queue,
        "parentKey": job.parent_key,
    }


def job_texts(job: JobFields[Any]) -> dict[str, Any]:
    """Return the job with every value as text, JSON where it is no text; what is unset is None."""
    plain = job_dict(job)
    del plain["queueQualifiedName"]
    return {key: _text(key, value) for key, value in plain.items()}


def _text(key: str, value: Any) -> Any:
    if key in _KEPT or (value is None and key != "data"):
        return value
    if key in _NUMBERS:
        return str(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=repr)
