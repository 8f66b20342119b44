"""What a scenario is, and what it may use.

A scenario is a function that takes a `World` and asserts. It runs in the official client's own
environment, so this folder imports nothing of ours. Every scenario works in queues named after
itself; those of one kind run side by side against one broker.

| kind | broker |
| --- | --- |
| plain | open to all |
| auth | knows the tokens "first" and "second" |
| tls | speaks TLS, with a certificate of a private authority |
| webhook | was told that webhooks may go to this machine |
| names | leaves the names of jobs in their data |
| restart | on a file; the scenario may ask for its death and return |

The scenarios pass against the reference server 2.9.5 too (`tests/support/reference.py` tells
how to run them there). Where it does other than we do, they accept both and say so:

| scenario | 2.9.5 | ours |
| --- | --- | --- |
| gives_no_result_for_a_job_without_one | "undefined", an extension object in 0.1.5 | None |
| keeps_a_key_while_the_job_waits_for_its_retry | admits a twin during the backoff | refuses it |
| cleans_only_the_named_state | Clean "delayed" removes waiting jobs too | delayed ones only |
| wait_for_job_tells_a_failure | answers at the deadline | answers at the failure |
| a_poller_gets_what_a_closed_connection_gives_back | at its next poll | at once |
| adds_a_tree_whose_leaves_run_first and two more | refuses the parent "pending" | takes the tree |
| a_failed_child_holds_its_parent | cannot be detached | can be |
| a_failed_child_can_be_ignored, a_parent_can_go_on_after_a_failure | lists nothing | the failure |
| unprocessed_children_can_be_removed | the parent waits forever | it goes on |
| a_scheduler_waits_for_its_last_job | counts runs left out | only those made |
| routes_by_name_where_names_are_left_in_data | always takes names out | leaves them if asked |
| a_webhook_is_told_what_happens_to_jobs | `job.pushed` without data | with it |

Two traits of client 0.1.5 shape them as well. It looks for a job's name in `data`, from which
servers take it out, so its `job.name` is None for pulled jobs: the name is read from the raw
job. Its `close` does not end a connection while its own reader waits on it: see `cut`.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bunqueue import Bunqueue, Connection, FlowProducer, Queue, Worker

T = TypeVar("T")

WAIT_S_MAX = 20.0
POLL_S = 0.02
WORKER_POLL_MS = 200  # how long a worker that is being closed may still be waiting

SCENARIOS: dict[str, Scenario] = {}


@dataclass(frozen=True)
class Scenario:
    """One row of the list: what runs, and against which broker."""

    name: str
    kind: str
    run: Callable[[World], None]


def scenario(kind: str = "plain") -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Put a function on the list."""

    def add(function: Callable[[World], None]) -> Callable[[World], None]:
        SCENARIOS[function.__name__] = Scenario(function.__name__, kind, function)
        return function

    return add


@dataclass
class World:
    """The broker as a scenario sees it; closes whatever the scenario opened."""

    name: str
    address: dict[str, Any]
    ask: Callable[[str], None]
    stack: ExitStack = field(default_factory=ExitStack)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def queue(self, queue_name: str | None = None, **options: Any) -> Queue:
        """Open a queue of this scenario's own."""
        name = queue_name or f"{self.name}-{next(self.numbers)}"
        queue = Queue(name, **{**self.address, **options})
        self.stack.callback(queue.close)
        return queue

    def connection(self, **options: Any) -> Connection:
        """Open a connection."""
        connection = Connection(**{**self.address, **options})
        self.stack.callback(connection.close)
        return connection

    def worker(self, queue: Queue, handler: Callable[[Any], Any], **options: Any) -> Worker:
        """Start a worker and wait until it runs."""
        settings = {"poll_timeout_ms": WORKER_POLL_MS, "concurrency": 1}
        worker = Worker(queue.name, handler, **{**self.address, **settings, **options})
        self.stack.callback(worker.close, 5)
        worker.wait_until_ready()
        return worker

    def flows(self, **options: Any) -> FlowProducer:
        """Open a producer of flows."""
        producer = FlowProducer(**{**self.address, **options})
        self.stack.callback(producer.close)
        return producer

    def simple(self, **options: Any) -> Bunqueue:
        """Open a queue and its worker in one, as Simple Mode has them."""
        settings = {"poll_timeout_ms": WORKER_POLL_MS, "concurrency": 1}
        app = Bunqueue(
            f"{self.name}-{next(self.numbers)}", **{**self.address, **settings, **options}
        )
        self.stack.callback(app.close)
        if options.get("autorun", True):
            app.worker.wait_until_ready()
        return app

    def pull(self, queue: Queue, **fields: Any) -> tuple[dict[str, Any] | None, str | None]:
        """Take one job by hand: (job or None, token or None)."""
        answer = queue.connection.call({"cmd": "PULL", "queue": queue.name, **fields})
        return answer["job"], answer.get("token")


def until(claim: Callable[[], T], wait_s: float = WAIT_S_MAX) -> T:
    """Wait until a claim holds and return what it said.

    Raises:
        AssertionError: It did not hold in time.
    """
    deadline = time.monotonic() + wait_s
    while not (said := claim()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true in {wait_s} s; last seen: {said!r}")
        time.sleep(POLL_S)
    return said


def raises(kind: type[BaseException], text: str, action: Callable[[], object]) -> None:
    """Assert that an action fails with an error that contains a text."""
    try:
        action()
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"{kind.__name__} with {text!r} was not raised")
    assert text in said, f"expected {text!r} in {said!r}"


def cut(queue: Queue) -> None:
    """End a queue's connection for good.

    Closing is not enough: the client's own thread that still reads keeps the socket open.
    """
    queue.connection._sock.shutdown(socket.SHUT_RDWR)


def fail(text: str) -> Callable[[Any], Any]:
    """Make a handler that always fails."""

    def handler(_job: Any) -> Any:
        raise RuntimeError(text)

    return handler
