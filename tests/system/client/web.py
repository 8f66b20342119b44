"""A web application for gunicorn: each request adds a job. Needs ``BROKER_PORT``.

The queue is made at module level, before gunicorn has patched or forked anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from bunqueue import Queue
from bunqueue.client.worlds import standard

queue = Queue("web", port=int(os.environ["BROKER_PORT"]))
if os.environ.get("USED_BY_MASTER"):
    queue.ping()


def app(_request: dict[str, object], start: Callable[..., object]) -> Iterable[bytes]:
    job = queue.add("hit")
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{job.id} {'blocks' if standard().is_native else 'yields'}".encode()]
