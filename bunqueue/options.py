"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.options import build_cron_job_options, job_options, job_payload
from bunqueue.client.options import compact as _compact

__all__ = [
    "_compact",
    "build_cron_job_options",
    "job_options",
    "job_payload",
]
