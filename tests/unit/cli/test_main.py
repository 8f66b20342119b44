import pytest

from bunqueue.cli.main import _runs_greenlets, _starts_broker


@pytest.mark.parametrize(
    "line",
    [
        "worker shop.jobs:send -q emails",
        "worker run shop.jobs:send",
        "-p 7000 worker -c 4 shop.jobs:send",
        "worker shop.jobs:send -x greenlet",
        "worker --executor=greenlet shop.jobs:send",
        "worker -xgreenlet shop.jobs:send",
    ],
)
def test_running_handlers_patches_first(line):
    assert _runs_greenlets(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "worker list",
        "worker list --url bunqueue://:secret@host:6789",
        "worker register name -q a",
        "worker shop.jobs:send -x thread",
        "worker shop.jobs:send --executor=thread",
        "worker shop.jobs:send -xprocess",
        "worker run --help",
        "push emails {}",
        "start",
        "",
    ],
)
def test_everything_else_patches_nothing(line):
    assert not _runs_greenlets(line.split())


@pytest.mark.parametrize(
    "line", ["", "start", "start --tcp-port 0", "--tcp-port 0", "--json start"]
)
def test_a_line_without_another_command_starts_the_broker(line):
    assert _starts_broker(line.split())


@pytest.mark.parametrize("line", ["start --help", "--version", "push start 1", "-H start ping"])
def test_every_other_line_starts_no_broker(line):
    assert not _starts_broker(line.split())
