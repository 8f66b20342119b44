"""Keep worker processes running: start them, start them again, hand signals on, roll them over.

The supervisor imports no handler and opens no connection. Its children run the same command line;
a variable in their environment tells them to run the workers instead of supervising. Each child has
a process group of its own, so that Ctrl-C in a terminal reaches it once, through here; one whose
supervisor is gone drains by itself.

A child drains on SIGTERM, however often it comes: the supervisor asks it for a restart and again
for a stop, and a service manager may signal every process itself. To interrupt its jobs there is
another signal, which only the supervisor sends.

A child that ends with 0 is done, with 2 or 1 it could not run and would not the next time either,
unless something has changed since. Anything else is a crash, and it is started again, later each
time it did not live for long.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from bunqueue.cli.exits import DRAINED, ENDED_BY_INT, FAILED, FORCED, RECYCLED, USAGE
from bunqueue.cli.main import CHILD_MARK
from bunqueue.cli.ready import Mark, Readiness
from bunqueue.cli.sources import Sources
from bunqueue.cli.watch import INTERRUPT

LOOK_S = 0.1  # how long a signal or an end may go unnoticed
RESTART_S = (0.5, 1.0, 2.0, 5.0)  # before the n-th restart in a row, client.md 3.8
STEADY_S = 10.0  # a child that lived so long has not failed to start
NOT_BEGUN = (-signal.SIGTERM, -signal.SIGINT)  # told to stop before it could run anything

log = logging.getLogger("bunqueue.cli")


class Place:
    """Where one child runs, and the next one after it.

    Attributes:
        number: From 1 on.
        process: The running child, None between two.
        due_at: When to start the next one; None for never.
        started_at: When the last one was started.
        crashes: In a row.
        is_old: The running child was started before a change, and is to be replaced in its turn.
        is_leaving: The running child was asked to end, to be replaced.
        readiness: Whether the running child's workers run; None between two.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.due_at: float | None = 0.0
        self.started_at = 0.0
        self.crashes = 0
        self.is_old = False
        self.is_leaving = False
        self.readiness: Readiness | None = None

    @property
    def is_whole(self) -> bool:
        """Nothing is on its way: no child leaves, none is to be started, none is unready."""
        if self.is_leaving or self.due_at is not None:
            return False
        return self.readiness is None or self.readiness.look()


