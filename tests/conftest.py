"""Fixtures shared by all suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess


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
