"""The far end of a slot, with a test in the parent's place."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue.client.sandbox.child import Child
from bunqueue.client.sandbox.job import SandboxJob
from bunqueue.client.sandbox.messages import Inbox, Message


class Parent:
    """Reads what a child says.

    Attributes:
        child: Whose handler the test sets.
    """

    def __init__(self) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._control = os.pipe()
        self.child = Child(self._theirs.fileno(), self._control[0])

    def heard(self) -> list[Message]:
        self._theirs.shutdown(socket.SHUT_WR)
        inbox = Inbox()
        while data := self._channel.recv(65_536):
            inbox.feed(data)
        messages = []
        while (message := inbox.next()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        self._channel.close()
        self._theirs.close()
        for descriptor in self._control:
            os.close(descriptor)


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.close()


def test_what_a_job_says_after_its_end_is_not_told(parent: Parent) -> None:
    """A thread of the handler goes on; the parent would take it for a word of the next job."""
    kept: list[SandboxJob] = []

    def handle(job: SandboxJob, _context: object) -> str:
        kept.append(job)
        kept[0].log("from the first")
        return job.id

    parent.child._handler = handle
    parent.child.run({"id": "a"}, 1)
    kept[0].log("late")
    parent.child.run({"id": "b"}, 2)

    assert [
        {"begun": 1}, {"log": "from the first", "level": None}, {"done": "a"},
        {"begun": 2}, {"done": "b"},
    ] == parent.heard()  # fmt: skip


def test_a_failure_is_told_whatever_its_text(parent: Parent) -> None:
    def fail(_job: SandboxJob, _context: object) -> None:
        raise FileNotFoundError("no file \udcff")

    parent.child._handler = fail
    parent.child.run({"id": "a"}, 1)

    failed = parent.heard()[1]
    assert "no file \\udcff" == failed["failed"]
    assert "FileNotFoundError: no file \\udcff" == failed["stack"][-1]


def test_a_result_that_changes_while_it_is_sent_fails_its_job(parent: Parent) -> None:
    class Changing(dict[str, int]):
        def items(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    parent.child._handler = lambda _job, _context: Changing(a=1)
    parent.child.run({"id": "a"}, 1)

    assert "the result cannot be sent" in parent.heard()[-1]["failed"]
