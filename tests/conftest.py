"""Fixtures shared by all suites."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.broker_process import BrokerProcess
from tests.support.leaks import WorkersLeft
from tests.support.reference import Unavailable, reference_install

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


@pytest.fixture(scope="session")
def reference_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where the original server and its client are installed, kept in the runner's cache if any.

    Tests that need it are skipped where it cannot be had.
    """
    cache = getattr(request.config, "cache", None)
    home = cache.mkdir("reference") if cache else tmp_path_factory.mktemp("reference")
    try:
        found = reference_install(home)
    except Unavailable as error:
        pytest.skip(str(error))
    yield found
    if cache is None:
        shutil.rmtree(home)  # more than 100 MB
