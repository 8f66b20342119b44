"""Both transports under one name, for sentences that must hold over each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import Queue, Worker, shutdown_manager
from tests.support.broker_process import BrokerProcess

_numbers = itertools.count()


class Transport:
    """Makes queues and workers that speak over one transport, and closes them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._open: list[Queue | Worker] = []
        self.queue_name = f"q{next(_numbers)}"

    def queue(self, queue: str | None = None, **options: Any) -> Queue:
        """Return a queue, by default this test's own."""
        made = Queue(queue or self.queue_name, **{**self.options, **options})
        self._open.append(made)
        return made

    def worker(self, processor: Any, queue: str | None = None, **options: Any) -> Worker:
        """Return a worker, by default of this test's own queue."""
        defaults = {"poll_timeout_ms": 1000, "lock_ttl_ms": 5000}
        worker = Worker(
            queue or self.queue_name, processor, **{**self.options, **defaults, **options}
        )
        self._open.append(worker)
        return worker

    def close(self) -> None:
        """Close what was made, workers first."""
        for each in sorted(self._open, key=lambda one: isinstance(one, Queue)):
            if isinstance(each, Worker):
                each.close(force=True)
            else:
                each.close()


@pytest.fixture(scope="module")
def tcp_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker process for the module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(params=["tcp", "embedded"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Each transport in turn."""
    if request.param == "tcp":
        broker = request.getfixturevalue("tcp_broker")
        options: dict[str, Any] = {"host": broker.host, "port": broker.port}
    else:
        options = {"embedded": True}
    transport = Transport(options)
    yield transport
    transport.close()
    if request.param == "embedded":
        shutdown_manager(5)
