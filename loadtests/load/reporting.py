"""A connection that tells Locust about every command, and other figures that scenarios measure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent import GreenletExit
from locust.event import EventHook

from bunqueue import BunqueueError, CommandError, Connection, ConnectionClosedError
from bunqueue.protocol import codec
from loadtests.load.ledger import LEDGER

COMMAND, JOB = "command", "job"  # the column "Type" of Locust's statistics
LONG_POLLS = {"PULL", "PULLB"}
WAIT_MARK = "(waits)"
# A broker that is gone fails its users at once; without a pause they would fill log and processor.
GONE_PAUSE_S = 0.5
RETRY_IN = re.compile(r", retry in \d+ms")


class Reporter:
    """Reports to Locust's statistics.

    Args:
        request: Locust's event for everything that is measured.
    """

    def __init__(self, request: EventHook) -> None:
        self._request = request

    def tell(
        self,
        kind: str,
        name: str,
        took_ms: float,
        *,
        length: int = 0,
        error: BaseException | None = None,
    ) -> None:
        """Report one measurement, a failure if there is an ``error``."""
        self._request.fire(  # type: ignore[no-untyped-call]  # so in Locust
            request_type=kind,
            name=name,
            response_time=took_ms,
            response_length=length,
            exception=error,
            context={},
        )

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Report how long a piece of a job's life takes; what it raises is reported and raised."""
        started = time.perf_counter()
        try:
            yield
        except (BunqueueError, TimeoutError) as error:
            self.tell(JOB, name, ms_since(started), error=error)
            raise
        self.tell(JOB, name, ms_since(started))


class ReportedConnection(Connection):
    """A connection whose commands stand in Locust's statistics and in the ledger.

    Worker heartbeats go over links of their own and are not among them.

    Args:
        reporter: Told about every command.
        options: Those of a ``Connection``.
    """

    def __init__(self, reporter: Reporter, **options: Any) -> None:
        super().__init__(**options)
        self._reporter = reporter
        self._options = options
        self._is_closing = False

    def call(self, command: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send a command and return the broker's reply; see ``Connection.call``. Waits."""
        started = time.perf_counter()
        try:
            reply = super().call(command, timeout)
        except GreenletExit:
            LEDGER.note_unknown(command)  # the run is over, and so is the patience for its users
            raise
        except BunqueueError as error:
            if not isinstance(error, CommandError):
                LEDGER.note_unknown(command)
            if not self._is_closing:  # closing cuts a worker's long poll, which is no failure
                told = countable(error)
                self._reporter.tell(COMMAND, name_of(command), ms_since(started), error=told)
                if isinstance(error, ConnectionClosedError):
                    gevent.sleep(GONE_PAUSE_S)
            raise
        took_ms = ms_since(started)
        LEDGER.note(command, reply)
        # The reply's bytes are gone by now. Packing it again costs this process a microsecond or
        # two, outside of what is measured.
        self._reporter.tell(COMMAND, name_of(command), took_ms, length=len(codec.pack(reply)))
        return reply

    def clone(self, **changes: Any) -> ReportedConnection:
        """Return another connection to the same broker that reports to the same statistics."""
        return ReportedConnection(self._reporter, **(self._options | changes))

    def close(self) -> None:
        """End every link; see ``Connection.close``."""
        self._is_closing = True
        super().close()


def name_of(command: dict[str, Any]) -> str:
    """Return under which name a command is reported.

    One that waits for jobs is marked: its time says more about the jobs than about the broker.
    """
    name = str(command["cmd"])
    waits = name == "WaitJob" or (name in LONG_POLLS and command.get("timeout"))
    return f"{name} {WAIT_MARK}" if waits else name


def countable(error: BunqueueError) -> BunqueueError:
    """Return an error with the same text as others of its kind: Locust counts by text."""
    if isinstance(error, ConnectionClosedError) and RETRY_IN.search(str(error)):
        return ConnectionClosedError(RETRY_IN.sub("", str(error)))
    return error


def ms_since(started: float) -> float:
    """Return the milliseconds since a moment of ``time.perf_counter``."""
    return (time.perf_counter() - started) * 1000
