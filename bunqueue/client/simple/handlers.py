"""What runs the jobs of a Bunqueue, and the decorators' way of adding to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bunqueue.client import worker_options
from bunqueue.client.job import Job
from bunqueue.client.simple.gathering import Gathering

Handler = Callable[..., Any]


def to_come(_job: Job[Any]) -> None:
    """Stand for handlers that decorators will add; it is never called."""


class Handlers:
    """What runs jobs: one processor, one function per name, or one per batch."""

    def __init__(
        self,
        queue_name: str,
        processor: Handler | None,
        routes: Mapping[str, Handler] | None,
        batch: Mapping[str, Any] | None,
    ) -> None:
        self._queue_name = queue_name
        self._routes = {
            name: worker_options.handler(handler) for name, handler in (routes or {}).items()
        }
        self._gathering = Gathering(batch) if batch else None
        self._processor: Handler | None = None
        if processor and processor is not to_come:
            self._processor = worker_options.handler(processor)
        elif self._gathering is not None:
            self._processor = self._gathering.run

    def run(self, job: Job[Any], context: Any) -> Any:
        """Run one job. Waits."""
        handler = self._processor or self._routes.get(job.name or "")
        if handler is None:
            raise ValueError(f'No route for job "{job.name}" in queue "{self._queue_name}"')
        return handler(job, context)

    def add_route(self, name: str, handler: Handler) -> None:
        """Have a function run the jobs of one name; the later one counts."""
        if self._processor is not None:
            raise ValueError("a Bunqueue with a processor or a batch has no routes")
        self._routes[name] = worker_options.handler(handler)

    def set_processor(self, handler: Handler) -> None:
        """Have a function run every job."""
        self._check_free()
        self._processor = worker_options.handler(handler)

    def set_batch(self, config: Mapping[str, Any]) -> None:
        """Have a function run jobs together."""
        self._check_free()
        self._gathering = Gathering(config)
        self._processor = self._gathering.run

    def _check_free(self) -> None:
        if self._processor is not None or self._routes:
            raise ValueError("a Bunqueue has one processor, or routes, or one batch")

    def check(self) -> None:
        """Raise ``ValueError`` when there is nothing that could run a job."""
        if self._processor is None and not self._routes:
            raise ValueError("a Bunqueue needs a handler: processor, route or batch")

    def hurry(self) -> None:
        """Let no batch wait for further jobs."""
        if self._gathering is not None:
            self._gathering.hurry()
