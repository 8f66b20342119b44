"""Watch over running workers: signals, the end of a burst, and the exit status.

The main thread only looks: workers run in the background, and signal handlers only count, because
nothing that takes a lock is safe in one. A first SIGTERM or SIGINT drains; a second one, or the end
of the grace, interrupts what still runs; a third ends the process on the spot. SIGUSR1 shows where
every thread and greenlet stands. SIGHUP drains too, and then the process begins anew in the same
place, unless a signal says meanwhile that it is to stop.

Below a supervisor these signals are counted there. Here SIGTERM and SIGINT drain, however often
they come, ``INTERRUPT`` interrupts, and SIGHUP means nothing.
"""

import faulthandler
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from bunqueue.cli.cures import with_cure
from bunqueue.cli.exits import DRAINED, ENDED_BY_INT, FAILED, FORCED
from bunqueue.cli.ready import Mark
from bunqueue.client.worker import Worker

log = logging.getLogger("bunqueue.cli")

LOOK_S = 0.1  # how long a signal may go unnoticed
FORCE_S = 5.0  # what interrupted handlers get to be gone
UNREACHED_S = 1.0  # without a link before somebody is told; a broker that restarts may take this
INTERRUPT = signal.SIGQUIT  # of a supervisor: do not wait for the jobs that run
EMPTY_PULLS = 2  # in a row, with nothing active: a burst is over (client.md 3.8)


class Watch:
    """Runs workers until they are done, told to stop, or unable to go on.

    Args:
        workers: Not started yet, or started.
        grace_s: What running jobs get to finish after a signal.
        is_burst: Stop when the queues are empty.
        supervisor: Who watches this process, None where there is nobody.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        grace_s: float,
        is_burst: bool,
        supervisor: Mark | None = None,
    ) -> None:
        self._workers = workers
        self._grace_s = grace_s
        self._is_burst = is_burst
        self._supervisor = supervisor
        self._begins_anew = False
        self._is_draining = False
        self._is_interrupted = False
        self._signals = 0  # to stop, where no supervisor counts them
        self._unlinked: dict[Worker, float] = {}  # since when; inf once it has been told

    def run(self) -> int:
        """Waits for the end of all workers and returns the exit status."""
        if self._supervisor is not None:
            signal.signal(INTERRUPT, self._on_interrupt)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, show_stacks)
        signal.signal(signal.SIGHUP, self._on_hangup)
        for worker in self._workers:
            if self._is_burst:
                worker.poll_timeout_ms = 0
            worker.start()
            log.info("worker started name=%s queue=%s", worker.name, worker.queue_key)
        if self._supervisor is not None:
            self._supervisor.tell_ready()
        while self._are_open() and not (self._is_draining or self._failure()):
            self._end_bursts()
            self._tell_unreached()
            self._look_for_parent()
            time.sleep(LOOK_S)
        status = self._stop()
        if self._begins_anew and status != FAILED and not self._signals:
            log.info("beginning anew")
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        return status

    def _look_for_parent(self) -> None:
        """Drain when the supervisor has gone without a word; signals are counted here then."""
        if self._supervisor is not None and self._supervisor.process_id != os.getppid():
            log.warning("the supervisor is gone")
            self._supervisor = None
            self._is_draining = True

    def _stop(self) -> int:
        """Close what is still open: gently for the grace, then by force."""
        deadline = time.monotonic() + self._grace_s
        deaths = self._deaths()
        if self._is_draining:
            log.info("draining grace_s=%g", self._grace_s)
        for worker in self._workers:
            worker.close(0)
        while self._are_open() and not self._is_interrupted and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        failure = self._failure()
        if failure is not None:
            log.error("a worker could not go on: %s", with_cure(failure))
        if not self._are_open():
            is_whole = failure is None and self._deaths() == deaths
            return DRAINED if is_whole else FAILED
        log.warning("interrupting the jobs that still run")
        for worker in self._workers:
            worker.close(0, force=True)
        for worker in self._workers:
            worker.close(FORCE_S, force=True)
        return FORCED

    def _end_bursts(self) -> None:
        """Close the workers that have found their queue empty."""
        for worker in self._workers if self._is_burst else ():
            if worker.loop.empty_pulls >= EMPTY_PULLS and not worker.active_count:
                worker.close(0)

    def _tell_unreached(self) -> None:
        """Say once per outage that a worker has no link, and once that it has one again."""
        for worker in self._workers:
            place = worker.pull_connection
            if place.embedded:
                continue
            since = self._unlinked.get(worker)
            if place.connected:
                if since == math.inf:
                    log.info("broker reached again at %s:%s", place.host, place.port)
                self._unlinked.pop(worker, None)
            elif since is None:
                self._unlinked[worker] = time.monotonic()
            elif time.monotonic() - since > UNREACHED_S:
                self._unlinked[worker] = math.inf
                text = "no broker reached at %s:%s, trying on: start one there, or name another"
                log.warning(text, place.host, place.port)

    def _failure(self) -> BaseException | None:
        return next((w.failure for w in self._workers if w.failure is not None), None)

    def _deaths(self) -> int:
        """Count the handlers' processes that ended by themselves; each was in the midst of a job.

        While the workers run, another one takes the place; once they stop, none does.
        """
        return sum(worker.slots.deaths for worker in self._workers if worker.slots is not None)

    def _are_open(self) -> bool:
        return not all(worker.is_closed() for worker in self._workers)

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        if self._supervisor is None and not self._is_draining:
            self._begins_anew = self._is_draining = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_draining = True
        if self._supervisor is None:
            self._signals += 1
            self._is_interrupted = self._signals > 1
            if self._signals > 2:
                os._exit(ENDED_BY_INT)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._is_draining = self._is_interrupted = True


def show_stacks(_number: int, _frame: FrameType | None) -> None:
    """Write the stacks of all threads, and of all greenlets where there are some, to stderr."""
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    if "gevent" in sys.modules:
        from gevent.util import format_run_info

        print("\n".join(format_run_info()), file=sys.stderr, flush=True)
