"""The sample application, which the type checker reads with the package, does what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bunqueue import Connection, shutdown_manager
from tests.samples import shop


@pytest.fixture
def connection() -> Iterator[Connection]:
    with Connection(embedded=True) as connection:
        yield connection
    shutdown_manager(5)


def test_the_sample_runs(connection: Connection) -> None:
    assert {"total": 20} == shop.main("orders", connection)
    assert 1 == shop.simple("shop", embedded=True)
    assert 2 == len(shop.flow("flows", embedded=True))
