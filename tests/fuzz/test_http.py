"""The short form over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.fuzz import http
from tests.fuzz.__main__ import kept_inputs
from tests.fuzz.blind import inputs

pytestmark = pytest.mark.slow

INPUTS = 400


@pytest.fixture(scope="module", autouse=True)
def broker() -> Iterator[None]:
    try:
        yield
    finally:
        http.stop()


def test_no_request_is_answered_by_a_failure_or_too_late() -> None:
    for data in (*kept_inputs("http"), *islice(inputs(3), INPUTS)):
        http.http(data)


def test_every_route_is_asked_with_every_method() -> None:
    for path in http.PATHS:
        for method in http.METHODS[:8]:
            where = path.replace("<", "").replace(">", "").encode()
            head = b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, where)
            said = http.exchange(head, True)

            assert 1 == len(http.STATUS.findall(said)), (method, path, said)
            assert int(http.STATUS.findall(said)[0]) not in (500, 502), (method, path, said)
