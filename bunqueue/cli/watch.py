"""Watch over running workers: signals, the end of a burst, and the exit status.

The main thread only watches. Each worker runs in a task of its own (a thread, or a greenlet when
the process is patched), and signal handlers only count, because nothing that takes a lock is safe
in one. A first SIGTERM or SIGINT drains; a second one, or the end of the grace, interrupts what
still runs; a third ends the process on the spot. SIGUSR1 shows where every thread stands.
"""

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

from bunqueue.client.worker import Worker

log = logging.getLogger("bunqueue.cli")

DRAINED, FAILED, FORCED, ENDED_BY_INT = 0, 1, 3, 130
WATCH_S = 0.1  # how long a signal may go unnoticed
FORCE_S = 5.0  # what interrupted handlers get to be gone


class Watch:
    """Runs workers until they are done, told to stop, or unable to go on."""

    def __init__(self, workers: Sequence[Worker], grace_s: float, is_burst: bool) -> None:
        self._workers = workers
        self._grace_s = grace_s
        self._is_burst = is_burst
        self._signals = 0
        self._failures: list[Exception] = []
        self._tasks: list[threading.Thread] = []

    def run(self) -> int:
        """Waits for the end of all workers and returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        for worker in self._workers:
            log.info("worker starts name=%s queue=%s", worker.name, worker.queue)
            self._spawn(self._run_one, worker)
        while self._are_running() and not (self._signals or self._failures):
            time.sleep(WATCH_S)
        return self._stop()

    def _stop(self) -> int:
        """Close what still runs: gently for the grace, then by force."""
        deadline = time.monotonic() + self._grace_s
        for worker in self._workers:
            self._spawn(worker.close)
        if self._are_running():
            log.info("draining grace_s=%g", self._grace_s)
        while self._are_running() and self._signals < 2 and time.monotonic() < deadline:
            time.sleep(WATCH_S)
        if not self._are_running():
            return FAILED if self._failures else DRAINED
        log.warning("interrupting the jobs that still run")
        for worker in self._workers:
            worker.close(timeout=FORCE_S, force=True)
        return FORCED

    def _run_one(self, worker: Worker) -> None:
        try:
            worker.run(signals=False)
        except Exception as error:
            log.error("worker cannot go on name=%s error=%s", worker.name, error)
            self._failures.append(error)

    def _spawn(self, action: object, *args: object) -> None:
        task = threading.Thread(target=action, args=args, daemon=True)  # type: ignore[arg-type]
        task.start()
        self._tasks.append(task)

    def _are_running(self) -> bool:
        return any(task.is_alive() for task in self._tasks)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 2:
            os._exit(ENDED_BY_INT)
