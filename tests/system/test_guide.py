"""The guide: every page's blocks run in order, and print what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.guide import PAGES, run_page
from tests.support.markdown import is_told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker_of_the_guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all pages: each has queues of its own."""
    directory = tmp_path_factory.mktemp("guide")
    with BrokerProcess(directory, data_path=directory / "broker.db") as broker:
        yield broker


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "README.md"], ids=lambda page: page.stem
)
def test_a_page_does_what_it_shows(
    page: Path, broker_of_the_guide: BrokerProcess, tmp_path: Path
) -> None:
    told = run_page(page, broker_of_the_guide, tmp_path)

    for block, printed in told:
        if block.output is None:
            assert "" == printed, f"{page.name}:{block.line} prints what the page does not show"
        else:
            assert is_told(block.output, printed), (
                f"{page.name}:{block.line} shows\n{block.output}\nbut prints\n{printed}"
            )
