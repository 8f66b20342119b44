"""What can be held of the README without running it; tests/system/test_readme.py runs it."""

import re

import pytest

from tests.support.markdown import ROOT
from tests.support.readme import README, block, blocks

SNIPPETS = ("Embedded", "A worker that blocks", "Flask", "gevent", "Groups and schedules")
SHELL = ("Server", "Watching", "Moving from the original server")


@pytest.mark.parametrize("heading", SNIPPETS)
def test_a_python_snippet_compiles(heading):
    compile(block(heading), heading, "exec")


@pytest.mark.parametrize("heading", [*SNIPPETS, *SHELL])
def test_a_snippet_is_run_by_the_system_tests(heading):
    runner = (ROOT / "tests/system/test_readme.py").read_text("utf-8")

    assert f'block("{heading}")' in runner


def test_no_code_block_is_without_a_test():
    assert {"Start", *SHELL, *SNIPPETS} == {name for name, found in blocks().items() if found}


def test_the_first_command_runs_the_demo_and_the_second_the_tests():
    (_, first), (_, second) = blocks()["Start"]

    assert first.rstrip().endswith("bunqueue demo")
    assert second.rstrip().endswith("python -m pytest")


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", README)

    assert [] == [target for target in targets if not (ROOT / target).exists()]
