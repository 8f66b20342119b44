"""What can be held of the guide without running it; tests/system/test_guide.py runs it."""

import configparser
import re
import tomllib

import pytest

from bunqueue import FlowProducer, Forwarder, Job, Queue, QueueEvents, Worker
from tests.support.guide import GUIDE, PAGES
from tests.support.markdown import ROOT, blocks_of, is_told

# What stands for an object in the guide's sentences.
CALLED = {
    "queue": Queue,
    "worker": Worker,
    "job": Job,
    "flows": FlowProducer,
    "events": QueueEvents,
    "forwarder": Forwarder,
}
BY_STEM = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
CHECKS = {
    "python": lambda text: compile(text, "page", "exec"),
    "bash": str,  # the system test runs it
    "toml": tomllib.loads,
    "ini": lambda text: configparser.ConfigParser(strict=False).read_string(text),
}


@BY_STEM
def test_every_block_is_of_a_language_that_is_checked(page):
    for block in blocks_of(page.read_text("utf-8")):
        CHECKS[block.language](block.text)


@BY_STEM
def test_no_fence_is_left_unread(page):
    text = page.read_text("utf-8")
    outputs = [block for block in blocks_of(text) if block.output is not None]

    assert 2 * (len(blocks_of(text)) + len(outputs)) == len(re.findall("^ *```", text, re.M))


@BY_STEM
def test_what_is_said_to_be_called_is_there(page):
    """Only in running text: blocks are run. The names of other packages are on one page only."""
    spans = re.findall("`[^`\n]+`", page.read_text("utf-8")) if page.stem != "moving" else []
    calls = re.findall(rf"\b({'|'.join(CALLED)})\.(\w+)\(", " ".join(spans))

    assert [] == [call for call in calls if not hasattr(CALLED[call[0]], call[1])]


@BY_STEM
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))

    assert [] == [target for target in targets if not (GUIDE / target).exists()]


@BY_STEM
def test_the_index_leads_to_every_page(page):
    assert page.name == "README.md" or f"({page.name})" in (GUIDE / "README.md").read_text("utf-8")


def test_the_readme_leads_to_the_index():
    assert "(docs/guide/README.md)" in (ROOT / "README.md").read_text("utf-8")


def test_output_belongs_to_the_block_before_it():
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```bash\ntrue\n```\n"

    assert [("python", 2, "1\n"), ("bash", 10, None)] == [
        (block.language, block.line, block.output) for block in blocks_of(page)
    ]


def test_output_of_nothing_is_refused():
    with pytest.raises(ValueError, match="line 2: output of no block"):
        blocks_of("```text\n1\n```\n")


def test_a_block_says_what_file_it_is_saved_as():
    named, unnamed = blocks_of("```python\n# shop.py\n```\n\n```python\n# a word\n```\n")

    assert ("shop.py", None) == (named.file, unnamed.file)


@pytest.mark.parametrize(
    ("shown", "printed", "is_it"),
    [
        ("a ... c", "a b c\n", True),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a", "ab", False),
        ("a.c", "abc", False),
    ],
)
def test_three_dots_stand_for_anything(shown, printed, is_it):
    assert is_it is is_told(shown, printed)
