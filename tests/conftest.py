"""Fixtures shared by all suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.broker_process import BrokerProcess
from tests.support.leaks import WorkersLeft

# Coverage, gevent and a busy machine each make an example slow; none makes it wrong.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker process on a file: ``url host port kill() restart() terminate() log``."""
    with BrokerProcess(tmp_path, data_path=tmp_path / "broker.db") as process:
        yield process


@pytest.fixture
def memory_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker process without a file."""
    with BrokerProcess(tmp_path) as process:
        yield process


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """Fail the test that leaves a worker behind, which would beat, pull and log in later ones."""
    before = WorkersLeft()
    yield
    left = before.clear()
    if left:
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)
