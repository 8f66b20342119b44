"""Which job the calling code works on, and a filter that puts it on log lines.

The handler's thread or greenlet knows by a context variable, so every line that its code logs,
however deep, can carry the job's id.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

from bunqueue.client.job import Job

RUNNING: ContextVar[Job[Any] | None] = ContextVar("bunqueue_job", default=None)

NO_JOB = "-"


def current_job() -> Job[Any] | None:
    """Return the job whose handler calls this, or None outside of handlers."""
    return RUNNING.get()


class JobIdFilter(logging.Filter):
    """Puts ``job_id`` and ``job_queue`` on every record, for a formatter to use.

    Lines written outside of handlers get ``absent``, or nothing if that is None. Add it to a
    logging handler, so that it sees the records of all loggers, and use ``%(job_id)s``:
    ``handler.addFilter(JobIdFilter())``.

    Args:
        name: As for ``logging.Filter``: only records of this logger and those below pass.
        absent: What stands for no job; None leaves such records as they are.
    """

    def __init__(self, name: str = "", absent: str | None = NO_JOB) -> None:
        super().__init__(name)
        self._absent = absent

    def filter(self, record: logging.LogRecord) -> bool:
        """Mark the record; tell whether it passes."""
        job = RUNNING.get()
        if job is not None:
            record.job_id, record.job_queue = job.id, job.queue
        elif self._absent is not None:
            record.job_id = record.job_queue = self._absent
        return bool(super().filter(record))
