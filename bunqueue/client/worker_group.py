"""WorkerGroup: several workers, started, drained and signalled as one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Self

from bunqueue.client.signals import SignalScope
from bunqueue.client.worker import Worker


class WorkerGroup:
    """Workers that live and close together."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.workers = list(workers)

    def start(self) -> None:
        """Start every worker."""
        for worker in self.workers:
            worker.start()

    def run(self, signals: str | bool = "auto") -> None:
        """Run until every worker has closed; the first permanent failure is raised. Waits."""
        with SignalScope(self._drain_soon, self._force_soon, is_on=bool(signals)) as scope:
            self.start()
            for worker in self.workers:
                worker.closed.wait()
        if scope.was_interrupted:
            raise KeyboardInterrupt
        for worker in self.workers:
            if worker.failure is not None:
                raise worker.failure

    def _drain_soon(self) -> None:
        for worker in self.workers:
            worker.drain_soon()

    def _force_soon(self) -> None:
        for worker in self.workers:
            worker.force_soon()

    def pause(self) -> None:
        """Stop pulling."""
        for worker in self.workers:
            worker.pause()

    def resume(self) -> None:
        """Pull again."""
        for worker in self.workers:
            worker.resume()

    def close(self, timeout: float | None = None, *, force: bool = False) -> bool:
        """Close every worker, all at once; False when the time was over first. Waits.

        A handler of one of them cannot wait for their end and gets False at once.
        """
        for worker in self.workers:
            worker.close(0, force=force)
        if any(worker.is_own_code() for worker in self.workers):
            return False
        deadline = None if timeout is None else time.monotonic() + timeout
        closed = True
        for worker in self.workers:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            closed = worker.close(left) and closed
        return closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
