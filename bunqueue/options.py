"""Names that programs written for the PyPI client import from here."""

from bunqueue.client.options import build_cron_job_options, job_options, job_payload

__all__ = ["build_cron_job_options", "job_options", "job_payload"]
