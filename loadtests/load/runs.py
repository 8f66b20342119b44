"""What happens before and after a run: a broker is there, queues are empty, no job is missing."""

from __future__ import annotations

import logging
import sys
from typing import Any

from locust.env import Environment
from locust.exception import StopTest
from locust.runners import LocalRunner, MasterRunner
from locust.web import WebUI

from bunqueue import BunqueueError, Connection, Queue
from loadtests.load.ledger import LEDGER
from loadtests.load.options import address_of, options_of

log = logging.getLogger(__name__)


class NoBroker(Exception):
    """Nobody answers where the broker should be; the text tells how to name another."""


def expect_broker(environment: Environment, web_ui: WebUI | None = None, **_: Any) -> None:
    """End the program at once when there is no broker; with a web page it may be named later."""
    try:
        connect(environment).close()
    except NoBroker as error:
        if web_ui is None:
            sys.exit(f"locust: {error}")
        log.warning("%s", error)


def begin(environment: Environment, **_: Any) -> None:
    """Empty the queues of earlier runs.

    Raises:
        StopTest: There is no broker.
    """
    LEDGER.clear()
    environment.process_exit_code = None  # an earlier run's, with the web page
    if not isinstance(environment.runner, (LocalRunner, MasterRunner)):
        return  # a process of a distributed run: the master has done it
    try:
        connection = connect(environment)
    except NoBroker as error:
        log.error("%s", error)
        raise StopTest(str(error)) from None
    with connection:
        for queue in queues(environment, connection):
            queue.obliterate()


def end(environment: Environment, **_: Any) -> None:
    """Say what became of the jobs; a missing one fails the run."""
    if not isinstance(environment.runner, LocalRunner):
        return  # the ledger of one process is not enough, ledger.py
    try:
        with connect(environment) as connection:
            left = sum(unfinished(queue) for queue in queues(environment, connection))
    except (NoBroker, BunqueueError) as error:
        log.error("jobs could not be counted: %s", error)
        environment.process_exit_code = 1
        return
    missing = LEDGER.missing(left)
    log.log(
        logging.ERROR if missing else logging.INFO,
        "jobs added=%d completed=%d left=%d unknown=%d missing=%d",
        LEDGER.added,
        LEDGER.completed,
        left,
        LEDGER.unknown,
        missing,
    )
    if missing:
        environment.process_exit_code = 1


def connect(environment: Environment) -> Connection:
    """Return a connection that the broker has answered on. Waits.

    Raises:
        NoBroker: It has not.
    """
    try:
        address = address_of(environment)
    except ValueError as error:
        raise NoBroker(f"the broker's address cannot be read: {error}") from None
    connection = Connection(**address)
    try:
        connection.connect()
    except BunqueueError as error:
        connection.close()
        raise NoBroker(
            f"no bunqueue broker answers at {connection.host}:{connection.port} ({error}); "
            "start one with `bunqueue start`, or name it with --host bunqueue://HOST:PORT"
        ) from None
    return connection


def queues(environment: Environment, connection: Connection) -> list[Queue]:
    """Return the queues of this and earlier runs. Waits."""
    prefix = options_of(environment).queue_prefix
    names = connection.call({"cmd": "ListQueues"}).get("queues") or []
    return [Queue(name, connection=connection) for name in names if name.startswith(prefix)]


def unfinished(queue: Queue) -> int:
    """Return how many jobs of a queue are in any state but completed. Waits."""
    return sum(count for state, count in queue.get_job_counts().items() if state != "completed")