class Supervisor:
    """Runs children until they are done or it is told to stop.

    Args:
        command: What a child runs.
        count: How many of them.
        sources: Whose changes restart the children; None for no watching.
    """

    def __init__(self, command: Sequence[str], count: int, sources: Sources | None = None) -> None:
        self._command = list(command)
        self._places = [Place(number) for number in range(1, count + 1)]
        self._sources = sources
        self._signals: list[int] = []
        self._handed_on = 0
        self._is_draining = False
        self._rolls = 0
        self._worst = DRAINED

    def run(self) -> int:
        """Waits for the end of all children and returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.signal(signal.SIGUSR1, self._on_stacks)
        while self._goes_on():
            self._hand_on()
            self._start_due()
            self._roll()
            time.sleep(LOOK_S)
            self._look_for_ends()
        return self._worst

    def _goes_on(self) -> bool:
        is_watching = self._sources is not None and not self._is_draining
        return is_watching or any(
            place.process is not None or place.due_at is not None for place in self._places
        )

    # -- signals ------------------------------------------------------------------------------

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) > 2:
            self._send(signal.SIGKILL)
            os._exit(ENDED_BY_INT)

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._rolls += 1

    def _on_stacks(self, _number: int, _frame: FrameType | None) -> None:
        self._send(signal.SIGUSR1)

    def _hand_on(self) -> None:
        """Pass on what the signals that have come mean: the first drains, the next interrupts."""
        while self._handed_on < len(self._signals):
            number = self._signals[self._handed_on]
            log.info("handing a signal on to the worker processes: %s", signal.Signals(number).name)
            if self._handed_on == 0:
                self._drain()
            else:
                self._send(INTERRUPT)
            self._handed_on += 1

    def _drain(self) -> None:
        """Ask all children to end; from now on nothing is started any more."""
        self._is_draining = True
        self._send(signal.SIGTERM)
        for place in self._places:
            place.due_at = None

    def _send(self, number: int) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                place.process.send_signal(number)

    # -- children -----------------------------------------------------------------------------

    def _start_due(self) -> None:
        for place in self._places:
            if (
                place.due_at is not None
                and place.process is None
                and time.monotonic() >= place.due_at
            ):
                place.due_at = None
                place.is_old = place.is_leaving = False
                place.started_at = time.monotonic()
                # A child that has not got to its handler yet must not die of the signal: what is
                # ignored here stays so in it.
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                readiness = Readiness()
                place.process = subprocess.Popen(
                    self._command,
                    env={**os.environ, CHILD_MARK: str(Mark(os.getpid(), readiness.fd))},
                    pass_fds=(readiness.fd,),
                    process_group=0,
                )
                readiness.handed_on()
                place.readiness = readiness
                signal.signal(signal.SIGUSR1, self._on_stacks)
                log.info("worker process %d started pid=%d", place.number, place.process.pid)

    def _look_for_ends(self) -> None:
        for place in self._places:
            status = None if place.process is None else place.process.poll()
            if status is not None:
                place.process = None
                if place.readiness is not None:
                    place.readiness.close()
                    place.readiness = None
                self._ended(place, status)
                place.is_old = False

    def _ended(self, place: Place, status: int) -> None:
        if status == FORCED:
            self._worst = max(self._worst, FORCED)
        if self._is_draining or self._signals:
            if status not in (DRAINED, RECYCLED, FORCED, *NOT_BEGUN):
                self._worst = max(self._worst, FAILED)
        elif place.is_leaving or status == RECYCLED:
            place.crashes = 0
            place.due_at = 0.0
        elif status == DRAINED:
            log.info("worker process %d is done", place.number)
        elif status in (FAILED, USAGE) and not place.is_old:
            self._gave_up(status)
        else:
            lived_s = time.monotonic() - place.started_at
            place.crashes = 1 if lived_s > STEADY_S else place.crashes + 1
            wait_s = RESTART_S[min(place.crashes, len(RESTART_S)) - 1]
            place.due_at = time.monotonic() + wait_s
            log.warning(
                "worker process %d crashed status=%d, the next one starts in %g s",
                *(place.number, status, wait_s),
            )

    def _gave_up(self, status: int) -> None:
        """Stop the others too: what one of them cannot do, they cannot either."""
        if self._sources is not None:
            log.warning("waiting for a change in the watched files")
            return
        self._worst = max(self._worst, status)
        self._drain()

    # -- rolling over -------------------------------------------------------------------------

    def _roll(self) -> None:
        """Replace the children one after the other, when told to or when files have changed.

        The next one is asked to go when the one before has been replaced and its workers run. Where
        the new code does not get that far, the old children that are left go on. What is started
        after the change needs no replacement.
        """
        if self._is_draining:
            return
        if self._sources is not None and (changed := self._sources.changed()):
            log.info("restarting the workers: %s has changed", changed)
            self._rolls += 1
            for place in self._places:
                if place.process is None:
                    place.due_at = 0.0
        if self._rolls:
            self._rolls = 0
            for place in self._places:
                place.is_old = place.process is not None
        old = next((place for place in self._places if place.is_old), None)
        if old and old.process and all(place.is_whole for place in self._places):
            old.is_old, old.is_leaving = False, True
            old.process.send_signal(signal.SIGTERM)


def child_command() -> list[str]:
    """Return the command line of this process, for a child to run."""
    return [sys.executable, *sys.orig_argv[1:]]


def take_child_mark() -> Mark | None:
    """Return the supervisor of this process, None where there is none, and forget it."""
    mark = os.environ.pop(CHILD_MARK, None)
    return None if mark is None else Mark.read(mark)
