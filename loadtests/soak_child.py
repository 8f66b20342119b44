"""What the soak of the client runs in child processes."""

from __future__ import annotations

import time
from typing import Any

HANG_S = 3600


def work(job: Any) -> Any:
    """Return the data, or never return."""
    if job.name == "hang":
        time.sleep(HANG_S)
    return job.data
